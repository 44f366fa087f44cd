"""A work plan: what a goal was decomposed into, what depends on what, and how far each part is."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, ClassVar, Literal, cast

import msgspec

from .event import Event, Text
from .rejected import Invalid
from .team import Member

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

MAX_SUBTASKS = 200
MAX_TITLE_BYTES = 500
MAX_SCOPE_BYTES = 65_536
MAX_FILES = 1_000
MAX_PATH_BYTES = 4_096

# Events


class PlannedSubtask(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One part of the plan. `files`, if any, are the paths that it means to write."""

    subtask_id: int
    title: Text
    scope: Text
    assigned_agent: str
    selected_model_id: str
    phase: Phase
    isolation: str = "worktree"
    files: tuple[Text, ...] = ()


class Dependency(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A subtask that may only start when another is satisfied."""

    subtask_id: int
    depends_on_subtask_id: int


class WorkPlanMade(Event, frozen=True, kw_only=True):
    """A goal was decomposed."""

    TOPIC: ClassVar[str] = "coordinator.work_plan"

    work_plan_id: str
    status: PlanStatus
    subtasks: tuple[PlannedSubtask, ...]
    dependencies: tuple[Dependency, ...]
    warnings: tuple[Text, ...] = ()


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
    """The subtask ended without a result, or was blocked by one that did."""

    TOPIC: ClassVar[str] = "subtask.failed"


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
    #: The child run before this one, whose branch the next one goes on from.
    prior_child_run_id: str | None = None
    #: How often the coordinator has had it done over, since a person last asked for changes.
    recovery_attempts: int = 0
    #: Authors whose work on it was rejected; none of them is chosen again for it.
    locked_out: frozenset[str] = frozenset()
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

    def of_child(self, child_run_id: str) -> Subtask | None:
        """Return the subtask that a child run works on, if it is still that subtask's run."""
        return next((s for s in self.subtasks.values() if s.child_run_id == child_run_id), None)

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
        )
        for part in event.subtasks
    }
    return WorkPlan(work_plan_id=event.work_plan_id, status=event.status, subtasks=subtasks)


def moved(plan: WorkPlan, event: SubtaskMoved) -> WorkPlan:
    """Return the plan after a step of one of its subtasks."""
    before = plan.subtasks[event.subtask_id]
    again = isinstance(event, SubtaskPending)
    fresh = event.child_run_id is not None and event.child_run_id != before.child_run_id
    after = msgspec.structs.replace(
        before,
        status=event.status,
        child_run_id=event.child_run_id,
        prior_child_run_id=before.child_run_id if again and event.child_run_id is None else before.prior_child_run_id,
        assigned_agent=event.assigned_agent,
        model_id=event.selected_model_id,
        dispatches=before.dispatches + fresh,
        reason=event.reason,
        outdated=(before.outdated or event.child_run_id is not None) if again else before.outdated,
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


class ProposedSubtask(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A part of a plan as a client, or the planner, proposes it. `depends_on` holds places in the list, from 0."""

    title: str
    scope: str = ""
    assigned_agent: str | None = None
    phase: Phase = "execution"
    depends_on: tuple[int, ...] = ()
    files: tuple[str, ...] = ()


class InvalidPlan(Invalid):
    """The work plan is not valid."""

    code = "invalid_plan"


def make_plan(
    work_plan_id: str, proposed: Sequence[ProposedSubtask], team: Sequence[Member], models: Mapping[str, str]
) -> WorkPlanMade:
    """
    Number the parts from 1 and assign each to somebody on the team.

    *models* holds the model id of each member. A part that names nobody goes to the members in turn.

    Raises:
        InvalidPlan: no part, too many, a text over its cap, a stranger, a dangling dependency or a cycle.
    """
    if not 1 <= len(proposed) <= MAX_SUBTASKS:
        raise InvalidPlan(f"A work plan has 1 to {MAX_SUBTASKS} subtasks; this one has {len(proposed)}.")
    names = [member.name for member in team]
    for place, part in enumerate(proposed):
        _check_part(place, part, len(proposed), names)
    topological({place: part.depends_on for place, part in enumerate(proposed)})
    agents = [part.assigned_agent or names[place % len(names)] for place, part in enumerate(proposed)]
    return WorkPlanMade(
        work_plan_id=work_plan_id,
        status="planned",
        subtasks=tuple(
            PlannedSubtask(
                subtask_id=place + 1,
                title=Text(part.title),
                scope=Text(part.scope),
                assigned_agent=agents[place],
                selected_model_id=models[agents[place]],
                phase=part.phase,
                files=tuple(Text(path) for path in part.files),
            )
            for place, part in enumerate(proposed)
        ),
        dependencies=tuple(
            Dependency(subtask_id=place + 1, depends_on_subtask_id=needed + 1)
            for place, part in enumerate(proposed)
            for needed in sorted(set(part.depends_on))
        ),
    )


def _check_part(place: int, part: ProposedSubtask, count: int, names: Sequence[str]) -> None:
    where = f"Subtask {place} of the plan"
    if not part.title.strip() or len(part.title.encode(errors="replace")) > MAX_TITLE_BYTES:
        raise InvalidPlan(f"{where}: `title` must have 1 to {MAX_TITLE_BYTES} bytes and cannot be blank.")
    if len(part.scope.encode(errors="replace")) > MAX_SCOPE_BYTES:
        raise InvalidPlan(f"{where}: `scope` has more than {MAX_SCOPE_BYTES} bytes.")
    if len(part.files) > MAX_FILES or any(len(f.encode(errors="replace")) > MAX_PATH_BYTES for f in part.files):
        raise InvalidPlan(f"{where}: `files` holds at most {MAX_FILES} paths of at most {MAX_PATH_BYTES} bytes.")
    if part.assigned_agent is not None and part.assigned_agent not in names:
        raise InvalidPlan(f"{where}: nobody on the team is called {part.assigned_agent!r}.")
    dangling = [needed for needed in part.depends_on if not 0 <= needed < count]
    if dangling:
        raise InvalidPlan(f"{where} depends on subtask {dangling[0]}, which is not in the plan.")


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


def drop_cycles(proposed: Sequence[ProposedSubtask]) -> tuple[list[ProposedSubtask], list[str]]:
    """
    Return a planner's parts without the edges that no plan can have, and a warning for each one dropped.

    A person's plan with such an edge is refused; a planner's is mended, since nobody is there to ask.
    """
    kept: dict[int, tuple[int, ...]] = {place: () for place in range(len(proposed))}
    warnings: list[str] = []
    for place, part in enumerate(proposed):
        for needed in sorted(set(part.depends_on)):
            if needed not in kept or _reaches(kept, needed, place):
                warnings.append(f"Dropped the dependency of {part.title!r} on subtask {needed}.")
            else:
                kept[place] = (*kept[place], needed)
    return [msgspec.structs.replace(part, depends_on=kept[place]) for place, part in enumerate(proposed)], warnings


def _reaches(needs: Mapping[int, Sequence[int]], start: int, goal: int) -> bool:
    seen, left = {start}, [start]
    while left:
        found = left.pop()
        if found == goal:
            return True
        fresh = set(needs[found]) - seen
        seen |= fresh
        left.extend(fresh)
    return False


def frontier(plan: WorkPlan) -> tuple[Subtask, ...]:
    """
    Return the pending subtasks that may start now, by id: every dependency satisfied, and no declared file in
    common with one that is under way or starts before it.
    """
    taken = {str(path) for part in plan.subtasks.values() if part.in_flight for path in part.files}
    ready: list[Subtask] = []
    for part in sorted(plan.subtasks.values(), key=lambda s: s.subtask_id):
        satisfied = all(plan.subtasks[needed].status in SATISFIED for needed in part.depends_on)
        paths = {str(path) for path in part.files}
        if part.status == "pending" and satisfied and not paths & taken:
            ready.append(part)
            taken |= paths
    return tuple(ready)


def proposals(document: object) -> list[ProposedSubtask]:
    """Return the usable parts of a planner's answer, at most MAX_SUBTASKS, with their dependencies renumbered."""
    usable: dict[int, ProposedSubtask] = {}
    for place, item in enumerate(cast("list[Any]", document) if isinstance(document, list) else []):
        try:
            part = msgspec.convert(item, ProposedSubtask, strict=False)
        except msgspec.ValidationError:
            continue
        if part.title.strip() and len(usable) < MAX_SUBTASKS:
            usable[place] = part
    renumbered = {old: new for new, old in enumerate(usable)}
    return [
        msgspec.structs.replace(part, depends_on=tuple(renumbered[n] for n in part.depends_on if n in renumbered))
        for part in usable.values()
    ]
