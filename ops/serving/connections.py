"""
What a connection may cost before anybody knows who is on it: uvicorn's own protocol, with every bound that it lacks.

One look at all connections a second replaces a timer for each: a request costs a few comparisons more than without.
"""

import asyncio
import ipaddress
import json
import socket
import struct
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any, cast

import httptools
import uvicorn
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from ...http.request.authentication import KNOWN

#: A look at every connection; in ticks of uvicorn, which has ten of them a second.
LOOK_EVERY = 10
#: The kernel takes no more unsent bytes than this for a client that does not read.
UNSENT_BYTES = 64 * 1024


@dataclass(frozen=True, kw_only=True)
class ClientLimits:
    """What a client may take."""

    #: The request line and the headers, and how many of these.
    head_bytes: int = 64 * 1024
    headers: int = 256
    #: How long a head may take, from the connection's begin or its first byte.
    head_seconds: float = 10.0
    #: How long a body may take.
    body_seconds: float = 60.0
    #: What is read and thrown away of a body that nobody wants, so that its sender reads the answer.
    unwanted_bytes: int = 1024 * 1024
    #: How many requests may be sent ahead of the first one's answer.
    ahead: int = 16
    #: How long a client that was refused may take to read why.
    farewell_seconds: float = 1.0
    #: How long a client may leave what is sent to it unread.
    unread_seconds: float = 15.0
    #: How many connections one address may have on which no good token was shown yet: half of those that are not feeds.
    strangers: int = 256
    #: How many connections there may be.
    connections: int = 8_192


class Connections(ServerState):
    """All connections of a server."""

    def __init__(self, limits: ClientLimits) -> None:
        super().__init__()
        self.limits = limits
        #: By address, how many connections have shown no good token.
        self.strangers = Counter[str]()

    def look(self, now: float) -> None:
        """End every connection that takes too long."""
        for connection in list(cast("set[Guarded]", self.connections)):
            connection.look(now)


class Guarded(HttpToolsProtocol):
    """One connection. What goes beyond a limit is refused in a few words where it can be, and the connection ended."""

    def __init__(self, config: uvicorn.Config, server_state: Connections, **more: Any) -> None:
        super().__init__(config, server_state, **more)
        self._limits = server_state.limits
        self._strangers = server_state.strangers
        self._address: str | None = None
        self._socket: socket.socket | None = None
        #: The request that is being answered, or was last.
        self._running: RequestResponseCycle | None = None
        #: When the client was refused; from then on nothing that it sends counts.
        self._refused_since: float | None = None
        #: When the head that is being read began; None: none is.
        self._head_since: float | None = None
        self._head_bytes = self._read_bytes = 0
        #: When the body that is being read began; None: none is.
        self._body_since: float | None = None
        #: What came since the last of the body itself, and what came of one that nobody waits for.
        self._idle_bytes = 0
        self._unwanted_bytes = 0
        self._unread_since: float | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Let a client in, if there is room for one more."""
        super().connection_made(transport)
        self._head_since = self.loop.time()
        peer = transport.get_extra_info("socket")
        if peer is not None and peer.family in (socket.AF_INET, socket.AF_INET6):
            self._socket = peer
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
        if len(self.connections) > self._limits.connections:
            self._refuse(503, "too_many_connections", "There are too many connections. Come again later.")
            return
        self._address = _network(self.client[0]) if self.client else ""
        self._strangers[self._address] += 1
        if self._strangers[self._address] > self._limits.strangers:
            self._refuse(
                503, "too_many_connections", "Your address has too many connections that showed no good token."
            )

    def connection_lost(self, exc: Exception | None) -> None:
        """Make room."""
        self._known()
        self._forget_requests()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take what came."""
        if self._refused_since is not None:
            self._throw_away(data)
            return
        if self._head_since is None and self._body_since is None:
            self._head_since, self._head_bytes = self.loop.time(), 0
        began = self._head_since
        self._read_bytes = len(data)
        self._head_bytes += len(data)
        self._idle_bytes += len(data)
        super().data_received(data)
        if self._refused_since is not None or self.parser is None:
            return
        if began is not None and self._head_since == began and self._head_bytes > self._limits.head_bytes:
            self._refuse(431, "head_too_large", f"A request's head has at most {self._limits.head_bytes} bytes.")
        elif self._body_since is not None and self._idle_bytes > self._limits.head_bytes:
            self._refuse(400, "invalid_request", "The request's body is mostly none.")
        elif self._body_since is not None and self.cycle.response_complete:
            self._throw_away(data)

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP, unless it was refused already."""
        self._refuse(400, "invalid_request", msg)

    def on_message_begin(self) -> None:
        """Begin to read a head."""
        super().on_message_begin()
        # How much of what was just read belongs to the request before is not known: this read is not counted.
        self._head_since, self._head_bytes = self._head_since or self.loop.time(), 0

    def on_headers_complete(self) -> None:
        """Begin to answer, and to read the body."""
        if self._head_bytes + self._read_bytes > self._limits.head_bytes or len(self.headers) > self._limits.headers:
            self._check_head()
        if len(self.pipeline) >= self._limits.ahead:
            self._stop(400, "invalid_request", "Too many requests were sent ahead of an answer.")
        self._head_since, self._body_since = None, self.loop.time()
        self._idle_bytes = self._unwanted_bytes = 0
        if self._address is not None:
            self.scope["extensions"] = {KNOWN: cast("dict[object, object]", {"call": self._known})}
        super().on_headers_complete()
        # What comes behind a body is none of the request's headers.
        self.headers = []

    def _check_head(self) -> None:
        """Refuse a head that is too large. What was counted may hold a part of the request before, or of the body."""
        if len(self.headers) > self._limits.headers:
            self._stop(431, "head_too_large", f"A request has at most {self._limits.headers} headers.")
        if len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers) > self._limits.head_bytes:
            self._stop(431, "head_too_large", f"A request's head has at most {self._limits.head_bytes} bytes.")

    def on_body(self, body: bytes) -> None:
        """Take a part of the body."""
        self._idle_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End a request; the next one may follow."""
        self._body_since = None
        super().on_message_complete()

    def pause_writing(self) -> None:
        """Note when the client left off reading."""
        self._unread_since = self.loop.time()
        super().pause_writing()

    def resume_writing(self) -> None:
        """Note that the client reads again."""
        self._unread_since = None
        super().resume_writing()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def look(self, now: float) -> None:
        """End what takes too long."""
        limits = self._limits
        if self._unread_since is not None and now - self._unread_since > limits.unread_seconds:
            self._hang_up()
        elif self._refused_since is not None:
            if now - self._refused_since > limits.farewell_seconds:
                self._hang_up()
        elif self._head_since is not None and now - self._head_since > limits.head_seconds:
            self._refuse(408, "request_timeout", "The request's head did not come in time.")
        elif self._body_since is not None and now - self._body_since > limits.body_seconds:
            self._refuse(408, "request_timeout", "The request's body did not come in time.")

    def _throw_away(self, data: bytes) -> None:
        """Read on for a while, so that the client comes to reading the answer; then hang up."""
        self._unwanted_bytes += len(data)
        if self._unwanted_bytes > self._limits.unwanted_bytes:
            self._hang_up()

    def _known(self) -> None:
        """Count the connection no more among those of strangers."""
        if self._address is None:
            return
        self._strangers[self._address] -= 1
        if not self._strangers[self._address]:
            del self._strangers[self._address]
        self._address = None

    def _stop(self, status: int, error: str, words: str) -> None:
        """Refuse from within the parser, so that it goes no further."""
        self._refuse(status, error, words)
        raise httptools.HttpParserError(words)

    def _refuse(self, status: int, error: str, words: str) -> None:
        """Say why, if nothing else is being said, and hang up as soon as the client had a moment to read it."""
        if self._refused_since is not None or self.transport.is_closing():
            return
        self._refused_since, self._unwanted_bytes = self.loop.time(), 0
        running = self._running
        # Words of ours in the midst of an answer, or behind that of a request whose body goes on, would mislead.
        misleads = running is not None and running.response_started
        misleads = misleads and (self._body_since is not None or not (running and running.response_complete))
        self._forget_requests()
        if misleads:
            self.transport.close()
            return
        self.transport.write(_refusal(status, error, words))
        self.transport.write_eof()
        # What still comes is thrown away: hanging up on it would take the answer away from its reader.
        self.flow.resume_reading()

    def _forget_requests(self) -> None:
        """Let nobody answer any more."""
        for cycle in (self._running, *(waiting for waiting, _ in self.pipeline)):
            if cycle is not None and not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()
        self.pipeline.clear()

    def _hang_up(self) -> None:
        """End the connection now. What its client has not read is thrown away, here and in the kernel."""
        self._forget_requests()
        if self._socket is not None:
            with suppress(OSError):
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()


class GuardedServer(uvicorn.Server):
    """uvicorn, with limits on every connection."""

    def __init__(self, config: uvicorn.Config, limits: ClientLimits | None = None) -> None:
        config.http = cast("Any", partial(Guarded))
        config.ws = "none"
        super().__init__(config)
        self._connections = Connections(limits or ClientLimits())
        self.server_state = self._connections

    async def on_tick(self, counter: int) -> bool:
        """Look after the connections now and then."""
        if counter % LOOK_EVERY == 0:
            self._connections.look(asyncio.get_running_loop().time())
        return await super().on_tick(counter)


def _network(host: str) -> str:
    """Return what counts as one address: of IPv6 the network that one customer has."""
    if ":" not in host:
        return host
    try:
        address = ipaddress.IPv6Address(host.partition("%")[0])
    except ValueError:
        return host
    return str(address.ipv4_mapped or ipaddress.IPv6Network((address, 64), strict=False).network_address)


def _refusal(status: int, error: str, words: str) -> bytes:
    body = json.dumps(
        {
            "type": f"urn:steersman:problem:{error}",
            "title": HTTPStatus(status).phrase,
            "status": status,
            "detail": words,
            "error": error,
            "message": words,
            "retryable": status in (408, 503),
        }
    ).encode()
    head = f"content-type: application/problem+json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n"
    later = "retry-after: 1\r\n" if status == 503 else ""
    return STATUS_LINE[status] + f"{head}{later}\r\n".encode() + body
