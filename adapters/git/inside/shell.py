"""git as it is called inside a box: on a git directory of ours, of which whoever made the working tree has no say."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeAlias

    Json: TypeAlias = "str | int | Sequence[Json] | Mapping[str, Json]"

SLOW_SECONDS = 5.0
#: How many letters of git's words are passed on.
WORDS = 2_000
SIGKILL, SIGPIPE = 9, 13


class Failed(Exception):
    """What was asked for could not be done; nobody but the asker is told. `code` is a word for programs."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(code, message)
        self.code = code


class Call:
    """A call of git, which goes on by itself: what it reads and says is kept in memory, so that nobody waits for it."""

    def __init__(self, command: list[str], environment: Mapping[str, str], given: bytes, *, says: bool = True) -> None:
        """Start it. Unless it *says* what it has to say to us, that goes to our own standard output."""
        self._said = _memory() if says else None
        self._words = _memory()
        reads = _memory(given)
        streams = {0: reads, 2: self._words} | ({} if self._said is None else {1: self._said})
        actions = [(os.POSIX_SPAWN_DUP2, file, number) for number, file in streams.items()]
        # Python ignores this one, and a program of git's would with it.
        self._pid = os.posix_spawn(command[0], command, environment, file_actions=actions, setsigdef=[SIGPIPE])
        os.close(reads)

    def is_over(self, seconds: float) -> bool:
        """Return whether it ends within this time."""
        watch = os.pidfd_open(self._pid)
        try:
            poll = select.poll()
            poll.register(watch, select.POLLIN)
            return bool(poll.poll(seconds * 1_000))
        finally:
            os.close(watch)

    def end(self) -> tuple[int, bytes, bytes]:
        """Return its exit code, its answer and its words, once it has ended."""
        _, status = os.waitpid(self._pid, 0)
        said = b"" if self._said is None else _content(self._said)
        return os.waitstatus_to_exitcode(status), said, _content(self._words)

    def kill(self) -> None:
        """On return it has ended."""
        os.kill(self._pid, SIGKILL)
        self.end()


def _memory(content: bytes = b"") -> int:
    file = os.memfd_create("git")
    with open(file, "wb", closefd=False) as written:
        written.write(content)
    os.lseek(file, 0, os.SEEK_SET)
    return file


def _content(file: int) -> bytes:
    os.lseek(file, 0, os.SEEK_SET)
    with open(file, "rb") as read:
        return read.read()


class Git:
    """git with one environment, and settings that no file can change."""

    def __init__(self, program: str, settings: Mapping[str, str], **environment: str) -> None:
        self._command = [program, *(part for name, value in settings.items() for part in ("-c", f"{name}={value}"))]
        self.environment = {**os.environ, **environment}
        #: What the last call that ended said on standard error.
        self.words = ""
        #: Asked when a call takes long; what it raises ends the call.
        self.when_slow: Callable[[], None] = lambda: None

    def with_environment(self, **more: str) -> Git:
        """Return the same with more in its environment."""
        other = Git.__new__(Git)
        other._command, other.environment, other.words = self._command, {**self.environment, **more}, ""
        other.when_slow = self.when_slow
        return other

    def start(self, *arguments: str, given: bytes = b"") -> Call:
        """Start a call, which goes on beside others until its answer is asked for."""
        return Call([*self._command, *arguments], self.environment, given)

    def end(self, call: Call) -> tuple[int, bytes]:
        """Return a call's exit code and its answer. Raises what `when_slow` does."""
        if not call.is_over(SLOW_SECONDS):
            try:
                self.when_slow()
            except Failed:
                call.kill()
                raise
        code, output, words = call.end()
        self.words = words.decode(errors="replace")
        return code, output

    def answer(self, call: Call) -> bytes:
        """Return what a call answers. Raises Failed."""
        code, output = self.end(call)
        if code:
            raise Failed("git_failed", shortened(self.words) or f"git ended with {code}")
        return output

    def try_(self, *arguments: str, given: bytes = b"") -> tuple[int, bytes]:
        """Run a call to its end; return its exit code and its answer."""
        return self.end(self.start(*arguments, given=given))

    def output(self, *arguments: str, given: bytes = b"") -> bytes:
        """Return what a call answers. Raises Failed."""
        return self.answer(self.start(*arguments, given=given))

    def text(self, *arguments: str, given: bytes = b"") -> str:
        """Return a line that a call answers. Raises Failed."""
        return self.output(*arguments, given=given).decode(errors="replace").strip()

    def records(self, *arguments: str, given: bytes = b"") -> list[bytes]:
        """Return the answer of a call that ends each part with NUL. Raises Failed."""
        return parts(self.output(*arguments, given=given))

    def hand_over(self, *arguments: str, given: bytes = b"") -> None:
        """Have a call write to our own standard output, after what was said there. A failure ends this process."""
        sys.stdout.flush()
        code, _, words = Call([*self._command, *arguments], self.environment, given, says=False).end()
        if code:
            # The answer has begun: what came out is thrown away by whoever reads it.
            sys.exit(shortened(words.decode(errors="replace")) or f"git {arguments[0]} failed")


def parts(answer: bytes) -> list[bytes]:
    """Return the parts of an answer, each of which ends with NUL."""
    return [part for part in answer.split(b"\0") if part]


def answer(said: Mapping[str, Json]) -> None:
    """Answer the one request, in a line of JSON."""
    print(as_json(said), flush=True)


def as_json(value: Json) -> str:
    """Return texts, numbers, and lists and mappings of them as JSON."""
    if isinstance(value, str):
        return f'"{"".join(map(_letter, value))}"'
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{as_json(name)}:{as_json(of_it)}" for name, of_it in value.items()) + "}"
    return str(value) if isinstance(value, int) else "[" + ",".join(map(as_json, value)) + "]"


def _letter(letter: str) -> str:
    if " " <= letter <= "~" and letter not in '"\\':
        return letter
    code = letter.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{code[at : at + 4]}" for at in range(0, len(code), 4))


def shortened(words: str) -> str:
    """Return the beginning and the end of what was said."""
    words = words.strip()
    return words if len(words) <= WORDS else f"{words[: WORDS // 2]} … {words[-WORDS // 2 :]}"


def make_git_directory(path: str, files: Mapping[str, bytes], borrowed: Sequence[str], head: str) -> None:
    """Make the least that git takes for a repository, with these files in it."""
    for directory in ("refs/heads", "objects/info", "objects/pack", "info"):
        os.makedirs(os.path.join(path, directory), exist_ok=True)
    for name, content in files.items():
        write(os.path.join(path, name), content)
    write(os.path.join(path, "HEAD"), head.encode() + b"\n")
    # A name with a quote or a line feed is written as git quotes it.
    write(
        os.path.join(path, "objects/info/alternates"), b"".join(quoted(os.fsencode(name)) + b"\n" for name in borrowed)
    )


def quoted(path: bytes) -> bytes:
    """Return a path as a list of borrowed directories has it."""
    if path.startswith(b'"') or b"\n" in path:
        return b'"' + path.replace(b"\\", b"\\\\").replace(b'"', b'\\"').replace(b"\n", b"\\n") + b'"'
    return path


def write(path: str, content: bytes) -> None:
    """Write a file, with the directories above it."""
    with suppress(FileExistsError):
        os.makedirs(os.path.dirname(path))
    with open(path, "wb") as file:
        file.write(content)


def lstat(path: bytes) -> os.stat_result | None:
    """Return what stands at a path, None if nothing does, or nothing that can be reached."""
    with suppress(OSError):
        return os.lstat(path)
    return None
