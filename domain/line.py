"""
The line of authors of a subtask: child runs, each of which goes on from what the one before it left on its branch.

What a subtask contributes is what the line has committed beyond what it builds on, whoever of it did so.
"""

from collections.abc import Iterator

import msgspec

from .child_run import ChildRun
from .git import child_branch
from .run import Run
from .work_plan import Subtask


class Left(msgspec.Struct, frozen=True, kw_only=True):
    """What a line of authors has committed so far: the newest commit, and the child run on whose branch it is."""

    child_run_id: str
    commit: str

    @property
    def branch(self) -> str:
        """The branch that holds it."""
        return child_branch(self.child_run_id)


def left_on_branch(run: Run, subtask: Subtask) -> Left | None:
    """Return what the authors of a subtask have committed, None if that is nothing."""
    child = run.children.get(subtask.child_run_id or subtask.prior_child_run_id or "")
    if child is None or child.discarded:
        return None
    if child.head is not None:
        return Left(child_run_id=child.run_id, commit=child.head.commit) if child.has_changes else None
    # It has not begun, so the work of its line is where the one before it left it.
    if child.prior_commit is None or child.prior_run_id is None:
        return None
    return Left(child_run_id=child.prior_run_id, commit=child.prior_commit)


def authors(run: Run, subtask: Subtask) -> Iterator[ChildRun]:
    """Return the child runs whose work the subtask's newest one goes on from, that one first."""
    child = run.children.get(subtask.child_run_id or subtask.prior_child_run_id or "")
    while child is not None and not child.discarded:  # ends: a run goes on from one that was created before it
        yield child
        child = run.children.get(child.prior_run_id or "")
