"""
The only way out of a box: a proxy on a Unix socket, which looks at where each connection leads before it makes it.

It resolves names itself and connects to the very address that it looked at, so that a name cannot mean one thing when
it is looked at and another when it is used.
"""

import asyncio
import ipaddress
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import msgspec
import structlog

#: The head of a request: more is no request.
MOST_HEAD_BYTES = 64 * 1024
HEAD_SECONDS = 30.0
CONNECT_SECONDS = 30.0
CHUNK_BYTES = 64 * 1024
#: How many connections one agent may have open.
MOST_CONNECTIONS = 256
#: How many names one agent may have looked up at once. Nobody can end a look-up.
MOST_LOOKUPS = 8
#: How many refusals of one box the service's own log tells.
TOLD_REFUSALS = 20
#: Headers that are between the program and us.
OURS = (b"proxy-connection", b"proxy-authorization", b"connection", b"keep-alive")

log = structlog.get_logger(__name__)

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class WaysOut(msgspec.Struct, frozen=True, kw_only=True):
    """Where connections may lead."""

    #: Hosts by name, each with all below it; None: every host on the public internet.
    hosts: tuple[str, ...] | None = None
    #: `host:port`, wherever it leads: this machine's own and private addresses, too.
    reach: frozenset[tuple[str, int]] = frozenset()


class Refusal(Exception):
    """The proxy does not connect; the message says why."""


class Door:
    """The proxy of one box, on a socket of its own."""

    def __init__(self, ways_out: WaysOut) -> None:
        self._ways_out = ways_out
        self._directory = Path(tempfile.mkdtemp(prefix="steersman-door-"))
        self.path = self._directory / "proxy"
        self._refusals = 0
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()
        self._lookups = asyncio.Semaphore(MOST_LOOKUPS)

    async def begin(self) -> Self:
        """On return there is the socket, and whoever may open it is served."""
        try:
            self._server = await asyncio.start_unix_server(self._take, self.path, limit=MOST_HEAD_BYTES)
            self.path.chmod(0o600)
        except BaseException:
            self.end()
            raise
        return self

    def end(self) -> None:
        """On return nobody is served any more, and the socket is gone."""
        if self._server is not None:
            self._server.close()
        for task in self._open:
            task.cancel()
        shutil.rmtree(self._directory, ignore_errors=True)

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None or len(self._open) >= MOST_CONNECTIONS:
            writer.close()
            return
        self._open.add(task)
        try:
            await self._serve(reader, writer)
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError):
            pass  # one connection of one program came to nothing
        except asyncio.CancelledError:
            pass  # the box is gone
        finally:
            self._open.discard(task)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), HEAD_SECONDS)
        try:
            host, port, onward = read_head(head)
            far_reader, far_writer = await self._connect(host, port)
        except Refusal as refusal:
            self._refusals += 1
            if self._refusals <= TOLD_REFUSALS:
                log.info("an agent's connection was refused", why=str(refusal))
            await answer(writer, "403 Forbidden", str(refusal))
            return
        except (OSError, TimeoutError) as error:
            await answer(writer, "502 Bad Gateway", f"there is no connection: {error}")
            return
        try:
            if onward is None:
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            else:
                far_writer.write(onward)
            await asyncio.gather(carry(reader, far_writer), carry(far_reader, writer))
        finally:
            far_writer.close()

    async def _connect(self, host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Return a connection to where that leads. Raises Refusal, OSError, TimeoutError."""
        async with asyncio.timeout(CONNECT_SECONDS):
            error: OSError | None = None
            for address in await self._allowed(host, port):
                try:
                    return await asyncio.open_connection(str(address), port)
                except OSError as failed:
                    error = failed
            raise error or OSError("no address")

    async def _allowed(self, host: str, port: int) -> Sequence[Address]:
        """Return the addresses of a host that may be connected to. Raises Refusal, OSError."""
        listed = self._ways_out.reach
        is_reached = (host, port) in listed
        hosts = self._ways_out.hosts
        if not is_reached and hosts is not None and not any(is_below(host, allowed) for allowed in hosts):
            raise Refusal(f"{host} is not among the agent's `hosts`")
        found = await self._looked_up(host, port)
        addresses = [ipaddress.ip_address(str(entry[4][0]).partition("%")[0]) for entry in found]
        allowed = [one for one in addresses if is_reached or (str(one), port) in listed or is_public(one)]
        if not allowed:
            raise Refusal(f"{host}:{port} is an address of this machine or of its own networks; `reach` may name it")
        return allowed

    async def _looked_up(self, host: str, port: int) -> Sequence[Any]:
        """
        Return what the system's resolver says. Raises OSError, UnicodeError.

        A name server of the agent's choice may be silent for as long as it likes, so this takes no thread that others
        wait for, and none that the end of the service waits for.
        """
        await self._lookups.acquire()
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[Sequence[Any]] = loop.create_future()

        def settle(tell: Callable[[Any], None], outcome: Any) -> None:
            self._lookups.release()
            if not answered.done():
                tell(outcome)

        def look() -> None:
            tell: Callable[[Any], None] = answered.set_result
            outcome: Any
            try:
                outcome = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            except Exception as error:  # noqa: BLE001 -- whoever waits is told
                tell, outcome = answered.set_exception, error
            with suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(settle, tell, outcome)

        threading.Thread(target=look, daemon=True, name="look-up").start()
        return await answered


def read_head(head: bytes) -> tuple[str, int, bytes | None]:
    """
    Return where a request wants to go, and what is sent there first; None for a connection that is only carried.

    Raises Refusal.
    """
    first, _, rest = head.partition(b"\r\n")
    try:
        method, target, version = first.decode("ascii").split(" ")
        if method == "CONNECT":
            parts = urlsplit(f"//{target}")
            return name_of(parts.hostname), int(parts.port or 443), None
        parts = urlsplit(target)
        host, port = name_of(parts.hostname), int(parts.port or 80)
    except ValueError:
        raise Refusal("this is no request for a proxy") from None
    if parts.scheme != "http":
        raise Refusal("only http:// and CONNECT are carried")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    kept = [line for line in rest.split(b"\r\n") if line and line.partition(b":")[0].strip().lower() not in OURS]
    # One request a connection: the next one may want to go elsewhere.
    lines = [f"{method} {path} {version}".encode("ascii"), *kept, b"Connection: close"]
    return host, port, b"\r\n".join(lines) + b"\r\n\r\n"


def name_of(host: str | None) -> str:
    """Return a host's name in the form in which names are compared. Raises ValueError."""
    name = (host or "").lower().rstrip(".")
    if not name:
        raise ValueError("no host")
    return name


def is_below(host: str, allowed: str) -> bool:
    """Whether a host is the allowed one, or one below it."""
    name = allowed.lower().removeprefix("*.").rstrip(".")
    return host == name or host.endswith(f".{name}")


def is_public(address: Address) -> bool:
    """Whether an address is on the public internet, and not this machine's own."""
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else None)
        if inner is None and address in ipaddress.ip_network("64:ff9b::/96"):
            inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if inner is not None:
            return is_public(inner)
    return address.is_global and not address.is_multicast and not is_own(address)


def is_own(address: Address) -> bool:
    """Whether this machine itself has the address: one can only listen on one's own."""
    family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((str(address), 0))
        except OSError:
            return False
    return True


async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Carry everything, as fast as it is taken, and then the end."""
    while chunk := await reader.read(CHUNK_BYTES):
        writer.write(chunk)
        await writer.drain()
    with suppress(OSError):
        writer.write_eof()


async def answer(writer: asyncio.StreamWriter, status: str, words: str) -> None:
    """Answer in the place of whom the program wanted to reach."""
    body = f"steersman: {words}\n".encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    writer.write(head.encode("ascii") + body)
    await writer.drain()


def read_reach(entries: Sequence[str]) -> frozenset[tuple[str, int]]:
    """Return what `reach` lists. Raises ValueError."""
    found: set[tuple[str, int]] = set()
    for entry in entries:
        parts = urlsplit(f"//{entry}")
        if parts.port is None or parts.username or parts.path:
            raise ValueError(f"{entry!r} must be HOST:PORT")
        found.add((name_of(parts.hostname), parts.port))
    return frozenset(found)


def near_ports(reach: frozenset[tuple[str, int]], but: int) -> tuple[tuple[int, str], ...]:
    """Return the ports of a box's own loopback that lead to this machine's, for programs that know no proxy."""
    unprivileged = 1_024
    return tuple(
        (port, f"{host}:{port}")
        for host, port in sorted(reach)
        if port >= unprivileged and port != but and (host == "localhost" or host.startswith("127."))
    )
