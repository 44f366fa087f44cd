"""Merge the approved work into the originating branch: one prepared move, made once."""

from datetime import datetime

from ...domain.facts.run import CoordinatorRun
from ...domain.git import Commit
from ...domain.process.effects import MergeAssembly
from ...domain.runs import review
from ...domain.work.turns import Overtaken
from ..ports.git import MergeOutcome
from .assemble_children import summary
from .workshop import Workshop


def merge_assembly(effect: MergeAssembly, shop: Workshop) -> None:
    """On return the originating branch holds the work, or nothing was moved and the log says why: it may begin a new round."""
    try:
        run = shop.runs.run(effect.run_id)
        _, assembly = review.merging(run)
        if assembly.merge is None and not _prepare(run, shop):
            return
        run = shop.runs.run(effect.run_id)
        _, assembly = review.merging(run)
        if assembly.merge is None:
            raise Overtaken
        # If we crash after the move, the branch stands at `new` and the next call only records it.
        outcome = shop.repositories.merge(
            shop.repository(run), assembly.merge.branch, assembly.merge.old, assembly.merge.new
        )
        _record(run, outcome, shop)
    except Overtaken:
        return


def _prepare(run: CoordinatorRun, shop: Workshop) -> bool:
    _, assembly = review.merging(run)
    assert assembly.head is not None, "nothing reaches the merge before it was assembled"
    outcome = shop.repositories.prepare_merge(
        shop.repository(run),
        run.run_id,
        run.branch,
        assembly.head,
        datetime.fromisoformat(assembly.started_at),
        f"Merge: {summary(run)}\n\nSteersman-Run: {run.run_id}\n",
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
