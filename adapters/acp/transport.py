"""JSON-RPC messages over an agent's standard streams: bounded, strict, and no faster than they are taken."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, cast

import msgspec

from ..processes.agent_process import MAX_LINE_BYTES

#: What an agent may write on stdout that is no message, in its whole life.
MOST_STRAY_LINES = 100_000
MOST_STRAY_BYTES = 64 * 1024 * 1024
#: What is repeated of a stray line.
STRAY_EXCERPT_BYTES = 1_000


class ProtocolBroken(Exception):
    """The agent wrote what calls itself a message and is none, or too much that is none."""


class StdioTransport:
    """
    The library's `Transport` for one agent. What breaks the protocol ends the stream and is kept in `broken`.

    What was not meant for us (a banner, a log line, a line without an end) is left out, and told to *stray*.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        may_read: Callable[[], Awaitable[None]],
        stray: Callable[[bytes], None],
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._may_read = may_read
        self._stray = stray
        self._stray_lines = 0
        self._stray_bytes = 0
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
                if not line.strip():
                    continue
                message = parse(line)
                if message is not None:
                    self.received += 1
                    return message
                self._leave_out(line)
                self._stray_lines += 1
        except ProtocolBroken as error:
            self.broken = error
            self.ended.set()
            return None

    async def close(self) -> None:
        """Nothing: the streams belong to the process, which closes them."""

    async def _read_line(self) -> bytes:
        is_too_long = False
        while True:
            try:
                line = await self._reader.readuntil(b"\n")
            except asyncio.IncompleteReadError as error:
                line = error.partial
            except asyncio.LimitOverrunError as error:
                part = await self._reader.readexactly(error.consumed)
                self._leave_out(
                    part, f"(a line of more than {MAX_LINE_BYTES} bytes on stdout) " if not is_too_long else None
                )
                is_too_long = True
                continue
            except ConnectionError:
                return b""
            if not is_too_long or not line:
                return line
            self._leave_out(line, None)
            is_too_long = False

    def _leave_out(self, line: bytes, told: str | None = "") -> None:
        """Count what is no message, and tell its beginning. Raises ProtocolBroken if there is too much of it."""
        self._stray_bytes += len(line)
        if self._stray_lines >= MOST_STRAY_LINES or self._stray_bytes > MOST_STRAY_BYTES:
            raise ProtocolBroken(
                f"more than {MOST_STRAY_LINES} lines or {MOST_STRAY_BYTES} bytes on stdout are no JSON-RPC messages: "
                f"{excerpt(line)}"
            )
        if told is not None:
            self._stray(told.encode() + line[:STRAY_EXCERPT_BYTES].rstrip() + b"\n")


def parse(line: bytes) -> dict[str, Any] | None:
    """Return a line as a JSON-RPC message, None if it was not meant as one. Raises ProtocolBroken."""
    try:
        decoded: object = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        try:
            # A message may repeat bytes of a file that are no text.
            decoded = msgspec.json.decode(line.decode(errors="replace"))
        except msgspec.DecodeError:
            return None
    if not isinstance(decoded, dict):
        return None
    message = cast("dict[str, Any]", decoded)
    if is_message(message):
        return message
    if "jsonrpc" in message:
        raise ProtocolBroken(f"stdout is not a JSON-RPC message: {excerpt(line)}")
    return None


def is_message(message: dict[str, Any]) -> bool:
    """Whether an object has the form of a request, a notification or an answer."""
    if not isinstance(message.get("id"), int | str | None):
        return False
    if "method" in message:
        return isinstance(message["method"], str)
    return "id" in message and ("result" in message or isinstance(message.get("error"), dict))


def excerpt(line: bytes) -> str:
    """Return the beginning of a line, fit for an error message."""
    return repr(line[:120].decode(errors="replace"))
