"""
A repetition, under its key, of an approval whose merge was blocked: it approves the same tree once more.

What its first answer says is true for ever, and would keep whoever repeats it, as they were told to, from ever merging.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

from litestar import Response

from ...application.ports.log import EventLog
from ...domain.event import Fact
from ...domain.facts.assembly import ReviewApproved
from ...domain.facts.run import CoordinatorRun
from ...domain.steering.gate_signals import NoReviewPending
from ..request.idempotency import Asking, Command

PAGE = 500

#: Store an approval; of exactly this tree, if one is given.
Approve: TypeAlias = Callable[[Command, str | None], Sequence[Fact]]


def approve_once(asking: Asking, root: str, approve: Approve) -> Response[bytes]:
    """
    Carry an approval out once, and once more for each time that its merge was blocked and somebody repeats it.

    Raises what *approve* does; HeadMoved, where other work than was approved stands at the gate by now.
    """
    runs = asking.services.runs
    response = asking.once(lambda command: approve(command, None))
    run = runs.run(root)
    if "Idempotent-Replayed" not in response.headers or run.status != "awaiting_review":
        return response
    tree = _approved_tree(asking.services.log, run, int(response.headers["Steersman-Position"]))
    try:
        # Twins that see the same block share this part of the key, and one of them approves.
        return asking.part(f"again-{run.root_sequence}").once(lambda command: approve(command, tree))
    except NoReviewPending:
        if runs.run(root).status == "awaiting_review":
            raise
        # A twin that saw more was quicker: what was asked for is under way.
        return response


def _approved_tree(log: EventLog, run: CoordinatorRun, position: int) -> str:
    """Return what was approved by the command whose last fact is at this position."""
    tree, after = "", 0
    while page := log.read_stream(run.stream, after, PAGE):  # ends: a run's own stream holds no output
        for fact in page:
            if isinstance(fact.event, ReviewApproved) and fact.position <= position:
                tree = fact.event.tree_hash
        after = page[-1].version
    return tree
