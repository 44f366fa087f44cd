"""What the effects work with: the log, git, the agents that are at work now, and a place for worktrees."""

from collections.abc import Generator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from threading import Lock
from uuid import uuid4

from ..domain.run import Run
from .caller import Caller
from .ports import Agents, AgentSession, Repositories, SessionRequest
from .run_log import Decision, RunLog


class Closing(Exception):
    """The service is going down: what was being done is left as it stands, and the next start goes on from there."""


class Workshop:
    """The outside of one process. Sessions are known by the run they work for, so that they can be ended from elsewhere."""

    def __init__(self, runs: RunLog, repositories: Repositories, agents: Agents, worktrees: Path) -> None:
        self.runs = runs
        self.repositories = repositories
        self.agents = agents
        self._worktrees = worktrees
        self._sessions: dict[str, AgentSession] = {}
        self._closing = False
        self._lock = Lock()

    @property
    def closing(self) -> bool:
        """Whether the service is going down, so that a dying agent says nothing about its run."""
        return self._closing

    def decide(self, root: str, decision: Decision) -> bool:
        """Decide in the name of the service; return whether there was anything to store."""
        return bool(self.runs.decide(root, decision, Caller(principal="coordinator", command_id=str(uuid4()))))

    def now(self) -> datetime:
        """Return the present moment, in UTC."""
        return self.runs.clock.now()

    def worktree(self, run_id: str) -> Path:
        """Return where a run's worktree is, or would be."""
        return self._worktrees / run_id

    @staticmethod
    def repository(run: Run) -> Path:
        """Return the run's repository."""
        return Path(str(run.repository))

    @contextmanager
    def session(self, request: SessionRequest) -> Generator[AgentSession]:
        """Give an agent process with an open session; afterwards nothing of it is alive. Raises AgentFailed, Closing."""
        if self._closing:
            raise Closing
        session = self.agents.open(request)
        try:
            with self._lock:
                self._sessions[request.run_id] = session
            # close() may have looked before this session was registered; it must not outlive the service.
            if self._closing:
                raise Closing
            yield session
        finally:
            with self._lock:
                self._sessions.pop(request.run_id, None)
            session.close()

    def session_of(self, run_id: str) -> AgentSession | None:
        """Return the session that works for a run in this process, if there is one."""
        with self._lock:
            return self._sessions.get(run_id)

    def kill(self, run_id: str) -> None:
        """Kill the agent that works for a run, with everything that it started."""
        session = self.session_of(run_id)
        if session is not None:
            session.kill()

    def close(self) -> None:
        """Kill every agent; from here on their ends say nothing about their runs."""
        self._closing = True
        with self._lock:
            sessions = list(self._sessions.values())
        for session in sessions:
            session.kill()
