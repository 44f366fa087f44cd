"""A work plan: what a goal was decomposed into, what depends on what, and how far each part is."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import ClassVar, Literal

import msgspec

from ..event import Event, Text
from ..rejected import Invalid

Phase = Literal["none", "planning", "execution", "validation"]
SubtaskStatus = Literal[
    "pending", "dispatched", "running", "assemble_ready", "completed", "rai_flagged", "failed", "blocked"
]
PlanStatus = Literal[
    "planned",
    "dispatching",
    "awaiting_assembly",
    "assembling",
    "assembly_steering",
    "in_review",
    "complete",
    "assembly_blocked",
    "assembly_failed",
    "assembly_declined",
]

#: A subtask in one of these lets its dependants start and takes part in assembly.
SATISFIED = frozenset[SubtaskStatus]({"assemble_ready", "completed"})
#: A subtask in one of these has no work under way and gets none by itself.
SETTLED = SATISFIED | frozenset[SubtaskStatus]({"rai_flagged", "failed", "blocked"})

# Events


#: Where every subtask works.
ISOLATION = "worktree"


class Correction(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What was said about a part in an earlier run of the same plan."""

    directive_id: str
    source: str
    feedback: Text
    #: Whether what is handed on of the part was made with it.
    in_work: bool


class EarlierWork(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What came of a part in an earlier run of the same plan, and what was said about it there."""

    #: Empty if nobody had begun it.
    agent_name: str
    #: How that ended, in words.
    ended: Text
    corrections: tuple[Correction, ...] = ()


class PlannedSubtask(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One part of the plan. `files`, if any, are the paths that it means to write."""

    subtask_id: int
    title: Text
    scope: Text
    assigned_agent: str
    selected_model_id: str
    phase: Phase
    isolation: str = ISOLATION
    files: tuple[Text, ...] = ()
    #: What an earlier run of the same plan had committed of it, and the child run on whose branch that is: its first
    #: author goes on from there.
    prior_run_id: str | None = None
    prior_commit: str | None = None
    earlier: EarlierWork | None = None


class Dependency(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A subtask that may only start when another is satisfied."""

    subtask_id: int
    depends_on_subtask_id: int


class MemberCharter(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What a member of the team is to be, in the words that held when the plan was made."""

    name: str
    content: Text


class WorkPlanMade(Event, frozen=True, kw_only=True):
    """A goal was decomposed."""

    TOPIC: ClassVar[str] = "coordinator.work_plan"

    work_plan_id: str
    status: PlanStatus
    subtasks: tuple[PlannedSubtask, ...]
    dependencies: tuple[Dependency, ...]
    warnings: tuple[Text, ...] = ()
    #: Of everybody who was on the team: an author may be replaced by any of them.
    charters: tuple[MemberCharter, ...] = ()
    #: The confirmed outcome spec that the plan was made from, if there was one.
    outcome_spec_id: str | None = None


class SubtaskMoved(Event, frozen=True, kw_only=True):
    """What every step of a subtask says; each step is a fact of its own topic."""

    subtask_id: int
    status: SubtaskStatus
    child_run_id: str | None
    assigned_agent: str
    selected_model_id: str
    timestamp_utc: str = msgspec.field(name="timestamp_utc")
    #: Why, for a subtask that failed, was blocked or starts anew.
    reason: Text | None = None
    #: The directive that this step carries out, if it does.
    directive_id: str | None = None


class SubtaskDispatched(SubtaskMoved, frozen=True, kw_only=True):
    """A child run was created for the subtask; it waits for a place to run."""

    TOPIC: ClassVar[str] = "subtask.dispatched"


class SubtaskRunning(SubtaskMoved, frozen=True, kw_only=True):
    """The subtask's agent has a worktree and works."""

    TOPIC: ClassVar[str] = "subtask.running"


class SubtaskAssembleReady(SubtaskMoved, frozen=True, kw_only=True):
    """The subtask's changes are committed and can be assembled."""

    TOPIC: ClassVar[str] = "subtask.assemble_ready"


class SubtaskCompleted(SubtaskMoved, frozen=True, kw_only=True):
    """The subtask ended without a change."""

    TOPIC: ClassVar[str] = "subtask.completed"


class SubtaskFailed(SubtaskMoved, frozen=True, kw_only=True):
    """
    The subtask ended without a result, or was blocked by one that did.

    `cause` is the error code or the reason that its child run ended with, or what became of one that it depends on:
    dependency_failed or dependency_stalled. Unknown in facts of earlier releases.
    """

    TOPIC: ClassVar[str] = "subtask.failed"

    cause: str | None = None


class SubtaskPending(SubtaskMoved, frozen=True, kw_only=True):
    """
    The subtask is to be done again: afresh when `child_run_id` is null, else by the same child run, whose base has
    changed under it.
    """

    TOPIC: ClassVar[str] = "subtask.pending"


# State


class Subtask(msgspec.Struct, frozen=True, kw_only=True):
    """One part of the plan and how far it is."""

    subtask_id: int
    title: Text
    scope: Text
    assigned_agent: str
    model_id: str
    phase: Phase
    depends_on: tuple[int, ...]
    files: tuple[Text, ...]
    status: SubtaskStatus = "pending"
    child_run_id: str | None = None
    #: How many child runs the subtask has had; names the next one.
    dispatches: int = 0
    reason: Text | None = None
    #: Why it has no result, in a word.
    cause: str | None = None
    #: The child run before this one, whose branch the next one goes on from.
    prior_child_run_id: str | None = None
    #: The child run of an earlier run of the same plan whose branch the first one goes on from, and the commit there.
    handed_on_from: str | None = None
    handed_on_commit: str | None = None
    #: What came of it in that run.
    earlier: EarlierWork | None = None
    #: How often the coordinator has had it done over, since a person last asked for changes.
    recovery_attempts: int = 0
    #: Authors whose work on it was rejected; none of them is chosen again for it.
    locked_out: frozenset[str] = frozenset()
    #: Whether its newest agent was given up for showing no sign of work.
    stalled: bool = False
    #: Whether what it builds on was changed after it was done.
    outdated: bool = False

    @property
    def in_flight(self) -> bool:
        """Whether a child run works, or waits for a place to work, on it."""
        return self.status in ("dispatched", "running")


class WorkPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a goal, by id, and how far they are together."""

    work_plan_id: str
    status: PlanStatus
    subtasks: Mapping[int, Subtask]
    #: Where the collective assembly stands: null, rai, review, merge, scribe, done.
    stage: str | None = None
    #: The stage at the moment the plan was parked or ended.
    terminal_stage: str | None = None
    status_reason: str | None = None
    #: How often the coordinator has steered this plan, since a person last asked for changes.
    steering_iterations: int = 0
    #: How often a person has asked for changes; told, never bounded.
    human_review_round_trips: int = 0
    #: What each member of the team is to be.
    charters: Mapping[str, Text] = {}

    def producers(self, subtask_id: int) -> tuple[int, ...]:
        """Return every subtask that this one depends on, directly or not, in topological order, ties by id."""
        needed: set[int] = set()
        left = list(self.subtasks[subtask_id].depends_on)
        while left:
            found = left.pop()
            if found not in needed:
                needed.add(found)
                left.extend(self.subtasks[found].depends_on)
        return tuple(s for s in self.in_order() if s in needed)

    def dependants(self, subtask_ids: Iterable[int]) -> tuple[int, ...]:
        """Return every subtask that depends, directly or not, on one of these, in topological order."""
        changed = set(subtask_ids)
        found: list[int] = []
        for subtask_id in self.in_order():
            if subtask_id not in changed and changed.intersection(self.subtasks[subtask_id].depends_on):
                changed.add(subtask_id)
                found.append(subtask_id)
        return tuple(found)

    def in_order(self) -> tuple[int, ...]:
        """Return all subtask ids so that each comes after what it depends on, ties by id."""
        return topological({s.subtask_id: s.depends_on for s in self.subtasks.values()})


def planned(event: WorkPlanMade) -> WorkPlan:
    """Return the state of a plan that was just made."""
    needs: dict[int, tuple[int, ...]] = {}
    for edge in event.dependencies:
        needs[edge.subtask_id] = (*needs.get(edge.subtask_id, ()), edge.depends_on_subtask_id)
    subtasks = {
        part.subtask_id: Subtask(
            subtask_id=part.subtask_id,
            title=part.title,
            scope=part.scope,
            assigned_agent=part.assigned_agent,
            model_id=part.selected_model_id,
            phase=part.phase,
            depends_on=needs.get(part.subtask_id, ()),
            files=part.files,
            handed_on_from=part.prior_run_id,
            handed_on_commit=part.prior_commit,
            earlier=part.earlier,
        )
        for part in event.subtasks
    }
    charters = {charter.name: charter.content for charter in event.charters}
    return WorkPlan(work_plan_id=event.work_plan_id, status=event.status, subtasks=subtasks, charters=charters)


def moved(plan: WorkPlan, event: SubtaskMoved) -> WorkPlan:
    """Return the plan after a step of one of its subtasks."""
    before = plan.subtasks[event.subtask_id]
    again = isinstance(event, SubtaskPending)
    afresh = again and event.child_run_id is None
    fresh = event.child_run_id is not None and event.child_run_id != before.child_run_id
    after = msgspec.structs.replace(
        before,
        status=event.status,
        child_run_id=event.child_run_id,
        prior_child_run_id=(afresh and before.child_run_id) or before.prior_child_run_id,
        assigned_agent=event.assigned_agent,
        model_id=event.selected_model_id,
        dispatches=before.dispatches + fresh,
        reason=event.reason,
        cause=event.cause if isinstance(event, SubtaskFailed) else None,
        # A fresh child starts from what is there now.
        outdated=event.child_run_id is not None if again else before.outdated,
        stalled=before.stalled and not afresh,
    )
    return msgspec.structs.replace(plan, subtasks={**plan.subtasks, event.subtask_id: after})


def change_subtasks(plan: WorkPlan, subtask_ids: Iterable[int], change: Callable[[Subtask], Subtask]) -> WorkPlan:
    """Return the plan with *change* applied to the subtasks that are named and exist."""
    changed = {i: change(plan.subtasks[i]) for i in subtask_ids if i in plan.subtasks}
    return msgspec.structs.replace(plan, subtasks={**plan.subtasks, **changed})


# Decisions


def step(
    kind: type[SubtaskMoved],
    subtask: Subtask,
    status: SubtaskStatus,
    at: datetime,
    *,
    child_run_id: str | None = None,
    reason: Text | None = None,
    directive_id: str | None = None,
) -> SubtaskMoved:
    """Return a step of a subtask, as a fact of the given kind; without a *child_run_id* it keeps the one it has."""
    return kind(
        subtask_id=subtask.subtask_id,
        status=status,
        child_run_id=child_run_id or subtask.child_run_id,
        assigned_agent=subtask.assigned_agent,
        selected_model_id=subtask.model_id,
        timestamp_utc=at.isoformat(),
        reason=reason,
        directive_id=directive_id,
    )


def failed(subtask: Subtask, at: datetime, cause: str, reason: Text, status: SubtaskStatus = "failed") -> SubtaskFailed:
    """Return that a subtask has no result, why in a word, and why in words."""
    return SubtaskFailed(
        subtask_id=subtask.subtask_id,
        status=status,
        child_run_id=subtask.child_run_id,
        assigned_agent=subtask.assigned_agent,
        selected_model_id=subtask.model_id,
        timestamp_utc=at.isoformat(),
        reason=reason,
        cause=cause,
    )


class InvalidPlan(Invalid):
    """The work plan is not valid."""

    code = "invalid_plan"


def topological(needs: Mapping[int, Sequence[int]]) -> tuple[int, ...]:
    """Return the keys so that each comes after what it needs, ties in ascending order. Raises InvalidPlan on a cycle."""
    placed: dict[int, None] = {}
    left = sorted(needs)
    while left:
        ready = next((key for key in left if all(needed in placed for needed in needs[key])), None)
        if ready is None:
            raise InvalidPlan(f"The plan's dependencies form a cycle among the subtasks {left}.")
        placed[ready] = None
        left.remove(ready)
    return tuple(placed)


def frontier(plan: WorkPlan) -> tuple[Subtask, ...]:
    """
    Return the pending subtasks that may start now, by id: every dependency satisfied, and no declared file in
    common with one that is under way or starts before it.
    """
    pending = [part for part in plan.subtasks.values() if part.status == "pending"]
    if not pending:
        return ()
    taken = {str(path) for part in plan.subtasks.values() if part.in_flight for path in part.files}
    ready: list[Subtask] = []
    for part in sorted(pending, key=lambda s: s.subtask_id):
        satisfied = all(plan.subtasks[needed].status in SATISFIED for needed in part.depends_on)
        paths = {str(path) for path in part.files}
        if satisfied and not paths & taken:
            ready.append(part)
            taken |= paths
    return tuple(ready)
