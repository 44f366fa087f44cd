"""Follow the corrections through the facts: every effect has an earlier receipt, and nothing is consumed twice."""

from typing import Any

import msgspec

from ..application.verdict import MAX_STEPS, SteeringStep
from ..domain.child_run import Paused, ProcessesKilled, Resumed
from ..domain.directive import DirectiveMoved, RevisionExecution, SteeringDecided, SteeringReceived
from .audit_entry import Checked, bad

#: The facts that say that a correction has had an effect. Each names the receipt that it is of.
EFFECTS = frozenset(kind.TOPIC for kind in (RevisionExecution, Paused, Resumed, ProcessesKilled))


class Steering:
    """What is known of every directive so far. It grows with the corrections, not with the facts."""

    def __init__(self) -> None:
        self.count = 0
        self._receipts: dict[str, str] = {}
        self._steps: dict[str, SteeringStep] = {}
        self._consumed = set[tuple[str, Any, Any]]()

    @property
    def steps(self) -> tuple[SteeringStep, ...]:
        """The corrections in the order of their receipts, the first MAX_STEPS of them."""
        return tuple(self._steps.values())

    def follow(self, fact: Checked, receipt_hash: str) -> None:
        """Take in one fact. Raises Bad for an effect without its receipt, or one that is had twice."""
        topic, payload = fact.envelope.topic, fact.payload
        directive = payload.get("directiveId")
        if topic == SteeringReceived.TOPIC:
            self._receive(fact, str(directive), receipt_hash)
        elif topic in EFFECTS:
            self._consume(fact, str(directive))
        elif topic == SteeringDecided.TOPIC and str(directive) not in self._receipts:
            raise bad("a decision about a correction that nobody received", fact.position, "directiveId", "", directive)
        elif topic == DirectiveMoved.TOPIC and directive in self._steps:
            moved = msgspec.structs.replace(self._steps[directive], status=str(payload.get("status")))
            self._steps[directive] = moved

    def _receive(self, fact: Checked, directive: str, receipt_hash: str) -> None:
        if directive in self._receipts:
            raise bad("a correction was received twice", fact.position, "directiveId", "", directive)
        payload = fact.payload
        self.count += 1
        self._receipts[directive] = str(payload.get("payloadHash"))
        if self.count <= MAX_STEPS:
            self._steps[directive] = SteeringStep(
                position=fact.position,
                run=fact.envelope.run or "",
                directive_id=directive,
                verb=str(payload.get("verb")),
                source=str(payload.get("source")),
                principal=fact.envelope.principal,
                payload_hash=self._receipts[directive],
                leaf_hash=fact.leaf.hex(),
                receipt_hash=receipt_hash,
                status="pending",
            )

    def _consume(self, fact: Checked, directive: str) -> None:
        payload = fact.payload
        received, cited = self._receipts.get(directive), payload.get("receiptPayloadHash")
        if received is None:
            raise bad("an effect without an earlier receipt", fact.position, "directiveId", "a receipt", directive)
        if received != cited:
            raise bad("an effect of another receipt", fact.position, "receiptPayloadHash", received, cited)
        if payload.get("state") == "effect_confirmed":
            once = directive, payload.get("attempt"), payload.get("childRunId")
            if once in self._consumed:
                raise bad("a receipt was consumed twice", fact.position, "directiveId", "once", directive)
            self._consumed.add(once)
