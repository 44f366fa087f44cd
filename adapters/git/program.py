"""
The `git` program on a project's repository, outside of a box: plumbing that looks, checks and stores, and nothing else.

Nothing that a repository chooses runs here: no hook, filter, textconv, driver, monitor or credential helper, and no
working tree is touched. What needs one of these runs in a box (`boxed.py`).
"""

import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import IO

import msgspec

#: How long one look or one storing may take.
SECONDS = 600.0
#: What is kept of the program's answer, and of its words.
OUTPUT_BYTES = 256 * 1024 * 1024
WORDS_BYTES = 8 * 1024
CHUNK_BYTES = 256 * 1024

#: What no repository may choose, in every call, also in a box.
NOTHING_RUNS = {
    "core.hooksPath": "/dev/null",
    "core.fsmonitor": "false",
    "core.untrackedCache": "false",
    "core.alternateRefsCommand": ":",
    "core.pager": "cat",
    "core.sshCommand": "false",
    "gc.auto": "0",
    "maintenance.auto": "false",
    "protocol.allow": "never",
    "commit.gpgSign": "false",
    "advice.addEmbeddedRepo": "false",
}
STORING = {
    "core.bare": "true",
    "core.quotePath": "false",
    # Files larger than this are compared as binary ones, and streamed.
    "core.bigFileThreshold": "4m",
    # On disk before a ref may point to it.
    "core.fsync": "committed,loose-object",
}


class GitFailed(OSError):
    """git could not do what it was asked: its words say why."""

    def __init__(self, what: str, words: str) -> None:
        super().__init__(f"git {what}: {words.strip() or 'failed'}")
        self.words = words


class GitResult(msgspec.Struct, frozen=True, kw_only=True):
    """How a call of git ended. `output` is cut where it exceeded what was asked for."""

    code: int
    output: bytes
    words: str
    is_cut: bool = False


def find_git() -> str:
    """Return where the program is. Raises GitFailed."""
    found = shutil.which("git")
    if found is None:
        raise GitFailed("", "there is no `git` on the PATH; install version 2.39 or newer")
    return found


def environment(**more: str) -> dict[str, str]:
    """Return the whole environment of a call: no configuration but the repository's, nobody to ask, no place to go."""
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "LC_ALL": "C",
        "HOME": "/nonexistent",
        "XDG_CONFIG_HOME": "/nonexistent",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_NO_LAZY_FETCH": "1",
        **more,
    }


def options(*chosen: Mapping[str, str]) -> list[str]:
    """Return settings as arguments of git."""
    return [part for settings in chosen for name, value in settings.items() for part in ("-c", f"{name}={value}")]


class Program:
    """git on one repository, known by its directory; objects may be stored elsewhere, borrowing the repository's."""

    def __init__(self, git_dir: str) -> None:
        self._git_dir = git_dir

    def path(self, *parts: str) -> str:
        """Return where something is in the repository's directory."""
        return os.path.join(self._git_dir, *parts)

    def start(self, *arguments: str, stdin: int | IO[bytes] = subprocess.DEVNULL) -> "subprocess.Popen[bytes]":
        """Start a call. Whoever does waits for its end."""
        return subprocess.Popen(
            [find_git(), *options(NOTHING_RUNS, STORING), *arguments],
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=self._git_dir,
            env=environment(GIT_DIR=self._git_dir),
            start_new_session=True,
        )

    def ask(
        self,
        *arguments: str,
        given: bytes = b"",
        ok: Sequence[int] = (0,),
        limit_bytes: int = OUTPUT_BYTES,
        may_be_cut: bool = False,
    ) -> GitResult:
        """Do a call to its end. Raises GitFailed for another exit code than *ok*, and for too long an answer."""
        answer = finished(self.start(*arguments, stdin=subprocess.PIPE), given, limit_bytes)
        if answer.is_cut:
            if may_be_cut:
                return answer
            raise GitFailed(arguments[0], f"the answer has more than {limit_bytes} bytes")
        if answer.code not in ok:
            raise GitFailed(arguments[0], answer.words)
        return answer

    def output(self, *arguments: str, given: bytes = b"", limit_bytes: int = OUTPUT_BYTES) -> bytes:
        """Return what a call answers. Raises GitFailed."""
        return self.ask(*arguments, given=given, limit_bytes=limit_bytes).output

    def records(self, *arguments: str, given: bytes = b"") -> list[bytes]:
        """Return the answer of a call that ends each part of it with NUL. Raises GitFailed."""
        return [part for part in self.output(*arguments, given=given).split(b"\0") if part]


@contextmanager
def ending(process: "subprocess.Popen[bytes]", seconds: float = SECONDS) -> Generator[threading.Event]:
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


def finished(process: "subprocess.Popen[bytes]", given: bytes, limit_bytes: int, seconds: float = SECONDS) -> GitResult:
    """Give the process its input and read it to its end, or to the limit."""
    words = Words(process.stderr)
    with ending(process, seconds) as late:
        feeder = threading.Thread(target=_feed, args=(process.stdin, given), daemon=True)
        feeder.start()
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
    return GitResult(code=code, output=b"".join(kept)[:limit_bytes], words=said, is_cut=is_cut)


def _feed(pipe: IO[bytes] | None, given: bytes) -> None:
    if pipe is not None:
        with suppress(OSError, ValueError):
            pipe.write(given)
        with suppress(OSError, ValueError):
            pipe.close()
