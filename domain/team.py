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


def next_name(role_id: str, taken: set[str]) -> str:
    """Return the role's own name, or the first numbered one that nobody on the team has."""
    candidates = (role_id if n == 1 else f"{role_id}-{n}" for n in range(1, len(taken) + 2))
    return next(name for name in candidates if name not in taken)
