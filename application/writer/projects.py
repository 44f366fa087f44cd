"""Projects, as the log has them now."""

from ...domain.event import Fact
from ...domain.projects.project import Project, project_stream, replay
from ...domain.rejected import ProjectNotFound
from ..ports.log import EventLog
from .states import PAGE


def load_project(project_id: str, log: EventLog) -> Project:
    """Return the project as the log has it now. Raises ProjectNotFound."""
    facts: list[Fact] = []
    while page := log.read_stream(project_stream(project_id), len(facts), PAGE):
        facts.extend(page)
    if not facts:
        raise ProjectNotFound
    return replay(facts)
