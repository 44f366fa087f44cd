"""What a subtask's line of authors contributes, and what a child run starts from: everything made before it, brought together."""

from datetime import datetime

import msgspec

from ...domain.event import Text
from ...domain.facts.child_run import ChildRun
from ...domain.facts.conflicts import Conflict
from ...domain.facts.line import contributes, left_on_branch
from ...domain.facts.run import CoordinatorRun
from ...domain.facts.work_plan import Subtask
from ...domain.git import Commit
from ..ports.git import Contribution, Integrated, PathConflict
from .workshop import Workshop


class Base(msgspec.Struct, frozen=True, kw_only=True):
    """Where a child's branch is to stand, on top of what it builds on (its foundation), and what conflicted on the way there."""

    foundation: Commit
    commit: Commit
    conflicts: tuple[PathConflict, ...] = ()
    #: Whether what the subtask's own authors made fits onto the foundation.
    clean: bool = True


def contributions(run: CoordinatorRun, subtask_ids: tuple[int, ...]) -> tuple[Contribution, ...]:
    """Return what these subtasks' authors have committed, in the given order; those without a change have no part."""
    if run.plan is None:
        return ()
    made: list[Contribution] = []
    for subtask_id in subtask_ids:
        subtask = run.plan.subtasks[subtask_id]
        left = contributes(run, subtask)
        if left is not None:
            made.append(Contribution(subtask_id=subtask_id, branch=left.branch, commit=left.commit))
    return tuple(made)


def first_base(run: CoordinatorRun, child: ChildRun, subtask: Subtask, shop: Workshop) -> Base:
    """Return what a new child starts from: what its producers made, and what the author before it left on its branch."""
    left = left_on_branch(run, subtask)
    own = left and Contribution(subtask_id=subtask.subtask_id, branch=left.branch, commit=left.commit)
    return _based(run, child, subtask, own, shop)


def rebuilt_base(run: CoordinatorRun, child: ChildRun, subtask: Subtask, shop: Workshop) -> Base:
    """Return what a child goes on from when its producers made something anew: that, under the child's own work."""
    assert child.head is not None, "only what was committed can be outdated"
    own = Contribution(subtask_id=subtask.subtask_id, branch=child.branch, commit=child.head.commit)
    return _based(run, child, subtask, own, shop)


def conflict_of(found: PathConflict) -> Conflict:
    """Return a conflict as the facts say it."""
    return Conflict(
        branch=found.branch,
        subtask_id=found.subtask_id,
        paths=tuple(Text(path) for path in found.paths),
        ref=found.ref,
        replaced=found.replaced,
    )


def _based(run: CoordinatorRun, child: ChildRun, subtask: Subtask, own: Contribution | None, shop: Workshop) -> Base:
    made = contributions(run, run.plan.producers(subtask.subtask_id) if run.plan else ())
    beneath = _integrated(run, child, subtask, run.base, made, shop)
    foundation = Commit(commit=beneath.commit, tree=beneath.tree)
    if own is None:
        return Base(foundation=foundation, commit=foundation, conflicts=beneath.conflicts)
    whole = _integrated(run, child, subtask, foundation, (own,), shop)
    return Base(
        foundation=foundation,
        commit=Commit(commit=whole.commit, tree=whole.tree),
        conflicts=(*beneath.conflicts, *whole.conflicts),
        clean=not whole.conflicts,
    )


def _integrated(
    run: CoordinatorRun, child: ChildRun, subtask: Subtask, onto: Commit, made: tuple[Contribution, ...], shop: Workshop
) -> Integrated:
    if not made:
        return Integrated(commit=onto.commit, tree=onto.tree, has_changes=False)
    return shop.repositories.integrate(
        shop.repository(run),
        run.run_id,
        onto.commit,
        made,
        datetime.fromisoformat(child.created_at),
        f"Bring together what subtask {subtask.subtask_id} builds on\n\nSteersman-Run: {run.run_id}\n",
    )
