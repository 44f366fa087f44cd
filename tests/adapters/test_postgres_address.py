"""Every connection to PostgreSQL notices when the machine at its other end is gone without a word."""

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from steersman.adapters.processes.lock import ProcessLock
from steersman.adapters.stores.postgres_address import ALIVE, noticing
from steersman.adapters.stores.postgres_leases import PostgresLeases
from steersman.adapters.stores.postgres_log import PostgresLog
from steersman.adapters.stores.postgres_views import PostgresViews
from steersman.adapters.stores.token_store import open_tokens
from steersman.domain.kinds.catalogue import CATALOGUE


class Forwarder:
    """A TCP port before a server that listens on a Unix socket, or on another port."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                ours, _ = self._listener.accept()
                theirs = self._connected()
                for pair in ((ours, theirs), (theirs, ours)):
                    threading.Thread(target=pump, args=pair, daemon=True).start()

    def _connected(self) -> socket.socket:
        parts = urlsplit(self._url)
        if parts.hostname:
            return socket.create_connection((parts.hostname, parts.port or 5432))
        directory = Path(parse_qs(parts.query)["host"][0])
        theirs = socket.socket(socket.AF_UNIX)
        theirs.connect(str(next(p for p in directory.glob(".s.PGSQL.*") if p.suffix != ".lock")))
        return theirs

    def clients(self) -> list[socket.socket]:
        """Return this process's connections to the port."""
        found: list[socket.socket] = []
        for name in os.listdir("/proc/self/fd"):
            with suppress(OSError), ExitStack() as unwanted:
                if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                    continue
                one = unwanted.enter_context(socket.socket(fileno=os.dup(int(name))))
                if one.family == socket.AF_INET and one.getpeername() == ("127.0.0.1", self.port):
                    found.append(one)
                    unwanted.pop_all()
        return found

    def close(self) -> None:
        """Take no more connections."""
        self._listener.close()


def pump(source: socket.socket, sink: socket.socket) -> None:
    """Hand on what comes, to its end."""
    with suppress(OSError), source:
        while data := source.recv(65_536):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)


@pytest.fixture
def forwarder(postgres_url: str) -> Iterator[Forwarder]:
    """The database of this test, over TCP."""
    made = Forwarder(postgres_url)
    yield made
    made.close()


def over_tcp(url: str, port: int) -> str:
    """Return the address of the same database at the port."""
    parts = urlsplit(url)
    user = f"{parts.username}{f':{parts.password}' if parts.password else ''}"
    return f"postgresql://{user}@127.0.0.1:{port}{parts.path}"


def test_whoever_speaks_to_the_database_notices_that_it_is_gone(
    postgres_url: str, forwarder: Forwarder, tmp_path: Path
) -> None:
    url = over_tcp(postgres_url, forwarder.port)
    with ExitStack() as stack:
        seen = set[int]()

        def assert_noticing(whose: str) -> None:
            clients = [stack.enter_context(client) for client in forwarder.clients()]
            new = [client for client in clients if client.getsockname()[1] not in seen]
            assert new, whose
            seen.update(client.getsockname()[1] for client in new)
            for client in new:
                assert client.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE), whose
                options = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT, socket.TCP_USER_TIMEOUT)
                assert [client.getsockopt(socket.IPPROTO_TCP, option) for option in options] == [5, 2, 3, 10_000], whose

        log = PostgresLog(url, CATALOGUE)
        stack.callback(log.close)
        assert log.head() == 0
        assert_noticing("the log")
        views = PostgresViews(url)
        stack.callback(views.close)
        assert_noticing("the views")
        lock = ProcessLock(tmp_path)
        stack.callback(lock.close)
        leases = PostgresLeases(url, 15.0, lock)
        stack.callback(leases.close)
        leases.enter("a")
        assert_noticing("the leases")
        tokens = open_tokens(tmp_path, url)
        stack.callback(tokens.close)
        assert_noticing("the tokens")


def test_what_the_address_says_itself_counts_more() -> None:
    said = conninfo_to_dict(noticing("postgresql://me@db/steersman?keepalives_idle=60&tcp_user_timeout=0"))
    assert {name: said[name] for name in ("user", "host", "dbname")} == {
        "user": "me",
        "host": "db",
        "dbname": "steersman",
    }
    assert {name: int(str(said[name])) for name in ALIVE} == {**ALIVE, "keepalives_idle": 60, "tcp_user_timeout": 0}


def test_an_address_that_makes_no_sense_is_left_to_whoever_connects_by_it() -> None:
    with pytest.raises(psycopg.Error):
        psycopg.connect(noticing("postgresql://db/steersman?colour=blue"))
