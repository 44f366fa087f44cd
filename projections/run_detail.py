"""One run, coordinator or child, as `GET /api/runs/{id}` shows it. Key: the run's id; group: its coordinator's."""

from collections.abc import Mapping, Sequence

import msgspec

from ..domain.event import Fact, Text
from ..domain.facts import assembly, child_run
from ..domain.facts.agent_output import ToolCalled
from ..domain.facts.asking import OptionsSet
from ..domain.facts.conflicts import Conflict
from ..domain.facts.held import EffectHeld, EffectReleased
from ..domain.facts.line import resolved
from ..domain.facts.run import CoordinatorStarted
from ..domain.facts.run_records import RunArchived
from ..domain.facts.spending import BudgetSet, Spending, TurnCounted
from ..domain.facts.work_plan import SubtaskMoved
from ..domain.git import Commit
from .delivery import DeliveryView, delivery_view
from .failure import Failure, failure_of
from .held_effects import HeldView, held_after
from .standing import ChildStanding, Standing, after, child_after
from .usage import BudgetView, UsageView, budget_view, spending_after, usage_view
from .view import Rows, View, deleted_run

VERSION = 5


class StandingConflict(msgspec.Struct, frozen=True, kw_only=True):
    """Files that two sides changed in the same places: the version of `branch` stands, the other is kept at `ref`."""

    branch: str
    subtask_id: int | None
    paths: tuple[str, ...]
    ref: str
    #: The commit at `ref`.
    replaced: str | None


class LeftOutWork(msgspec.Struct, frozen=True, kw_only=True):
    """What a subtask had ready for an assembly once, and is not in this one; why is taken_back, base_conflict or not_handed_on."""

    subtask_id: int
    run_id: str
    commit_hash: str
    reason: str


class RunDetailMemory(msgspec.Struct, frozen=True, kw_only=True):
    """What the row remembers and nobody is shown: `shown` leaves it out."""

    root: str
    #: The position of the run's first fact.
    position: int
    #: The root_sequence of the last non-output fact: of the whole tree for a coordinator, of its own for a child.
    root_sequence: int
    repository_path: str | None
    #: Between these two lies what the run has made; None while there is nothing to compare.
    base: Commit | None = None
    head: Commit | None = None
    standing: Standing | None = None
    child: ChildStanding | None = None
    spending: Spending = msgspec.field(default_factory=Spending)


class RunDetail(msgspec.Struct, frozen=True, kw_only=True):
    """A run."""

    run_id: str
    status: str
    agent_name: str
    parent_run_id: str | None
    subtask_id: int | None
    project_id: str
    submitting_user: str
    task: str | None
    model_id: str
    #: The agent that the model id names.
    model_source: str
    started_at: str
    ended_at: str | None = None
    step_count: int = 0
    tree_hash: str | None = None
    result: str | None = None
    error: Failure | None = None
    coordinator_status: str | None = None
    coordinator_status_reason: str | None = None
    coordinator_steerable: bool = False
    auto_approve_tools: bool
    autopilot: bool
    originating_branch: str
    worktree_branch: str | None = None
    worktree_path: str | None = None
    merged_commit_hash: str | None = None
    reviewed_by: str | None = None
    archived_at: str | None = None
    retried_from: str | None = None
    #: What was changed in two places: in the assembled work of a coordinator, in what a child starts from.
    conflicts: tuple[StandingConflict, ...] = ()
    left_out: tuple[LeftOutWork, ...] = ()
    #: The files that the originating branch has meanwhile changed, too, so that a person looks at the work once more.
    moved_files: tuple[str, ...] = ()
    #: What failed several times in a row and is tried again slowly, until it is mended.
    held: tuple[HeldView, ...] = ()
    #: What its agents have used, a coordinator's with those of its children; and what they may use.
    usage: UsageView = UsageView()
    budget: BudgetView | None = None
    #: Where the work of a coordinator run goes; null for a child.
    deliver: DeliveryView | None = None
    internal: RunDetailMemory | msgspec.UnsetType = msgspec.UNSET

    @property
    def kept(self) -> RunDetailMemory:
        """What the row remembers. A row that was read from the view has it."""
        assert self.internal is not msgspec.UNSET
        return self.internal


def shown(row: RunDetail) -> RunDetail:
    """Return the row as a client sees it."""
    return msgspec.structs.replace(row, internal=msgspec.UNSET)


def apply(rows: Rows[RunDetail], fact: Fact) -> Mapping[str, RunDetail | None]:
    """Fold one fact. Every fact of a tree also counts in its coordinator's root_sequence."""
    event = fact.event
    if event.OUTPUT:
        return _counted(rows, fact) if isinstance(event, ToolCalled) else {}
    if (deleted := deleted_run(fact)) is not None:
        return {deleted: None, **dict.fromkeys(rows.group(deleted))}
    if isinstance(event, child_run.TurnOpened | TurnCounted):
        return _used(rows, fact)
    changes: dict[str, RunDetail | None] = {}
    if fact.run is not None and (row := _started(rows, fact) or rows.get(fact.run)) is not None:
        changes[fact.run] = _seen(_next(row, fact), fact)
    if fact.root is not None and fact.root != fact.run and (root := rows.get(fact.root)) is not None:
        changes[fact.root] = _seen(root, fact)
    if isinstance(event, SubtaskMoved) and (child := rows.get(event.child_run_id or "")) is not None:
        # A step of its subtask may open a child run again.
        changes[child.run_id] = _next(child, fact)
    if isinstance(event, EffectHeld | EffectReleased) and (child := rows.get(event.child_run_id or "")) is not None:
        changes[child.run_id] = msgspec.structs.replace(child, held=held_after(child.held, fact))
    if isinstance(event, OptionsSet):
        # A run's options are its children's, too.
        children = (key for key in rows.group(fact.root or "") if key not in changes)
        changes |= {key: _with_facts(row, fact) for key in children if (row := rows.get(key)) is not None}
    return changes


def _used(rows: Rows[RunDetail], fact: Fact) -> Mapping[str, RunDetail | None]:
    """Count what an agent has used for its run, and for the coordinator of that."""
    of = fact.event.run_id if isinstance(fact.event, TurnCounted) else fact.run
    changes: dict[str, RunDetail | None] = {}
    for key in dict.fromkeys((of or "", fact.root or "")):
        if (row := rows.get(key)) is not None:
            used = spending_after(row.kept.spending, fact)
            kept = msgspec.structs.replace(row.kept, spending=used)
            row = msgspec.structs.replace(row, usage=usage_view(used), internal=kept)
            # What is counted of a child is on its coordinator's stream.
            changes[key] = _seen(row, fact) if key == fact.root or key == fact.run else row
    return changes


def _counted(rows: Rows[RunDetail], fact: Fact) -> Mapping[str, RunDetail | None]:
    row = rows.get(fact.run or "")
    return {} if row is None else {row.run_id: msgspec.structs.replace(row, step_count=row.step_count + 1)}


def _started(rows: Rows[RunDetail], fact: Fact) -> RunDetail | None:
    match fact.event:
        case CoordinatorStarted() as event:
            return _coordinator(fact, event)
        case child_run.RunStarted() as event:
            parent = rows.get(event.parent_run_id)
            return None if parent is None else _child(fact, event, parent)
        case _:
            return None


def _coordinator(fact: Fact, event: CoordinatorStarted) -> RunDetail:
    run_id = fact.run or ""
    return RunDetail(
        run_id=run_id,
        status="in_progress",
        agent_name="Coordinator",
        parent_run_id=None,
        subtask_id=None,
        project_id=event.project_id,
        submitting_user=event.submitting_user,
        task=event.goal.value,
        model_id=event.model_id,
        model_source=event.model_id.partition("/")[0],
        started_at=fact.at.isoformat(),
        auto_approve_tools=event.auto_approve_tools,
        autopilot=event.autopilot,
        originating_branch=event.originating_branch,
        retried_from=event.retried_from,
        budget=budget_view(event.budget),
        deliver=delivery_view(event.delivery, run_id),
        internal=RunDetailMemory(
            root=run_id,
            position=fact.position,
            root_sequence=0,
            repository_path=event.repository_path.value,
            base=event.base,
            standing=Standing(),
        ),
    )


def _child(fact: Fact, event: child_run.RunStarted, parent: RunDetail) -> RunDetail:
    return RunDetail(
        run_id=event.run_id,
        status="pending",
        agent_name=event.agent_name,
        parent_run_id=event.parent_run_id,
        subtask_id=event.subtask_id,
        project_id=parent.project_id,
        submitting_user=parent.submitting_user,
        task=None,
        model_id=event.model_id,
        model_source=event.model_id.partition("/")[0],
        started_at=fact.at.isoformat(),
        auto_approve_tools=parent.auto_approve_tools,
        autopilot=parent.autopilot,
        originating_branch=parent.originating_branch,
        worktree_branch=event.worktree_branch,
        internal=RunDetailMemory(
            root=fact.root or event.parent_run_id,
            position=fact.position,
            root_sequence=0,
            repository_path=parent.kept.repository_path,
            child=ChildStanding(),
        ),
    )


def _next(row: RunDetail, fact: Fact) -> RunDetail:
    row = _with_facts(row, fact)
    if row.kept.standing is not None:
        standing = after(row.kept.standing, fact)
        return row if standing is row.kept.standing else _stood(row, standing)
    if row.kept.child is not None:
        return _child_stood(row, child_after(row.kept.child, row.run_id, fact))
    return row


def _stood(row: RunDetail, standing: Standing) -> RunDetail:
    return msgspec.structs.replace(
        row,
        status=standing.status,
        result=standing.result,
        ended_at=standing.ended_at,
        error=row.error if standing.status == "failed" else None,
        coordinator_status=standing.plan_status,
        coordinator_status_reason=standing.reason,
        coordinator_steerable=standing.steerable,
        internal=msgspec.structs.replace(row.kept, standing=standing),
    )


def _child_stood(row: RunDetail, child: ChildStanding) -> RunDetail:
    ended = child.ended_at is not None
    return msgspec.structs.replace(
        row,
        status=child.status,
        result=row.result if ended else None,
        ended_at=child.ended_at,
        error=row.error if child.status == "failed" else None,
        tree_hash=child.tree_hash,
        internal=msgspec.structs.replace(row.kept, child=child, base=child.base, head=child.head),
    )


def _with_facts(row: RunDetail, fact: Fact) -> RunDetail:
    replace = msgspec.structs.replace
    match fact.event:
        case BudgetSet() as event:
            return replace(row, budget=budget_view(event.budget))
        case OptionsSet() as event:
            return replace(row, auto_approve_tools=event.auto_approve_tools, autopilot=event.autopilot)
        case child_run.WorktreePrepared() as event:
            return replace(row, worktree_path=event.worktree_path.value, conflicts=_conflicts(event.conflicts))
        case child_run.BaseRebuilt() as event:
            return replace(row, conflicts=_conflicts(event.conflicts))
        case assembly.AssemblyStarted() as event:
            kept = replace(row.kept, head=None)
            row = replace(row, worktree_branch=event.integration_branch, tree_hash=None, internal=kept)
            return replace(row, conflicts=(), left_out=(), moved_files=())
        case assembly.ConflictAutoResolved() as event:
            return replace(row, conflicts=(*row.conflicts, *_conflicts((resolved(event),))))
        case assembly.ReviewRequested() as event:
            kept = replace(row.kept, base=event.base, head=Commit(commit=event.commit_hash, tree=event.tree_hash))
            return replace(
                row,
                tree_hash=event.tree_hash,
                reviewed_by=None,
                # Requests of earlier releases do not name them.
                conflicts=_conflicts(event.conflicts) or row.conflicts,
                left_out=tuple(
                    LeftOutWork(
                        subtask_id=left.subtask_id,
                        run_id=left.child_run_id,
                        commit_hash=left.commit,
                        reason=left.reason,
                    )
                    for left in event.left_out
                ),
                moved_files=_paths(event.moved_files),
                internal=kept,
            )
        case assembly.ReviewApproved() | assembly.AssemblyDeclined() as event:
            return replace(row, reviewed_by=event.reviewer)
        case assembly.MergeBlocked():
            return replace(row, reviewed_by=None)
        case EffectHeld() | EffectReleased():
            return replace(row, held=held_after(row.held, fact))
        case RunArchived():
            return replace(row, archived_at=fact.at.isoformat())
        case assembly.MergeCompleted() as event:
            return replace(row, merged_commit_hash=event.commit_hash)
        case _:
            return _with_result(row, fact)


def _conflicts(found: Sequence[Conflict]) -> tuple[StandingConflict, ...]:
    return tuple(
        StandingConflict(
            branch=conflict.branch,
            subtask_id=conflict.subtask_id,
            paths=_paths(conflict.paths),
            ref=conflict.ref,
            replaced=conflict.replaced,
        )
        for conflict in found
    )


def _paths(paths: Sequence[Text]) -> tuple[str, ...]:
    return tuple(path.value for path in paths if path.value is not None)


def _with_result(row: RunDetail, fact: Fact) -> RunDetail:
    match fact.event:
        case child_run.RunFailed() as event:
            return msgspec.structs.replace(row, error=failure_of(event), result=event.error_code)
        case child_run.RunCompleted() as event:
            return msgspec.structs.replace(row, result=event.result)
        case child_run.RunCancelled() as event:
            return msgspec.structs.replace(row, result=event.reason)
        case _:
            return row


def _seen(row: RunDetail, fact: Fact) -> RunDetail:
    kept = msgspec.structs.replace(row.kept, root_sequence=fact.root_sequence or row.kept.root_sequence)
    return msgspec.structs.replace(row, internal=kept)


VIEW = View("run_detail", VERSION, RunDetail, apply=apply, place=lambda row: (row.kept.root, row.kept.position))
