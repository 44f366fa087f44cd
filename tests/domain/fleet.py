"""A run whose agents, git and people are played by the test: every outside answer is a call, every decision the domain's own."""

from collections.abc import Sequence
from typing import Literal

import msgspec

from steersman.domain.event import Event
from steersman.domain.facts.child_run import ChildRun
from steersman.domain.facts.directive import Severity, Source, SteeringDirective
from steersman.domain.facts.gates import GateSpec
from steersman.domain.facts.work_plan import Subtask, WorkPlan
from steersman.domain.git import Commit
from steersman.domain.process.dispatch import advance
from steersman.domain.process.effects import Effect, next_effects
from steersman.domain.projects.project import Project
from steersman.domain.projects.team import Member
from steersman.domain.runs import review
from steersman.domain.runs.orchestration import StartRun, start_run
from steersman.domain.runs.planning import ProposedSubtask
from steersman.domain.runs.review import ReviewAssembly
from steersman.domain.steering import gate_signals, steering
from steersman.domain.steering.gate_signals import RequestChanges, Signal, Touched
from steersman.domain.steering.steering import SteerRun, SteerWorker
from steersman.domain.work import child_ends, turns, workers
from steersman.domain.work.workers import Fingerprint
from steersman.tests.spec import Story

BASE = Commit(commit="c0", tree="t0")
LOADS = ("load_session",)
TEAM = (
    Member(name="ann", role_id="software-engineer", role_title="Software Engineer", model_id=None),
    Member(name="bob", role_id="tester", role_title="Tester", model_id=None),
)
#: Nobody but the author fits: no word of a role is in the plan's titles.
PROJECT = Project(project_id="p", default_branch="main", owner="alice", members=TEAM)


def part(title: str, *after: int, agent: str | None = "ann", files: Sequence[str] = ()) -> ProposedSubtask:
    """Return a part of a plan."""
    return ProposedSubtask(title=title, scope="", assigned_agent=agent, depends_on=after, files=tuple(files))


class Fleet(Story):
    """One coordinator run `r` with plan `w`, driven by hand."""

    def __init__(
        self,
        *plan: ProposedSubtask,
        team: Sequence[Member] = TEAM,
        max_iterations: int = 6,
        pinned: bool = False,
        gates: Sequence[GateSpec] = (),
    ) -> None:
        super().__init__()
        self.team: tuple[Member, ...] = tuple(team)
        self._commits = 0
        self._directives = 0
        command = StartRun(
            run_id="r",
            work_plan_id="w",
            goal="Sell things",
            user="alice",
            model_id="rehearsal",
            model_pinned=pinned,
            plan=plan or None,
            max_steering_iterations=max_iterations,
        )
        models = {member.name: f"rehearsal/{member.name}" for member in TEAM}
        project = msgspec.structs.replace(PROJECT, gates=tuple(gates))
        self.put(start_run(command, project, BASE, "/srv/shop", models))
        self.settle()

    # What the log holds

    @property
    def plan(self) -> WorkPlan:
        """The work plan."""
        assert self.run.plan is not None
        return self.run.plan

    @property
    def round(self) -> int:
        """Which round of assembly this is."""
        assert self.run.assembly is not None
        return self.run.assembly.round

    def subtask(self, subtask_id: int) -> Subtask:
        """A part of the plan."""
        return self.plan.subtasks[subtask_id]

    def child(self, subtask_id: int) -> ChildRun:
        """The present child run of a subtask."""
        return self.run.children[self.child_id(subtask_id)]

    def child_id(self, subtask_id: int) -> str:
        """The id of the present child run of a subtask."""
        found = self.subtask(subtask_id).child_run_id
        assert found is not None, f"subtask {subtask_id} has no child run"
        return found

    def directive(self, directive_id: str) -> SteeringDirective:
        """A directive."""
        return self.run.directives[directive_id]

    @property
    def effects(self) -> list[Effect]:
        """What is outstanding."""
        return list(next_effects(self.run))

    # What follows from the log

    def settle(self) -> list[Event]:
        """Decide everything that follows from the log alone."""
        said: list[Event] = []
        for _ in range(1_000):
            drafts = advance(self.run, self.now, self.team)
            if not drafts:
                return said
            said += self.put(drafts)
        raise AssertionError("the run does not come to rest")

    # What agents and git answer

    def prepare(self, subtask_id: int) -> None:
        """The child gets its place: a worktree if it has none, or its rebuilt base."""
        child, part = self.child(subtask_id), self.subtask(subtask_id)
        if child.head is None:
            # Whoever goes on from an earlier author has that one's work on top of what the part builds on.
            base = self.commit() if child.prior_commit else BASE
            path = f"/trees/{child.run_id}"
            self.put(turns.prepare_worktree(self.run, child.run_id, base, path, self.now, BASE))
        elif part.outdated:
            self.put(turns.rebuild_base(self.run, child.run_id, self.commit(), self.commit(), self.now))
        elif part.status == "dispatched":
            self.put(turns.take_up(self.run, child.run_id, self.now))

    def commit(self, tree: str | None = None) -> Commit:
        """Return a commit that nobody has made before."""
        self._commits += 1
        return Commit(commit=f"c{self._commits}", tree=tree or f"t{self._commits}")

    def open_session(self, subtask_id: int, capabilities: Sequence[str] = LOADS) -> None:
        """The child's agent stands ready."""
        child = self.child(subtask_id)
        if child.session_id is None:
            self.put(turns.open_session(self.run, child.run_id, f"session {child.run_id}", capabilities))

    def open_turn(self, subtask_id: int) -> str | None:
        """The child's next turn is opened, if there is one; return its prompt."""
        said = self.put(turns.open_turn(self.run, self.child_id(subtask_id)))
        turn = self.child(subtask_id).turn
        return str(turn.prompt) if said and turn else None

    def start(self, subtask_id: int, capabilities: Sequence[str] = LOADS) -> str:
        """Take the child into a turn that its agent works on; return the prompt."""
        self.prepare(subtask_id)
        self.open_session(subtask_id, capabilities)
        prompt = self.open_turn(subtask_id)
        assert prompt is not None, "nothing was to be asked"
        self.put(turns.start_turn(self.run, self.child_id(subtask_id)))
        return prompt

    def end(self, subtask_id: int, *, stop_reason: str = "end_turn", changes: bool = True) -> None:
        """The child's open turn ends and is committed."""
        child_id = self.child_id(subtask_id)
        self.put(turns.end_turn(self.run, child_id, stop_reason))
        head = self.child(subtask_id).head
        assert head is not None
        self.put(turns.commit_tree(self.run, child_id, self.commit() if changes else head))

    def finish(self, subtask_id: int) -> None:
        """The child has nothing left to do."""
        self.put(child_ends.settle_child(self.run, self.child_id(subtask_id), self.now))
        self.settle()

    def work(self, subtask_id: int, *, changes: bool = True, capabilities: Sequence[str] = LOADS) -> str:
        """Take the child through one turn to its end; return the prompt."""
        prompt = self.start(subtask_id, capabilities)
        self.end(subtask_id, changes=changes)
        self.finish(subtask_id)
        return prompt

    def fail(self, subtask_id: int, code: str = "agent_exited") -> None:
        """The child's run ends without a result."""
        child_id = self.child_id(subtask_id)
        self.put(
            child_ends.fail_child(self.run, child_id, self.now, error_code=code, message="It broke.", retryable=True)
        )
        self.settle()

    def assemble(self, tree: str | None = None) -> None:
        """The children's work is put together, and the gate opens."""
        assert self.plan.status == "assembling", self.plan.status
        self.put(review.integrate(self.run, self.commit(tree), of_round=self.round, has_changes=True, conflicts=()))
        self.settle()

    def to_gate(self, capabilities: Sequence[str] = LOADS) -> "Fleet":
        """Take every subtask through its turns and open the gate."""
        while self.plan.status == "dispatching":
            at_work = [i for i, s in sorted(self.plan.subtasks.items()) if s.in_flight]
            self.work(at_work[0], capabilities=capabilities)
        self.assemble()
        return self

    # What people and gates say

    def next_id(self, directive_id: str | None = None) -> str:
        """Return an id for a directive."""
        self._directives += 1
        return directive_id or f"d{self._directives}"

    def steer(
        self,
        kind: Literal["stop", "send", "redirect", "amend"],
        target: int | None = None,
        *,
        words: str = "Do it well.",
        directive_id: str | None = None,
        touched: Touched | None = None,
    ) -> str:
        """Steer at the coordinator's door; nothing follows yet. Return the directive's id."""
        command = SteerRun(
            directive_id=self.next_id(directive_id),
            kind=kind,
            instruction=words,
            principal="alice",
            target_child_run_id=self.child_id(target) if target else None,
        )
        self.put(steering.steer_run(self.run, command, touched or {}))
        return command.directive_id

    def command(
        self,
        kind: Literal["pause", "resume", "guidance", "redirect", "abort"],
        target: int,
        *,
        words: str = "",
        reason: str = "",
        directive_id: str | None = None,
        child_run_id: str | None = None,
        session_id: str | None = None,
    ) -> str:
        """Steer at the worker's door; nothing follows yet. Return the directive's id."""
        command = SteerWorker(
            directive_id=self.next_id(directive_id),
            child_run_id=child_run_id or self.child_id(target),
            kind=kind,
            payload_hash=f"sha256:{kind}",
            principal="alice",
            text=words or ("Mind the gap." if kind in ("guidance", "redirect") else ""),
            session_id=session_id,
            reason=reason,
        )
        self.put(steering.steer_worker(self.run, command))
        return command.directive_id

    def request_changes(
        self,
        *subtask_ids: int,
        words: str = "Better, please.",
        directive_id: str | None = None,
        tree: str | None = None,
    ) -> str:
        """Ask for changes at the gate, of these subtasks' files or of everybody's. Return the directive's id."""
        command = RequestChanges(
            directive_id=self.next_id(directive_id),
            feedback=words,
            reviewer="alice",
            target_files=tuple(f"f{i}" for i in subtask_ids),
            tree_hash=tree,
        )
        self.put(gate_signals.request_changes(self.run, command, self.touched))
        return command.directive_id

    def signal(
        self,
        source: Source,
        *subtask_ids: int,
        severity: Severity = "request-changes",
        words: str = "Not good enough.",
        tree: str | None = None,
    ) -> str:
        """Let an automated gate say something about the assembled work. Return the directive's id."""
        signal = Signal(
            directive_id=self.next_id(),
            source=source,
            severity=severity,
            feedback=words,
            created_by=f"gate:{source}",
            target_files=tuple(f"f{i}" for i in subtask_ids),
            tree_hash=tree,
        )
        self.put(gate_signals.receive_signal(self.run, signal, self.touched))
        return signal.directive_id

    @property
    def touched(self) -> Touched:
        """Every subtask i has changed the one file `f{i}`."""
        return {i: frozenset({f"f{i}"}) for i in (self.run.plan.subtasks if self.run.plan else ())}

    def review(self, *, approved: bool, tree: str | None = None) -> None:
        """Decide at the gate."""
        command = ReviewAssembly(approved=approved, reviewer="alice", tree_hash=tree)
        self.put(review.review(self.run, command))

    def merge(self) -> None:
        """Make the approved merge."""
        self.put(review.prepare_merge(self.run, "c0", "m1"))
        self.put(review.complete_merge(self.run, "m1"))

    # What becomes of workers

    def pause(self, subtask_id: int) -> str:
        """Pause a child to the end."""
        directive_id = self.command("pause", subtask_id)
        self.settle()
        self.confirm_pause(directive_id)
        return directive_id

    def confirm_pause(self, directive_id: str) -> None:
        """The processes are stopped."""
        found = Fingerprint(tree_hash="t", workspace_hash="w")
        for child_id in self.directive(directive_id).targets:
            self.put(workers.confirm_pause(self.run, directive_id, child_id, found))
        self.settle()

    def confirm_resume(self, directive_id: str) -> None:
        """The processes may run again."""
        for child_id in self.directive(directive_id).targets:
            self.put(workers.confirm_resume(self.run, directive_id, child_id))
        self.settle()

    def confirm_end(self, directive_id: str, *pids: int) -> None:
        """The processes are killed."""
        killed = dict.fromkeys(workers.to_be_ended(self.run, directive_id), pids)
        self.put(workers.confirm_end(self.run, directive_id, killed, self.now))
        self.settle()
