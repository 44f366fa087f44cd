"""What waits in a run, for the lists that say so."""

from collections.abc import Sequence

from ...projections import project_view, waiting
from ...projections.waiting import WaitingKind, WaitingRun
from .reading import Reads


def kinds_of(row: WaitingRun | None, child_run_id: str | None = None) -> list[WaitingKind]:
    """Return the kinds of what waits in a coordinator run, or in one of its children, the oldest first, each once."""
    items = row.items if row else ()
    return [*dict.fromkeys(item.kind for item in items if child_run_id in (None, item.child_run_id))]


def waiting_kinds(reading: Reads, project_id: str) -> dict[str, list[WaitingKind]]:
    """Return the kinds of what waits in each run of a project in which something waits, the oldest first, each once."""
    return {row.run_id: kinds_of(row) for row in reading.every(waiting.VIEW, project_id)}


def own_projects(reading: Reads) -> Sequence[str]:
    """Return the ids of the projects in which the caller has a role."""
    group = project_view.user_group(reading.principal.user)
    return [role.project_id for role in reading.every(project_view.ROLES_VIEW, group)]
