"""The facts of a collective assembly: one integration branch, one human gate, one merge."""

from typing import ClassVar

import msgspec

from ..event import Event, Text
from ..git import Commit
from .conflicts import Conflict
from .gates import GateCompleted


class ChildrenComplete(Event, frozen=True, kw_only=True):
    """Every subtask has settled and none is under way."""

    TOPIC: ClassVar[str] = "coordinator.children_complete"

    work_plan_id: str
    completed: int
    assemble_ready: int
    failed: int
    total: int


class AssemblyStarted(Event, frozen=True, kw_only=True):
    """The children's work is being put together. `round` counts the assemblies of this run from 1."""

    TOPIC: ClassVar[str] = "coordinator.assembly_started"

    work_plan_id: str
    integration_branch: str
    subtask_count: int
    round: int


class IneligibleSubtask(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A subtask that cannot be assembled, and why."""

    id: int
    title: Text
    status: str
    agent: str
    reason: Text | None
    #: What it once had ready for the assembly, if it had.
    commit: str | None = None
    #: Why it has no result, in a word: as its `subtask.failed` says.
    cause: str | None = None


class AssemblyBlocked(Event, frozen=True, kw_only=True):
    """The assembly is parked until somebody steers; nothing is lost and the run goes on from here."""

    TOPIC: ClassVar[str] = "coordinator.assembly_blocked"

    work_plan_id: str
    reason: str
    ineligible_subtask_ids: tuple[int, ...] = ()
    ineligible_subtasks: tuple[IneligibleSubtask, ...] = ()
    retryable: bool = True


class StallDetected(Event, frozen=True, kw_only=True):
    """A child's agent has shown no sign of work for so long that it is given up."""

    TOPIC: ClassVar[str] = "coordinator.child_stall_detected"

    child_run_id: str
    subtask_id: int
    stall_timeout_seconds: int


class SubtaskRedispatched(Event, frozen=True, kw_only=True):
    """A stalled subtask starts afresh, within its budget."""

    TOPIC: ClassVar[str] = "coordinator.subtask_redispatched"

    subtask_id: int
    prior_child_run_id: str
    attempt: int
    max_attempts: int
    reason: str
    timestamp_utc: str = msgspec.field(name="timestamp_utc")


class AssemblyIntegrated(Event, frozen=True, kw_only=True):
    """The children's work stands on the integration branch; the gates look at exactly this tree."""

    TOPIC: ClassVar[str] = "coordinator.assembly_integrated"

    work_plan_id: str
    integration_branch: str
    base: Commit
    head: Commit
    has_changes: bool


class ConflictAutoResolved(Event, frozen=True, kw_only=True):
    """
    Two children changed the same lines. On these paths the later child's version stands in the assembly;
    what it replaced is kept at `ref`.
    """

    TOPIC: ClassVar[str] = "coordinator.integration_conflict_auto_resolved"

    work_plan_id: str
    conflicting_branch: str
    conflicting_files: tuple[Text, ...]
    strategy: str
    ref: str
    #: The subtask whose version stands, and those that changed these files, too. Unknown in facts of earlier releases.
    subtask_id: int | None = None
    other_subtask_ids: tuple[int, ...] = ()
    #: The commit at `ref`.
    replaced: str | None = None


class LeftOut(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """
    Work that was ready for an assembly once and is in this one no more. `reason` is

    taken_back (an author of its subtask undid it), base_conflict (it did not fit onto what its producers made anew, so
    its subtask started afresh) or not_handed_on (whoever came next did not go on from it).
    """

    subtask_id: int
    child_run_id: str
    commit: str
    reason: str


class WorkLeftOut(Event, frozen=True, kw_only=True):
    """Work that was ready for an assembly once is not in this one: where it is, and why. See LeftOut for the reasons."""

    TOPIC: ClassVar[str] = "coordinator.assembly_work_left_out"

    work_plan_id: str
    subtask_id: int
    child_run_id: str
    commit: str
    reason: str


class BaseMoved(Event, frozen=True, kw_only=True):
    """
    The originating branch has moved on in what the run has changed, too; from here on the run builds on what it holds
    now, and a person looks at the work on top of that. `reason` is files_meet (it merges without a conflict, into
    something that nobody has seen yet), history_rewritten (it holds no more what the run began from, and a merge would
    bring that back) or merge_conflict.
    """

    TOPIC: ClassVar[str] = "coordinator.base_moved"

    work_plan_id: str
    branch: str
    previous: Commit
    base: Commit
    reason: str
    files: tuple[Text, ...]


class ReviewRequested(Event, frozen=True, kw_only=True):
    """The assembled work waits for a decision, for as long as it takes."""

    TOPIC: ClassVar[str] = "coordinator.assembly_review_requested"

    work_plan_id: str
    integration_branch: str
    tree_hash: str
    commit_hash: str
    base: Commit
    gate_id: str
    gate_kind: str
    has_changes: bool
    included_subtask_ids: tuple[int, ...]
    rai_safety_flagged: bool = False
    escalated: bool = False
    #: Why the gate is open, where that is not simply because the work is done: an escalation's reason, or base_moved.
    reason: str | None = None
    accumulated_feedback: tuple[Text, ...] = ()
    #: `none` if an agent of this work had all rights of the service in any of its turns; None: not known.
    isolation: str | None = None
    #: Where two authors changed the same place: one version stands in what is to be reviewed.
    conflicts: tuple[Conflict, ...] = ()
    #: What was ready once and is not in what is to be reviewed.
    left_out: tuple[LeftOut, ...] = ()
    #: The files that the originating branch and the run have both changed, where the branch has moved on.
    moved_files: tuple[Text, ...] = ()


class ReviewApproved(Event, frozen=True, kw_only=True):
    """A person approved exactly this tree."""

    TOPIC: ClassVar[str] = "coordinator.assembly_review_approved"

    work_plan_id: str
    gate_id: str
    reviewer: str
    tree_hash: str


#: How many files a fact names that are only to be looked at.
MAX_SHOWN_FILES = 200


class ChangesRequested(Event, frozen=True, kw_only=True):
    """Subtasks are to be done over: those that the feedback is about, and those that build on them."""

    TOPIC: ClassVar[str] = "coordinator.assembly_changes_requested"

    work_plan_id: str
    directive_id: str
    implicated_subtask_ids: tuple[int, ...]
    dependent_subtask_ids: tuple[int, ...]
    redispatch_subtask_ids: tuple[int, ...]
    #: Those of them that begin now; the others follow when what they build on is there again.
    redispatched_subtask_ids: tuple[int, ...] = ()
    feedback: Text


class ScopeFellBack(Event, frozen=True, kw_only=True):
    """The feedback named no file that a subtask has changed, so it concerns every contributor."""

    TOPIC: ClassVar[str] = "coordinator.assembly_implicated_scope_fallback"

    work_plan_id: str
    source: str
    reviewer: str
    reason: str
    named_files: tuple[Text, ...]
    #: What the contributors have changed, of which none was named; at most MAX_SHOWN_FILES of it.
    touched_files: tuple[Text, ...] = ()
    contributor_ids: tuple[int, ...]


class Recovered(Event, frozen=True, kw_only=True):
    """A run that had stopped goes on."""

    TOPIC: ClassVar[str] = "coordinator.recovered"

    reason: str
    directive_id: str
    reset_subtask_ids: tuple[int, ...]
    instruction: Text


class AssemblyDeclined(Event, frozen=True, kw_only=True):
    """A person declined the assembled work; nothing is merged."""

    TOPIC: ClassVar[str] = "coordinator.assembly_declined"

    work_plan_id: str
    gate_id: str
    reason: Text
    reviewer: str


class MergeStarted(Event, frozen=True, kw_only=True):
    """The approved work is being merged into the originating branch."""

    TOPIC: ClassVar[str] = "coordinator.assembly_merge_started"

    work_plan_id: str
    integration_branch: str


class MergePrepared(Event, frozen=True, kw_only=True):
    """
    The one move that the merge will make. Stored before anything moves: whoever goes on after a crash finds the
    branch at `new` (done), at `old` (do it) or elsewhere (not ours to move).
    """

    TOPIC: ClassVar[str] = "coordinator.assembly_merge_prepared"

    work_plan_id: str
    branch: str
    #: Empty for a new branch.
    old: str
    new: str


class MergeBlocked(Event, frozen=True, kw_only=True):
    """Nothing was moved; the gate is open again, and approving it once more tries again."""

    TOPIC: ClassVar[str] = "coordinator.assembly_merge_blocked"

    work_plan_id: str
    reason: str


class MergeCompleted(Event, frozen=True, kw_only=True):
    """The originating branch holds the approved work, or `branch` if that is another one."""

    TOPIC: ClassVar[str] = "coordinator.assembly_merge_completed"

    work_plan_id: str
    commit_hash: str
    branch: str | None = None


class MergeFailed(Event, frozen=True, kw_only=True):
    """The originating branch has moved on in a way that only a person can merge; nothing was moved."""

    TOPIC: ClassVar[str] = "coordinator.assembly_merge_failed"

    work_plan_id: str
    reason: str
    conflicting_files: tuple[Text, ...] = ()
    #: Where the originating branch stood; whoever tries again builds on this.
    onto: Commit | None = None


class AssemblyFailed(Event, frozen=True, kw_only=True):
    """
    Putting the children's work together, or a gate's look at it, failed time and again by a fault of the program, so the run
    has ended. `phase` is integration, or the gate; `message` the words of the last failure. A redirect tries it again.
    """

    TOPIC: ClassVar[str] = "coordinator.assembly_failed"

    work_plan_id: str
    reason: str
    phase: str
    message: Text
    attempts: int


class AssemblyCompleted(Event, frozen=True, kw_only=True):
    """The run reached its goal."""

    TOPIC: ClassVar[str] = "coordinator.assembly_completed"

    work_plan_id: str
    integration_branch: str
    commit_hash: str
    #: False: nobody changed a file, so the gates and the merge were skipped.
    has_changes: bool = True


class WorkflowStep(Event, frozen=True, kw_only=True):
    """A step of the run's workflow began, ended, failed, or was skipped and why."""

    TOPIC: ClassVar[str] = "workflow.step"

    step: str
    status: str
    label: str
    message: Text | None = None


class WorktreesRemoved(Event, frozen=True, kw_only=True):
    """The run's worktrees, and the branches that are merged, are gone from the repository."""

    TOPIC: ClassVar[str] = "run.worktrees_removed"

    run_id: str


# State


class Assembly(msgspec.Struct, frozen=True, kw_only=True):
    """The newest assembly of a run."""

    round: int
    branch: str
    #: When this round began: the time of its merge commits, so that a redo makes the same ones.
    started_at: str
    #: Where the round before left the integration branch.
    previous: Commit | None = None
    base: Commit | None = None
    head: Commit | None = None
    has_changes: bool = False
    gate: str | None = None
    gate_open: bool = False
    approved_by: str | None = None
    merge: MergePrepared | None = None
    #: Counts the attempts to merge, each with its own approval.
    approvals: int = 0
    #: How often the gate over this round has been opened; names the next opening.
    openings: int = 0
    conflicts: tuple[ConflictAutoResolved, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    merge_failed: MergeFailed | None = None
    #: The automated gates that this tree has passed, or that are skipped.
    gates_done: tuple[str, ...] = ()

    def gate_id(self, kind: str) -> str:
        """Return the id of a gate over this round."""
        return f"{self.branch.rpartition('/')[2]}/{kind}/{self.round}"


def evolve(assembly: Assembly | None, event: Event, at: str) -> Assembly | None:
    """Add one fact to the state of the assembly."""
    replace = msgspec.structs.replace
    if isinstance(event, AssemblyStarted):
        previous = assembly.head if assembly else None
        return Assembly(round=event.round, branch=event.integration_branch, started_at=at, previous=previous)
    if assembly is None:
        return None
    match event:
        case ConflictAutoResolved():
            return replace(assembly, conflicts=(*assembly.conflicts, event))
        case WorkLeftOut():
            left = LeftOut(
                subtask_id=event.subtask_id, child_run_id=event.child_run_id, commit=event.commit, reason=event.reason
            )
            return replace(assembly, left_out=(*assembly.left_out, left))
        case AssemblyIntegrated():
            return replace(assembly, base=event.base, head=event.head, has_changes=event.has_changes)
        case GateCompleted(outcome="passed" | "skipped"):
            return replace(assembly, gates_done=(*assembly.gates_done, event.gate_kind))
        case ReviewRequested():
            return replace(
                assembly,
                base=event.base,
                head=Commit(commit=event.commit_hash, tree=event.tree_hash),
                has_changes=event.has_changes,
                gate=event.gate_id,
                gate_open=True,
                openings=assembly.openings + 1,
            )
        case ReviewApproved():
            approvals = assembly.approvals + 1
            return replace(assembly, gate_open=False, approved_by=event.reviewer, merge=None, approvals=approvals)
        case AssemblyDeclined():
            return replace(assembly, gate_open=False)
        case MergePrepared():
            return replace(assembly, merge=event)
        case MergeFailed():
            return replace(assembly, merge_failed=event)
        case MergeBlocked():
            return replace(assembly, gate_open=True, approved_by=None, merge=None)
        case _:
            return assembly
