"""What requests about one run have in common: its row, its coordinator, and the wait for what was asked of it."""

import time
from collections.abc import Callable

from ...domain.facts.run import CoordinatorRun
from ...domain.rejected import Rejected, RunNotFound
from ...projections import run_detail
from ...projections.run_detail import RunDetail
from .access import RunPlace
from .idempotency import Asking
from .reading import Reads

#: How often a run is looked at again while its effect is waited for.
POLL_SECONDS = 0.05


class UseCoordinator(Rejected):
    """This is a child run. The assembly, and the decision about it, belong to its coordinator."""

    code = "use_coordinator"


def run_row(reading: Reads, run_id: str, *, hides: bool = False) -> RunDetail:
    """Return the row of a run that the caller may see. Raises InvalidRunId, RunNotFound, Forbidden."""
    place = reading.access.run(reading.principal, run_id, hides=hides)
    row = reading.row(run_detail.VIEW, place.run_id)
    if row is None:
        raise RunNotFound
    return row


def coordinator(asking: Asking, run_id: str) -> RunPlace:
    """Return the coordinator run that whoever asks may change. Raises UseCoordinator for a child."""
    place = asking.access.run(asking.principal, run_id, change=True)
    if not place.is_coordinator:
        raise UseCoordinator(coordinator_run_id=place.root)
    return place


def settled(asking: Asking, root: str, holds: Callable[[CoordinatorRun], bool]) -> CoordinatorRun:
    """Return the run once this holds of it, or as it is when that takes too long for an answer, or we are to end."""
    until = time.monotonic() + asking.services.settings.effect_seconds
    while not holds(run := asking.services.runs.run(root)) and time.monotonic() < until:
        if asking.services.draining.wait(POLL_SECONDS):
            break
    return run
