"""What is said about a project after it was created: its name, its defaults, who may do what, its team, and its end."""

from typing import ClassVar, Literal

from ..event import Event, Text
from ..facts.delivery import Delivery
from ..facts.spending import Budget

ProjectRole = Literal["viewer", "contributor", "owner"]


class ProjectRenamed(Event, frozen=True, kw_only=True):
    """The project has another name."""

    TOPIC: ClassVar[str] = "project.renamed"

    project_id: str
    name: Text


class ProviderSettingsReplaced(Event, frozen=True, kw_only=True):
    """The project's provider and model defaults, all of them; null: the installation's default."""

    TOPIC: ClassVar[str] = "project.provider_settings_replaced"

    project_id: str
    default_provider: str | None = None
    default_model_github_copilot: str | None = None
    default_model_microsoft_foundry: str | None = None
    blueprint_generation_model: str | None = None
    workflow_generation_model: str | None = None
    outcome_spec_generation_model: str | None = None


class RoleGranted(Event, frozen=True, kw_only=True):
    """A user has this role in the project, and no other."""

    TOPIC: ClassVar[str] = "project.role_granted"

    project_id: str
    user: str
    role: ProjectRole


class RoleRevoked(Event, frozen=True, kw_only=True):
    """A user has no role in the project any more."""

    TOPIC: ClassVar[str] = "project.role_revoked"

    project_id: str
    user: str


class MemberRetired(Event, frozen=True, kw_only=True):
    """A member of the team is given no more work; what they did keeps their name."""

    TOPIC: ClassVar[str] = "project.member_retired"

    project_id: str
    name: str


class MemberReassigned(Event, frozen=True, kw_only=True):
    """A member of the team has another role, and the charter that goes with it."""

    TOPIC: ClassVar[str] = "project.member_reassigned"

    project_id: str
    name: str
    role_id: str
    role_title: str


class CharterReplaced(Event, frozen=True, kw_only=True):
    """A member of the team has a charter that somebody wrote."""

    TOPIC: ClassVar[str] = "project.charter_replaced"

    project_id: str
    name: str
    content: Text


class ProjectBudgetSet(Event, frozen=True, kw_only=True):
    """Somebody said what the agents of all the project's runs may use together, with what they have used already."""

    TOPIC: ClassVar[str] = "project.budget_set"

    project_id: str
    budget: Budget


class ProjectDeliverySet(Event, frozen=True, kw_only=True):
    """Somebody said where the work of the project's runs goes that do not say."""

    TOPIC: ClassVar[str] = "project.delivery_set"

    project_id: str
    delivery: Delivery


class ProjectDeletionStarted(Event, frozen=True, kw_only=True):
    """The project takes no more orchestrations, and those that are under way are being cancelled."""

    TOPIC: ClassVar[str] = "project.deletion_started"

    project_id: str


class ProjectDeleted(Event, frozen=True, kw_only=True):
    """Nothing of the project is at work, and nobody is shown it any more. Its directory and its git history stay."""

    TOPIC: ClassVar[str] = "project.deleted"

    project_id: str
    #: Who had a role in it.
    users: tuple[str, ...]
