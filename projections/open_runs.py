"""The coordinator runs that are not closed: what the driver's sweep looks at. Key: the run's id; group: `open`."""

from collections.abc import Mapping

import msgspec

from ..domain.assembly import WorktreesRemoved
from ..domain.event import Fact
from ..domain.run import CoordinatorStarted
from .view import Rows, View, deleted_run

VERSION = 1
GROUP = "open"


class OpenRun(msgspec.Struct, frozen=True, kw_only=True):
    """A coordinator run that may still call for something to be done."""

    run_id: str
    project_id: str
    #: The position of the run's first fact: the later, the newer.
    position: int


def apply(rows: Rows[OpenRun], fact: Fact) -> Mapping[str, OpenRun | None]:
    """Fold one fact: a run is open from its start until what it left in the repository is cleared away."""
    if (deleted := deleted_run(fact)) is not None:
        return {deleted: None}
    match fact.event:
        case CoordinatorStarted() as event:
            run_id = fact.run or ""
            return {run_id: OpenRun(run_id=run_id, project_id=event.project_id, position=fact.position)}
        case WorktreesRemoved() as event:
            return {event.run_id: None}
        case _:
            return {}


VIEW = View("open_runs", VERSION, OpenRun, apply=apply, place=lambda row: (GROUP, row.position))
