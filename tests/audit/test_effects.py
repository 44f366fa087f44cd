"""A receipt covers the effects that it binds, once each; and whatever the domain does is covered by its receipts."""

from collections.abc import Sequence
from contextlib import suppress

import msgspec
import pytest
from hypothesis import settings

from steersman.adapters.audit.steering import Steering
from steersman.adapters.log_format.entry import Bad, CheckedEntry
from steersman.adapters.log_format.event_codec import Envelope
from steersman.domain.event import Draft, Event, Fact
from steersman.domain.facts.child_run import Paused, ProcessesKilled, Resumed
from steersman.domain.facts.directive import DirectiveMoved, RevisionExecution, SteeringDecided, SteeringReceived
from steersman.tests.audit.conftest import World
from steersman.tests.audit.facts import RECEIPT, decided, effect, put, received, worker
from steersman.tests.domain.test_steering_machine import Steering as Machine

BOUND = {"directive_id": "d", "receipt_payload_hash": RECEIPT}
PAUSED = Paused(**BOUND, session_id="s", tree_hash="t", workspace_hash="w")
RESUMED = Resumed(**BOUND)
KILLED = ProcessesKilled(**BOUND, pids=(1,))
ONLY_C1 = received("r", "d", "guidance", "c1", kind="subtask")


@pytest.mark.parametrize(
    ("facts", "field"),
    [
        ([ONLY_C1, effect("r", "d", child="c2")], "targets"),
        ([ONLY_C1, effect("r", "d", "initiated", child="c2")], "targets"),
        ([ONLY_C1, decided("r", "d", "c1", "c2"), effect("r", "d", child="c2")], "targets"),
        ([received("r", "d", direct=False), decided("r", "d", "c1"), effect("r", "d", child="c2")], "targets"),
        ([received("r", "d", "pause", "c1"), worker("c2", PAUSED)], "targets"),
        ([received("r", "d", "abort", "c1", kind="subtask"), worker("c2", KILLED)], "targets"),
        ([received("r", "d", "stop", "c1", kind="subtask"), worker("c2", KILLED)], "targets"),
        ([received("r", "d", "stop", "c1"), worker("c2", KILLED, "other")], "targets"),
        ([received("r", "d", "amend", "c1"), worker("c1", KILLED)], "verb"),
        ([ONLY_C1, worker("c1", KILLED)], "verb"),
        ([ONLY_C1, worker("c1", PAUSED)], "verb"),
        ([received("r", "d", "pause", "c1"), worker("c1", RESUMED)], "verb"),
        ([received("r", "d", "resume", "c1"), worker("c1", KILLED)], "verb"),
        ([received("r", "d", "pause", "c1"), worker("c1", PAUSED), worker("c1", PAUSED)], "directiveId"),
        ([received("r", "d", "resume", "c1"), worker("c1", RESUMED), worker("c1", RESUMED)], "directiveId"),
        ([received("r", "d", "stop", "c1"), worker("c1", KILLED), worker("c1", KILLED)], "directiveId"),
    ],
)
def test_an_effect_that_the_receipt_does_not_bind_is_tampering(store: World, facts: list[Draft], field: str) -> None:
    log = store.open()
    for draft in facts[:-1]:
        put(log, draft)
    assert store.audit().finding is None
    position = put(log, facts[-1])
    verdict = store.audit()
    assert verdict.finding is not None
    assert (verdict.verdict, verdict.finding.position, verdict.finding.field) == ("tampered", position, field)


@pytest.mark.parametrize(
    "facts",
    [
        [received("r", "d", "amend", "c1", "c2"), effect("r", "d", child="c1"), effect("r", "d", child="c2")],
        [received("r", "d", "pause", "c1"), worker("c1", PAUSED), effect("r", "d", child="c1")],
        [received("r", "d", "stop", "c1"), worker("c1", KILLED), worker("began since", KILLED)],
        [received("r", "d", direct=False), decided("r", "d", "c1"), decided("r", "d"), effect("r", "d", child="c1")],
        [ONLY_C1, *(effect("r", "d", state, child="c1") for state in ("initiated", "failed", "initiated"))],
        [ONLY_C1, effect("r", "d", child="c1"), effect("r", "d", child="c1", attempt=1)],
    ],
    ids=["broadcast", "pause", "whole run", "by decision", "tried again", "another attempt"],
)
def test_what_a_receipt_binds_is_no_tampering(store: World, facts: Sequence[Draft]) -> None:
    log = store.open()
    for draft in facts:
        put(log, draft)
    assert (store.audit().verdict, store.audit().finding) == ("steered", None)


NAMES = ("directiveId", "childRunId", "targets", "targetScope", "attempt", "state", "receiptPayloadHash", "payloadHash")
TOPICS = (DirectiveMoved.TOPIC, SteeringReceived.TOPIC, SteeringDecided.TOPIC, RevisionExecution.TOPIC, Paused.TOPIC)


@pytest.mark.parametrize("name", [*NAMES, "verb", "status"])
@pytest.mark.parametrize("topic", TOPICS)
def test_whatever_stands_in_a_payload_is_taken_or_refused_but_raises_nothing_else(topic: str, name: str) -> None:
    for odd in (None, 5, [], {}, [{}], "x"):
        audited, genuine = Steering(), received("r", "d").event
        audited.follow(checked(1, "r", genuine), "")
        usual = {**members(genuine), "childRunId": "child", "state": "effect_confirmed", "receiptPayloadHash": RECEIPT}
        with suppress(Bad):
            audited.follow(checked_payload(2, "r", topic, {**usual, name: odd}), "")


def checked(position: int, run: str | None, event: Event, root: str | None = "r") -> CheckedEntry:
    """Return a fact as the audit has it once it is proved."""
    return checked_payload(position, run, event.TOPIC, members(event), root)


def members(event: Event) -> dict[str, object]:
    """Return an event's payload."""
    return msgspec.json.decode(msgspec.json.encode(event, enc_hook=str), type=dict[str, object])


def checked_payload(
    position: int, run: str | None, topic: str, payload: dict[str, object], root: str | None = "r"
) -> CheckedEntry:
    envelope = Envelope(
        at="",
        command_id="",
        payload=msgspec.Raw(b"{}"),
        position=position,
        principal="ada",
        root=root,
        root_sequence=position,
        run=run,
        run_sequence=position,
        stream="",
        topic=topic,
        v=1,
        version=1,
    )
    return CheckedEntry(position=position, envelope=envelope, payload=payload, leaf=b"", erased=0)


class Audited(Machine):
    """Steers in every order and crashes in between; what the domain made of it is audited in the end."""

    def teardown(self) -> None:
        super().teardown()
        audited = Steering()
        facts: Sequence[Fact] = self.fleet.facts if hasattr(self, "fleet") else ()
        for position, fact in enumerate(facts, 1):
            audited.follow(checked(position, fact.run, fact.event, fact.root), "")


TestAudited = Audited.TestCase
TestAudited.settings = settings(max_examples=40, stateful_step_count=40, derandomize=True, print_blob=False)
