"""A box: the part of this machine that one command sees and may use, whatever it tries."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Literal, Protocol

import msgspec

#: What is kept of a command's words on standard error.
STDERR_BYTES = 16 * 1024


class Mount(msgspec.Struct, frozen=True, kw_only=True):
    """A directory or file of this machine that can be seen inside, at the same path unless *target* names another."""

    source: Path
    target: Path | None = None
    writable: bool = False


class BoxLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What everything in one box may use. The system's own limits hold beside these."""

    #: Processes and threads, together.
    processes: int = 4_096
    #: Memory of one process, for its data.
    memory_bytes: int = 64 * 1024**3
    #: The size of one file.
    file_bytes: int = 16 * 1024**3
    open_files: int = 16_384
    #: What /tmp and /dev/shm hold, each; it is memory.
    scratch_bytes: int = 4 * 1024**3
    #: What an agent's workplace and home hold together, before it is ended. Whoever runs it looks at that now and then.
    disk_bytes: int = 64 * 1024**3


class Inside(msgspec.Struct, frozen=True, kw_only=True):
    """What a command finds around it, besides the system, the interpreter and an empty /tmp."""

    cwd: Path
    #: Its whole environment.
    env: Mapping[str, str]
    mounts: tuple[Mount, ...] = ()
    #: `none`: nothing but a loopback of its own; `proxy`: also our proxy, by its socket; `host`: the machine's network.
    network: Literal["none", "proxy", "host"] = "none"
    #: The proxy's Unix socket, for `proxy`.
    proxy: Path | None = None
    #: Ports of the box's own loopback that lead through the proxy to an address, `host:port`.
    reach: tuple[tuple[int, str], ...] = ()
    limits: BoxLimits = BoxLimits()
    #: Whether it runs as the owner of its directory, who may be root, in the place of the agents' user: for what a
    #: service that is root does in somebody's own checkout. Never for what an agent chose.
    as_owner: bool = False


class Box(Protocol):
    """A way to run commands apart from the service. It holds nothing between calls and may be shared by threads."""

    @property
    def isolation(self) -> Literal["bubblewrap", "none"]:
        """How apart: in a box, or with all rights of the service."""
        ...

    def command(self, argv: Sequence[str], inside: Inside) -> Sequence[str]:
        """
        Return the command that runs *argv* inside; argv[0] is an absolute path. Whoever starts it sets `inside.env`.

        The death of the process that this starts is the end of everything in the box, and so is its parent's.
        """
        ...

    def give(self, path: Path) -> None:
        """On return everything at and below a path belongs to the user that commands run as. Links are not followed."""
        ...


class Bare:
    """No box: commands have all rights of the service."""

    @property
    def isolation(self) -> Literal["bubblewrap", "none"]:
        return "none"

    def command(self, argv: Sequence[str], inside: Inside) -> Sequence[str]:
        return argv

    def give(self, path: Path) -> None:
        """Nothing: they run as the service's own user."""


class BoxExit(msgspec.Struct, frozen=True, kw_only=True):
    """How a command ended that ran in a box."""

    code: int
    output: bytes
    #: The end of what it said on standard error.
    words: str


class CommandTooLong(Exception):
    """A command in a box did not end in its time, or wrote more than it may. Nothing of it is alive."""


def begin(
    box: Box,
    argv: Sequence[str],
    inside: Inside,
    *,
    stdin: int | IO[bytes] = subprocess.DEVNULL,
    stdout: int | IO[bytes] = subprocess.PIPE,
    stderr: int | IO[bytes] = subprocess.PIPE,
) -> "subprocess.Popen[bytes]":
    """Start a short command in a box. Whoever calls this waits for its end in the same thread: it dies with that."""
    return subprocess.Popen(
        list(box.command(argv, inside)),
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        cwd=inside.cwd if box.isolation == "none" else "/",
        env=dict(inside.env),
        start_new_session=True,
    )


def run(
    box: Box,
    argv: Sequence[str],
    inside: Inside,
    *,
    given: bytes = b"",
    timeout_seconds: float,
    output_bytes: int = 64 * 1024 * 1024,
) -> BoxExit:
    """Run a short command in a box to its end. Raises CommandTooLong."""
    process = begin(box, argv, inside, stdin=subprocess.PIPE)
    try:
        output, words = process.communicate(given, timeout=timeout_seconds)
    except subprocess.TimeoutExpired:
        raise CommandTooLong(f"{os.path.basename(argv[0])} took more than {timeout_seconds:.0f} s") from None
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
    if len(output) > output_bytes:
        raise CommandTooLong(f"{os.path.basename(argv[0])} wrote more than {output_bytes} bytes")
    return BoxExit(code=process.returncode, output=output, words=words[-STDERR_BYTES:].decode(errors="replace"))
