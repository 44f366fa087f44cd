"""A coordinator run and everything under it: the facts of its own stream, and the state they all add up to."""

from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import ClassVar, Literal

import msgspec
from immutables import Map

from ..event import Draft, Event, Text
from ..git import Commit
from .assembly import Assembly, BaseMoved
from .child_run import ChildRun, run_stream
from .delivery import Delivery
from .directive import SteeringDirective, directive_stream
from .gates import GateSpec
from .held import HeldEffect
from .outcome_spec import OutcomeSpec
from .sandbox import SandboxPolicy
from .spending import Budget, BudgetReached, Spending
from .work_plan import Subtask, WorkPlan

RunStatus = Literal["in_progress", "awaiting_review", "completed", "declined", "merge_failed", "failed"]

#: A run in one of these has ended.
TERMINAL = frozenset[RunStatus]({"completed", "declined", "merge_failed", "failed"})

# Events


class CoordinatorStarted(Event, frozen=True, kw_only=True):
    """Somebody gave a goal to a coordinator."""

    TOPIC: ClassVar[str] = "coordinator.started"

    goal: Text
    project_id: str
    submitting_user: str
    start_mode: str
    repository_path: Text
    originating_branch: str
    #: The originating branch's tip at the start; every child and every assembly begins from it, until the base moves.
    base: Commit
    model_id: str
    auto_approve_tools: bool
    autopilot: bool
    #: How often the coordinator may steer the plan before a person has to look at it.
    max_steering_iterations: int = 6
    gates: tuple[GateSpec, ...] = ()
    #: Whether the caller chose the model, so that it wins over every member's own.
    model_pinned: bool = False
    policy: SandboxPolicy = SandboxPolicy()
    #: The failed run that this one tries again, and how many there are in that chain.
    retried_from: str | None = None
    retries: int = 0
    #: What its agents may use; null: as much as they like.
    budget: Budget | None = None
    #: Where its work goes; null: into the originating branch.
    delivery: Delivery | None = None


# State


class CoordinatorRun(msgspec.Struct, frozen=True, kw_only=True):
    """What decisions need to know: the fold, in position order, of all non-output facts of a coordinator's tree."""

    run_id: str = ""
    project_id: str = ""
    goal: Text = Text(None)
    user: str = ""
    repository: Text = Text(None)
    branch: str = ""
    #: What every child and every assembly builds on: the originating branch as it was at the start, or when it moved.
    base: Commit = Commit(commit="", tree="")
    #: How the originating branch has moved on, until a person has approved what was assembled on top of it.
    moved: BaseMoved | None = None
    model_id: str = ""
    model_pinned: bool = False
    auto_approve_tools: bool = False
    autopilot: bool = False
    status: RunStatus = "in_progress"
    result: str | None = None
    #: None in a run that was started directly.
    outcome_spec: OutcomeSpec | None = None
    plan: WorkPlan | None = None
    children: Mapping[str, ChildRun] = {}
    assembly: Assembly | None = None
    #: Every correction that was ever received. In no order: see `received`.
    directives: Map[str, SteeringDirective] = Map()
    #: The open ones, but for those that only wait for a child to hear them, by the position of their receipt.
    pending: Map[int, str] = Map()
    #: Of those that only wait: the ones about which nothing is decided yet, in the same way.
    undecided: Map[int, str] = Map()
    #: Those that only wait, by each child that has yet to hear them, in the order of receipt.
    waiting: Map[str, tuple[str, ...]] = Map()
    #: Those that wait for a person to say what becomes of them.
    unresolved: frozenset[str] = frozenset()
    max_steering_iterations: int = 6
    gates: tuple[GateSpec, ...] = ()
    #: What the project let its agents do when the run started.
    policy: SandboxPolicy = SandboxPolicy()
    #: What no agent under this run needs to ask any more.
    grants: frozenset[str] = frozenset()
    #: Why the next gate has to show that the coordinator gave something up to a person.
    escalation: str | None = None
    worktrees_removed: bool = False
    #: When its owner put it aside.
    archived_at: str | None = None
    #: Nobody is answered anything about it any more; erased: and no word of it is kept.
    deleted: bool = False
    erased: bool = False
    retries: int = 0
    #: What its agents have used, and may use; and why none of their turns may begin, until somebody lets them.
    spending: Spending = Spending()
    budget: Budget | None = None
    out_of: BudgetReached | None = None
    #: Where its work goes.
    delivery: Delivery = Delivery()
    #: Effects that failed time and again, by id: what stands in their way, and who can mend it.
    held: Mapping[str, HeldEffect] = {}
    #: The version of every stream that was folded.
    versions: Map[str, int] = Map()
    #: The root_sequence of the last fact that was folded.
    root_sequence: int = 0
    #: The first topic that this release does not know, if any: a newer replica must decide about this run.
    unknown_topic: str | None = None

    @property
    def stream(self) -> str:
        """The coordinator's own stream."""
        return run_stream(self.run_id)

    @property
    def exists(self) -> bool:
        """Whether there is such a coordinator run at all."""
        return self.root_sequence > 0

    @property
    def ended(self) -> bool:
        """Whether the run is in a terminal status."""
        return self.status in TERMINAL

    @property
    def closed(self) -> bool:
        """Whether nothing is left to do: it has ended, and what it had in the repository is cleared away."""
        return self.ended and (self.erased if self.deleted else self.worktrees_removed)

    @property
    def stopping(self) -> bool:
        """Whether somebody has stopped the whole run, and its agents have not all ended yet."""
        return any(directive.stops_run for directive in self.pending_directives())

    @property
    def merging(self) -> bool:
        """Whether the assembled work is being merged, or is merged: too late to correct it."""
        plan = self.plan
        return plan is not None and (
            plan.status == "complete" or (plan.status == "assembling" and plan.stage in ("merge", "scribe", "done"))
        )

    def part_of(self, child_run_id: str) -> Subtask | None:
        """Return the subtask that a child run works on, if it is still that subtask's run."""
        child = self.children.get(child_run_id)
        part = self.plan.subtasks.get(child.subtask_id) if child is not None and self.plan is not None else None
        return part if part is not None and part.child_run_id == child_run_id else None

    def coordinator(self, event: Event) -> Draft:
        """Return the draft of a fact on the coordinator's stream."""
        return Draft(stream=self.stream, event=event, run=self.run_id, root=self.run_id)

    def on_plan(self, event: Event, work_plan_id: str | None = None) -> Draft:
        """Return the draft of a fact on the work plan's stream; it is part of the coordinator's feed."""
        plan_id = work_plan_id or (self.plan.work_plan_id if self.plan else "")
        return Draft(stream=plan_stream(plan_id), event=event, run=self.run_id, root=self.run_id)

    def on_directive(self, directive_id: str, event: Event) -> Draft:
        """Return the draft of a fact on a directive's stream; it is part of the coordinator's feed."""
        return Draft(stream=directive_stream(directive_id), event=event, run=self.run_id, root=self.run_id)

    def received(self) -> tuple[SteeringDirective, ...]:
        """Return every directive, in the order of receipt."""
        return in_order(self.directives.values())

    def open_directives(self) -> tuple[SteeringDirective, ...]:
        """Return the directives that something is left to do about, oldest first."""
        ids = {*self.pending.values(), *(waiting for child in self.waiting.values() for waiting in child)}
        return in_order(self.directives[directive_id] for directive_id in ids)

    def pending_directives(self) -> tuple[SteeringDirective, ...]:
        """Return those of them that do more than wait for a child to hear them, oldest first."""
        return tuple(self.directives[self.pending[position]] for position in sorted(self.pending))

    def open_for(self, child_run_id: str) -> tuple[SteeringDirective, ...]:
        """Return those of them that one child is a target of, oldest first."""
        pending = (self.directives[directive_id] for directive_id in self.pending.values())
        waiting = (self.directives[directive_id] for directive_id in self.waiting.get(child_run_id, ()))
        return in_order((*(directive for directive in pending if child_run_id in directive.targets), *waiting))

    def on_child(self, child_run_id: str, event: Event) -> Draft:
        """Return the draft of a fact on a child run's stream."""
        return Draft(stream=run_stream(child_run_id), event=event, run=child_run_id, root=self.run_id)


def in_order(directives: Iterable[SteeringDirective]) -> tuple[SteeringDirective, ...]:
    """Return the directives in the order of receipt."""
    return tuple(sorted(directives, key=attrgetter("position")))


def deletion_stream(run_id: str) -> str:
    """Return the stream whose first fact says that a coordinator run and its children are deleted."""
    return f"{run_stream(run_id)}/deletion"


def counted_stream(run_id: str) -> str:
    """Return the stream on which is counted what the agents of a coordinator run and its children use."""
    return f"{run_stream(run_id)}/spending"


def plan_stream(work_plan_id: str) -> str:
    """Return the stream of a work plan."""
    return f"plan/{work_plan_id}"
