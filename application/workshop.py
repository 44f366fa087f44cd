"""What the effects work with: the log, git, the agents that are at work now, and a place for worktrees."""

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from threading import Event as Flag
from threading import Lock
from uuid import uuid4

from ..domain.run import Run
from .agent_port import Agents, AgentSession, SessionRequest
from .caller import service
from .git_port import Repositories
from .ports import Commands, SignalFiles, Wakeups
from .run_log import Decision, RunLog
from .tenure import Alone, Tenure

POLL_SECONDS = 1.0
#: How long an agent may show no sign of work.
STALL_SECONDS = 300.0
#: Longer than an agent may take to start.
OPEN_SECONDS = 60.0


class Closing(Exception):
    """The service is going down: what was being done is left as it stands, and the next start goes on from there."""


class _Place:
    """What one run has at work: nothing yet, a session, or the order to leave."""

    def __init__(self) -> None:
        self.session: AgentSession | None = None
        self.opened = Flag()
        #: Held while the agent is killed, so that nobody closes it before its killer knows what was killed.
        self.ending = Lock()


class Workshop:
    """The outside of one process. Sessions are known by the run they work for, so that they can be ended from elsewhere."""

    def __init__(
        self,
        runs: RunLog,
        repositories: Repositories,
        agents: Agents,
        commands: Commands,
        signals: SignalFiles,
        wakeups: Wakeups,
        worktrees: Path,
        stall_seconds: float = STALL_SECONDS,
        tenure: Tenure | None = None,
    ) -> None:
        self.runs = runs
        self.tenure = tenure or Alone()
        self._repositories = repositories
        self.agents = agents
        self.commands = commands
        self.stall_seconds = stall_seconds
        self._signals = signals
        self._wakeups = wakeups
        self._worktrees = worktrees
        self._places: dict[str, _Place] = {}
        self._closing = Flag()
        self._lock = Lock()

    @property
    def repositories(self) -> Repositories:
        """Git, for as long as this process may touch what it drives. Raises LeaseLost."""
        self.tenure.check()
        return self._repositories

    @property
    def signals(self) -> SignalFiles:
        """The signal files, for as long as this process may touch what it drives. Raises LeaseLost."""
        self.tenure.check()
        return self._signals

    @property
    def closing(self) -> bool:
        """Whether the service is going down."""
        return self._closing.is_set()

    def leaves(self, root: str) -> bool:
        """Whether this process no longer drives the run, so that a dying agent says nothing about it."""
        return self.closing or not self.tenure.holds(root)

    def decide(self, root: str, decision: Decision) -> bool:
        """Decide in the name of the service; return whether there was anything to store. Raises LeaseLost."""
        return bool(self.runs.decide(root, decision, service(str(uuid4()), self.tenure.fence(root))))

    def epoch_line(self, root: str) -> str:
        """Return the line by which a signal file says under which lease it was written; none where there is one process."""
        fence = self.tenure.fence(root)
        return f"epoch {fence.epoch}\n" if fence else ""

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

    def wait_until(self, root: str, holds: Callable[[Run], bool], timeout_seconds: float) -> bool:
        """
        Return True as soon as the log makes *holds* true of the run, False when the time is over before.

        Raises Closing, LeaseLost when this process has to let go of the run while it waits.
        """
        until, announced = time.monotonic() + timeout_seconds, 0
        while True:
            if holds(self.runs.run(root)):
                return True
            if self.closing:
                raise Closing
            self.tenure.fence(root)
            left = until - time.monotonic()
            if left <= 0:
                return False
            # From the last announcement, not from the log's head: one that runs ahead of it must not make a busy loop.
            announced = max(announced, self._wakeups.wait(announced, min(left, POLL_SECONDS)))

    @contextmanager
    def session(
        self, request: SessionRequest, still_wanted: Callable[[], None] = lambda: None
    ) -> Generator[AgentSession]:
        """
        Give an agent process with an open session; afterwards nothing of it is alive.

        Raises AgentFailed, Closing, LeaseLost.

        *still_wanted* is asked last, and raises to keep the agent from being started: whoever ends or pauses the run
        after that look finds the agent here.
        """
        if self.closing:
            raise Closing
        place = _Place()
        with self._lock:
            self._places[request.run_id] = place
        session: AgentSession | None = None
        try:
            still_wanted()
            self.tenure.check()
            session = place.session = self.agents.open(request)
            place.opened.set()
            # close() may have looked before the session was there; it must not outlive the service.
            if self.closing:
                raise Closing
            yield session
        finally:
            place.opened.set()
            with self._lock:
                if self._places.get(request.run_id) is place:
                    del self._places[request.run_id]
            if session is not None:
                with place.ending:
                    session.close()

    def session_of(self, run_id: str) -> AgentSession | None:
        """Return the session that works for a run in this process, if there is one."""
        with self._lock:
            place = self._places.get(run_id)
        return place.session if place else None

    def opened_session_of(self, run_id: str) -> AgentSession | None:
        """Return the same, after waiting for an agent that is just being started."""
        with self._lock:
            place = self._places.get(run_id)
        if place is None:
            return None
        place.opened.wait(OPEN_SECONDS)
        return place.session

    def kill(self, run_id: str) -> tuple[int, ...]:
        """On return no agent that had begun to work for the run is alive. Returns the pids that were killed."""
        with self._lock:
            place = self._places.get(run_id)
        if place is None:
            return ()
        # An agent that is just being started is waited for: a kill that came too early would miss it.
        place.opened.wait(OPEN_SECONDS)
        with place.ending:
            return tuple(place.session.kill()) if place.session else ()

    def close(self) -> None:
        """Kill every agent; from here on their ends say nothing about their runs."""
        self._closing.set()
        with self._lock:
            sessions = [place.session for place in self._places.values() if place.session]
        for session in sessions:
            session.kill()
        self.commands.close()
