"""Bring the approved work into the originating branch, or onto a new one: one prepared move, made once."""

from datetime import datetime

from ...domain.facts.assembly import MergePrepared
from ...domain.facts.run import CoordinatorRun
from ...domain.git import Commit
from ...domain.process.effects import MergeAssembly
from ...domain.runs import review
from ...domain.work.turns import Overtaken
from ..ports.git import GitConflict, MergeOutcome
from .assemble_children import summary
from .workshop import Workshop


def merge_assembly(effect: MergeAssembly, shop: Workshop) -> None:
    """
    On return the originating branch, or the new one that the work goes onto, holds the work; or nothing was moved and the log
    says why: it may begin a new round.
    """
    try:
        run = shop.runs.run(effect.run_id)
        _, assembly = review.merging(run)
        prepare = _prepare if run.delivery.mode == "merge" else _prepare_branch
        if assembly.merge is None and not prepare(run, shop):
            return
        run = shop.runs.run(effect.run_id)
        _, assembly = review.merging(run)
        if assembly.merge is None:
            raise Overtaken
        # If we crash after the move, the branch stands at `new` and the next call only records it.
        _record(run, _move(run, assembly.merge, shop), shop)
    except Overtaken:
        return


def _move(run: CoordinatorRun, prepared: MergePrepared, shop: Workshop) -> MergeOutcome:
    repository = shop.repository(run)
    if prepared.old:
        return shop.repositories.merge(repository, prepared.branch, prepared.old, prepared.new)
    try:
        shop.repositories.point_branch(repository, prepared.branch, None, prepared.new)
    except GitConflict:
        return MergeOutcome(state="blocked", reason="branch_exists")
    return MergeOutcome(state="merged", commit=prepared.new)


def _prepare_branch(run: CoordinatorRun, shop: Workshop) -> bool:
    _, assembly = review.merging(run)
    assert assembly.head is not None, "nothing is delivered before it was assembled"
    # What lands is what was approved, on what it was made on: whatever the originating branch holds by now.
    new = assembly.head.commit
    if shop.names_approver:
        new = _sealed(run, run.base.commit, assembly.head, shop)
    return shop.decide(run.run_id, lambda found: review.prepare_delivery(found, new))


def _sealed(run: CoordinatorRun, onto: str, approved: Commit, shop: Workshop) -> str:
    _, assembly = review.merging(run)
    at = datetime.fromisoformat(assembly.started_at)
    return shop.repositories.seal(shop.repository(run), run.run_id, onto, approved, at, _message(run, shop))


def _message(run: CoordinatorRun, shop: Workshop) -> str:
    """Return what the commit says that brings the work in."""
    _, assembly = review.merging(run)
    trailers = [f"Steersman-Run: {run.run_id}"]
    if shop.names_approver and assembly.approved_by:
        trailers.append(f"Approved-by: {' '.join(assembly.approved_by.split())}")
    return f"Merge: {summary(run)}\n\n" + "".join(f"{trailer}\n" for trailer in trailers)


def _prepare(run: CoordinatorRun, shop: Workshop) -> bool:
    _, assembly = review.merging(run)
    assert assembly.head is not None, "nothing reaches the merge before it was assembled"
    outcome = shop.repositories.prepare_merge(
        shop.repository(run),
        run.run_id,
        run.branch,
        assembly.head,
        datetime.fromisoformat(assembly.started_at),
        _message(run, shop),
        run.base.commit,
    )
    if outcome.state != "merged" or outcome.commit is None or outcome.old is None:
        _record(run, outcome, shop)
        return False
    onto, back = _onto(outcome), outcome.brings_back
    meets = outcome.meets if outcome.tree != assembly.head.tree else ()
    if onto is not None and (back or meets):
        # What would land is not what was approved: it goes to the gates, and to a person, as it will be.
        reason: review.MovedReason = "history_rewritten" if back else "files_meet"
        shop.decide(run.run_id, lambda found: review.move_base(found, onto, back or meets, reason))
        return False
    old, new = outcome.old, outcome.commit
    if shop.names_approver and new == assembly.head.commit != old:
        # The commit was made before anybody approved it, so it cannot say who did.
        new = _sealed(run, old, assembly.head, shop)
    return shop.decide(run.run_id, lambda found: review.prepare_merge(found, old, new))


def _onto(outcome: MergeOutcome) -> Commit | None:
    if outcome.old is None or outcome.old_tree is None:
        return None
    return Commit(commit=outcome.old, tree=outcome.old_tree)


def _record(run: CoordinatorRun, outcome: MergeOutcome, shop: Workshop) -> None:
    reason, paths, commit = outcome.reason or outcome.state, outcome.conflicting_paths, outcome.commit
    if outcome.state == "merged" and commit is not None:
        shop.decide(run.run_id, lambda found: review.complete_merge(found, commit))
    elif outcome.state == "conflicted":
        shop.decide(run.run_id, lambda found: review.fail_merge(found, paths, _onto(outcome)))
    else:
        shop.decide(run.run_id, lambda found: review.block_merge(found, reason))
