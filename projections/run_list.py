"""A project's coordinator runs, newest first, as `GET /api/projects/{id}/runs` lists them. Group: the project's id."""

from collections.abc import Mapping, Sequence

import msgspec

from ..domain.event import Fact
from ..domain.facts import assembly
from ..domain.facts.child_run import TurnOpened
from ..domain.facts.run import CoordinatorStarted
from ..domain.facts.run_records import RunArchived
from ..domain.facts.spending import Spending, TurnCounted
from .held_effects import HeldView, held_after
from .standing import Standing, after
from .usage import UsageView, spending_after, usage_view
from .view import Rows, View, deleted_run

VERSION = 4


class RunListMemory(msgspec.Struct, frozen=True, kw_only=True):
    """What the row remembers and nobody is shown: `shown` leaves it out."""

    #: The position of the run's first fact: the later, the newer.
    position: int
    standing: Standing
    spending: Spending = msgspec.field(default_factory=Spending)


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A coordinator run, in one line."""

    workflow_run_id: str
    execution_id: str
    project_id: str
    status: str
    model_id: str
    task: str | None
    agent_name: str
    submitting_user: str
    reviewed_by: str | None = None
    started_at: str
    ended_at: str | None = None
    result: str | None = None
    coordinator_status: str | None = None
    coordinator_status_reason: str | None = None
    archived_at: str | None = None
    #: What failed several times in a row and is tried again slowly, until it is mended; absent where there is nothing.
    held: tuple[HeldView, ...] | msgspec.UnsetType = ()
    #: Absent before something was counted.
    usage: UsageView | msgspec.UnsetType = msgspec.UNSET
    #: The kinds of what waits for somebody, the oldest first. Never stored: who lists runs looks it up; absent where
    #: nothing waits.
    waiting: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    internal: RunListMemory | msgspec.UnsetType = msgspec.UNSET

    @property
    def kept(self) -> RunListMemory:
        """What the row remembers. A row that was read from the view has it."""
        assert self.internal is not msgspec.UNSET
        return self.internal


def shown(row: RunSummary, waiting: Sequence[str] = ()) -> RunSummary:
    """Return the row as a client sees it, with the kinds of what waits in the run."""
    return msgspec.structs.replace(
        row, held=row.held or msgspec.UNSET, waiting=tuple(waiting) or msgspec.UNSET, internal=msgspec.UNSET
    )


def apply(rows: Rows[RunSummary], fact: Fact) -> Mapping[str, RunSummary | None]:
    """Fold one fact. Children are not listed."""
    if (deleted := deleted_run(fact)) is not None:
        return {deleted: None}
    if isinstance(fact.event, TurnOpened | TurnCounted):
        row = rows.get(fact.root or "")
        return {} if row is None else {row.execution_id: _used(row, fact)}
    if fact.run is None or fact.run != fact.root or fact.event.OUTPUT:
        return {}
    if isinstance(fact.event, CoordinatorStarted):
        return {fact.run: _started(fact, fact.event)}
    row = rows.get(fact.run)
    return {} if row is None else {fact.run: _next(row, fact)}


def _started(fact: Fact, event: CoordinatorStarted) -> RunSummary:
    run_id = fact.run or ""
    return RunSummary(
        workflow_run_id=run_id,
        execution_id=run_id,
        project_id=event.project_id,
        status="in_progress",
        model_id=event.model_id,
        task=event.goal.value,
        agent_name="Coordinator",
        submitting_user=event.submitting_user,
        started_at=fact.at.isoformat(),
        internal=RunListMemory(position=fact.position, standing=Standing()),
    )


def _used(row: RunSummary, fact: Fact) -> RunSummary:
    used = spending_after(row.kept.spending, fact)
    kept = msgspec.structs.replace(row.kept, spending=used)
    was_counted = row.usage is not msgspec.UNSET or isinstance(fact.event, TurnCounted)
    usage = usage_view(used) if was_counted else msgspec.UNSET
    return msgspec.structs.replace(row, usage=usage, internal=kept)


def _next(row: RunSummary, fact: Fact) -> RunSummary:
    standing = after(row.kept.standing, fact)
    return msgspec.structs.replace(
        row,
        status=standing.status,
        reviewed_by=_reviewer(row.reviewed_by, fact),
        ended_at=standing.ended_at,
        result=standing.result,
        archived_at=fact.at.isoformat() if isinstance(fact.event, RunArchived) else row.archived_at,
        coordinator_status=standing.plan_status,
        coordinator_status_reason=standing.reason,
        held=held_after(row.held or (), fact),
        internal=msgspec.structs.replace(row.kept, standing=standing),
    )


def _reviewer(before: str | None, fact: Fact) -> str | None:
    match fact.event:
        case assembly.ReviewApproved() | assembly.AssemblyDeclined() as event:
            return event.reviewer
        case assembly.ReviewRequested() | assembly.MergeBlocked():
            return None
        case _:
            return before


VIEW = View("run_list", VERSION, RunSummary, apply=apply, place=lambda row: (row.project_id, row.kept.position))
