"""What a stranger can take of the service: a bounded head, a bounded time, a bounded body, a bounded number of connections."""

import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress

import pytest

from steersman.http.request.given import Services
from steersman.ops.serving.connections import ClientLimits
from steersman.tests.http.conftest import Api, served

LIMITS = ClientLimits(head_seconds=1.0, body_seconds=1.5, unread_seconds=1.0, strangers=12, ahead=4)
MOST_SENT = 64 * 1024 * 1024
PATIENCE_SECONDS = 60.0


@pytest.fixture(scope="module")
def guarded(services: Services) -> Iterator[tuple[str, int]]:
    """Where a server with small limits is."""
    with served(services, limits=LIMITS) as url:
        host, port = url.removeprefix("http://").split(":")
        yield host, int(port)


def head(path: str = "/health", *more: str) -> bytes:
    return "\r\n".join([f"GET {path} HTTP/1.1", "Host: x", *more, "", ""]).encode()


def answers(connection: socket.socket) -> bytes:
    """Everything that is answered until the server hangs up."""
    connection.settimeout(PATIENCE_SECONDS)
    found = b""
    with suppress(ConnectionError):
        while part := connection.recv(65_536):
            found += part
    return found


def pour(connection: socket.socket, begin: bytes, again: bytes) -> int:
    """Send without end; return how much was taken until the server hung up."""
    connection.settimeout(PATIENCE_SECONDS)
    sent = 0
    with suppress(ConnectionError):
        connection.sendall(begin)
        while sent < MOST_SENT:
            connection.sendall(again)
            sent += len(again)
    return sent


ENDLESS: dict[str, tuple[bytes, bytes]] = {
    "request line": (b"GET /", b"a" * 4096),
    "header lines": (b"GET / HTTP/1.1\r\nHost: x\r\n", b"X-Word: " + b"a" * 1000 + b"\r\n"),
    "short header lines": (b"GET / HTTP/1.1\r\nHost: x\r\n", b"a:\r\n" * 64),
    "a header's name": (b"GET / HTTP/1.1\r\nHost: x\r\n", b"a" * 4096),
    "a header's value": (b"GET / HTTP/1.1\r\nHost: x\r\nX-Word: ", b"a" * 4096),
    "chunks": (
        b"POST /api/projects HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"1000\r\n" + b"a" * 4096 + b"\r\n",
    ),
    "trailers": (
        b"POST /api/projects HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n",
        b"X-Word: " + b"a" * 1000 + b"\r\n",
    ),
    "a trailer": (
        b"POST /api/projects HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX-Word: ",
        b"a" * 4096,
    ),
    "a chunk's extension": (
        b"POST /api/projects HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1;x=",
        b"a" * 4096,
    ),
}


@pytest.mark.parametrize("what", ENDLESS)
def test_what_has_no_end_is_not_read_to_its_end(guarded: tuple[str, int], what: str) -> None:
    with closing(socket.create_connection(guarded)) as connection:
        # The system's own buffers take some of it, too.
        assert pour(connection, *ENDLESS[what]) < MOST_SENT


UNFINISHED: dict[str, bytes] = {
    "nothing": b"",
    "half a request line": b"GET /hea",
    "half a head": b"GET /health HTTP/1.1\r\nHost: x\r\n",
    "half a body": b"POST /api/projects HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{",
    "half a second head": head() + b"GET /hea",
}


@pytest.mark.parametrize("what", UNFINISHED)
def test_what_is_not_finished_in_time_is_ended(guarded: tuple[str, int], what: str) -> None:
    with closing(socket.create_connection(guarded)) as connection:
        connection.sendall(UNFINISHED[what])
        told = answers(connection)
        assert b" 408 " in told or b" 401 " in told


def test_a_head_that_is_too_large_is_told_so_as_everything_else_is(guarded: tuple[str, int]) -> None:
    with closing(socket.create_connection(guarded)) as connection:
        connection.sendall(head("/health", "X-Word: " + "a" * LIMITS.head_bytes))
        begin, _, body = answers(connection).partition(b"\r\n\r\n")
    assert begin.startswith(b"HTTP/1.1 431 ")
    assert b"application/problem+json" in begin
    assert json.loads(body)["error"] == "head_too_large"


def test_a_head_within_the_limit_is_taken(guarded: tuple[str, int]) -> None:
    with closing(socket.create_connection(guarded)) as connection:
        connection.sendall(head("/health", "X-Word: " + "a" * (LIMITS.head_bytes - 200), "Connection: close"))
        assert answers(connection).startswith(b"HTTP/1.1 200 ")


def test_requests_that_are_sent_far_ahead_are_refused(guarded: tuple[str, int]) -> None:
    with closing(socket.create_connection(guarded)) as connection:
        connection.sendall(head() * 1_000)
        assert answers(connection).count(b"HTTP/1.1 200 ") <= LIMITS.ahead + 1


def test_requests_that_are_sent_a_little_ahead_are_answered_in_order(guarded: tuple[str, int]) -> None:
    with closing(socket.create_connection(guarded)) as connection:
        connection.sendall(head() + head("/") + head("/", "Connection: close"))
        told = answers(connection)
    assert told.count(b"HTTP/1.1 200 ") == 3
    assert told.endswith(b"Steersman API")


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_strangers_of_one_address_have_so_many_connections_and_people_we_know_any(services: Services, api: Api) -> None:
    limits = ClientLimits(strangers=3, head_seconds=600.0)
    with served(services, limits=limits) as url:
        host, port = url.removeprefix("http://").split(":")
        token = api.client().headers["Authorization"]
        known = [socket.create_connection((host, int(port))) for _ in range(1)]
        for _ in range(6):
            # Each keeps its connection: it is known from its first answer on.
            known[-1].sendall(head("/api/projects", f"Authorization: {token}"))
            assert known[-1].recv(65_536).startswith(b"HTTP/1.1 200 ")
            known.append(socket.create_connection((host, int(port))))
        strangers = [socket.create_connection((host, int(port))) for _ in range(2)]
        with closing(socket.create_connection((host, int(port)))) as one_more:
            assert answers(one_more).startswith(b"HTTP/1.1 503 ")
        strangers.pop().close()

        def is_answered() -> bool:
            with closing(socket.create_connection((host, int(port)))) as again:
                with suppress(ConnectionError):
                    again.sendall(head("/", "Connection: close"))
                return answers(again).startswith(b"HTTP/1.1 200 ")

        until(is_answered)
        for connection in (*known, *strangers):
            connection.close()


def test_a_client_that_does_not_read_is_let_go(services: Services, api: Api) -> None:
    with served(services, limits=LIMITS) as url:
        host, port = url.removeprefix("http://").split(":")
        with closing(socket.socket()) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            connection.connect((host, int(port)))
            connection.sendall(head("/schema/openapi.json") * 4)
            connection.settimeout(0.05)

            # It is reset when it is let go; until then there is nothing that a client would notice without reading.
            def is_let_go() -> bool:
                return connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) != 0

            until(is_let_go)
