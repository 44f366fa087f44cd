"""A fact as feeds show it: no frame is stored or derived, each is one fact of the log."""

from typing import Any

import msgspec

from ...domain.event import Fact, Unknown, map_texts
from ...domain.facts import assembly, child_run, directive, run_records

_ENDINGS = frozenset(
    kind.TOPIC
    for kind in (
        assembly.AssemblyCompleted,
        assembly.AssemblyDeclined,
        assembly.AssemblyFailed,
        assembly.MergeFailed,
        child_run.AssembleReady,
        child_run.RunCompleted,
        child_run.RunFailed,
        child_run.RunCancelled,
        run_records.RunDeleted,
    )
)


def may_end(fact: Fact) -> bool:
    """
    Return whether a run may be over with the fact, so that its feed closes with `done`.

    A run in a terminal status goes on while a directive is open that takes it up again, so such a one's end counts, too.
    """
    event = fact.event
    return fact.topic in _ENDINGS or (isinstance(event, directive.DirectiveMoved) and event.status in directive.CLOSED)


class Frame(msgspec.Struct, frozen=True, kw_only=True):
    """One server-sent event."""

    id: int
    event: str
    data: bytes


class TimelineEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One element of `GET /api/runs/{id}/events`."""

    sequence: int
    type: str
    #: When it was stored, RFC 3339 in UTC; nothing is ordered by it.
    timestamp: str
    payload: msgspec.Raw


class LogEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One element of `GET /api/events`, for those who build their own read models."""

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
    payload: msgspec.Raw


def payload(fact: Fact) -> bytes:
    """Return the fact's payload as JSON with its words put back, null where they were erased."""
    event: Any = fact.event.payload if isinstance(fact.event, Unknown) else fact.event
    return msgspec.json.encode(map_texts(event, lambda text: text.value))


def frame(fact: Fact) -> Frame:
    """Return the frame of a run's feed. Its id is the same after restart and rebuild, and on every replica."""
    return Frame(id=fact.run_sequence or 0, event=fact.topic, data=payload(fact))


def log_frame(fact: Fact) -> Frame:
    """Return the frame of the feed of the whole log: the id is the position, the data a LogEntry."""
    return Frame(id=fact.position, event=fact.topic, data=msgspec.json.encode(log_entry(fact)))


def timeline_entry(fact: Fact) -> TimelineEntry:
    """Return the fact as an element of a run's events."""
    return TimelineEntry(
        sequence=fact.run_sequence or 0,
        type=fact.topic,
        timestamp=fact.at.isoformat(),
        payload=msgspec.Raw(payload(fact)),
    )


def log_entry(fact: Fact) -> LogEntry:
    """Return the fact as an element of the whole log's events."""
    return LogEntry(
        position=fact.position,
        stream=fact.stream,
        version=fact.version,
        type=fact.topic,
        run=fact.run,
        run_sequence=fact.run_sequence,
        root=fact.root,
        root_sequence=fact.root_sequence,
        at=fact.at.isoformat(),
        principal=fact.principal,
        payload=msgspec.Raw(payload(fact)),
    )
