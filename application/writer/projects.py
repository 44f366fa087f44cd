"""Projects, as the log has them now."""

from functools import reduce

from ...domain.event import Fact
from ...domain.projects.project import Project, evolve, project_stream, replay, spending_stream
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


def load_spending(project: Project, log: EventLog) -> Project:
    """Return the project with what its runs have used, as the log has it now."""
    while page := log.read_stream(spending_stream(project.project_id), project.spending_version, PAGE):
        project = reduce(evolve, page, project)
    return project
