"""
The runs in which something stands in the way, for whoever watches over the service. Key: the run's id; group: `held`.

Without words, so that a deleted run can stay until it is erased: what keeps it from that is to be mended, too.
"""

from collections.abc import Mapping

import msgspec

from ..domain.event import Fact
from ..domain.facts.held import EffectHeld, EffectReleased, WaitsFor
from ..domain.facts.run_records import RunErased
from .view import Rows, View

VERSION = 1
GROUP = "held"


class HeldRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run, and who can mend what stands in the way of each effect of it."""

    run_id: str
    #: Where the first fact of it stands in the log, and when it was written.
    position: int
    since: str
    waits_for: Mapping[str, WaitsFor]


def apply(rows: Rows[HeldRun], fact: Fact) -> Mapping[str, HeldRun | None]:
    """Fold one fact."""
    root = fact.root or ""
    match fact.event:
        case EffectHeld() as event:
            row = rows.get(root) or HeldRun(
                run_id=root, position=fact.position, since=fact.at.isoformat(), waits_for={}
            )
            waits_for = {**row.waits_for, event.effect_id: event.waits_for}
            return {root: msgspec.structs.replace(row, waits_for=waits_for)}
        case EffectReleased() as event if (row := rows.get(root)) is not None:
            waits_for = {key: who for key, who in row.waits_for.items() if key != event.effect_id}
            return {root: msgspec.structs.replace(row, waits_for=waits_for) if waits_for else None}
        case RunErased():
            return {root: None} if rows.get(root) is not None else {}
        case _:
            return {}


VIEW = View("held_runs", VERSION, HeldRun, apply=apply, place=lambda row: (GROUP, row.position))
