"""
The line of authors of a subtask: child runs, each of which goes on from what the one before it left on its branch.

What a subtask contributes is what the line has committed beyond what it builds on, whoever of it did so.
"""

from collections.abc import Iterator

import msgspec

from ..git import child_branch
from .assembly import ConflictAutoResolved, LeftOut
from .child_run import ChildRun
from .conflicts import Conflict
from .run import CoordinatorRun
from .work_plan import SATISFIED, SETTLED, Subtask

#: Subtasks whose work, if there is any, nothing builds on.
UNSATISFYING = SETTLED - SATISFIED


class Left(msgspec.Struct, frozen=True, kw_only=True):
    """What a line of authors has committed so far: the newest commit, and the child run on whose branch it is."""

    child_run_id: str
    commit: str

    @property
    def branch(self) -> str:
        """The branch that holds it."""
        return child_branch(self.child_run_id)


def left_on_branch(run: CoordinatorRun, subtask: Subtask) -> Left | None:
    """Return what the authors of a subtask have committed, None if that is nothing."""
    child = run.children.get(subtask.child_run_id or subtask.prior_child_run_id or "")
    if child is None and subtask.handed_on_from is not None and subtask.handed_on_commit is not None:
        return Left(child_run_id=subtask.handed_on_from, commit=subtask.handed_on_commit)
    if child is None or child.discarded:
        return None
    if child.head is not None:
        return Left(child_run_id=child.run_id, commit=child.head.commit) if child.has_changes else None
    # It has not begun, so the work of its line is where the one before it left it.
    if child.prior_commit is None or child.prior_run_id is None:
        return None
    return Left(child_run_id=child.prior_run_id, commit=child.prior_commit)


def authors(run: CoordinatorRun, subtask: Subtask) -> Iterator[ChildRun]:
    """Return the child runs whose work the subtask's newest one goes on from, that one first."""
    child = run.children.get(subtask.child_run_id or subtask.prior_child_run_id or "")
    while child is not None and not child.discarded:  # ends: a run goes on from one that was created before it
        yield child
        child = run.children.get(child.prior_run_id or "")


def in_the_work(run: CoordinatorRun, subtask: Subtask) -> frozenset[str]:
    """
    Return the directives that are in what the subtask's newest author goes on from, or has committed: an author of its
    line was told them, came to the end of that turn, and committed something with it.

    What was not heard, only half done, or done on a branch that nobody goes on from, is not among them.
    """
    line = tuple(authors(run, subtask))
    own = frozenset(directive_id for child in line for directive_id in child.in_work)
    first = subtask.handed_on_from
    if subtask.earlier is None or first is None or not (not line or any(c.prior_run_id == first for c in line)):
        return own
    return own.union(said.directive_id for said in subtask.earlier.corrections if said.in_work)


def contributes(run: CoordinatorRun, subtask: Subtask) -> Left | None:
    """Return what a subtask has in an assembly, or under those that build on it; None if it has no part there."""
    # What is being revised still counts with what it has committed: nothing is built as if it were not there.
    return left_on_branch(run, subtask) if subtask.status not in UNSATISFYING else None


def left_out(run: CoordinatorRun) -> Iterator[LeftOut]:
    """Return what was ready for an assembly once and has no part in one now: of each subtask the newest."""
    for subtask in run.plan.subtasks.values() if run.plan else ():
        line = {child.run_id for child in authors(run, subtask)}
        is_in = contributes(run, subtask) is not None
        discarded = False
        for child in reversed(tuple(run.children.values())):
            if child.subtask_id != subtask.subtask_id:
                continue
            discarded = discarded or child.discarded
            if child.ready is None or (is_in and child.run_id in line):
                continue
            reason = "base_conflict" if discarded else "not_handed_on" if child.has_changes else "taken_back"
            yield LeftOut(subtask_id=subtask.subtask_id, child_run_id=child.run_id, commit=child.ready, reason=reason)
            break


def conflicts_met(run: CoordinatorRun, subtask: Subtask) -> tuple[Conflict, ...]:
    """Return what was changed in two places on the way to where the subtask's authors started."""
    found = (conflict for child in authors(run, subtask) for conflict in child.conflicts)
    return tuple(dict.fromkeys(found))


def conflicts_in(run: CoordinatorRun) -> tuple[Conflict, ...]:
    """Return what was changed in two places in the assembled work, there or in what its authors started from."""
    if run.plan is None or run.assembly is None:
        return ()
    found = {(c.branch, c.paths): c for c in map(resolved, run.assembly.conflicts)}
    for part in run.plan.subtasks.values():
        for conflict in conflicts_met(run, part):
            # Producers that meet under a dependant do so again, in the same way, when everything is put together.
            found.setdefault((conflict.branch, conflict.paths), conflict)
    return tuple(found.values())


def conflicts_over(run: CoordinatorRun, subtask: Subtask) -> tuple[Conflict, ...]:
    """Return what was changed in two places when the work was put together, one of them by this subtask."""
    found = run.assembly.conflicts if run.assembly else ()
    # Facts of earlier releases name nobody, so those concern everybody.
    return tuple(
        resolved(event)
        for event in found
        if event.subtask_id is None or subtask.subtask_id in (event.subtask_id, *event.other_subtask_ids)
    )


def resolved(event: ConflictAutoResolved) -> Conflict:
    """Return the conflict that was resolved while the work was put together."""
    return Conflict(
        branch=event.conflicting_branch,
        subtask_id=event.subtask_id,
        paths=event.conflicting_files,
        ref=event.ref,
        replaced=event.replaced,
    )
