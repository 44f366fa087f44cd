"""One service over an outside in memory: driven step by step in the test's own thread, or by the product's driver."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec

from steersman.adapters.stores.memory import MemoryLog, MemoryRecorder, MemoryWakeups
from steersman.application.commands import steer
from steersman.application.commands.review_assembly import review_assembly
from steersman.application.driving.back_off import BackOff
from steersman.application.driving.drive_runs import Driver
from steersman.application.effects.carry_out import carry_out
from steersman.application.effects.timings import Timings
from steersman.application.effects.workshop import Workshop
from steersman.application.ports.log import LogUnavailable
from steersman.application.writer.caller import Caller
from steersman.application.writer.run_log import RunLog
from steersman.domain.event import Event, Fact
from steersman.domain.facts.child_run import ChildRun
from steersman.domain.facts.delivery import Delivery
from steersman.domain.facts.directive import SteeringDirective
from steersman.domain.facts.gates import GateSpec
from steersman.domain.facts.run import CoordinatorRun
from steersman.domain.facts.spending import Budget
from steersman.domain.git import Commit
from steersman.domain.kinds.catalogue import CATALOGUE
from steersman.domain.process.dispatch import advance
from steersman.domain.process.effects import next_effects
from steersman.domain.projects.project import AddMember, CreateProject, add_member, create_project, replay
from steersman.domain.runs.orchestration import StartRun, start_run
from steersman.domain.runs.planning import ProposedSubtask
from steersman.domain.runs.review import ReviewAssembly
from steersman.domain.steering.gate_signals import RequestChanges
from steersman.domain.steering.steering import SteerRun, SteerWorker
from steersman.tests.application.outside import (
    FaultyLog,
    MemoryGit,
    MemorySignals,
    NoCommands,
    ScriptedAgents,
    TickingClock,
    facts,
)

#: Far more than anything here takes.
PATIENCE_SECONDS = 120.0
#: The driver looks again soon, and commits that fail are tried again at once.
QUICK = Timings(poll=0.02, commit_again=0.0)
MAX_ROUNDS = 200


def by(command_id: str | None = None) -> Caller:
    """Return alice, with a new command."""
    return Caller(principal="alice", command_id=command_id or str(uuid4()))


def part(title: str, *after: int, files: Sequence[str] = ()) -> ProposedSubtask:
    """Return a part of a plan."""
    return ProposedSubtask(title=title, scope="", depends_on=after, files=tuple(files))


class Service:
    """What survives a crash: the log, the repository, the agents' sessions. And what does not, made anew by `restart`."""

    def __init__(self) -> None:
        self.wakeups = MemoryWakeups()
        # Without keys: nobody here asks for proofs, and signing takes a tenth of the time.
        #: Tests put hooks into these two.
        self.log: Any = FaultyLog(MemoryLog(CATALOGUE, announce=self.wakeups.announce, recorder=MemoryRecorder()))
        self.git: Any = MemoryGit()
        self.agents = ScriptedAgents(self.git)
        self.signals = MemorySignals()
        self.clock = TickingClock()
        self.driver: Driver | None = None
        self.back_off = BackOff()
        self.restart()
        self._register()

    def restart(self) -> None:
        """Die, with every agent, and start again over what is left."""
        for session in list(self.agents.alive):
            session.kill()
        self.runs = RunLog(self.log, self.clock)
        self.shop = Workshop(
            self.runs,
            self.git,
            self.agents,
            NoCommands(),
            self.signals,
            self.wakeups,
            Path("/trees"),
            timings=QUICK,
        )

    def wait_only(self, **seconds: float) -> None:
        """From now on effects wait for so long; the names are those of `Timings`."""
        self.shop.timings = msgspec.structs.replace(self.shop.timings, **seconds)

    def _register(self) -> None:
        created = create_project(
            CreateProject(
                project_id="p",
                name="Shop",
                origin="blank",
                working_directory="/srv/shop",
                default_branch="main",
                owner="alice",
            )
        )
        self.log.append(by().append([created], {created.stream: 0}, self.clock.now()))
        for version, role in enumerate(("software-engineer", "tester"), 1):
            project = replay(self.log.read_stream("project/p"))
            draft = add_member(project, AddMember(role_id=role))
            self.log.append(by().append([draft], {draft.stream: version}, self.clock.now()))
        self.log.appends = 0

    def start(
        self,
        *plan: ProposedSubtask,
        model_id: str = "rehearsal",
        run_id: str = "r",
        budget: Budget | None = None,
        delivery: Delivery | None = None,
        gates: tuple[GateSpec, ...] = (),
    ) -> None:
        """Give the team a goal."""
        project = replay(self.log.read_stream("project/p"))
        project = msgspec.structs.replace(project, gates=gates or project.gates)
        command = StartRun(
            run_id=run_id,
            work_plan_id=f"plan of {run_id}",
            goal="Sell things",
            user="alice",
            model_id=model_id,
            plan=plan or None,
            budget=budget,
            delivery=delivery,
        )
        base: Commit = self.git.tip(Path("/srv/shop"), "main")
        models = {member.name: model_id for member in project.team}
        drafts = start_run(command, project, base, "/srv/shop", models)
        self.log.append(by().append(drafts, {draft.stream: 0 for draft in drafts}, self.clock.now()))
        self.log.appends = 0

    # What the log holds

    @property
    def run(self) -> CoordinatorRun:
        """The run."""
        return self.runs.run("r")

    @property
    def events(self) -> list[Event]:
        """What is on the log."""
        return [fact.event for fact in facts(self.log)]

    @property
    def facts(self) -> list[Fact]:
        """The log."""
        return list(facts(self.log))

    def told(self, kind: type[Event]) -> list[Any]:
        """Return the facts of one kind, in order."""
        return [event for event in self.events if isinstance(event, kind)]

    def child(self, subtask_id: int) -> ChildRun:
        """The present child run of a subtask."""
        run = self.run
        assert run.plan is not None
        return run.children[run.plan.subtasks[subtask_id].child_run_id or ""]

    def directive(self, directive_id: str) -> SteeringDirective:
        """A directive."""
        return self.run.directives[directive_id]

    def merged(self) -> dict[str, str]:
        """What the originating branch holds."""
        return self.git.files(self.git.branches["main"])

    # What people say; a lost answer is asked for again, with the same command

    def request_changes(self, directive_id: str, *files: str, words: str = "Better, please.") -> None:
        """Ask for changes at the gate."""
        command = RequestChanges(directive_id=directive_id, feedback=words, reviewer="alice", target_files=files)
        self._insist(lambda caller: steer.request_changes("r", command, caller, self.runs, self.git))

    def approve(self) -> None:
        """Approve what stands at the gate."""
        command = ReviewAssembly(approved=True, reviewer="alice")
        self._insist(lambda caller: review_assembly("r", command, caller, self.runs, self.git))

    def steer(self, directive_id: str, kind: Any, target: int | None = None, words: str = "Go left.") -> None:
        """Steer at the coordinator's door."""
        child = self.child(target).run_id if target else None
        command = SteerRun(
            directive_id=directive_id, kind=kind, instruction=words, principal="alice", target_child_run_id=child
        )
        self._insist(lambda caller: steer.steer_run("r", command, caller, self.runs, self.git))

    def command(self, directive_id: str, kind: Any, target: int, words: str = "") -> None:
        """Steer at the worker's door."""
        child_id = self.child(target).run_id
        command = SteerWorker(
            directive_id=directive_id, child_run_id=child_id, kind=kind, payload_hash="h", principal="alice", text=words
        )
        self._insist(lambda caller: steer.steer_worker("r", command, caller, self.runs))

    def _insist(self, say: Callable[[Caller], object]) -> None:
        caller = by()
        try:
            say(caller)
        except LogUnavailable:
            if not any(fact.command_id == caller.command_id for fact in self.facts):
                say(caller)

    # Step by step

    def drive(self, run_id: str = "r") -> CoordinatorRun:
        """Do what is outstanding in this thread until only a person can go on; die and start again when the log fails."""
        for _ in range(MAX_ROUNDS):
            try:
                if not self._round(run_id):
                    return self.runs.run(run_id)
            except LogUnavailable:
                self.restart()
        raise AssertionError(f"the run does not come to rest: {next_effects(self.runs.run(run_id))}")

    def _round(self, run_id: str) -> bool:
        team = replay(self.log.read_stream("project/p")).team
        while self.shop.decide(run_id, lambda run: advance(run, self.clock.now(), team)):
            pass
        effects = next_effects(self.runs.run(run_id))
        for effect in effects:
            carry_out(effect, self.shop)
        return bool(effects)

    # By the product's driver

    def serve(self, max_agents: int = 4, open_runs: Sequence[str] = ()) -> None:
        """Let the product's driver drive."""
        self.driver = Driver(self.shop, self.wakeups, lambda: open_runs, max_agents=max_agents, back_off=self.back_off)
        self.driver.start()

    def stop(self) -> None:
        """End the driver."""
        if self.driver is not None:
            self.driver.stop()
            self.driver = None

    def wait(self, condition: Callable[[CoordinatorRun], object], what: str = "") -> CoordinatorRun:
        """Return the run as soon as the condition is true of it; fail if that takes far too long."""
        until = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < until:
            head = self.log.head()
            if condition(self.run):
                return self.run
            self.wakeups.wait(head, 0.05)
        raise AssertionError(f"waited in vain {what}: {self.driver and self.driver.held()}, {self.run}")
