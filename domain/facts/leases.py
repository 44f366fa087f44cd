"""Which process drives a run is agreed on outside the log; that it changed hands is a fact."""

from collections.abc import Sequence
from typing import ClassVar

from ..event import Draft, Event
from .run import CoordinatorRun


class LeaseTaken(Event, frozen=True, kw_only=True):
    """
    From here on another process drives the run, and what an earlier one still wants to store about it is refused.

    It is part of the tree and of nobody's feed: whoever watches a run need not know where it is driven.
    """

    TOPIC: ClassVar[str] = "run.lease_taken"

    run_id: str
    #: Rises with each time that the run is taken over; a number is left out where a taker died before it could say so.
    epoch: int
    #: The process that took it.
    replica: str


def take_lease(run: CoordinatorRun, epoch: int, replica: str) -> Sequence[Draft]:
    """Say who drives the run now."""
    event = LeaseTaken(run_id=run.run_id, epoch=epoch, replica=replica)
    return (Draft(stream=f"{run.stream}/lease", event=event, root=run.run_id),)
