"""What every fact is made of, and the one name it is known by everywhere."""

from collections.abc import Callable
from datetime import datetime
from typing import Any, ClassVar

import msgspec


class Text:
    """
    Words that may have to be forgotten: a goal, a prompt, feedback, agent output, a file name.

    The log keeps only a salted digest and the length; the words stand beside it and can be erased
    without breaking a hash. `value` is None once that has happened.
    """

    __slots__ = ("value",)

    def __init__(self, value: str | None) -> None:
        self.value = value

    def __str__(self) -> str:
        return self.value or ""

    def __repr__(self) -> str:
        return f"Text({self.value!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Text) and self.value == other.value

    def __hash__(self) -> int:
        return hash(self.value)


class Event(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """
    What a fact says.

    TOPIC is at once the stored type, the SSE event name and the name in the docs. A published
    TOPIC is never renamed or reused; a changed meaning is a new event. OUTPUT marks what an agent
    says while it works: it is shown, and no decision ever reads it.
    """

    TOPIC: ClassVar[str]
    OUTPUT: ClassVar[bool] = False


class Unknown(Event, frozen=True, kw_only=True):
    """A fact of a newer release: shown as it was stored, and no reason to decide anything."""

    TOPIC: ClassVar[str] = "steersman.unknown"

    topic: str
    payload: dict[str, Any]


class Draft(msgspec.Struct, frozen=True, kw_only=True):
    """A fact that is decided and not yet stored: the stream it belongs to, and whose feeds it is part of."""

    stream: str
    event: Event
    #: The coordinator or child run whose feed shows the fact; None for facts outside every run.
    run: str | None = None
    #: The coordinator run at the top of that run's tree; None for facts outside every run.
    root: str | None = None


class Fact(msgspec.Struct, frozen=True, kw_only=True):
    """
    A stored fact and its place.

    `position` counts the whole log, `run_sequence` one run's feed and `root_sequence` one
    coordinator's tree: each from 1, without a gap, in commit order. `version` counts the stream.
    """

    position: int
    stream: str
    version: int
    topic: str
    run: str | None
    run_sequence: int | None
    root: str | None
    root_sequence: int | None
    at: datetime
    principal: str
    command_id: str
    traceparent: str | None
    event: Event


def map_texts(value: Any, change: Callable[[Text], Any]) -> Any:
    """Return *value*, a tree of structs, sequences and maps, as plain data with every Text replaced by *change*."""
    return msgspec.to_builtins(value, enc_hook=lambda found: _only_text(found, change))


def _only_text(found: Any, change: Callable[[Text], Any]) -> Any:
    if not isinstance(found, Text):
        raise TypeError(f"a fact cannot hold a {type(found).__name__}")
    return change(found)
