"""The human gate over the assembled work, and the merge that follows an approval."""

from collections.abc import Sequence
from typing import Literal, TypeAlias
from uuid import NAMESPACE_OID, uuid5

import msgspec

from ..event import Draft, Text
from ..facts.assembly import (
    Assembly,
    AssemblyBlocked,
    AssemblyCompleted,
    AssemblyDeclined,
    AssemblyIntegrated,
    BaseMoved,
    ConflictAutoResolved,
    MergeBlocked,
    MergeCompleted,
    MergeFailed,
    MergePrepared,
    MergeStarted,
    ReviewApproved,
    WorkflowStep,
    WorkLeftOut,
    WorktreesRemoved,
)
from ..facts.child_run import RunFailed
from ..facts.gates import GateCompleted, GateKind, GateStarted, RaiCompleted, RaiStarted, Verdict, next_gate
from ..facts.line import left_out
from ..facts.run import CoordinatorRun
from ..facts.work_plan import WorkPlan, WorkPlanMade
from ..git import Commit
from ..rejected import Invalid, Rejected
from ..steering.follow import close_all
from ..steering.gate_signals import (
    MAX_FEEDBACK_BYTES,
    MAX_TARGET_FILES,
    NoReviewPending,
    Signal,
    Touched,
    receive_signal,
)
from ..steering.rounds import begin_round, open_gate
from ..work.turns import MAX_MESSAGE_CHARACTERS, Overtaken

# Commands


class ReviewAssembly(msgspec.Struct, frozen=True, kw_only=True):
    """Decide about the assembled work."""

    approved: bool
    reviewer: str
    feedback: str = ""
    #: The tree that the reviewer saw, if they said so.
    tree_hash: str | None = None


class HeadMoved(Rejected):
    """The assembled work is no longer the tree that you reviewed. Nothing was stored: review the new one."""

    code = "head_moved_since_review"


# Decisions


def put_plan(run: CoordinatorRun, made: WorkPlanMade) -> Sequence[Draft]:
    """The planner has answered. Raises Overtaken when its plan is not waited for any more: the run ended meanwhile."""
    if run.plan is not None or run.ended or run.stopping:
        raise Overtaken
    return (run.on_plan(made, made.work_plan_id),)


def integrate(
    run: CoordinatorRun,
    assembled: Commit,
    *,
    of_round: int,
    has_changes: bool,
    conflicts: Sequence[ConflictAutoResolved],
) -> Sequence[Draft]:
    """The work of a round is assembled: show what was resolved on the way, and what is not in it, and go to the gates."""
    plan, assembly = to_integrate(run, of_round)
    integrated = AssemblyIntegrated(
        work_plan_id=plan.work_plan_id,
        integration_branch=assembly.branch,
        base=run.base,
        head=assembled,
        has_changes=has_changes,
    )
    lost = (
        WorkLeftOut(
            work_plan_id=plan.work_plan_id,
            subtask_id=found.subtask_id,
            child_run_id=found.child_run_id,
            commit=found.commit,
            reason=found.reason,
        )
        for found in left_out(run)
    )
    return tuple(run.coordinator(event) for event in (*conflicts, *lost, integrated))


def pass_gates(run: CoordinatorRun) -> Sequence[Draft]:
    """
    Take the assembled work to the next gate: skip those that are not configured, begin the next one, or ask a person.

    Nothing while a gate is looking, or when there is nothing to look at.
    """
    plan, assembly = run.plan, run.assembly
    if (
        plan is None
        or assembly is None
        or plan.status != "assembling"
        or assembly.head is None
        or plan.stage == "merge"
    ):
        return ()
    if not assembly.has_changes and not assembly.left_out:
        # Nothing to look at. Where work that was ready is left out of it, a person is to see that.
        return _without_changes(run, plan, assembly, assembly.head)
    skipped, spec = next_gate(run.gates, assembly.gates_done)
    if spec is not None and plan.stage == spec.kind:
        return ()
    drafts = [run.coordinator(_skipped(plan, assembly.head, kind)) for kind in skipped]
    if spec is None:
        return (*drafts, *_ask_a_person(run, plan, assembly, assembly.head))
    started = GateStarted(work_plan_id=plan.work_plan_id, gate_kind=spec.kind, tree_hash=assembly.head.tree)
    drafts.append(run.coordinator(started))
    if spec.kind == "rai":
        rai = RaiStarted(
            work_plan_id=plan.work_plan_id, integration_branch=assembly.branch, gate_id=assembly.gate_id("rai")
        )
        drafts.append(run.coordinator(rai))
    return drafts


def complete_gate(
    run: CoordinatorRun, kind: GateKind, gate_id: str, verdict: Verdict, touched: Touched
) -> Sequence[Draft]:
    """A gate has a verdict about the tree that stands assembled. Its request for changes becomes a signal like any other."""
    plan, assembly = at_gate(run, kind, gate_id)
    assert assembly.head is not None, "no gate begins before there is something to look at"
    tree_hash = assembly.head.tree
    completed = GateCompleted(
        work_plan_id=plan.work_plan_id,
        gate_kind=kind,
        tree_hash=tree_hash,
        outcome=verdict.outcome,
        message=Text(verdict.feedback[:MAX_MESSAGE_CHARACTERS]),
    )
    drafts = [run.coordinator(completed)]
    if kind == "rai":
        rai = RaiCompleted(
            work_plan_id=plan.work_plan_id,
            integration_branch=assembly.branch,
            gate_id=assembly.gate_id("rai"),
            rai_safety_flagged=verdict.outcome == "red",
            rai_revision_requested=verdict.outcome == "revise",
            feedback=Text(verdict.feedback[:MAX_MESSAGE_CHARACTERS]),
        )
        drafts.append(run.coordinator(rai))
    if verdict.outcome in ("revise", "red"):
        signal = Signal(
            directive_id=str(uuid5(NAMESPACE_OID, assembly.gate_id(kind))),
            source=kind,
            severity="blocking" if verdict.outcome == "red" else "request-changes",
            feedback=verdict.feedback,
            created_by=f"gate:{kind}",
            target_files=verdict.target_files[:MAX_TARGET_FILES],
            tree_hash=tree_hash,
        )
        drafts.extend(receive_signal(run, signal, touched))
    return drafts


def block_gate(run: CoordinatorRun, kind: GateKind, gate_id: str, reason: str) -> Sequence[Draft]:
    """A gate could not do its work; that is no feedback. The run is parked until somebody steers."""
    plan, _ = at_gate(run, kind, gate_id)
    word = kind.replace("-", "_")
    return (run.coordinator(AssemblyBlocked(work_plan_id=plan.work_plan_id, reason=f"{word}_infra_{reason}")),)


def _skipped(plan: WorkPlan, head: Commit, kind: GateKind) -> GateCompleted:
    what = "build and test command" if kind == "build-test" else f"{kind} reviewer"
    return GateCompleted(
        work_plan_id=plan.work_plan_id,
        gate_kind=kind,
        tree_hash=head.tree,
        outcome="skipped",
        message=Text(f"This project has no {what}."),
    )


def _without_changes(run: CoordinatorRun, plan: WorkPlan, assembly: Assembly, head: Commit) -> Sequence[Draft]:
    """Nobody is asked to look at nothing: the run has reached its goal, and there is nothing to merge."""
    completed = AssemblyCompleted(
        work_plan_id=plan.work_plan_id,
        integration_branch=assembly.branch,
        commit_hash=head.commit,
        has_changes=False,
    )
    ends = close_all(run, "expired", "The run has reached its goal: nothing was changed.")
    return (*ends, run.coordinator(completed))


def _ask_a_person(run: CoordinatorRun, plan: WorkPlan, assembly: Assembly, head: Commit) -> Sequence[Draft]:
    requested = open_gate(run, plan, assembly, head, run.escalation)
    return (*close_all(run, "expired", "The assembly gate was opened."), requested)


def review(run: CoordinatorRun, command: ReviewAssembly) -> Sequence[Draft]:
    """
    Approve or decline what stands at the gate; the first decision wins.

    Raises:
        NoReviewPending: nothing stands there, or it is decided.
        HeadMoved: the reviewer saw another tree.
    """
    if len(command.feedback.encode(errors="replace")) > MAX_FEEDBACK_BYTES:
        raise Invalid(f"`feedback` has more than {MAX_FEEDBACK_BYTES} bytes.")
    plan, assembly = run.plan, run.assembly
    if plan is None or assembly is None or not assembly.gate_open or assembly.gate is None or assembly.head is None:
        raise NoReviewPending
    if run.ended:
        raise NoReviewPending("The run has ended, so nothing of it is up for review any more.")
    if command.tree_hash is not None and command.tree_hash != assembly.head.tree:
        raise HeadMoved(expected=command.tree_hash, actual=assembly.head.tree)
    if not command.approved:
        declined = AssemblyDeclined(
            work_plan_id=plan.work_plan_id,
            gate_id=assembly.gate,
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
        gate_id=assembly.gate,
        reviewer=command.reviewer,
        tree_hash=assembly.head.tree,
    )
    started = MergeStarted(work_plan_id=plan.work_plan_id, integration_branch=assembly.branch)
    return (run.coordinator(approved), run.coordinator(started))


def prepare_merge(run: CoordinatorRun, old: str, new: str) -> Sequence[Draft]:
    """Name the one move that the merge makes, before it is made."""
    plan, _ = merging(run)
    return (run.coordinator(MergePrepared(work_plan_id=plan.work_plan_id, branch=run.branch, old=old, new=new)),)


def prepare_delivery(run: CoordinatorRun, new: str) -> Sequence[Draft]:
    """Name the new branch that the work goes onto, and the commit that it is made at, before it is made."""
    plan, _ = merging(run)
    branch = run.delivery.branch_of(run.run_id)
    return (run.coordinator(MergePrepared(work_plan_id=plan.work_plan_id, branch=branch, old="", new=new)),)


def block_merge(run: CoordinatorRun, reason: str) -> Sequence[Draft]:
    """Nothing was moved, and may be tried again: the gate opens once more."""
    plan, _ = merging(run)
    return (run.coordinator(MergeBlocked(work_plan_id=plan.work_plan_id, reason=reason)),)


#: What sends approved work to a person once more: see BaseMoved.
MovedReason: TypeAlias = Literal["files_meet", "history_rewritten"]


def move_base(
    run: CoordinatorRun, base: Commit, files: Sequence[str], reason: MovedReason = "files_meet"
) -> Sequence[Draft]:
    """
    The originating branch has meanwhile changed what the run did, too, or has let go of what the run began from, which a
    merge would bring back: nobody has seen what it would make of the branch.

    So it is assembled anew, on top of what the branch holds now, and goes to the gates again.
    """
    plan, _ = merging(run)
    moved = BaseMoved(
        work_plan_id=plan.work_plan_id,
        branch=run.branch,
        previous=run.base,
        base=base,
        reason=reason,
        files=tuple(Text(path) for path in files),
    )
    return (run.coordinator(moved), begin_round(run, plan))


def fail_merge(run: CoordinatorRun, conflicting_paths: Sequence[str], onto: Commit | None = None) -> Sequence[Draft]:
    """The originating branch, which stands at *onto*, cannot take the work without a person."""
    plan, _ = merging(run)
    paths = tuple(Text(path) for path in conflicting_paths)
    event = MergeFailed(work_plan_id=plan.work_plan_id, reason="merge_conflict", conflicting_files=paths, onto=onto)
    return (*close_all(run, "expired", "The merge failed."), run.coordinator(event))


def complete_merge(run: CoordinatorRun, commit: str) -> Sequence[Draft]:
    """The originating branch, or the new one, holds the work, so the run has reached its goal."""
    plan, assembly = merging(run)
    scribe = WorkflowStep(
        step="scribe", status="skipped", label="Scribe", message=Text("This project has no scribe agent.")
    )
    completed = AssemblyCompleted(
        work_plan_id=plan.work_plan_id, integration_branch=assembly.branch, commit_hash=commit
    )
    branch = run.delivery.branch_of(run.run_id) if run.delivery.mode != "merge" else None
    return (
        run.coordinator(MergeCompleted(work_plan_id=plan.work_plan_id, commit_hash=commit, branch=branch)),
        run.coordinator(scribe),
        *close_all(run, "expired", "The run has reached its goal."),
        run.coordinator(completed),
    )


def fail_run(run: CoordinatorRun, *, error_code: str, message: str, retryable: bool) -> Sequence[Draft]:
    """The coordinator run ends without a result."""
    if run.ended or run.stopping:
        # Whoever stops it says how it ended.
        raise Overtaken
    words = Text(message[:MAX_MESSAGE_CHARACTERS])
    failed = RunFailed(message=words, error_code=error_code, retryable=retryable)
    return (*close_all(run, "expired", "The run failed."), run.coordinator(failed))


def remove_worktrees(run: CoordinatorRun) -> Sequence[Draft]:
    """What the run left in the repository is cleared away."""
    if run.worktrees_removed or not run.ended:
        raise Overtaken
    # Housekeeping belongs to the tree and to nobody's feed: a feed ends with the fact that ended its run.
    return (Draft(stream=f"{run.stream}/housekeeping", event=WorktreesRemoved(run_id=run.run_id), root=run.run_id),)


def assembling(run: CoordinatorRun) -> tuple[WorkPlan, Assembly]:
    """Return the plan and assembly of a run that assembles. Raises Overtaken when it does not."""
    if run.plan is None or run.assembly is None or run.ended:
        raise Overtaken
    return run.plan, run.assembly


def to_integrate(run: CoordinatorRun, of_round: int) -> tuple[WorkPlan, Assembly]:
    """Return the plan and assembly of a run whose round waits to be put together. Raises Overtaken when it does not."""
    plan, assembly = assembling(run)
    if plan.status != "assembling" or assembly.head is not None or assembly.round != of_round:
        raise Overtaken
    return plan, assembly


def at_gate(run: CoordinatorRun, kind: GateKind, gate_id: str) -> tuple[WorkPlan, Assembly]:
    """Return the plan and assembly of a run that stands at this gate of this round. Raises Overtaken when it does not."""
    plan, assembly = assembling(run)
    if plan.status != "assembling" or plan.stage != kind or assembly.gate_id(kind) != gate_id:
        raise Overtaken
    return plan, assembly


def merging(run: CoordinatorRun) -> tuple[WorkPlan, Assembly]:
    """Return the plan and assembly of a run that merges. Raises Overtaken when it does not."""
    plan, assembly = assembling(run)
    if plan.status != "assembling" or plan.stage != "merge":
        raise Overtaken
    return plan, assembly
