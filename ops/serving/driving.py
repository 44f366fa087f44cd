"""What drives the runs of a process: its tenure, and what carries it out; nothing, in a process that only takes commands."""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Literal
from uuid import uuid4

from ...adapters.acp.agents import AcpAgents
from ...adapters.git.repositories import GitRepositories
from ...adapters.processes.kept_commands import KeptCommands
from ...adapters.processes.lock import ProcessLock
from ...adapters.signal_files import SignalDirectory
from ...adapters.stores.postgres_leases import PostgresLeases
from ...application.driving.drive_runs import Driver
from ...application.driving.keep_leases import LeaseKeeper
from ...application.driving.places import PlaceState
from ...application.driving.rounds import Round
from ...application.effects.workshop import Workshop
from ...application.ports.leases import Holder
from ...application.ports.outside import Views, Wakeups
from ...application.ports.tenure import Absent, Alone, Tenure
from ...application.views.keep_views import sweep
from ...application.writer.run_log import RunLog
from ...http.request.given import NO_LEASES, LeaseState
from ..settings import MIB, Settings
from .agent_places import processes

Role = Literal["all", "api", "worker"]

#: How long what needs no agent gets to end by itself when the process is told to end.
DRAIN_SECONDS = 10.0


class Driving:
    """One process's part in driving. The role decides what there is of it."""

    def __init__(
        self,
        settings: Settings,
        role: Role,
        runs: RunLog,
        agents: AcpAgents,
        commands: KeptCommands,
        git: Callable[[Callable[[], None]], GitRepositories],
        process: ProcessLock | None,
        turn_failed: Callable[[str], object],
    ) -> None:
        """*process* is the lock of this process, where there are others; *turn_failed* is told each cause."""
        self._turn_failed = turn_failed
        self._settings = settings
        self.runs = runs
        self._agents = agents
        self._commands = commands
        self._git = git
        self.leases: PostgresLeases | None = None
        #: Over a connection of its own, so that nobody who asks keeps a renewal waiting.
        self._shown: PostgresLeases | None = None
        if settings.database is not None and process is not None:
            self.leases = PostgresLeases(settings.database, settings.lease_stale_seconds, process)
            self._shown = PostgresLeases(settings.database, settings.lease_stale_seconds, process)
        self.driver: Driver | None = None
        self.keeper: LeaseKeeper | None = None
        self.tenure: Tenure = Alone()
        if role == "api":
            self.tenure = Absent()
        elif self.leases is not None:

            def renewed(until: float) -> None:
                agents.renew(until)
                self._commands.renew(until)

            self.tenure = self.keeper = LeaseKeeper(self.leases, runs, lambda: str(uuid4()), renewed)

    def holder(self, root: str) -> Holder | None:
        """Return who drives a run. Raises LogUnavailable."""
        if self._shown is not None:
            return self._shown.holder(root)
        effects = self.driver.states().get(root, ()) if self.driver else ()
        return Holder(replica="the only process", epoch=0, alive=True, effects=tuple(effects))

    def counts(self) -> dict[LeaseState, int]:
        """Return how many runs are leased to this process, and how many to nobody alive. Raises LogUnavailable."""
        if self._shown is None:
            return dict(NO_LEASES)
        return {"held": len(self.keeper.held) if self.keeper else 0, "stale": self._shown.counts()["free"]}

    def places(self) -> Mapping[PlaceState, int]:
        """Return how many places for agents are in which state; none in a process that drives nothing."""
        return self.driver.places() if self.driver else {}

    def rounds(self) -> Sequence[Round]:
        """Return the newest rounds of this process over the open runs; none in one that drives nothing."""
        return self.driver.rounds() if self.driver else ()

    def drain(self) -> None:
        """Begin nothing more, and let go of what is at rest. On return only agents are at work, or the time is over."""
        if self.keeper is not None:
            self.keeper.drain()
        if self.driver is not None:
            self.driver.drain(DRAIN_SECONDS)

    @contextmanager
    def begun(self, views: Views, wakeups: Wakeups) -> Generator[None]:
        """Drive while the block runs. Afterwards nothing is under way here, and other processes may go on with it."""
        with ExitStack() as stack:
            for leases in (self.leases, self._shown):
                if leases is not None:
                    stack.callback(leases.close)
            if not isinstance(self.tenure, Absent):
                shop = Workshop(
                    self.runs,
                    self._git(self.tenure.check),
                    self._agents,
                    self._commands,
                    SignalDirectory(self._settings.data / "signals"),
                    wakeups,
                    self._settings.worktrees,
                    self._settings.stall_seconds,
                    self.tenure,
                    self._settings.turn_output_mib * MIB,
                    names_approver=self._settings.approved_by,
                )
                driver = self.driver = Driver(
                    shop,
                    wakeups,
                    partial(sweep, views, self.runs),
                    max_agents=self._settings.max_agents,
                    max_processes=processes(self._settings),
                    turn_failed=self._turn_failed,
                )
                if self.keeper is not None:
                    self.keeper.start(driver)
                    stack.callback(self.keeper.stop)
                driver.start()
                stack.callback(driver.stop)
            yield
