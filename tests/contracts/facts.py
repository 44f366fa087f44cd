"""Small facts to try an event log with, and the appends that carry them."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, cast

from steersman.application.ports.log import Append, EventLog, Idempotency
from steersman.domain.event import Draft, Event, Fact, Text

AT = datetime(2026, 3, 1, 12, 30, 0, 5, tzinfo=UTC)


class Noted(Event, frozen=True, kw_only=True):
    """A fact without words that could be erased."""

    TOPIC = "test.noted"

    number: int


class Said(Event, frozen=True, kw_only=True):
    """A fact with erasable words."""

    TOPIC = "test.said"

    words: Text


class Uttered(Event, frozen=True, kw_only=True):
    """Output."""

    TOPIC = "test.uttered"
    OUTPUT = True

    words: Text


CATALOGUE: dict[str, type[Event]] = {kind.TOPIC: kind for kind in (Noted, Said, Uttered)}


def note(stream: str, number: int = 0, *, run: str | None = None, root: str | None = None) -> Draft:
    """Return a draft for *stream*."""
    return Draft(stream=stream, event=Noted(number=number), run=run, root=root)


def append(command_id: str, *drafts: Draft, expected: dict[str, int] | None = None, **more: Any) -> Append:
    """Return an append; without *expected* every stream is expected to be empty."""
    if expected is None:
        expected = {draft.stream: 0 for draft in drafts if not draft.event.OUTPUT}
    return Append(drafts=drafts, expected=expected, command_id=command_id, **{"at": AT, "principal": "ada", **more})


def request(key: str, *, body: str = "b0d1", answer: bytes = b'{"ok":true}') -> Idempotency:
    """Return an idempotency row for *key*."""
    return Idempotency(
        principal="ada", method="POST", path="/steer", key=key, body_digest=body, status=201, answer=answer
    )


def whole(log: EventLog) -> Sequence[Fact]:
    """Return every fact of the log, read in small pages."""
    facts: list[Fact] = []
    while page := log.read(facts[-1].position if facts else 0, limit=700):
        facts += page
    return facts


def words_of(facts: Iterable[Fact]) -> list[str | None]:
    """Return the words that each fact holds, None where they are erased."""
    return [cast("Said | Uttered", fact.event).words.value for fact in facts]
