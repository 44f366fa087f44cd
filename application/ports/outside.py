"""What the use cases need from outside, besides the log, git and the agents. A port says what holds when a call returns."""

from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Protocol

import msgspec


class Wakeups(Protocol):
    """Hints that the log has grown. A lost hint costs latency, never work: every waiter also polls."""

    def announce(self, position: int) -> None:
        """Tell every waiter that the log has reached *position*. Never blocks, never raises."""
        ...

    def wait(self, after: int, timeout_seconds: float) -> int:
        """Return the newest announced position, as soon as it is greater than *after* or the time is over."""
        ...


class Clock(Protocol):
    """The time, for people to read. Nothing is ordered by it."""

    def now(self) -> datetime:
        """Return the present moment, in UTC."""
        ...


class CommandResult(msgspec.Struct, frozen=True, kw_only=True):
    """
    What a command came to. `state` is exited (with exit_code), timed_out, not_found, not_started or interrupted;
    `output` is the end of what it wrote.
    """

    state: str
    output: str
    exit_code: int | None = None


class ProjectCommands(Protocol):
    """Commands of a project's own."""

    def run(
        self, command: Sequence[str], cwd: Path, timeout_seconds: float, reads: Sequence[Path] = ()
    ) -> CommandResult:
        """
        Run the command to its end, or kill it after the time. On return nothing that it started is alive.

        Beside its directory it may read *reads*: the objects that its workplace borrows.
        """
        ...

    def kill(self, cwd: Path) -> None:
        """Kill the commands that run in this directory; their callers are told that they were interrupted."""
        ...

    def close(self) -> None:
        """Kill every command that runs; their callers are told that they were interrupted."""
        ...


class SignalFiles(Protocol):
    """Files that an agent's own tools may look for: `<data>/signals/<session>/PAUSE` and `SHUTDOWN`."""

    def write(self, session_id: str, name: str, text: str) -> None:
        """Write the file. A session id that is no plain file name stands under its digest."""
        ...

    def clear(self, session_id: str, name: str) -> None:
        """Remove the file, if it is there."""
        ...


class ViewRow(msgspec.Struct, frozen=True, kw_only=True):
    """One row of a view: its key, the group it is listed in, its place there, and its bytes."""

    key: str
    group: str
    order: int
    body: bytes


class Views(Protocol):
    """Read models: rows, and the position up to which they are folded, always stored together."""

    def get(self, view: str, key: str) -> bytes | None:
        """Return a row's bytes as they were stored."""
        ...

    def list(self, view: str, group: str, *, before: int | None = None, limit: int = 100) -> Sequence[ViewRow]:
        """Return a group's rows, the highest order first, those below *before*."""
        ...

    def position(self, view: str) -> int:
        """Return the position up to which the view has folded the log."""
        ...

    def wait(self, view: str, position: int, timeout_seconds: float) -> bool:
        """Return True as soon as the view has reached *position*, False when the time is over before."""
        ...


Announce = Callable[[int], None]
