"""A receiver of notices on this machine, which answers what it is told to, and keeps what it was sent."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Condition, Thread
from typing import Any

import msgspec

PATIENCE_SECONDS = 60.0


class Sent:
    """One request."""

    def __init__(self, path: str, headers: dict[str, str], body: bytes) -> None:
        self.path = path
        self.headers = headers
        self.body = body

    @property
    def event(self) -> Any:
        """What it tells."""
        return msgspec.json.decode(self.body)


class LocalReceiver:
    """What a receiver was sent, and what it answers: `answers` first, then 204 for ever."""

    def __init__(self) -> None:
        self.url = ""
        self.sent: list[Sent] = []
        self.answers: list[tuple[int, dict[str, str]]] = []
        self._changed = Condition()

    def take(self, sent: Sent) -> tuple[int, dict[str, str]]:
        """Keep a request, and return what is answered."""
        with self._changed:
            self.sent.append(sent)
            self._changed.notify_all()
            return self.answers.pop(0) if self.answers else (204, {})

    def wait(self, until: Callable[[list[Sent]], object]) -> list[Sent]:
        """Return what it was sent as soon as that is so."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        with self._changed:
            while not until(self.sent):
                assert self._changed.wait(deadline - time.monotonic()), [one.event for one in self.sent]
            return list(self.sent)


@contextmanager
def receiving() -> Iterator[LocalReceiver]:
    """Receive, on a free port of this machine, until the block ends."""
    local = LocalReceiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            """Answer a request."""
            body = self.rfile.read(int(self.headers["content-length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            status, more = local.take(Sent(self.path, headers, body))
            self.send_response(status)
            for name, value in more.items():
                self.send_header(name, value)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        local.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield local
        finally:
            server.shutdown()
            thread.join()
