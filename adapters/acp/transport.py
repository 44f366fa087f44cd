"""JSON-RPC messages over an agent's standard streams: bounded, strict, and no faster than they are taken."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, cast

import msgspec

from ..processes.agent_process import MAX_LINE_BYTES


class ProtocolBroken(Exception):
    """The agent wrote what is no message of the protocol."""


class StdioTransport:
    """The library's `Transport` for one agent. What breaks the protocol ends the stream and is kept in `broken`."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, may_read: Callable[[], Awaitable[None]]
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._may_read = may_read
        self.broken: ProtocolBroken | None = None
        self.ended = asyncio.Event()
        #: How many messages were read: an agent that is dead and whose count stands still has said everything.
        self.received = 0
        #: Whether reading waits for those who take the messages.
        self.is_held_back = False

    async def send(self, message: dict[str, Any]) -> None:
        """Write a message; an agent that no longer listens is noticed by its end, not here."""
        with contextlib.suppress(ConnectionError, RuntimeError):
            self._writer.write(msgspec.json.encode(message) + b"\n")
            await self._writer.drain()

    async def receive(self) -> dict[str, Any] | None:
        """Return the next message, None at the end of the stream or of the protocol."""
        try:
            while True:
                self.is_held_back = True
                await self._may_read()
                self.is_held_back = False
                line = await self._read_line()
                if not line:
                    self.ended.set()
                    return None
                if line.strip():
                    message = parse(line)
                    self.received += 1
                    return message
        except ProtocolBroken as error:
            self.broken = error
            self.ended.set()
            return None

    async def close(self) -> None:
        """Nothing: the streams belong to the process, which closes them."""

    async def _read_line(self) -> bytes:
        try:
            return await self._reader.readuntil(b"\n")
        except asyncio.IncompleteReadError as error:
            return error.partial
        except asyncio.LimitOverrunError:
            raise ProtocolBroken(f"a line on stdout is longer than {MAX_LINE_BYTES} bytes") from None
        except ConnectionError:
            return b""


def parse(line: bytes) -> dict[str, Any]:
    """Return a line as a JSON-RPC message. Raises ProtocolBroken."""
    try:
        decoded: object = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise ProtocolBroken(f"stdout is not JSON: {excerpt(line)}") from None
    if not isinstance(decoded, dict):
        raise ProtocolBroken(f"stdout is not a JSON-RPC message: {excerpt(line)}")
    message = cast("dict[str, Any]", decoded)
    if not isinstance(message.get("method"), str | None) or not isinstance(message.get("id"), int | str | None):
        raise ProtocolBroken(f"stdout is not a JSON-RPC message: {excerpt(line)}")
    if "method" not in message and not isinstance(message.get("error"), dict | None):
        raise ProtocolBroken(f"stdout is not a JSON-RPC message: {excerpt(line)}")
    return message


def excerpt(line: bytes) -> str:
    """Return the beginning of a line, fit for an error message."""
    return repr(line[:120].decode(errors="replace"))
