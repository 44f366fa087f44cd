"""Who came first at a gate: whoever comes second is handed the receipt of the decision that won."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager

from ...domain.event import Fact
from ...domain.facts.assembly import AssemblyDeclined, ReviewApproved, ReviewRequested
from ...domain.facts.child_run import run_stream
from ...domain.facts.directive import DirectiveMoved, directive_stream
from ...domain.steering.gate_signals import NoReviewPending
from ...domain.steering.steering import AlreadyMerged
from .given import Services

PAGE = 500
APPROVED, DECLINED, SENT_BACK = "approved", "declined", "request_changes"


@contextmanager
def telling_the_winner(services: Services, root: str) -> Generator[None]:
    """Let a refusal because somebody else decided name that decision, and prove it."""
    try:
        yield
    except (NoReviewPending, AlreadyMerged) as refused:
        if "winner" in refused.details or (winner := winner_at(services, root)) is None:
            raise
        raise type(refused)(str(refused), **{**refused.details, "winner": winner}) from refused


def winner_at(services: Services, root: str) -> Mapping[str, object] | None:
    """Return the decision that closed the newest gate of a run; None: there was no gate, or it is open."""
    won: tuple[str, Fact] | None = None
    after = 0
    while page := services.log.read_stream(run_stream(root), after, PAGE):  # ends: no output is on this stream
        for fact in page:
            won = _deciding(won, fact)
        after = page[-1].version
    if won is None:
        return None
    decision, fact = won
    told: dict[str, object] = {"decision": decision}
    if isinstance(fact.event, DirectiveMoved):
        # The receipt of a request for changes is the fact that received it.
        told["directiveId"] = fact.event.directive_id
        with services.findings.watching():
            fact = services.log.read_stream(directive_stream(fact.event.directive_id), limit=1)[0]
    receipt = services.log.receipts([fact.position]).get(fact.position)
    told |= {"principal": fact.principal, "at": fact.at.isoformat(), "position": fact.position}
    if receipt is not None:
        told["receipt"] = {
            "position": receipt.position,
            "leafIndex": receipt.leaf_index,
            "leafHash": receipt.leaf_hash,
            "receiptHash": receipt.receipt_hash,
        }
    return told


def _deciding(won: tuple[str, Fact] | None, fact: Fact) -> tuple[str, Fact] | None:
    match fact.event:
        case ReviewRequested():
            return None
        case ReviewApproved():
            return won or (APPROVED, fact)
        case AssemblyDeclined():
            return won or (DECLINED, fact)
        case DirectiveMoved(source="human-review", status="queued", work_plan_id=str()):
            return won or (SENT_BACK, fact)
        case _:
            return won
