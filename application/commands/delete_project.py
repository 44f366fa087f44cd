"""
Delete a project: no orchestration begins any more, those under way are cancelled, and then nobody is shown it, or any
run of it, and no word of them is kept.

Whoever comes to it goes on: the request that asked for it, the same request again, or the sweep of a fresh process.
"""

from collections.abc import Callable, Iterable
from contextlib import suppress
from uuid import uuid4

import structlog

from ...domain.projects import project_changes
from ...domain.projects.project import project_stream
from ...domain.rejected import ProjectNotFound, Rejected, RunNotFound
from ...domain.runs import records
from ..ports.log import Undecodable
from ..writer.caller import service
from ..writer.projects import load_project
from ..writer.run_log import RunLog
from .change_project import change_project
from .end_run import delete_unread

log = structlog.get_logger(__name__)


def end_runs(project_id: str, roots: Iterable[str], runs: RunLog) -> bool:
    """
    On return every run of a project that is being deleted has ended, or a receipt on its log asks for it.

    Returns whether all of them have: then they are deleted as well, and the driver forgets every word of them, and
    the project is deleted with its own words. *roots* are all its runs, those that ended long ago too.
    """
    found, ended = list(roots), True
    # Of a run that was started too late for that, nobody is shown the end: its deletion ends it.
    shown = _state(project_id, runs) == "deleting"
    for root in found:
        if shown and not _has_ended(root, runs):
            runs.decide(root, records.end_with_project, service(str(uuid4())))
            ended = False
    if ended:
        for root in found:
            _delete(root, runs)
        # If we crash here, the redo finds the runs deleted and the words erased.
        runs.log.erase_stream_texts(project_stream(project_id))
        change_project(project_id, project_changes.finish_deletion, service(str(uuid4())), runs.log, runs.clock)
    return ended


def _has_ended(root: str, runs: RunLog) -> bool:
    try:
        return runs.run(root).ended
    except Undecodable:
        # Nobody drives what nobody can read, so there is no end to wait for.
        return True


def _delete(root: str, runs: RunLog) -> None:
    by = service(str(uuid4()))
    try:
        runs.decide(root, records.delete_with_project, by)
    except Undecodable:
        # It is not found when it is deleted already, and its words are erased again.
        with suppress(RunNotFound):
            delete_unread(root, by, runs)


def go_on(
    deleting: Iterable[str],
    open_runs: Iterable[tuple[str, str]],
    runs_of: Callable[[str], Iterable[str]],
    runs: RunLog,
) -> None:
    """
    Go on with every deletion of a project: *open_runs* are the runs that are not closed, each with its project.

    A run that was started while its project's deletion began is found here, too. One that cannot be decided about
    now must not keep the others from being driven, so it is left to the next sweep.
    """
    found: dict[str, set[str]] = {project_id: set() for project_id in deleting}
    for root, project_id in open_runs:
        if project_id in found or _state(project_id, runs) != "active":
            found.setdefault(project_id, set()).add(root)
    for project_id, roots in found.items():
        try:
            end_runs(project_id, sorted(roots.union(runs_of(project_id))), runs)
        except (Rejected, ValueError):
            log.exception("the deletion of a project could not go on; the next sweep tries again", project=project_id)


def _state(project_id: str, runs: RunLog) -> str:
    try:
        return load_project(project_id, runs.log).state
    except ProjectNotFound:
        return "active"
