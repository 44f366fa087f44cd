"""What subscribers saw: everybody the same, all of it, in order, each once, whichever replicas they read from."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from .facts import Violation


class SeenFrame(NamedTuple):
    """One frame of a feed, as it came over the wire."""

    id: int
    event: str
    data: str


def subscribers_saw_the_log(
    run_id: str, root: str, events: Sequence[Mapping[str, Any]], seen: Mapping[str, Sequence[SeenFrame]]
) -> list[Violation]:
    """
    Every subscriber's frames, put together over all its connections, are the run's events.

    *events* is what `GET /api/runs/{id}/events` answers at the end, *seen* what each subscriber got.
    """
    found: list[Violation] = []

    def wrong(message: str) -> None:
        found.append(Violation(invariant="feeds", message=f"{run_id}: {message}", root=root, about=(run_id,)))

    numbers = [event["sequence"] for event in events]
    if numbers != list(range(1, len(numbers) + 1)):
        wrong(f"its events are numbered {_cut(numbers)}")
    bytes_of: dict[int, str] = {}
    for name, frames in seen.items():
        for place, (frame, event) in enumerate(zip(frames, events, strict=False)):
            if frame.id != event["sequence"]:
                wrong(f"{name} got the frame {frame.id} as its number {place + 1}, not {event['sequence']}")
                break
            if frame.event != event["type"] or json.loads(frame.data) != event["payload"]:
                wrong(f"{name} got another frame {frame.id} ({frame.event}) than stands in the log ({event['type']})")
                break
            if bytes_of.setdefault(frame.id, frame.data) != frame.data:
                wrong(f"{name} got other bytes for the frame {frame.id} than another subscriber")
                break
        if len(frames) != len(events):
            wrong(f"{name} got {len(frames)} frames of {len(events)}")
    return found


def replicas_show_one_log(logs: Mapping[str, Sequence[Any]]) -> list[Violation]:
    """Every replica shows the same facts in the same order."""
    found: list[Violation] = []
    names = list(logs)
    for name in names[1:]:
        if len(logs[name]) != len(logs[names[0]]):
            why = f"{name} shows {len(logs[name])} facts, {names[0]} {len(logs[names[0]])}"
            found.append(Violation(invariant="one truth", message=why))
        different = (a for a, b in zip(logs[names[0]], logs[name], strict=False) if a != b)
        if (first := next(different, None)) is not None:
            found.append(
                Violation(invariant="one truth", message=f"{name} shows another fact than {names[0]}: {first}")
            )
    return found


def _cut(numbers: Sequence[int]) -> str:
    odd = next((i for i, number in enumerate(numbers) if number != i + 1), 0)
    return f"…, {', '.join(map(str, numbers[max(0, odd - 2) : odd + 3]))}, …"
