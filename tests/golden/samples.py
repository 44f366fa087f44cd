"""
One stored sample of every kind of fact, and how to add the next one.

`samples.jsonl` is only ever added to: a sample is what some release has written, so it is read for ever. When the shape
of a fact grows, run `python -m steersman.tests.golden.samples`: it adds what is written from now on.
"""

import types
import typing
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import msgspec

from steersman.adapters.log.numbering import Known, Numbering, encode_facts
from steersman.adapters.log_format.event_codec import EventCodec
from steersman.application.ports.log import Append
from steersman.domain.event import Draft, Event, Text
from steersman.domain.kinds.catalogue import CATALOGUE

SAMPLES = Path(__file__).with_name("samples.jsonl")
AT = datetime(2026, 6, 7, 21, 9, 45, 123_456, tzinfo=UTC)


class Sample(msgspec.Struct, frozen=True):
    """What was stored of one fact: its envelope, and the words that stand beside it, by digest."""

    topic: str
    state: str
    words: dict[str, str]


def stored() -> list[Sample]:
    """Return every sample that was ever stored, in the order of their storing."""
    if not SAMPLES.exists():
        return []
    return [msgspec.json.decode(line, type=Sample) for line in SAMPLES.read_bytes().splitlines()]


def newest() -> dict[str, Sample]:
    """Return each topic's last sample."""
    return {sample.topic: sample for sample in stored()}


def codec() -> EventCodec:
    """Return a codec whose salts are the same each time."""
    made = salts()
    return EventCodec(CATALOGUE, salt=lambda: next(made))


def salts() -> Iterator[bytes]:
    for n in range(10_000):
        yield n.to_bytes(16, "big")


def sample(kind: type[Event]) -> Sample:
    """Return what is stored of a fact of this kind today."""
    draft = Draft(stream="run/r", event=event(kind), run="r", root="r")
    append = Append(
        drafts=(draft,), expected={"run/r": 4}, at=AT, principal="alice", command_id="c", traceparent="00-a-b-01"
    )
    known = Known(position=9, streams={"run/r": 4}, runs={"r": 5}, roots={"r": 6}, commands={}, answers={})
    (row,) = Numbering(known, lambda _: known).place(append, encode_facts(append, codec()))
    return Sample(row.topic, row.state.decode(), {text.digest: text.words.decode() for text in row.texts})


def event(kind: type[Event]) -> Event:
    """Return an event with something in every field."""
    hints = typing.get_type_hints(kind)
    return kind(**{name: _value(name, hints[name]) for name in kind.__struct_fields__})


def _value(name: str, kind: Any) -> Any:
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if isinstance(kind, getattr(typing, "TypeAliasType", ())):
        return _value(name, kind.__value__)
    if origin is Literal:
        return inner[-1]
    if origin in (typing.Union, types.UnionType):
        return _value(name, next(part for part in inner if part is not type(None)))
    if origin is tuple:
        return (_value(f"{name} 1", inner[0]), _value(f"{name} 2", inner[0]))
    if origin in (list, frozenset):
        raise TypeError(f"a fact holds tuples, not {kind}")
    if origin in (dict, Mapping):
        return {f"{name} key": _value(name, inner[1])}
    if kind is Text:
        return Text(f"words of {name}: é “ \n")
    if kind is bool:
        return True
    if kind is int:
        return 2**53 - 1
    if kind is str:
        return f"{name} ü"
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        hints = typing.get_type_hints(kind)
        return kind(**{field: _value(field, hints[field]) for field in kind.__struct_fields__})
    raise TypeError(f"no sample for {kind}")


def main() -> None:
    """Add the samples of all shapes that are not stored yet."""
    known = newest()
    fresh = [made for _, kind in sorted(CATALOGUE.items()) if known.get((made := sample(kind)).topic) != made]
    with SAMPLES.open("ab") as file:
        for made in fresh:
            file.write(msgspec.json.encode(made) + b"\n")
    print(f"{len(fresh)} samples added")


if __name__ == "__main__":
    main()
