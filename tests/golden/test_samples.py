"""What was once stored is read for ever: every kind of fact has a sample, and every sample ever stored is understood."""

import hashlib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from steersman.adapters.log_format.event_codec import StoredRow, StoredText
from steersman.domain.event import Event, Fact, Unknown
from steersman.domain.kinds.catalogue import CATALOGUE
from steersman.tests.golden.samples import Sample, codec, event, newest, salts, sample, stored

HOW = "its shape has changed: if old facts are still understood, add a sample (tests/golden/samples.py)"


def decoded(found: Sample) -> Fact:
    row = StoredRow(10, "r", found.state.encode())
    return codec().decode(row, {digest: text(digest, words.encode()) for digest, words in found.words.items()})


def text(digest: str, words: bytes) -> StoredText:
    """Return words as they were stored: a sample's salts are known, and one of them makes the digest."""
    made = (salt for salt in salts() if hashlib.sha256(salt + words).hexdigest() == digest)
    return StoredText(digest, next(made), words)


def test_every_kind_of_fact_has_a_sample() -> None:
    missing = sorted(CATALOGUE.keys() - newest().keys())
    assert not missing, f"no sample of {missing}: run python -m steersman.tests.golden.samples"


def test_the_list_of_topics_for_those_who_verify_a_log_is_the_newest() -> None:
    lines = (Path(__file__).parents[2] / "docs/topics.txt").read_text(encoding="utf-8").splitlines()[1:]
    assert lines == [f"{topic} output" if kind.OUTPUT else topic for topic, kind in sorted(CATALOGUE.items())]


def test_no_kind_of_fact_was_ever_taken_back() -> None:
    assert {found.topic for found in stored()} <= CATALOGUE.keys()


@pytest.mark.parametrize("kind", CATALOGUE.values(), ids=list(CATALOGUE))
def test_what_is_stored_today_is_the_newest_sample_byte_for_byte(kind: type[Event]) -> None:
    assert newest()[kind.TOPIC] == sample(kind), HOW


@pytest.mark.parametrize("kind", CATALOGUE.values(), ids=list(CATALOGUE))
def test_the_newest_sample_decodes_to_the_event_that_was_encoded(kind: type[Event]) -> None:
    fact = decoded(newest()[kind.TOPIC])
    assert fact.event == event(kind)
    assert (fact.position, fact.version, fact.run_sequence, fact.root_sequence) == (10, 5, 6, 7)


@pytest.mark.parametrize("found", stored(), ids=lambda found: found.topic)
def test_every_sample_ever_stored_is_understood(found: Sample) -> None:
    fact = decoded(found)
    assert not isinstance(fact.event, Unknown)
    assert fact.topic == found.topic
    payload: dict[str, Any] = msgspec.json.decode(found.state)["payload"]
    known = {field.encode_name for field in msgspec.structs.fields(type(fact.event))}
    assert payload.keys() <= known, "a field that was stored is no longer read"


def test_the_topics_of_output_are_those_of_the_samples() -> None:
    """A kind that becomes output would vanish from every fold; one that ceases to be would enter it."""
    output = {topic for topic, kind in CATALOGUE.items() if kind.OUTPUT}
    assert output == {
        "agent.intent",
        "agent.message.delta",
        "agent.plan",
        "agent.turn.usage",
        "run.output_truncated",
        "tool.call",
        "tool.call.update",
        "tool.error",
        "tool.output",
        "tool.result",
    }
