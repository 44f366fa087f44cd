"""Projects as clients see them, and who has which role in them."""

from collections.abc import Mapping

import msgspec

from ..domain.event import Fact
from ..domain.project import Project, ProjectCreated, ProjectRole, evolve, project_stream
from ..domain.team import Member
from .view import Rows, View

VERSION = 1


class Internal(msgspec.Struct, frozen=True, kw_only=True):
    """What the row remembers and is not part of the project object: the team has a resource of its own."""

    members: tuple[Member, ...] = ()
    roles: dict[str, ProjectRole] = {}
    #: The position of the project's first fact.
    position: int
    #: The version of the project's stream.
    version: int


class ProjectView(msgspec.Struct, frozen=True, kw_only=True):
    """A project. `available` is not the log's to say: whoever answers looks whether the directory is there."""

    project_id: str
    name: str | None
    origin: str
    source_repository: str | None = None
    working_directory: str | None
    default_branch: str
    owner: str
    default_provider: str | None
    default_model_github_copilot: str | None
    default_model_microsoft_foundry: str | None
    blueprint_generation_model: str | None = None
    workflow_generation_model: str | None = None
    outcome_spec_generation_model: str | None = None
    available: bool = True
    state: str = "active"
    source_blueprint_id: str | None = None
    source_blueprint_type: str | None = None
    created_at: str
    updated_at: str
    internal: Internal | msgspec.UnsetType = msgspec.UNSET

    @property
    def kept(self) -> Internal:
        """What the row remembers. A row that was read from the view has it."""
        assert self.internal is not msgspec.UNSET
        return self.internal


class RoleView(msgspec.Struct, frozen=True, kw_only=True):
    """That a user has a role in a project."""

    project_id: str
    user: str
    role: ProjectRole
    #: The position of the project's first fact: the later, the newer.
    position: int


def shown(row: ProjectView, *, available: bool) -> ProjectView:
    """Return the row as a client sees it."""
    return msgspec.structs.replace(row, available=available, internal=msgspec.UNSET)


def apply(rows: Rows[ProjectView], fact: Fact) -> Mapping[str, ProjectView | None]:
    """Fold one fact of a project's own stream."""
    if isinstance(fact.event, ProjectCreated):
        return {fact.event.project_id: _created(fact, fact.event)}
    project_id = fact.stream.partition("/")[2]
    row = rows.get(project_id) if fact.stream == project_stream(project_id) else None
    return {} if row is None else {project_id: _next(row, fact)}


def _created(fact: Fact, event: ProjectCreated) -> ProjectView:
    return ProjectView(
        project_id=event.project_id,
        name=event.name.value,
        origin=event.origin,
        working_directory=event.working_directory.value,
        default_branch=event.default_branch,
        owner=event.owner,
        default_provider=event.default_provider,
        default_model_github_copilot=event.default_model_github_copilot,
        default_model_microsoft_foundry=event.default_model_microsoft_foundry,
        created_at=fact.at.isoformat(),
        updated_at=fact.at.isoformat(),
        internal=Internal(roles={event.owner: "owner"}, position=fact.position, version=fact.version),
    )


def _next(row: ProjectView, fact: Fact) -> ProjectView:
    project = evolve(Project(members=row.kept.members, roles=row.kept.roles), fact)
    kept = msgspec.structs.replace(
        row.kept, members=project.members, roles=dict(project.roles), version=project.version
    )
    return msgspec.structs.replace(row, updated_at=fact.at.isoformat(), internal=kept)


def apply_roles(rows: Rows[RoleView], fact: Fact) -> Mapping[str, RoleView | None]:
    """Fold one fact: whoever creates a project owns it."""
    event = fact.event
    if not isinstance(event, ProjectCreated):
        return {}
    row = RoleView(project_id=event.project_id, user=event.owner, role="owner", position=fact.position)
    return {role_key(event.project_id, event.owner): row}


def role_key(project_id: str, user: str) -> str:
    """Return the key of a user's role in a project."""
    return f"{project_id}/{user}"


def user_group(user: str) -> str:
    """Return the group that lists the projects in which a user has a role, the newest first."""
    return f"user/{user}"


VIEW = View("project", VERSION, ProjectView, apply=apply, place=lambda row: ("", row.kept.position))
ROLES_VIEW = View(
    "project_roles", VERSION, RoleView, apply=apply_roles, place=lambda row: (user_group(row.user), row.position)
)
