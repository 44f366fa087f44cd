"""What the effects work with: the log, git, the agents that are at work now, and a place for worktrees."""

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from threading import Event as Flag
from threading import Lock
from uuid import uuid4

from ...domain.facts.agent_output import MAX_TURN_BYTES
from ...domain.facts.child_run import work_id
from ...domain.facts.run import CoordinatorRun
from ...domain.projects.project import Project
from ..looking.cause import StillAlive
from ..ports.agents import AgentFailed, Agents, AgentSession, SessionRequest
from ..ports.git import Repositories
from ..ports.outside import ProjectCommands, SignalFiles, Wakeups
from ..ports.tenure import Alone, Tenure
from ..writer.caller import service
from ..writer.projects import load_project, load_spending
from ..writer.run_log import Decision, RunLog
from .at_work import AtWork, NoBounds
from .timings import Timings

#: How long an agent may show no sign of work.
STALL_SECONDS = 300.0


class Closing(Exception):
    """The service is going down: what was being done is left as it stands, and the next start goes on from there."""


class StillOpening(StillAlive):
    """An agent is being started and does not come to an end of it, so nobody can say what of it is alive."""


class _Place:
    """What one run has at work: nothing yet, a session, or the order to leave."""

    def __init__(self) -> None:
        self.session: AgentSession | None = None
        self.opened = Flag()
        #: Whether somebody ended the run: an agent that is only being started then does not begin to work.
        self.is_killed = False
        self.killed: tuple[int, ...] = ()
        #: Whether whoever had it has left. It is here as long as something of its agent may be alive.
        self.is_left = False
        #: Held while the agent is killed, so that nobody closes it before its killer knows what was killed.
        self.ending = Lock()
        #: Held while the agent is stopped or continued, until that is stored.
        self.halting = Lock()


class Workshop:
    """The outside of one process. Sessions are known by the run they work for, so that they can be ended from elsewhere."""

    def __init__(
        self,
        runs: RunLog,
        repositories: Repositories,
        agents: Agents,
        commands: ProjectCommands,
        signals: SignalFiles,
        wakeups: Wakeups,
        worktrees: Path,
        stall_seconds: float = STALL_SECONDS,
        tenure: Tenure | None = None,
        turn_bytes: int = MAX_TURN_BYTES,
        timings: Timings | None = None,
        *,
        names_approver: bool = False,
    ) -> None:
        self.runs = runs
        self.tenure = tenure or Alone()
        self._repositories = repositories
        self.agents = agents
        self.commands = commands
        self.stall_seconds = stall_seconds
        #: How much an agent may report in one turn.
        self.turn_bytes = turn_bytes
        #: Whether the commit that brings work in says who approved it, in a trailer.
        self.names_approver = names_approver
        self.timings = timings or Timings()
        self._signals = signals
        self._wakeups = wakeups
        self._worktrees = worktrees
        #: The places that are counted here, by whoever drives.
        self.at_work: AtWork = NoBounds()
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

    def project(self, run: CoordinatorRun) -> Project:
        """Return the run's project, with what its runs have used: in a decision as of the head. Raises ProjectNotFound."""
        kept = self.runs.states.project(run.project_id)
        # The writer keeps it with the run; only where nobody has commanded the run lately the log is read.
        return kept if kept.version else load_spending(load_project(run.project_id, self.runs.log), self.runs.log)

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
    def repository(run: CoordinatorRun) -> Path:
        """Return the run's repository."""
        return Path(str(run.repository))

    def lent(self, run: CoordinatorRun) -> tuple[Path, ...]:
        """Return what a workplace of the run's repository reads of it. Raises LeaseLost, RepositoryUnusable."""
        return tuple(self.repositories.lends(self.repository(run)))

    def wait_until(self, root: str, holds: Callable[[CoordinatorRun], bool], timeout_seconds: float) -> bool:
        """
        Return True as soon as the log makes *holds* true of the run, False when the time is over before.

        Raises Closing, LeaseLost when this process has to let go of the run while it waits.
        """
        until, announced = time.monotonic() + timeout_seconds, 0
        while True:
            if holds(self.runs.run(root)):
                return True
            self._check_ours(root)
            left = until - time.monotonic()
            if left <= 0:
                return False
            # From the last announcement, not from the log's head: one that runs ahead of it must not make a busy loop.
            announced = max(announced, self._wakeups.wait(announced, min(left, self.timings.poll)))

    def rest(self, child_run_id: str) -> None:
        """Let a child's place go, for as long as its agent waits for a person."""
        self.at_work.rest(work_id(child_run_id))

    def go_on(self, root: str, child_run_id: str, still_wanted: Callable[[], None]) -> None:
        """
        Return when the child's agent has a place to work.

        *still_wanted* raises to leave the line. Raises Closing, LeaseLost when this process has to let go of the run.
        """

        def check() -> None:
            still_wanted()
            self._check_ours(root)

        self.at_work.go_on(work_id(child_run_id), check)

    def _check_ours(self, root: str) -> None:
        if self.closing:
            raise Closing
        self.tenure.fence(root)

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
        place = self._take_place(request.run_id)
        try:
            still_wanted()
            self.tenure.check()
            session = place.session = self.agents.open(request)
            if place.is_killed:
                # Before anybody is told that it is open: its killer may have given up waiting for that.
                place.killed = tuple(session.kill())
                raise AgentFailed("agent_exited", "the agent was killed while it was being started", retryable=True)
            place.opened.set()
            # close() may have looked before the session was there; it must not outlive the service.
            if self.closing:
                raise Closing
            yield session
        finally:
            place.opened.set()
            self._leave_place(request.run_id, place)

    def _take_place(self, run_id: str) -> _Place:
        """Give a run its place, once nothing is alive of an agent that could not be ended there before."""
        with self._lock:
            earlier = self._places.get(run_id)
        if earlier is not None and earlier.is_left:
            self.kill(run_id)
        place = _Place()
        with self._lock:
            self._places[run_id] = place
        return place

    def _leave_place(self, run_id: str, place: _Place) -> None:
        place.is_left = True
        if place.session is not None:
            # Still in its place, so that nobody takes the run for ended while its agent lives. If it cannot be ended it
            # stays there, for whoever ends the run, or works for it next.
            with place.ending:
                place.session.close()
        self._empty(run_id, place)

    def _empty(self, run_id: str, place: _Place) -> None:
        with self._lock:
            if self._places.get(run_id) is place:
                del self._places[run_id]

    def session_of(self, run_id: str) -> AgentSession | None:
        """Return the session that works for a run in this process, if there is one."""
        with self._lock:
            place = self._places.get(run_id)
        return place.session if place and not place.is_left else None

    def opened_session_of(self, run_id: str) -> AgentSession | None:
        """
        Return the session of a run's agent, after waiting for one that is just being started; also of one that is ending.

        Raises StillOpening.
        """
        with self._lock:
            place = self._places.get(run_id)
        if place is None:
            return None
        self._await_opened(run_id, place)
        return place.session

    @contextmanager
    def halting(self, run_id: str) -> Generator[AgentSession | None]:
        """
        Give the session of a run's agent, if there is one, for it to be stopped or continued by nobody else meanwhile.

        Raises StillOpening.
        """
        with self._lock:
            place = self._places.get(run_id)
        if place is None:
            yield None
            return
        self._await_opened(run_id, place)
        with place.halting:
            yield place.session

    def kill(self, run_id: str) -> tuple[int, ...]:
        """
        On return no agent that had begun to work for the run is alive. Returns the pids that were killed.

        Raises AgentFailed, StillOpening: something may be alive. An agent that is being started does not begin to work.
        """
        with self._lock:
            place = self._places.get(run_id)
        if place is None:
            return ()
        place.is_killed = True
        # An agent that is just being started is waited for: a kill that came too early would miss it.
        self._await_opened(run_id, place)
        with place.ending:
            pids = (*place.killed, *place.session.kill()) if place.session else ()
        if place.is_left:
            self._empty(run_id, place)
        return pids

    def _await_opened(self, run_id: str, place: _Place) -> None:
        if not place.opened.wait(self.timings.open):
            raise StillOpening(f"the agent of run {run_id} has been starting for more than {self.timings.open:.0f} s")

    def close(self) -> None:
        """Kill every agent; from here on their ends say nothing about their runs."""
        self._closing.set()
        with self._lock:
            sessions = [place.session for place in self._places.values() if place.session]
        for session in sessions:
            session.kill()
        self.commands.close()
