"""A project: a git repository, its team, and who may do what with its runs."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import reduce
from typing import ClassVar, Literal

import msgspec

from ..event import Draft, Event, Fact, Text
from ..facts.delivery import Delivery
from ..facts.gates import GateSpec
from ..facts.spending import Budget, Spending, SpendingCounted, spent
from ..rejected import Invalid, Rejected
from .project_facts import (
    CharterReplaced,
    MemberReassigned,
    MemberRetired,
    ProjectBudgetSet,
    ProjectDeleted,
    ProjectDeletionStarted,
    ProjectDeliverySet,
    ProjectRenamed,
    ProjectRole,
    ProviderSettingsReplaced,
    RoleGranted,
    RoleRevoked,
)
from .team import ROLES, Member, next_name
from .webhook_facts import Webhooks, evolve_webhooks

MAX_MEMBERS = 100
MAX_NAME_BYTES = 200
#: Agents that every team has, by another name or none; nobody is taken on, retired or re-roled under these.
BUILT_IN = frozenset({"scribe", "ralph", "rai"})

# Events


class ProjectCreated(Event, frozen=True, kw_only=True):
    """A repository was registered as a project."""

    TOPIC: ClassVar[str] = "project.created"

    project_id: str
    name: Text
    origin: str
    working_directory: Text
    default_branch: str
    owner: str
    default_provider: str | None = None
    default_model_github_copilot: str | None = None
    default_model_microsoft_foundry: str | None = None
    gates: tuple[GateSpec, ...] = ()
    #: What the agents of all its runs may use together; null: as much as they like.
    budget: Budget | None = None
    #: Where the work of its runs goes that do not say; null: into the originating branch.
    delivery: Delivery | None = None


class MemberAdded(Event, frozen=True, kw_only=True):
    """Someone joined a project's team."""

    TOPIC: ClassVar[str] = "project.member_added"

    project_id: str
    name: str
    role_id: str
    role_title: str
    model_id: str | None


# State


class Project(msgspec.Struct, frozen=True, kw_only=True):
    """What decisions about a project need to know."""

    project_id: str = ""
    name: Text = Text(None)
    origin: str = "blank"
    working_directory: Text = Text(None)
    default_branch: str = ""
    owner: str = ""
    default_provider: str | None = None
    default_model_github_copilot: str | None = None
    default_model_microsoft_foundry: str | None = None
    blueprint_generation_model: str | None = None
    workflow_generation_model: str | None = None
    outcome_spec_generation_model: str | None = None
    gates: tuple[GateSpec, ...] = ()
    budget: Budget | None = None
    delivery: Delivery | None = None
    #: What its runs have used, as far as what is counted on that stream was folded.
    spending: Spending = Spending()
    spending_version: int = 0
    state: Literal["active", "deleting", "deleted"] = "active"
    #: What was written; a member without one has the charter of their role.
    charters: Mapping[str, Text] = {}
    members: tuple[Member, ...] = ()
    roles: Mapping[str, ProjectRole] = {}
    webhooks: Webhooks = {}
    created_at: datetime | None = None
    version: int = 0

    @property
    def team(self) -> tuple[Member, ...]:
        """The members who can be given work."""
        return tuple(member for member in self.members if member.active)


def evolve(project: Project, fact: Fact) -> Project:
    """Add one fact to the state. Total: a fact is never refused here."""
    if isinstance(fact.event, SpendingCounted):
        used = spent(project.spending, fact.event.counted)
        return msgspec.structs.replace(project, spending=used, spending_version=fact.version)
    project = msgspec.structs.replace(project, version=fact.version)
    match fact.event:
        case ProjectCreated() as created:
            fields = {name: getattr(created, name) for name in ProjectCreated.__struct_fields__}
            return msgspec.structs.replace(project, **fields, roles={created.owner: "owner"}, created_at=fact.at)
        case MemberAdded() as added:
            member = Member(
                name=added.name,
                role_id=added.role_id,
                role_title=added.role_title,
                model_id=added.model_id,
                since=fact.at.isoformat(),
            )
            return msgspec.structs.replace(project, members=(*project.members, member))
        case _:
            project = msgspec.structs.replace(project, webhooks=evolve_webhooks(project.webhooks, fact))
            return _evolve_changes(project, fact.event, fact.at.isoformat())


def _evolve_changes(project: Project, event: Event, at: str) -> Project:
    replace = msgspec.structs.replace
    match event:
        case ProjectRenamed():
            return replace(project, name=event.name)
        case ProviderSettingsReplaced():
            fields = msgspec.structs.asdict(event)
            return replace(project, **fields)
        case RoleGranted():
            return replace(project, roles={**project.roles, event.user: event.role})
        case RoleRevoked():
            return replace(project, roles={user: role for user, role in project.roles.items() if user != event.user})
        case MemberRetired():
            return _change_member(project, event.name, active=False)
        case MemberReassigned():
            kept = {name: words for name, words in project.charters.items() if name != event.name}
            fields = {"role_id": event.role_id, "role_title": event.role_title, "changed_at": at}
            return _change_member(replace(project, charters=kept), event.name, **fields)
        case CharterReplaced():
            written = replace(project, charters={**project.charters, event.name: event.content})
            return _change_member(written, event.name, changed_at=at)
        case ProjectBudgetSet():
            return replace(project, budget=event.budget)
        case ProjectDeliverySet():
            return replace(project, delivery=event.delivery)
        case ProjectDeletionStarted():
            return replace(project, state="deleting")
        case ProjectDeleted():
            return replace(project, state="deleted")
        case _:
            return project


def _change_member(project: Project, name: str, **changes: object) -> Project:
    members = tuple(
        msgspec.structs.replace(member, **changes) if member.name == name else member for member in project.members
    )
    return msgspec.structs.replace(project, members=members)


def replay(facts: Iterable[Fact]) -> Project:
    """Fold a project's stream into the project."""
    return reduce(evolve, facts, Project())


# Commands


class CreateProject(msgspec.Struct, frozen=True, kw_only=True):
    """Register a repository that exists on this machine."""

    project_id: str
    name: str
    origin: str
    working_directory: str
    #: The branch that is checked out there; runs start from it and merge into it.
    default_branch: str
    owner: str
    default_provider: str | None = None
    default_model_github_copilot: str | None = None
    default_model_microsoft_foundry: str | None = None
    gates: tuple[GateSpec, ...] = ()
    budget: Budget | None = None
    delivery: Delivery | None = None


class AddMember(msgspec.Struct, frozen=True, kw_only=True):
    """Take someone on a project's team."""

    role_id: str
    name: str | None = None
    custom_role_title: str | None = None
    model_id: str | None = None


class ProjectDeleting(Rejected):
    """The project is being deleted, so it takes no more changes and no more orchestrations."""

    code = "project_deleting"


class BuiltInMember(Invalid):
    """This name belongs to an agent that is built in. It cannot be taken on, retired or given another role."""

    code = "built_in_member"


class MemberExists(Rejected):
    """The team already has a member with this name."""

    code = "member_exists"


class TeamFull(Rejected):
    """The team has as many members as a team can have."""

    code = "team_full"


# Decisions


def project_stream(project_id: str) -> str:
    """Return the stream of a project."""
    return f"project/{project_id}"


def spending_stream(project_id: str) -> str:
    """Return the stream on which is counted what a project's runs use: apart, as it grows with every turn."""
    return f"{project_stream(project_id)}/spending"


def is_addressable(name: str) -> bool:
    """Return whether a name can be one part of a path: no request reaches whoever has another one."""
    return "/" not in name and name not in (".", "..") and name.isprintable()


def create_project(command: CreateProject) -> Draft:
    """Create the project. Raises Invalid for a blank or oversized name."""
    if not command.name.strip() or len(command.name.encode()) > MAX_NAME_BYTES:
        raise Invalid(f"`name` must have 1 to {MAX_NAME_BYTES} bytes and cannot be blank.")
    fields = {name: getattr(command, name) for name in CreateProject.__struct_fields__}
    fields |= {"name": Text(command.name), "working_directory": Text(command.working_directory)}
    return Draft(stream=project_stream(command.project_id), event=ProjectCreated(**fields))


def add_member(project: Project, command: AddMember) -> Draft:
    """Add a member under the given name, or the next free one of its role. Raises Invalid, MemberExists, TeamFull."""
    if project.state != "active":
        raise ProjectDeleting
    role = ROLES.get(command.role_id)
    if role is None:
        raise Invalid(f"There is no role {command.role_id!r}. GET /api/catalog/roles lists the roles.")
    taken = {member.name for member in project.members}
    if len(taken) >= MAX_MEMBERS:
        raise TeamFull
    name = command.name.strip() if command.name is not None else next_name(role.id, taken)
    if not name or len(name.encode()) > MAX_NAME_BYTES or not is_addressable(name):
        raise Invalid(
            f"`name` must have 1 to {MAX_NAME_BYTES} bytes, printable, not blank, without `/`; not `.` or `..`."
        )
    if name.casefold() in BUILT_IN:
        raise BuiltInMember
    if name in taken:
        raise MemberExists
    event = MemberAdded(
        project_id=project.project_id,
        name=name,
        role_id=role.id,
        role_title=command.custom_role_title or role.title,
        model_id=command.model_id or role.default_model,
    )
    return Draft(stream=project_stream(project.project_id), event=event)
