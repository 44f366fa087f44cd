"""Follow the corrections through the facts: every effect has an earlier receipt, and nothing is consumed twice."""

from collections.abc import Iterator, Mapping
from typing import cast

import msgspec

from ...application.ports.verdict import MAX_STEPS, SteeringStep
from ...domain.facts.child_run import Paused, ProcessesKilled, Resumed
from ...domain.facts.directive import DirectiveMoved, RevisionExecution, SteeringDecided, SteeringReceived
from ..log_format.entry import CheckedEntry, bad

#: The facts that say that a correction has had an effect. Each names the receipt that it is of.
EFFECTS = frozenset(kind.TOPIC for kind in (RevisionExecution, Paused, Resumed, ProcessesKilled))
#: Which corrections a worker's own effects may be of. A step of an execution may be of any.
VERBS: Mapping[str, frozenset[str]] = {
    Paused.TOPIC: frozenset({"pause"}),
    Resumed.TOPIC: frozenset({"resume"}),
    ProcessesKilled.TOPIC: frozenset({"abort", "stop"}),
}


class Received(msgspec.Struct, kw_only=True):
    """What a receipt binds."""

    payload_hash: str
    verb: str
    #: The coordinator run that it was received in.
    root: str | None
    #: A person's word to running agents: it is for those that its receipt names, and no decision adds any.
    direct: bool
    whole_run: bool
    targets: set[str]

    def is_for(self, child_run_id: str, root: str | None) -> bool:
        """Whether it covers an effect on this child: of those that a stop of a whole run ends it names but the first."""
        return child_run_id in self.targets or (self.whole_run and self.verb == "stop" and self.root == root)


class Steering:
    """What is known of every directive so far. It grows with the corrections, not with the facts."""

    def __init__(self) -> None:
        self.count = 0
        self._receipts: dict[str, Received] = {}
        self._steps: dict[str, SteeringStep] = {}
        self._had = set[tuple[str, ...]]()

    @property
    def steps(self) -> tuple[SteeringStep, ...]:
        """The corrections in the order of their receipts, the first MAX_STEPS of them."""
        return tuple(self._steps.values())

    def follow(self, fact: CheckedEntry, receipt_hash: str) -> None:
        """Take in one fact. Raises Bad for an effect without its receipt, or one that is had twice."""
        topic, directive = fact.envelope.topic, str(fact.payload.get("directiveId"))
        if topic == SteeringReceived.TOPIC:
            self._receive(fact, directive, receipt_hash)
        elif topic in EFFECTS:
            self._consume(fact, directive)
        elif topic == SteeringDecided.TOPIC:
            self._decide(fact, directive)
        elif topic == DirectiveMoved.TOPIC and directive in self._steps:
            moved = msgspec.structs.replace(self._steps[directive], status=str(fact.payload.get("status")))
            self._steps[directive] = moved

    def _receive(self, fact: CheckedEntry, directive: str, receipt_hash: str) -> None:
        if directive in self._receipts:
            raise bad("a correction was received twice", fact.position, "directiveId", "", directive)
        payload = fact.payload
        self.count += 1
        received = self._receipts[directive] = Received(
            payload_hash=str(payload.get("payloadHash")),
            verb=str(payload.get("verb")),
            root=fact.envelope.root,
            direct=payload.get("direct") is True,
            whole_run=_is_whole_run(payload.get("targetScope")),
            targets=set(_names(payload.get("targets"))),
        )
        if self.count <= MAX_STEPS:
            self._steps[directive] = SteeringStep(
                position=fact.position,
                run=fact.envelope.run or "",
                directive_id=directive,
                verb=received.verb,
                source=str(payload.get("source")),
                principal=fact.envelope.principal,
                payload_hash=received.payload_hash,
                leaf_hash=fact.leaf.hex(),
                receipt_hash=receipt_hash,
                status="pending",
            )

    def _decide(self, fact: CheckedEntry, directive: str) -> None:
        received = self._receipts.get(directive)
        if received is None:
            raise bad("a decision about a correction that nobody received", fact.position, "directiveId", "", directive)
        if not received.direct:
            received.targets.update(_names(fact.payload.get("targets")))

    def _consume(self, fact: CheckedEntry, directive: str) -> None:
        topic, payload, position = fact.envelope.topic, fact.payload, fact.position
        received, cited = self._receipts.get(directive), payload.get("receiptPayloadHash")
        if received is None:
            raise bad("an effect without an earlier receipt", position, "directiveId", "a receipt", directive)
        if received.payload_hash != cited:
            raise bad("an effect of another receipt", position, "receiptPayloadHash", received.payload_hash, cited)
        if received.verb not in VERBS.get(topic, {received.verb}):
            expected = " or ".join(sorted(VERBS[topic]))
            raise bad("an effect that its receipt is not for", position, "verb", expected, received.verb)
        # What happens to a worker is told by its own run.
        child = str(payload.get("childRunId") if topic == RevisionExecution.TOPIC else fact.envelope.run)
        if not received.is_for(child, fact.envelope.root):
            expected = " ".join(sorted(received.targets))
            raise bad("an effect on a child that its receipt is not for", position, "targets", expected, child)
        if topic != RevisionExecution.TOPIC or payload.get("state") == "effect_confirmed":
            once = topic, directive, str(payload.get("attempt")), child
            if once in self._had:
                raise bad("a receipt was consumed twice", position, "directiveId", "once", directive)
            self._had.add(once)


def _is_whole_run(scope: object) -> bool:
    return isinstance(scope, dict) and cast("dict[str, object]", scope).get("kind") == "run"


def _names(listed: object) -> Iterator[str]:
    """Give the names in a list of a payload, in which anything may stand."""
    if isinstance(listed, list):
        yield from map(str, cast("list[object]", listed))
