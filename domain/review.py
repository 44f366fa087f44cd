"""The human gate over the assembled work, and the merge that follows an approval."""

from collections.abc import Sequence

import msgspec

from .assembly import (
    Assembly,
    AssemblyCompleted,
    AssemblyDeclined,
    ConflictAutoResolved,
    MergeBlocked,
    MergeCompleted,
    MergeFailed,
    MergePrepared,
    MergeStarted,
    ReviewApproved,
    ReviewRequested,
    WorkflowStep,
    WorktreesRemoved,
)
from .child_run import RunFailed
from .event import Draft, Text
from .follow import close_all
from .git import Commit
from .rejected import Invalid, Rejected
from .run import Run
from .turns import MAX_MESSAGE_CHARACTERS, Overtaken
from .work_plan import WorkPlan

MAX_FEEDBACK_BYTES = 16_384

# Commands


class ReviewAssembly(msgspec.Struct, frozen=True, kw_only=True):
    """Decide about the assembled work."""

    approved: bool
    reviewer: str
    feedback: str = ""
    #: The tree that the reviewer saw, if they said so.
    tree_hash: str | None = None


class NoReviewPending(Rejected):
    """No collective review is awaited: the assembly is not there yet, or somebody has decided already."""

    code = "no_assembly_review_pending"


class HeadMoved(Rejected):
    """The assembled work is no longer the tree that you reviewed. Nothing was stored: review the new one."""

    code = "head_moved_since_review"


# Decisions


def open_gate(
    run: Run, assembled: Commit, *, has_changes: bool, conflicts: Sequence[ConflictAutoResolved]
) -> Sequence[Draft]:
    """The work is assembled: show what was resolved on the way, and wait for a person."""
    plan, assembly = assembling(run)
    if plan.status != "assembling" or plan.stage is not None:
        raise Overtaken
    requested = ReviewRequested(
        work_plan_id=plan.work_plan_id,
        integration_branch=assembly.branch,
        tree_hash=assembled.tree,
        commit_hash=assembled.commit,
        base=run.base,
        gate_id=f"{run.run_id}/review/{assembly.round}.{assembly.openings + 1}",
        gate_kind="human-review",
        has_changes=has_changes,
        included_subtask_ids=tuple(sorted(plan.subtasks)),
        escalated=run.escalation is not None,
        reason=run.escalation,
    )
    shown = (run.coordinator(conflict) for conflict in conflicts)
    return (*shown, *close_all(run, "expired", "The assembly gate was opened."), run.coordinator(requested))


def review(run: Run, command: ReviewAssembly) -> Sequence[Draft]:
    """
    Approve or decline what stands at the gate; the first decision wins.

    Raises:
        NoReviewPending: nothing stands there, or it is decided.
        HeadMoved: the reviewer saw another tree.
    """
    if len(command.feedback.encode(errors="replace")) > MAX_FEEDBACK_BYTES:
        raise Invalid(f"`feedback` has more than {MAX_FEEDBACK_BYTES} bytes.")
    plan, assembly = run.plan, run.assembly
    if plan is None or assembly is None or not assembly.gate_open or assembly.gate_id is None or assembly.head is None:
        raise NoReviewPending
    if command.tree_hash is not None and command.tree_hash != assembly.head.tree:
        raise HeadMoved(expected=command.tree_hash, actual=assembly.head.tree)
    if not command.approved:
        declined = AssemblyDeclined(
            work_plan_id=plan.work_plan_id,
            gate_id=assembly.gate_id,
            reason=Text(command.feedback),
            reviewer=command.reviewer,
        )
        return (*close_all(run, "superseded", "The assembled work was declined."), run.coordinator(declined))
    if any(directive.severity != "advisory" for directive in run.open_directives()):
        # A stop, or guidance for finished work: it came first, and this tree is no longer what will be merged.
        raise NoReviewPending(
            "A correction was received before your approval, so this tree is no longer up for review."
        )
    approved = ReviewApproved(
        work_plan_id=plan.work_plan_id,
        gate_id=assembly.gate_id,
        reviewer=command.reviewer,
        tree_hash=assembly.head.tree,
    )
    started = MergeStarted(work_plan_id=plan.work_plan_id, integration_branch=assembly.branch)
    return (run.coordinator(approved), run.coordinator(started))


def prepare_merge(run: Run, old: str, new: str) -> Sequence[Draft]:
    """Name the one move that the merge makes, before it is made."""
    plan, _ = merging(run)
    return (run.coordinator(MergePrepared(work_plan_id=plan.work_plan_id, branch=run.branch, old=old, new=new)),)


def block_merge(run: Run, reason: str) -> Sequence[Draft]:
    """Nothing was moved, and may be tried again: the gate opens once more."""
    plan, _ = merging(run)
    return (run.coordinator(MergeBlocked(work_plan_id=plan.work_plan_id, reason=reason)),)


def fail_merge(run: Run, conflicting_paths: Sequence[str]) -> Sequence[Draft]:
    """The originating branch cannot take the work without a person."""
    plan, _ = merging(run)
    paths = tuple(Text(path) for path in conflicting_paths)
    event = MergeFailed(work_plan_id=plan.work_plan_id, reason="merge_conflict", conflicting_files=paths)
    return (*close_all(run, "expired", "The merge failed."), run.coordinator(event))


def complete_merge(run: Run, commit: str) -> Sequence[Draft]:
    """The originating branch holds the work, so the run has reached its goal."""
    plan, assembly = merging(run)
    scribe = WorkflowStep(
        step="scribe", status="skipped", label="Scribe", message=Text("This project has no scribe agent.")
    )
    completed = AssemblyCompleted(
        work_plan_id=plan.work_plan_id, integration_branch=assembly.branch, commit_hash=commit
    )
    return (
        run.coordinator(MergeCompleted(work_plan_id=plan.work_plan_id, commit_hash=commit)),
        run.coordinator(scribe),
        *close_all(run, "expired", "The run has reached its goal."),
        run.coordinator(completed),
    )


def fail_run(run: Run, *, error_code: str, message: str, retryable: bool) -> Sequence[Draft]:
    """The coordinator run ends without a result."""
    if run.ended or run.stopping:
        # Whoever stops it says how it ended.
        raise Overtaken
    words = Text(message[:MAX_MESSAGE_CHARACTERS])
    failed = RunFailed(message=words, error_code=error_code, retryable=retryable)
    return (*close_all(run, "expired", "The run failed."), run.coordinator(failed))


def remove_worktrees(run: Run) -> Sequence[Draft]:
    """What the run left in the repository is cleared away."""
    if run.worktrees_removed or not run.ended:
        raise Overtaken
    # Housekeeping belongs to the tree and to nobody's feed: a feed ends with the fact that ended its run.
    return (Draft(stream=f"{run.stream}/housekeeping", event=WorktreesRemoved(run_id=run.run_id), root=run.run_id),)


def assembling(run: Run) -> tuple[WorkPlan, Assembly]:
    """Return the plan and assembly of a run that assembles. Raises Overtaken when it does not."""
    if run.plan is None or run.assembly is None or run.ended:
        raise Overtaken
    return run.plan, run.assembly


def merging(run: Run) -> tuple[WorkPlan, Assembly]:
    """Return the plan and assembly of a run that merges. Raises Overtaken when it does not."""
    plan, assembly = assembling(run)
    if plan.status != "assembling" or plan.stage != "merge":
        raise Overtaken
    return plan, assembly
