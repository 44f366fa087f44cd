"""A coordinator's work plan, as `GET /api/runs/{id}/work-plan` shows it. Key: the coordinator's id; no row, no plan."""

from collections.abc import Mapping

import msgspec

from ..domain.event import Fact
from ..domain.facts.work_plan import PlannedSubtask, SubtaskFailed, SubtaskMoved, WorkPlanMade
from .standing import Standing, after
from .view import Rows, View, deleted_run

VERSION = 4


class SubtaskRow(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One part of the plan."""

    subtask_id: int
    title: str | None
    scope: str | None
    assigned_agent: str
    selected_model_id: str
    phase: str
    isolation: str
    status: str
    child_run_id: str | None
    #: Why it has no result, or starts anew: in a word, where that is known, and in the last words of its agent. Left out
    #: where there is nothing to say.
    cause: str | msgspec.UnsetType = msgspec.UNSET
    reason: str | msgspec.UnsetType = msgspec.UNSET


class DependencyRow(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A part that starts only when another is satisfied."""

    subtask_id: int
    depends_on_subtask_id: int


class WorkPlanView(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A work plan. `assembly_stage` says where the collective assembly stands, `status_reason` why it does."""

    work_plan_id: str
    coordinator_run_id: str
    outcome_spec_id: str | None = None
    status: str
    status_reason: str | None = None
    assembly_stage: str | None = None
    assembly_terminal_stage: str | None = None
    subtasks: tuple[SubtaskRow, ...]
    dependencies: tuple[DependencyRow, ...]
    #: What was not as it had to be in the planner's answer, and what was made of it. Left out where there is nothing.
    warnings: tuple[str | None, ...] | msgspec.UnsetType = msgspec.UNSET
    #: What the row remembers and nobody is shown: `shown` leaves it out.
    internal: Standing | msgspec.UnsetType = msgspec.UNSET


def shown(row: WorkPlanView) -> WorkPlanView:
    """Return the row as a client sees it."""
    return msgspec.structs.replace(row, internal=msgspec.UNSET)


def apply(rows: Rows[WorkPlanView], fact: Fact) -> Mapping[str, WorkPlanView | None]:
    """Fold one fact. What children say on their own feeds does not move a plan."""
    if (deleted := deleted_run(fact)) is not None:
        return {deleted: None}
    if fact.run is None or fact.run != fact.root or fact.event.OUTPUT:
        return {}
    row = _made(fact.run, fact.event) if isinstance(fact.event, WorkPlanMade) else rows.get(fact.run)
    moved = row if row is None else _next(row, fact)
    return {} if moved is None or moved is rows.get(fact.run) else {fact.run: moved}


def _made(run_id: str, event: WorkPlanMade) -> WorkPlanView:
    edges = event.dependencies
    return WorkPlanView(
        work_plan_id=event.work_plan_id,
        coordinator_run_id=run_id,
        outcome_spec_id=event.outcome_spec_id,
        status=event.status,
        subtasks=tuple(_planned(part) for part in event.subtasks),
        dependencies=tuple(
            DependencyRow(subtask_id=e.subtask_id, depends_on_subtask_id=e.depends_on_subtask_id) for e in edges
        ),
        warnings=tuple(warning.value for warning in event.warnings) or msgspec.UNSET,
        internal=Standing(),
    )


def _planned(part: PlannedSubtask) -> SubtaskRow:
    return SubtaskRow(
        subtask_id=part.subtask_id,
        title=part.title.value,
        scope=part.scope.value,
        assigned_agent=part.assigned_agent,
        selected_model_id=part.selected_model_id,
        phase=part.phase,
        isolation=part.isolation,
        status="pending",
        child_run_id=None,
    )


def _next(row: WorkPlanView, fact: Fact) -> WorkPlanView:
    assert row.internal is not msgspec.UNSET
    standing = after(row.internal, fact)
    event = fact.event
    if standing is row.internal and not isinstance(event, SubtaskMoved):
        return row
    return msgspec.structs.replace(
        row,
        status=standing.plan_status or row.status,
        status_reason=standing.status_reason,
        assembly_stage=standing.stage,
        assembly_terminal_stage=standing.terminal_stage,
        subtasks=_moved(row.subtasks, event) if isinstance(event, SubtaskMoved) else row.subtasks,
        internal=standing,
    )


def _moved(subtasks: tuple[SubtaskRow, ...], event: SubtaskMoved) -> tuple[SubtaskRow, ...]:
    return tuple(
        part
        if part.subtask_id != event.subtask_id
        else msgspec.structs.replace(
            part,
            status=event.status,
            child_run_id=event.child_run_id,
            assigned_agent=event.assigned_agent,
            selected_model_id=event.selected_model_id,
            cause=(isinstance(event, SubtaskFailed) and event.cause) or msgspec.UNSET,
            reason=(event.reason is not None and event.reason.value) or msgspec.UNSET,
        )
        for part in subtasks
    )


VIEW = View("work_plan", VERSION, WorkPlanView, apply=apply, place=lambda row: ("", 0))
