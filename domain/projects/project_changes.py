"""Change a project: its name, its defaults, who may do what in it, its team; and end it."""

from collections.abc import Sequence

import msgspec

from ..event import Draft, Event, Text
from ..facts.delivery import Delivery
from ..facts.spending import Budget
from ..rejected import Invalid, NotFound, Rejected
from .project import (
    BUILT_IN,
    MAX_NAME_BYTES,
    BuiltInMember,
    Project,
    ProjectDeleting,
    is_addressable,
    project_stream,
)
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
from .team import ROLES, Member

MAX_USERS = 1_000
MAX_USER_BYTES = 200
MAX_CHARTER_BYTES = 65_536


class ProviderSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The defaults of a project; None: the installation's."""

    default_provider: str | None = None
    default_model_github_copilot: str | None = None
    default_model_microsoft_foundry: str | None = None
    blueprint_generation_model: str | None = None
    workflow_generation_model: str | None = None
    outcome_spec_generation_model: str | None = None


class LastOwner(Rejected):
    """This is the project's only owner. Make somebody else an owner first."""

    code = "last_owner"


class TooManyUsers(Rejected):
    """The project has as many people as a project can have."""

    code = "too_many_users"


class UserNotFound(NotFound):
    """This user has no role in the project."""

    code = "user_not_found"


class MemberNotFound(NotFound):
    """The team has no member with this name."""

    code = "member_not_found"


def rename(project: Project, name: str) -> Sequence[Draft]:
    """Give the project another name. Raises Invalid, ProjectDeleting."""
    if not name.strip() or len(name.encode(errors="replace")) > MAX_NAME_BYTES:
        raise Invalid(f"`name` must have 1 to {MAX_NAME_BYTES} bytes and cannot be blank.")
    return _changed(project, ProjectRenamed(project_id=project.project_id, name=Text(name)))


def replace_settings(project: Project, settings: ProviderSettings) -> Sequence[Draft]:
    """Replace the defaults as a whole: what is not given goes back to the installation's. Raises ProjectDeleting."""
    fields = msgspec.structs.asdict(settings)
    return _changed(project, ProviderSettingsReplaced(project_id=project.project_id, **fields))


def set_budget(project: Project, budget: Budget) -> Sequence[Draft]:
    """Say what the agents of all its runs may use together from now on. Raises ProjectDeleting."""
    return _changed(project, ProjectBudgetSet(project_id=project.project_id, budget=budget))


def set_delivery(project: Project, delivery: Delivery) -> Sequence[Draft]:
    """Say where the work of its runs goes that do not say. Raises ProjectDeleting."""
    return _changed(project, ProjectDeliverySet(project_id=project.project_id, delivery=delivery))


def grant(project: Project, user: str, role: ProjectRole) -> Sequence[Draft]:
    """Give a user this role; nothing to store if they have it. Raises Invalid, LastOwner, TooManyUsers, ProjectDeleting."""
    if not user.strip() or len(user.encode(errors="replace")) > MAX_USER_BYTES or not is_addressable(user):
        raise Invalid(
            f"A user's name has 1 to {MAX_USER_BYTES} bytes, printable, not blank, without `/`; not `.` or `..`."
        )
    if project.roles.get(user) == role:
        return ()
    if len(project.roles) >= MAX_USERS and user not in project.roles:
        raise TooManyUsers
    if role != "owner":
        _check_owners(project, user)
    return _changed(project, RoleGranted(project_id=project.project_id, user=user, role=role))


def revoke(project: Project, user: str) -> Sequence[Draft]:
    """Take a user's role away. Raises UserNotFound, LastOwner, ProjectDeleting."""
    if user not in project.roles:
        raise UserNotFound
    _check_owners(project, user)
    return _changed(project, RoleRevoked(project_id=project.project_id, user=user))


def retire(project: Project, name: str) -> Sequence[Draft]:
    """Give a member no more work; nothing to store if they are retired. Raises MemberNotFound, BuiltInMember."""
    if not member_of(project, name).active:
        return ()
    return _changed(project, MemberRetired(project_id=project.project_id, name=name))


def reassign(project: Project, name: str, role_id: str, title: str | None) -> Sequence[Draft]:
    """Give a member another role, and its charter. Raises MemberNotFound, BuiltInMember, Invalid."""
    member_of(project, name)
    role = ROLES.get(role_id)
    if role is None:
        raise Invalid(f"There is no role {role_id!r}. GET /api/catalog/roles lists the roles.")
    event = MemberReassigned(project_id=project.project_id, name=name, role_id=role.id, role_title=title or role.title)
    return _changed(project, event)


def replace_charter(project: Project, name: str, content: str) -> Sequence[Draft]:
    """Give a member another charter. Raises MemberNotFound, BuiltInMember, Invalid."""
    member_of(project, name)
    if not content.strip() or len(content.encode(errors="replace")) > MAX_CHARTER_BYTES:
        raise Invalid(f"`content` must have 1 to {MAX_CHARTER_BYTES} bytes and cannot be blank.")
    return _changed(project, CharterReplaced(project_id=project.project_id, name=name, content=Text(content)))


def start_deletion(project: Project) -> Sequence[Draft]:
    """Take no more orchestrations; nothing to store if it is being deleted already."""
    if project.state != "active":
        return ()
    return _changed(project, ProjectDeletionStarted(project_id=project.project_id))


def finish_deletion(project: Project) -> Sequence[Draft]:
    """Nothing of it is at work any more: nobody is shown it from now on."""
    if project.state != "deleting":
        return ()
    event = ProjectDeleted(project_id=project.project_id, users=tuple(sorted(project.roles)))
    return (Draft(stream=project_stream(project.project_id), event=event),)


def member_of(project: Project, name: str) -> Member:
    """Return a member of the team. Raises MemberNotFound, BuiltInMember."""
    if name.casefold() in BUILT_IN:
        raise BuiltInMember
    found = next((member for member in project.members if member.name == name), None)
    if found is None:
        raise MemberNotFound
    return found


def charter(project: Project, name: str) -> str:
    """Return a member's charter: the one that was written, or the one of their role. Raises MemberNotFound."""
    member = member_of(project, name)
    written = project.charters.get(name)
    if written is not None and written.value is not None:
        return written.value
    role = ROLES.get(member.role_id)
    return f"# {name}\n\nYou are {name}, {member.role_title}. {role.summary if role else ''}".rstrip() + "\n"


def charters(project: Project) -> dict[str, str]:
    """Return the charter of everybody who can be given work."""
    return {member.name: charter(project, member.name) for member in project.team}


def _check_owners(project: Project, leaving: str) -> None:
    if not any(role == "owner" for user, role in project.roles.items() if user != leaving):
        raise LastOwner


def _changed(project: Project, event: Event) -> Sequence[Draft]:
    if project.state != "active":
        raise ProjectDeleting
    return (Draft(stream=project_stream(project.project_id), event=event),)
