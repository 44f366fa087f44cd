"""Projects as clients see them, and who has which role in them."""

from collections.abc import Mapping

import msgspec

from ..domain.event import Fact, Text
from ..domain.facts.spending import Spending, SpendingCounted, spent
from ..domain.projects.project import Project, ProjectCreated, evolve, project_stream
from ..domain.projects.project_facts import (
    ProjectBudgetSet,
    ProjectDeleted,
    ProjectDeliverySet,
    ProjectRole,
    RoleGranted,
    RoleRevoked,
)
from ..domain.projects.team import Member
from .delivery import DeliveryView, delivery_view
from .usage import BudgetView, UsageView, budget_view, usage_view
from .view import Rows, View

VERSION = 3

#: The group, and the state, of the projects that are being deleted; and the group of all others.
DELETING = "deleting"
ACTIVE = ""
#: What of a project is shown as it stands in the domain's own fold.
DEFAULTS = (
    "default_provider",
    "default_model_github_copilot",
    "default_model_microsoft_foundry",
    "blueprint_generation_model",
    "workflow_generation_model",
    "outcome_spec_generation_model",
)


class ProjectMemory(msgspec.Struct, frozen=True, kw_only=True):
    """What the row remembers and is not part of the project object: the team has a resource of its own."""

    members: tuple[Member, ...] = ()
    roles: dict[str, ProjectRole] = {}
    #: The position of the project's first fact.
    position: int
    #: The version of the project's stream.
    version: int
    spending: Spending = msgspec.field(default_factory=Spending)


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
    #: What the agents of all its runs have used together, and may use; and where the work of its runs goes.
    #: Absent where nothing is said about it.
    usage: UsageView | msgspec.UnsetType = msgspec.UNSET
    budget: BudgetView | msgspec.UnsetType = msgspec.UNSET
    deliver: DeliveryView | msgspec.UnsetType = msgspec.UNSET
    created_at: str
    updated_at: str
    internal: ProjectMemory | msgspec.UnsetType = msgspec.UNSET

    @property
    def kept(self) -> ProjectMemory:
        """What the row remembers. A row that was read from the view has it."""
        assert self.internal is not msgspec.UNSET
        return self.internal


class RoleView(msgspec.Struct, frozen=True, kw_only=True):
    """That a user has a role in a project."""

    project_id: str
    user: str
    role: ProjectRole
    #: The position of the fact that first gave it: the later, the newer.
    position: int


def shown(row: ProjectView, *, available: bool) -> ProjectView:
    """Return the row as a client sees it."""
    return msgspec.structs.replace(row, available=available, internal=msgspec.UNSET)


def apply(rows: Rows[ProjectView], fact: Fact) -> Mapping[str, ProjectView | None]:
    """Fold one fact of a project's own stream."""
    if isinstance(fact.event, ProjectCreated):
        return {fact.event.project_id: _created(fact, fact.event)}
    if isinstance(fact.event, ProjectDeleted):
        return {fact.event.project_id: None}
    if isinstance(fact.event, SpendingCounted):
        row = rows.get(fact.event.project_id)
        return {} if row is None else {row.project_id: _used(row, fact.event)}
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
        budget=budget_view(event.budget) or msgspec.UNSET,
        deliver=delivery_view(event.delivery) if event.delivery else msgspec.UNSET,
        internal=ProjectMemory(roles={event.owner: "owner"}, position=fact.position, version=fact.version),
    )


def _used(row: ProjectView, event: SpendingCounted) -> ProjectView:
    used = spent(row.kept.spending, event.counted)
    kept = msgspec.structs.replace(row.kept, spending=used)
    return msgspec.structs.replace(row, usage=usage_view(used), internal=kept)


def _next(row: ProjectView, fact: Fact) -> ProjectView:
    same = {name: getattr(row, name) for name in DEFAULTS}
    before = Project(name=Text(row.name), members=row.kept.members, roles=row.kept.roles, **same)
    project = evolve(before, fact)
    match fact.event:
        case ProjectBudgetSet() as event:
            row = msgspec.structs.replace(row, budget=budget_view(event.budget) or msgspec.UNSET)
        case ProjectDeliverySet() as event:
            row = msgspec.structs.replace(row, deliver=delivery_view(event.delivery))
        case _:
            pass
    kept = msgspec.structs.replace(
        row.kept, members=project.members, roles=dict(project.roles), version=project.version
    )
    same = {name: getattr(project, name) for name in DEFAULTS}
    return msgspec.structs.replace(
        row,
        name=project.name.value,
        # Whatever else is said about a project that is being deleted, it stays that.
        state="deleting" if DELETING in (row.state, project.state) else row.state,
        updated_at=fact.at.isoformat(),
        internal=kept,
        **same,
    )


def apply_roles(rows: Rows[RoleView], fact: Fact) -> Mapping[str, RoleView | None]:
    """Fold one fact: whoever creates a project owns it, and owners say who else has which role."""
    match fact.event:
        case ProjectCreated() as event:
            row = RoleView(project_id=event.project_id, user=event.owner, role="owner", position=fact.position)
            return {role_key(event.project_id, event.owner): row}
        case RoleGranted() as event:
            key = role_key(event.project_id, event.user)
            known = rows.get(key)
            position = fact.position if known is None else known.position
            return {key: RoleView(project_id=event.project_id, user=event.user, role=event.role, position=position)}
        case RoleRevoked() as event:
            return {role_key(event.project_id, event.user): None}
        case ProjectDeleted() as event:
            return {role_key(event.project_id, user): None for user in event.users}
        case _:
            return {}


def role_key(project_id: str, user: str) -> str:
    """Return the key of a user's role in a project."""
    return f"{project_id}/{user}"


def user_group(user: str) -> str:
    """Return the group that lists the projects in which a user has a role, the newest first."""
    return f"user/{user}"


def _place(row: ProjectView) -> tuple[str, int]:
    return DELETING if row.state == DELETING else ACTIVE, row.kept.position


VIEW = View("project", VERSION, ProjectView, apply=apply, place=_place)
ROLES_VIEW = View(
    "project_roles", VERSION, RoleView, apply=apply_roles, place=lambda row: (user_group(row.user), row.position)
)
