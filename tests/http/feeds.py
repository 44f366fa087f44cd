"""A client of server-sent events over a plain socket, that shows what really came."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from typing import Any, NamedTuple

from .conftest import Story


class Frame(NamedTuple):
    """One server-sent event as the bytes between two blank lines say it."""

    id: int | None
    event: str
    data: str
    comment: str = ""


class Feed:
    """A client on a feed."""

    def __init__(self, response: Any) -> None:
        self.status = response.status
        self.headers = response.headers
        self.raw = b""
        self._response = response

    def __iter__(self) -> Iterator[Frame]:
        block: list[bytes] = []
        while line := self._response.readline():
            self.raw += line
            if line != b"\n":
                block.append(line)
                continue
            yield _frame(b"".join(block).decode())
            block = []

    def events(self) -> Iterator[Frame]:
        """The frames that are no comments."""
        return (frame for frame in self if not frame.comment)

    def rest(self) -> list[Frame]:
        """Every event until the feed ends."""
        return list(self.events())

    def until(self, event: str) -> list[Frame]:
        """The events up to the first of a kind, with it."""
        found: list[Frame] = []
        for frame in self.events():
            found.append(frame)
            if frame.event == event:
                return found
        raise AssertionError(f"the feed ended before {event}: {found}")


def _frame(block: str) -> Frame:
    fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
    comment = next((line for line in block.splitlines() if line.startswith(":")), "")
    return Frame(
        id=int(fields["id"]) if "id" in fields else None,
        event=fields.get("event", ""),
        data=fields.get("data", ""),
        comment=comment,
    )


@contextmanager
def listening(client: Any, path: str, url: str | None = None, **headers: str) -> Iterator[Feed]:
    """Open a feed; leave it when the block ends."""
    host, port = (url or str(client.base_url)).removeprefix("http://").rstrip("/").split(":")
    sent = {"Authorization": client.headers["authorization"]} | {k.replace("_", "-"): v for k, v in headers.items()}
    with closing(HTTPConnection(host, int(port), timeout=60)) as connection:
        connection.request("GET", path, headers=sent)
        with connection.getresponse() as response:
            yield Feed(response)


def end(story: Story) -> None:
    """Take a run from its gate to its end."""
    story.client.post(f"/api/runs/{story.run_id}/assembly/review", json={"approved": True}).raise_for_status()
    made = story.run.assembly
    assert made is not None
    assert made.head is not None
    story.merge(made.head)


def whole(story: Story, run_id: str) -> list[tuple[int, str]]:
    """What the log says that a feed must show."""
    return [(f.run_sequence or 0, f.topic) for f in story.api.services.log.read_run(run_id, limit=10_000)]


def shown(frames: list[Frame]) -> list[tuple[int | None, str]]:
    return [(frame.id, frame.event) for frame in frames if frame.event != "done"]
