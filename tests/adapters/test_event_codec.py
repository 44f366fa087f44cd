"""What is written is canonical, holds no words, and comes back as it was; what could not is refused."""

import hashlib
import json
from datetime import UTC, datetime
from enum import Enum
from typing import Any

import msgspec
import pytest

from steersman.adapters.log.numbering import Known, Numbering, encode_facts
from steersman.adapters.log_format.event_codec import Encoded, EventCodec, StoredRow, StoredText, stored_time
from steersman.application.ports.log import Append, Forged, Undecodable
from steersman.domain.event import Draft, Event, Text, Unknown

AT = datetime(2026, 3, 1, 12, 30, tzinfo=UTC)


class Colour(Enum):
    RED = "red"


class Part(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    file_name: Text
    size: int | None = None


class Everything(Event, frozen=True, kw_only=True):
    TOPIC = "test.everything"

    goal: Text
    parts: tuple[Part, ...] = ()
    by_name: dict[str, Part] = msgspec.field(default_factory=dict)
    reply: Text | None = None
    colour: Colour = Colour.RED
    is_final: bool = True
    when: datetime = AT


class Loose(Event, frozen=True, kw_only=True):
    TOPIC = "test.loose"

    value: Any


CATALOGUE: dict[str, type[Event]] = {Everything.TOPIC: Everything, Loose.TOPIC: Loose}


def codec(**options: Any) -> EventCodec:
    return EventCodec(CATALOGUE, **{"salt": lambda: b"0123456789abcdef", **options})


def encode(event: Event) -> Encoded:
    return codec().encode(Draft(stream="s", event=event, run="r", root="r"))


def stored(event: Event, **more: Any) -> tuple[StoredRow, dict[str, StoredText]]:
    """Return the event as the log would store it at position 1."""
    draft = Draft(stream="s", event=event, run="r", root="r")
    append = Append(drafts=(draft,), expected={"s": 0}, at=AT, principal="ada", command_id="c1", **more)
    known = Known(0, {"s": 0}, {"r": 0}, {"r": 0}, {}, {})
    (row,) = Numbering(known, lambda _: known).place(append, encode_facts(append, codec()))
    return StoredRow(row.position, row.run, row.state), {text.digest: text for text in row.texts}


def test_the_envelope_is_canonical_json_byte_for_byte() -> None:
    row, _ = stored(Loose(value={"b": [1, None, True], "a": "ü\u2028\U0001f600\n", "ￏ": "", "\U0001f600": ""}))
    assert row.state.decode() == (
        '{"at":"2026-03-01T12:30:00.000000Z","command_id":"c1","payload":{"value":{"a":"ü\u2028\U0001f600\\n",'
        '"b":[1,null,true],"ￏ":"","\U0001f600":""}},"position":1,"principal":"ada","root":"r","root_sequence":1,'
        '"run":"r","run_sequence":1,"stream":"s","topic":"test.loose","v":1,"version":1}'
    )
    again = json.dumps(json.loads(row.state), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert again.encode() == row.state


def test_a_trace_is_in_the_envelope_only_when_there_is_one() -> None:
    with_one, _ = stored(Loose(value=1), traceparent="00-a-b-01")
    assert json.loads(with_one.state)["traceparent"] == "00-a-b-01"
    assert b"traceparent" not in stored(Loose(value=1))[0].state


def test_words_stand_beside_the_envelope_and_only_their_digest_in_it() -> None:
    row, words = stored(Everything(goal=Text("grüße")))
    digest = hashlib.sha256(b"0123456789abcdef" + "grüße".encode()).hexdigest()
    assert words == {digest: StoredText(digest, b"0123456789abcdef", "grüße".encode())}
    assert json.loads(row.state)["payload"]["goal"] == {"digest": digest, "length": 7}
    assert "grüße".encode() not in row.state


def test_a_fact_comes_back_as_it_was_wherever_its_words_are() -> None:
    event = Everything(
        goal=Text("g"),
        parts=(Part(file_name=Text("a.txt"), size=2**53 - 1), Part(file_name=Text("b"))),
        by_name={"x": Part(file_name=Text("c"))},
        reply=Text(""),
    )
    row, words = stored(event)
    assert codec().decode(row, words).event == event


def test_erased_words_come_back_as_none_and_may_be_stored_again() -> None:
    row, _ = stored(Everything(goal=Text("g"), parts=(Part(file_name=Text("a")),)))
    event = codec().decode(row, {}).event
    assert event == Everything(goal=Text(None), parts=(Part(file_name=Text(None)),))
    row, words = stored(event)
    assert (codec().decode(row, words).event, words) == (event, {})


def test_secrets_are_gone_before_words_are_digested() -> None:
    row, words = stored(Everything(goal=Text("use password=hunter22 here")))
    assert [text.words for text in words.values()] == [b"use password=[redacted] here"]
    assert codec().decode(row, words).event == Everything(goal=Text("use password=[redacted] here"))


def test_a_file_name_that_is_not_utf8_is_stored_with_replacements() -> None:
    row, words = stored(Everything(goal=Text("caf\udce9.txt")))
    assert codec().decode(row, words).event == Everything(goal=Text("caf\ufffd.txt"))


def test_every_text_has_a_salt_of_its_own() -> None:
    real = EventCodec(CATALOGUE)
    draft = Draft(stream="s", event=Everything(goal=Text("same"), reply=Text("same")))
    salts = {text.salt for _ in range(3) for text in real.encode(draft).texts}
    assert (len(salts), {len(salt) for salt in salts}) == (6, {16})


@pytest.mark.parametrize(
    "value", [1.0, [{"deep": 0.5}], 2**53, -(2**53), {1: "x"}, "\ud800", {"\udcff": 1}, {"k": object()}, float("nan")]
)
def test_what_json_cannot_give_back_exactly_is_refused(value: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        encode(Loose(value=value))


@pytest.mark.parametrize("value", [2**53 - 1, -(2**53) + 1, True, "", [], {}, None])
def test_the_widest_values_that_stay_exact_are_kept(value: Any) -> None:
    row, words = stored(Loose(value=value))
    assert codec().decode(row, words).event == Loose(value=value)


def test_what_its_reader_could_not_take_is_refused_before_it_is_stored() -> None:
    unreadable: Any = "no part"
    with pytest.raises(msgspec.ValidationError):
        encode(Everything(goal=Text("g"), parts=(unreadable,)))


def test_a_fact_is_handed_on_as_its_readers_will_have_it() -> None:
    encoded = encode(Everything(goal=Text("use password=hunter22 here")))
    assert encoded.event == Everything(goal=Text("use password=[redacted] here"))


def test_a_fact_outside_the_catalogue_is_never_written() -> None:
    class Heir(Loose, frozen=True, kw_only=True):
        """Inherits a TOPIC that is not its own."""

    for event in (Heir(value=1), Unknown(topic="test.loose", payload={})):
        with pytest.raises(TypeError, match="not in the catalogue"):
            encode(event)
    with pytest.raises(TypeError, match="does not set that TOPIC"):
        EventCodec({"test.loose": Heir})


def test_a_time_without_a_zone_is_refused_and_others_are_written_in_utc() -> None:
    with pytest.raises(ValueError, match="zone"):
        stored_time(datetime(2026, 1, 1))
    assert stored_time(datetime.fromisoformat("2026-03-01T14:30:00.5+02:00")) == "2026-03-01T12:30:00.500000Z"


def test_an_old_payload_is_upcast_and_its_bytes_stay() -> None:
    row, words = stored(Loose(value="old"))
    newer = codec(upcasts={"test.loose": lambda payload: {"value": f"{payload['value']}, seen new"}})
    assert newer.decode(row, words).event == Loose(value="old, seen new")


def test_new_fields_of_a_newer_release_are_passed_over() -> None:
    row, words = stored(Loose(value=1))
    newer = StoredRow(row.position, row.run, row.state.replace(b'{"value":1}', b'{"extra":[],"value":1}'))
    assert codec().decode(newer, words).event == Loose(value=1)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"v":1', b'"v":2'),
        (b'{"at"', b'{at'),
        (b'"length":1', b'"length":1,"digest":7'),
        (b'{"digest"', b'{"digset"'),
        (b'"colour":"red"', b'"colour":"blue"'),
        (b'"position":1,', b""),
    ],
)  # fmt: skip
def test_what_cannot_be_understood_names_its_place_and_run(old: bytes, new: bytes) -> None:
    row, words = stored(Everything(goal=Text("g")))
    assert old in row.state
    spoiled = StoredRow(row.position, row.run, row.state.replace(old, new))
    with pytest.raises(Undecodable) as caught:
        codec().decode(spoiled, words)
    assert (caught.value.position, caught.value.run) == (1, "r")
    assert caught.value.reason


@pytest.mark.parametrize("words", [b"\xff", b"h", b"", "g", None, 5])
def test_words_that_are_not_those_of_their_digest_are_forged_and_not_erased(words: Any) -> None:
    row, texts = stored(Everything(goal=Text("g")))
    with pytest.raises(Forged):
        codec().decode(row, {digest: StoredText(digest, text.salt, words) for digest, text in texts.items()})


def test_an_upcast_that_fails_spoils_only_its_fact() -> None:
    row, words = stored(Loose(value=1))
    broken = codec(upcasts={"test.loose": lambda payload: payload["missing"]})
    with pytest.raises(Undecodable, match="missing"):
        broken.decode(row, words)
