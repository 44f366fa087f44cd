"""
The directives that are not closed, for whoever watches over the service. Key: the directive's id; groups: `open`, the
oldest first, `needs_attention`, and `run_ended` for those that needed a person when their run ended.
"""

from collections.abc import Mapping

import msgspec

from ..domain.event import Fact
from ..domain.facts.assembly import AssemblyCompleted, AssemblyDeclined, AssemblyFailed, MergeFailed, Recovered
from ..domain.facts.child_run import RunCancelled, RunFailed
from ..domain.facts.directive import CLOSED, DirectiveMoved, SteeringReceived
from ..domain.facts.run_records import RunErased
from .view import Rows, View, deleted_run

VERSION = 1
OPEN = "open"
NEEDS_ATTENTION = "needs_attention"
RUN_ENDED = "run_ended"
RUN_ENDS = (AssemblyCompleted, AssemblyDeclined, AssemblyFailed, MergeFailed, RunFailed, RunCancelled)


class OutstandingDirective(msgspec.Struct, frozen=True, kw_only=True):
    """A directive from its receipt to its end."""

    directive_id: str
    #: The coordinator run that it steers.
    root: str
    #: Where its receipt stands in the log, and when it was written.
    position: int
    received_at: str
    #: Its effect failed too often: a person has to say what becomes of it.
    needs_attention: bool = False
    run_ended: bool = False


def apply(rows: Rows[OutstandingDirective], fact: Fact) -> Mapping[str, OutstandingDirective | None]:
    """Fold one fact. A directive is gone with its end; one that needs a person stays for as long as its run does."""
    root, event = fact.root or "", fact.event
    if deleted_run(fact) is not None:
        # Those that are open end with facts of their own: nothing that is still to be done is forgotten here.
        return dict.fromkeys(_of(rows, root, NEEDS_ATTENTION) | _of(rows, root, RUN_ENDED))
    match event:
        case SteeringReceived():
            return {
                event.directive_id: OutstandingDirective(
                    directive_id=event.directive_id,
                    root=root,
                    position=fact.position,
                    received_at=fact.at.isoformat(),
                )
            }
        case DirectiveMoved(work_plan_id=None) if (row := rows.get(event.directive_id)) is not None:
            needs_attention = event.status == "needs_attention"
            if event.status in CLOSED and not needs_attention:
                return {row.directive_id: None}
            return {row.directive_id: msgspec.structs.replace(row, needs_attention=needs_attention)}
        case _ if isinstance(event, RUN_ENDS) and _is_of_root(fact):
            return _moved(_of(rows, root, NEEDS_ATTENTION), run_ended=True)
        case Recovered():
            return _moved(_of(rows, root, RUN_ENDED), run_ended=False)
        case RunErased():
            return dict.fromkeys(_of(rows, root, OPEN))
        case _:
            return {}


def _is_of_root(fact: Fact) -> bool:
    return fact.run == fact.root


def _of(rows: Rows[OutstandingDirective], root: str, group: str) -> dict[str, OutstandingDirective]:
    return {key: row for key, row in rows.group(group).items() if row.root == root}


def _moved(rows: Mapping[str, OutstandingDirective], *, run_ended: bool) -> Mapping[str, OutstandingDirective | None]:
    return {key: msgspec.structs.replace(row, run_ended=run_ended) for key, row in rows.items()}


def _place(row: OutstandingDirective) -> tuple[str, int]:
    if not row.needs_attention:
        return OPEN, -row.position  # a list shows the highest first, and the oldest are to be shown first
    return RUN_ENDED if row.run_ended else NEEDS_ATTENTION, row.position


VIEW = View("outstanding_directives", VERSION, OutstandingDirective, apply=apply, place=_place)
