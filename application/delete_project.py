"""
Delete a project: no orchestration begins any more, those under way are cancelled, and then nobody is shown it.

Whoever comes to it goes on: the request that asked for it, the same request again, or the sweep of a fresh process.
"""

from collections.abc import Iterable
from uuid import uuid4

import structlog

from ..domain import project_changes, run_records
from ..domain.rejected import ProjectNotFound, Rejected
from .caller import service
from .change_project import change_project
from .register_project import load_project
from .run_log import RunLog

log = structlog.get_logger(__name__)


def end_runs(project_id: str, open_runs: Iterable[str], runs: RunLog) -> bool:
    """
    On return every run of a project that is being deleted has ended, or a receipt on its log asks for it.

    Returns whether all have ended; then the project is deleted, too.
    """
    ended = True
    for root in open_runs:
        run = runs.run(root)
        if not run.ended:
            runs.decide(root, run_records.end_with_project, service(str(uuid4())))
            ended = False
    if ended:
        change_project(project_id, project_changes.finish_deletion, service(str(uuid4())), runs.log, runs.clock)
    return ended


def go_on(deleting: Iterable[str], open_runs: Iterable[tuple[str, str]], runs: RunLog) -> None:
    """
    Go on with every deletion of a project: *open_runs* are the runs that are not closed, each with its project.

    A run that was started while its project's deletion began is found here, too. One that cannot be decided about
    now must not keep the others from being driven, so it is left to the next sweep.
    """
    found: dict[str, list[str]] = {project_id: [] for project_id in deleting}
    for root, project_id in open_runs:
        if project_id in found or not _is_active(project_id, runs):
            found.setdefault(project_id, []).append(root)
    for project_id, roots in found.items():
        try:
            end_runs(project_id, roots, runs)
        except (Rejected, ValueError):
            log.exception("the deletion of a project could not go on; the next sweep tries again", project=project_id)


def _is_active(project_id: str, runs: RunLog) -> bool:
    try:
        return load_project(project_id, runs.log).state == "active"
    except ProjectNotFound:
        return True
