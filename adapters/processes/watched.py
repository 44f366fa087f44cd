"""A process watched to its end: it has so much time, and whatever it says, a bounded part of that is held in memory."""

import os
import signal
import subprocess
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import IO

import msgspec

#: What is kept of a process's words on standard error: their end.
WORDS_BYTES = 16 * 1024
CHUNK_BYTES = 256 * 1024


class ProcessExit(msgspec.Struct, frozen=True, kw_only=True):
    """How a process ended. `output` is cut where it exceeded what was asked for."""

    code: int
    output: bytes
    #: The end of what it said on standard error.
    words: str
    is_cut: bool = False
    is_late: bool = False


@contextmanager
def ending(process: "subprocess.Popen[bytes]", seconds: float) -> Generator[threading.Event]:
    """Kill the process when its time is over, or the block ends before it does. The event tells of the first."""
    late = threading.Event()

    def kill() -> None:
        late.set()
        end_group(process)

    watch = threading.Timer(seconds, kill)
    watch.daemon = True
    watch.start()
    try:
        yield late
    finally:
        watch.cancel()
        end_group(process)
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        process.wait()


def end_group(process: "subprocess.Popen[bytes]") -> None:
    """Kill the process, which leads a session of its own, and what is left in that; not if it was waited for."""
    if process.returncode is None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)


class Words(threading.Thread):
    """Reads what a process says on standard error, so that it is never held up by it, and keeps the end."""

    def __init__(self, pipe: IO[bytes] | None) -> None:
        super().__init__(daemon=True)
        self._pipe = pipe
        self._kept = b""
        self.start()

    def run(self) -> None:
        with suppress(OSError, ValueError):
            while self._pipe is not None and (chunk := os.read(self._pipe.fileno(), CHUNK_BYTES)):
                self._kept = (self._kept + chunk)[-WORDS_BYTES:]

    def said(self) -> str:
        """Return the end of it, once the process has ended."""
        self.join(5.0)
        return self._kept.decode(errors="replace")


def finished(process: "subprocess.Popen[bytes]", limit_bytes: int, seconds: float) -> ProcessExit:
    """Read the process to its end, or to the limit."""
    words = Words(process.stderr)
    with ending(process, seconds) as late:
        kept, size = list[bytes](), 0
        assert process.stdout is not None, "it is a pipe"
        while size <= limit_bytes and (chunk := process.stdout.read(min(CHUNK_BYTES, limit_bytes + 1 - size))):
            kept.append(chunk)
            size += len(chunk)
        is_cut = size > limit_bytes
        if is_cut:
            end_group(process)
        code = process.wait()
        said = f"it took more than {seconds:.0f} s" if late.is_set() else words.said()
    output = b"".join(kept)[:limit_bytes]
    return ProcessExit(code=code, output=output, words=said, is_cut=is_cut, is_late=late.is_set())


def in_memory(content: bytes) -> IO[bytes]:
    """Return a file that holds this, for a process to read from: nobody need feed it."""
    file = os.fdopen(os.memfd_create("given"), "w+b")
    file.write(content)
    file.seek(0)
    return file
