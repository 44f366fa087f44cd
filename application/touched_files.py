"""Which files each subtask's child has changed."""

from ..domain.gate_signals import Touched
from ..domain.run import Run
from ..domain.work_plan import SATISFIED
from .git_port import Repositories
from .workshop import Workshop


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
