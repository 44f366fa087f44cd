"""What the checks look at: facts as the service shows them, and what they say when a history is broken."""

from collections.abc import Collection, Iterable, Iterator
from typing import Any

import msgspec

#: A directive in one of these is closed.
CLOSED = frozenset({"applied", "superseded", "needs_attention", "expired"})
RECEIVED = "coordinator.steering_received"
DECIDED = "coordinator.steering_decision"
MOVED = "coordinator.steering"
MARKER = "coordinator.revision_execution"


class SeenFact(msgspec.Struct, frozen=True, kw_only=True):
    """One fact, as `GET /api/events` shows it."""

    position: int
    stream: str
    version: int
    type: str
    run: str | None
    run_sequence: int | None
    root: str | None
    root_sequence: int | None
    at: str
    principal: str
    payload: dict[str, Any]

    def names(self, word: str) -> bool:
        """Whether the fact is about the thing with this id."""
        return word in (self.run, self.root) or word in self.stream or _holds(self.payload, word)


class Violation(msgspec.Struct, frozen=True, kw_only=True):
    """Something that must never be. `about` names whatever its smallest log is the log of."""

    invariant: str
    message: str
    #: The coordinator run that it happened in, if it was in one.
    root: str | None = None
    #: Ids of directives, children or streams; nothing: the whole run is needed to see it.
    about: tuple[str, ...] = ()


class Acknowledged(msgspec.Struct, frozen=True, kw_only=True):
    """A correction that the service has answered for: the client was told that it is on the log."""

    #: What its words contain and no other's, if it had words.
    mark: str
    directive_id: str | None = None
    root: str | None = None


def smallest(facts: Iterable[SeenFact], violation: Violation) -> list[SeenFact]:
    """Return the facts that show a violation, and no others."""
    in_run = [fact for fact in facts if violation.root in (None, fact.root)]
    if not violation.about:
        return in_run
    return [fact for fact in in_run if any(fact.names(word) for word in violation.about)]


def of_type(facts: Iterable[SeenFact], *types: str) -> Iterator[SeenFact]:
    """Yield the facts of these types."""
    return (fact for fact in facts if fact.type in types)


def by_root(facts: Iterable[SeenFact]) -> dict[str, list[SeenFact]]:
    """Return the facts of each coordinator's tree, in order."""
    found: dict[str, list[SeenFact]] = {}
    for fact in facts:
        if fact.root is not None:
            found.setdefault(fact.root, []).append(fact)
    return found


def _holds(value: Any, word: str) -> bool:
    if isinstance(value, str):
        return value == word
    if isinstance(value, dict):
        return any(_holds(part, word) for part in value.values())  # pyright: ignore[reportUnknownVariableType]
    return isinstance(value, Collection) and any(_holds(part, word) for part in value)  # pyright: ignore[reportUnknownVariableType]
