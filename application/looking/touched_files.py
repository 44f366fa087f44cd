"""Which files each subtask's child has changed."""

from collections.abc import Callable
from pathlib import Path

from ...domain.facts.run import CoordinatorRun
from ...domain.facts.work_plan import SATISFIED
from ...domain.steering.gate_signals import Touched
from ..ports.git import Repositories
from ..ports.log import ConcurrencyConflict
from .look import looked


def touched_files(run: CoordinatorRun, repositories: Repositories) -> Touched:
    """Return the paths that each finished subtask has committed on top of what it was given."""
    touched: dict[int, frozenset[str]] = {}
    for subtask in run.plan.subtasks.values() if run.plan else ():
        child = run.children.get(subtask.child_run_id or "")
        if subtask.status not in SATISFIED or child is None or child.base is None or child.head is None:
            continue
        files = repositories.changed_files(Path(str(run.repository)), child.base.commit, child.head.commit)
        touched[subtask.subtask_id] = frozenset(file.path for file in files)
    return touched


class LookedUp:
    """The paths as they were looked up, for a decision that must not ask git itself: everybody waits for it."""

    def __init__(self, read: Callable[[], CoordinatorRun], repositories: Repositories) -> None:
        self._read = read
        self._repositories = repositories
        self._commits: object = None
        self._touched: Touched = {}

    def look(self) -> None:
        """Look the paths up for the run as it is now. Raises WorkspaceUnavailable."""
        run = self._read()
        self._touched = looked(lambda: touched_files(run, self._repositories))
        self._commits = _commits(run)

    def of(self, run: CoordinatorRun) -> Touched:
        """Return the paths. Raises ConcurrencyConflict if they were looked up for other work of the children, or not at all."""
        if self._commits != _commits(run):
            raise ConcurrencyConflict("the children's work has changed meanwhile")
        return self._touched


def _commits(run: CoordinatorRun) -> object:
    return {child.run_id: (child.base, child.head) for child in run.children.values()}
