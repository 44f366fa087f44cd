"""Which files each subtask's child has changed."""

from collections.abc import Callable

from ..domain.gate_signals import Touched
from ..domain.run import Run
from ..domain.work_plan import SATISFIED
from .effects.workshop import Workshop
from .git_port import Repositories
from .look import looked


def touched_files(run: Run, repositories: Repositories) -> Touched:
    """Return the paths that each finished subtask has committed on top of what it was given."""
    touched: dict[int, frozenset[str]] = {}
    for subtask in run.plan.subtasks.values() if run.plan else ():
        child = run.children.get(subtask.child_run_id or "")
        if subtask.status not in SATISFIED or child is None or child.base is None or child.head is None:
            continue
        files = repositories.changed_files(Workshop.repository(run), child.base.commit, child.head.commit)
        touched[subtask.subtask_id] = frozenset(file.path for file in files)
    return touched


def looked_up(run: Run, repositories: Repositories) -> Callable[[Run], Touched]:
    """
    Look the paths up now, and return a function that gives them for the run as it is when a decision is made.

    Git is asked before the decision, which keeps other decisions about the run waiting, and once more within it if the
    children's work has changed meanwhile. Raises WorkspaceUnavailable, now and then.
    """
    commits, touched = _commits(run), looked(lambda: touched_files(run, repositories))
    return lambda found: touched if _commits(found) == commits else looked(lambda: touched_files(found, repositories))


def _commits(run: Run) -> object:
    return {child.run_id: (child.base, child.head) for child in run.children.values()}
