"""Server-sent events as a client reads them."""

from collections.abc import Iterable, Iterator

import msgspec


class ServerSent(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a feed. `id` is None for an event that does not count, such as `done`."""

    id: int | None
    event: str
    data: str


def read_events(lines: Iterable[str]) -> Iterator[ServerSent]:
    """Return the events that are complete: one that is cut off before its blank line was never sent."""
    fields: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if not line:
            if "data" in fields:
                number = fields.get("id", "")
                yield ServerSent(
                    id=int(number) if number.isdigit() else None,
                    event=fields.get("event", "message"),
                    data=fields["data"],
                )
            fields = {}
        elif name == "data" and "data" in fields:
            fields["data"] += f"\n{value}"
        elif name:
            fields[name] = value
