"""`steersman replay`: the read models are nothing but the log, and this shows it."""

from collections.abc import Sequence
from pathlib import Path

import click
import msgspec

from ...adapters.audit.log import audit
from ...adapters.audit.store import WholeLog
from ...adapters.log.proofs import hmac_keys_of
from ...adapters.stores.memory import MemoryWakeups
from ...application.ports.log import LogUnavailable
from ...application.views.check_views import ViewCheck, check
from ...application.views.project_views import catch_up, rebuild
from ...projections.catalogue import VIEWS
from ..output import print_json, print_table
from ..refused import Refused
from ..serving.wiring import Stores, open_stores
from ..settings import Settings, data_option, json_option, read_settings
from .audit_sources import held_keys, reading
from .scratch_views import scratch_views

#: How many differing keys of a view are named.
SHOWN_KEYS = 5


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one view."""

    view: str
    version: int
    position: int
    sound: bool
    #: The keys of rows that are not what their facts fold into.
    differences: Sequence[str] = ()


@click.command()
@data_option
@click.option("--check", "only_check", is_flag=True, help="Change nothing: compare the views with what the log says.")
@json_option
def command(data: Path | None, only_check: bool, as_json: bool) -> None:
    """
    Build every read model anew from the log, or check that each row is what its facts fold into (exit 1 if not).

    A check begins with the log itself: what is not what was signed proves nothing about what was folded from it.
    """
    settings = read_settings(data)
    if not settings.database and not (settings.data / "log.db").exists():
        raise Refused(f"There is no log in {settings.data}.")
    if only_check:
        _refuse_tampered(settings)
    with open_stores(settings, MemoryWakeups()) as stores:
        try:
            outcomes = _compared(stores) if only_check else _built(stores)
        except LogUnavailable as error:
            raise Refused(str(error)) from error
    _print(outcomes, as_json)
    if not all(outcome.sound for outcome in outcomes):
        raise Refused(
            "Some views are not what the log says, or are of another release. Build them anew: steersman replay"
        )


def _refuse_tampered(settings: Settings) -> None:
    """Return unless the log was changed behind its back. Raises Refused."""
    ring = held_keys(settings)
    with reading(settings) as recorder:
        verdict = audit(WholeLog(recorder, settings.checkpoints), hmac_keys=hmac_keys_of(ring), needs_key=False)
    if verdict.verdict == "tampered" and verdict.finding is not None:
        where = "" if verdict.finding.position is None else f" at position {verdict.finding.position}"
        raise Refused(f"The log is not what was signed{where}: {verdict.finding.reason}. See: steersman audit verify")


def _built(stores: Stores) -> list[Outcome]:
    """Build every view anew beside what readers see, which is swapped at the end; a serving process may go on."""
    for view in VIEWS:
        rebuild(stores.views, view)
    catch_up(stores.views, stores.log, VIEWS)
    active = {view.name: next(head for head in stores.views.heads(view.name) if head.active) for view in VIEWS}
    return [
        Outcome(view=name, version=head.version, position=head.position, sound=True) for name, head in active.items()
    ]


def _compared(stores: Stores) -> list[Outcome]:
    with scratch_views() as scratch:
        return [_outcome(checked) for checked in check(stores.views, stores.log, VIEWS, scratch)]


def _outcome(checked: ViewCheck) -> Outcome:
    return Outcome(
        view=checked.view,
        version=checked.version,
        position=checked.position,
        sound=checked.sound,
        differences=[difference.key for difference in checked.differences],
    )


def _print(outcomes: Sequence[Outcome], as_json: bool) -> None:
    if as_json:
        print_json(outcomes)
        return
    rows = [
        (
            outcome.view,
            str(outcome.version),
            str(outcome.position),
            "sound" if outcome.sound else f"{len(outcome.differences)} rows differ",
            " ".join(outcome.differences[:SHOWN_KEYS]),
        )
        for outcome in outcomes
    ]
    print_table(("VIEW", "VERSION", "POSITION", "STATE", "KEYS"), rows)
