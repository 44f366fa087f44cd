"""The coordinator runs that are not closed: what the driver's sweep looks at. Key: the run's id; groups: `open`, `closed`."""

from collections.abc import Mapping

import msgspec

from ..domain.event import Fact
from ..domain.facts.assembly import Recovered, WorktreesRemoved
from ..domain.facts.run import CoordinatorStarted
from ..domain.facts.run_records import RunDeleted, RunErased
from .view import Rows, View

VERSION = 3
GROUP = "open"


class OpenRun(msgspec.Struct, frozen=True, kw_only=True):
    """A coordinator run that may still call for something to be done."""

    run_id: str
    project_id: str
    #: The position of the run's first fact: the later, the newer.
    position: int
    closed: bool = False


def apply(rows: Rows[OpenRun], fact: Fact) -> Mapping[str, OpenRun | None]:
    """
    Fold one fact: a run is open from its start until what it left in the repository is cleared away, and again from
    the moment at which somebody has it go on, or has it deleted: then it is gone once it is erased.
    """
    match fact.event:
        case CoordinatorStarted() as event:
            run_id = fact.run or ""
            return {run_id: OpenRun(run_id=run_id, project_id=event.project_id, position=fact.position)}
        case WorktreesRemoved() as event if (row := rows.get(event.run_id)) is not None:
            return {row.run_id: msgspec.structs.replace(row, closed=True)}
        case RunErased():
            return {fact.root or "": None}
        case Recovered() | RunDeleted() if (row := rows.get(fact.root or "")) is not None:
            return {row.run_id: msgspec.structs.replace(row, closed=False)}
        case _:
            return {}


def _place(row: OpenRun) -> tuple[str, int]:
    return "closed" if row.closed else GROUP, row.position


VIEW = View("open_runs", VERSION, OpenRun, apply=apply, place=_place)
