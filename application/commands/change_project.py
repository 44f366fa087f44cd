"""Decide about a project: fold its stream, decide, append, and on a lost race do it again from a fresh fold."""

from collections.abc import Callable, Sequence

from ...domain.event import Draft, Fact
from ...domain.projects.project import Project
from ...domain.rejected import Busy
from ..ports.log import ConcurrencyConflict, EventLog
from ..ports.outside import Clock
from ..writer.caller import Answer, Caller
from ..writer.projects import load_project
from ..writer.run_log import MAX_ATTEMPTS


def change_project(
    project_id: str,
    decision: Callable[[Project], Sequence[Draft]],
    by: Caller,
    log: EventLog,
    clock: Clock,
    answer: Answer | None = None,
) -> Sequence[Fact]:
    """Append what *decision* makes of the project; a decision for nothing appends nothing. Raises ProjectNotFound, Busy."""
    for _ in range(MAX_ATTEMPTS):
        project = load_project(project_id, log)
        drafts = decision(project)
        if not drafts:
            return ()
        try:
            return log.append(by.append(drafts, {drafts[0].stream: project.version}, clock.now(), answer))
        except ConcurrencyConflict:
            continue
    raise Busy
