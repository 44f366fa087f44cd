"""
A coordinator's child runs, as `GET /api/runs/{id}/children` lists them: for each subtask its present one.

Key: the child run's id; group: the coordinator's. Listed by subtask id, ascending.
"""

from collections.abc import Mapping

import msgspec

from ..domain.event import Fact
from ..domain.facts.agent_output import ToolCalled
from ..domain.facts.child_run import RunFailed, RunStarted, TurnOpened
from ..domain.facts.spending import Spending, TurnCounted
from ..domain.facts.work_plan import SubtaskMoved
from .failure import Failure, failure_of
from .standing import ChildStanding, child_after
from .usage import UsageView, spending_after, usage_view
from .view import Rows, View, deleted_run

VERSION = 3


class ChildrenMemory(msgspec.Struct, frozen=True, kw_only=True):
    """What the row remembers and nobody is shown: `shown` leaves it out."""

    root: str
    standing: ChildStanding
    spending: Spending = msgspec.field(default_factory=Spending)


class ChildView(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A child run beside its subtask. `tree_hash` is None until the child has something to assemble."""

    subtask_id: int
    child_run_id: str
    subtask_status: str
    assigned_agent: str
    selected_model_id: str
    child_run_status: str
    worktree_branch: str
    tree_hash: str | None = None
    step_count: int = 0
    #: Why it failed, in the last words of its agent; left out unless it has failed.
    error: Failure | msgspec.UnsetType = msgspec.UNSET
    #: Absent before something was counted.
    usage: UsageView | msgspec.UnsetType = msgspec.UNSET
    internal: ChildrenMemory | msgspec.UnsetType = msgspec.UNSET

    @property
    def kept(self) -> ChildrenMemory:
        """What the row remembers. A row that was read from the view has it."""
        assert self.internal is not msgspec.UNSET
        return self.internal


Changes = Mapping[str, ChildView | None]


def shown(row: ChildView) -> ChildView:
    """Return the row as a client sees it."""
    return msgspec.structs.replace(row, internal=msgspec.UNSET)


def apply(rows: Rows[ChildView], fact: Fact) -> Changes:
    """Fold one fact. A new child run of a subtask takes the place of the one before."""
    event = fact.event
    if event.OUTPUT and not isinstance(event, ToolCalled):
        return {}
    if (deleted := deleted_run(fact)) is not None:
        return {deleted: None, **dict.fromkeys(rows.group(deleted))}
    if isinstance(event, TurnCounted):
        row = rows.get(event.run_id)
        return {} if row is None else {event.run_id: _used(row, fact)}
    if fact.run is None or fact.root is None:
        return {}
    if isinstance(event, RunStarted):
        return {**_of_subtask(rows, fact.root, event.subtask_id), event.run_id: _started(fact.root, event)}
    if isinstance(event, SubtaskMoved):
        return _moved(rows, fact, event)
    row = rows.get(fact.run)
    return {} if row is None else {fact.run: _next(row, fact)}


def _of_subtask(rows: Rows[ChildView], root: str, subtask_id: int) -> Changes:
    return {key: None for key, row in rows.group(root).items() if row.subtask_id == subtask_id}


def _started(root: str, event: RunStarted) -> ChildView:
    return ChildView(
        subtask_id=event.subtask_id,
        child_run_id=event.run_id,
        subtask_status="pending",
        assigned_agent=event.agent_name,
        selected_model_id=event.model_id,
        child_run_status="pending",
        worktree_branch=event.worktree_branch,
        internal=ChildrenMemory(root=root, standing=ChildStanding()),
    )


def _moved(rows: Rows[ChildView], fact: Fact, event: SubtaskMoved) -> Changes:
    if event.child_run_id is None:
        return _of_subtask(rows, fact.root or "", event.subtask_id)
    row = rows.get(event.child_run_id)
    if row is None:
        return {}
    moved = msgspec.structs.replace(
        row,
        subtask_status=event.status,
        assigned_agent=event.assigned_agent,
        selected_model_id=event.selected_model_id,
    )
    return {event.child_run_id: _next(moved, fact)}


def _used(row: ChildView, fact: Fact) -> ChildView:
    used = spending_after(row.kept.spending, fact)
    kept = msgspec.structs.replace(row.kept, spending=used)
    was_counted = row.usage is not msgspec.UNSET or isinstance(fact.event, TurnCounted)
    usage = usage_view(used) if was_counted else msgspec.UNSET
    return msgspec.structs.replace(row, usage=usage, internal=kept)


def _next(row: ChildView, fact: Fact) -> ChildView:
    if isinstance(fact.event, ToolCalled):
        return msgspec.structs.replace(row, step_count=row.step_count + 1)
    if isinstance(fact.event, TurnOpened):
        row = _used(row, fact)
    standing = child_after(row.kept.standing, row.child_run_id, fact)
    error = failure_of(fact.event) if isinstance(fact.event, RunFailed) else row.error
    return msgspec.structs.replace(
        row,
        child_run_status=standing.status,
        error=error if standing.status == "failed" else msgspec.UNSET,
        tree_hash=standing.tree_hash,
        internal=msgspec.structs.replace(row.kept, standing=standing),
    )


VIEW = View("children", VERSION, ChildView, apply=apply, place=lambda row: (row.kept.root, -row.subtask_id))
