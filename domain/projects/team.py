"""Who can be on a project's team: the catalogue of roles, and the members."""

import msgspec


class Role(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of team member."""

    id: str
    title: str
    summary: str
    default_model: str | None = None


ROLES: dict[str, Role] = {
    role.id: role
    for role in (
        Role(id="software-engineer", title="Software Engineer", summary="Implements features and fixes faults."),
        Role(id="tester", title="Tester", summary="Writes tests, and shows where the work does not hold."),
        Role(id="product-manager", title="Product Manager", summary="Says what is wanted, and for whom."),
        Role(id="technical-writer", title="Technical Writer", summary="Explains the product to its users."),
        Role(id="architect", title="Architect", summary="Chooses the structure, and keeps it simple."),
        Role(id="security-engineer", title="Security Engineer", summary="Finds what can be abused, and closes it."),
        Role(id="backend-engineer", title="Backend Engineer", summary="Builds services, interfaces and their storage."),
        Role(id="frontend-engineer", title="Frontend Engineer", summary="Builds what people see and use."),
        Role(id="mobile-engineer", title="Mobile Engineer", summary="Builds applications for telephones and tablets."),
        Role(id="data-engineer", title="Data Engineer", summary="Moves and shapes data, and keeps it right."),
        Role(id="data-analyst", title="Data Analyst", summary="Reads from data what is so, and how sure that is."),
        Role(id="machine-learning-engineer", title="Machine Learning Engineer", summary="Trains and serves models."),
        Role(id="database-engineer", title="Database Engineer", summary="Designs schemas, queries and migrations."),
        Role(id="devops-engineer", title="DevOps Engineer", summary="Builds, ships and configures what others write."),
        Role(id="site-reliability-engineer", title="Site Reliability Engineer", summary="Keeps services up."),
        Role(
            id="performance-engineer", title="Performance Engineer", summary="Measures, and makes the slow part fast."
        ),
        Role(
            id="accessibility-specialist", title="Accessibility Specialist", summary="Lets everybody use the product."
        ),
        Role(id="ux-designer", title="UX Designer", summary="Designs how people get done what they came for."),
        Role(id="researcher", title="Researcher", summary="Finds out what is known, with its sources."),
        Role(id="code-reviewer", title="Code Reviewer", summary="Reads changes and says what is wrong with them."),
        Role(id="release-manager", title="Release Manager", summary="Decides what ships when, and tells everybody."),
        Role(id="lead", title="Lead", summary="Splits a goal into parts and keeps them together."),
    )
}


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """Someone on a project's team."""

    name: str
    role_id: str
    role_title: str
    #: The model this member works with, before the project's and the installation's default.
    model_id: str | None
    active: bool = True
    #: When the member joined, RFC 3339.
    since: str = ""
    #: When their role or charter last became another one; empty: never.
    changed_at: str = ""


def next_name(role_id: str, taken: set[str]) -> str:
    """Return the role's own name, or the first numbered one that nobody on the team has."""
    candidates = (role_id if n == 1 else f"{role_id}-{n}" for n in range(1, len(taken) + 2))
    return next(name for name in candidates if name not in taken)
