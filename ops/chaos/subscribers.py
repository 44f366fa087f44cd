"""Subscribers: each follows one run's feed, from replica to replica, by the id of the last frame that it has."""

import contextlib
import http.client
import random
import socket
import threading
import time
from collections.abc import Iterator, Sequence

from ..commands.sse import read_events
from .check_feeds import SeenFrame

#: A replica that stands still sends nothing; the feed is asked for elsewhere then.
SILENCE_SECONDS = 6.0
AGAIN_SECONDS = 0.3
#: A run that is over may go on later; whoever has its `done` looks again.
DONE_SECONDS = 2.0
#: The most that a connection is used, so that everybody changes replicas now and then.
MOST_SECONDS = 20.0
#: Answers besides the feed itself that a replica may give.
PASSING = (503,)


class RunSubscriber:
    """One subscriber of one run."""

    def __init__(self, name: str, run_id: str, root: str, ports: Sequence[int], token: str, seed: str) -> None:
        self.name = name
        self.run_id = run_id
        self.root = root
        self.frames: list[SeenFrame] = []
        #: Answers that no replica may give, as (request, status, body).
        self.wrong: list[tuple[str, int, str]] = []
        self._ports = ports
        self._token = token
        self._chance = random.Random(seed)
        self._over = threading.Event()
        self._until = 0
        self._socket: socket.socket | None = None
        self._thread = threading.Thread(target=self._follow, name=name, daemon=True)

    def start(self) -> None:
        """Follow from now on."""
        self._thread.start()

    def finish(self, head: int) -> None:
        """Go on until the frame *head* is there; nothing more is to come."""
        self._until = head
        self._over.set()
        if self._has_all and self._socket is not None:
            # It waits for a frame that never comes.
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    def join(self, seconds: float) -> None:
        """Wait for the end, that long at most."""
        self._thread.join(seconds)

    @property
    def _has_all(self) -> bool:
        return self._over.is_set() and self._last >= self._until

    @property
    def _last(self) -> int:
        return self.frames[-1].id if self.frames else 0

    def _follow(self) -> None:
        give_up = 0.0
        while not self._has_all:
            if self._over.is_set():
                give_up = give_up or time.monotonic() + 10 * SILENCE_SECONDS
                if time.monotonic() > give_up:
                    return  # what is missing is found by whoever compares
            try:
                is_done = self._connect()
            except (OSError, http.client.HTTPException):
                is_done = False
            self._over.wait(DONE_SECONDS if is_done else AGAIN_SECONDS)

    def _connect(self) -> bool:
        """Take what one connection brings; return whether it said that the run is over."""
        until = time.monotonic() + self._chance.uniform(0.2, 1.0) * MOST_SECONDS
        connection = http.client.HTTPConnection("127.0.0.1", self._chance.choice(self._ports), timeout=SILENCE_SECONDS)
        try:
            headers = {"Authorization": f"Bearer {self._token}"}
            if self.frames:
                headers["Last-Event-ID"] = str(self._last)
            connection.request("GET", f"/api/runs/{self.run_id}/stream", headers=headers)
            self._socket = connection.sock
            response = connection.getresponse()
            if response.status == 204:
                return True  # it has everything of a run that cannot go on
            if response.status != 200:
                if response.status not in PASSING:
                    words = response.read(500).decode(errors="replace")
                    self.wrong.append((f"GET stream after {self._last}", response.status, words))
                return False
            for event in read_events(_lines(response)):
                if event.event == "done":
                    return True
                if event.id is not None:
                    self.frames.append(SeenFrame(event.id, event.event, event.data))
                if self._has_all or time.monotonic() > until:
                    return False
            return False
        finally:
            self._socket = None
            connection.close()


def _lines(response: http.client.HTTPResponse) -> Iterator[str]:
    # Ends: with the feed, or with the connection.
    while line := response.readline():
        if not line.endswith(b"\n"):
            return  # cut off in the middle: it was never sent
        yield line.decode().rstrip("\r\n")
