"""git as it is called inside a box: on a git directory of ours, of which whoever made the working tree has no say."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Generic, TypeVar

SLOW_SECONDS = 5.0
#: How many letters of git's words are passed on.
WORDS = 2_000


T = TypeVar("T")


class Failed(Exception):
    """What was asked for could not be done; nobody but the asker is told. `code` is a word for programs."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(code, message)


class Git:
    """git with one environment, and settings that no file can change."""

    def __init__(self, program: str, settings: Mapping[str, str], **environment: str) -> None:
        chosen = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        self._command = [program, *chosen]
        self.environment = {**os.environ, **environment}
        #: The end of what the last call said.
        self.words = ""
        #: Asked when a call takes long; what it raises ends the call.
        self.when_slow: Callable[[], None] = lambda: None

    def with_environment(self, **more: str) -> "Git":
        """Return the same with more in its environment."""
        other = Git.__new__(Git)
        other._command, other.environment, other.words = self._command, {**self.environment, **more}, ""
        other.when_slow = self.when_slow
        return other

    def try_(self, *arguments: str, given: bytes = b"") -> tuple[int, bytes]:
        """Run a call to its end; return its exit code and its answer."""
        with subprocess.Popen(
            [*self._command, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self.environment,
        ) as process:
            try:
                output, words = process.communicate(given, timeout=SLOW_SECONDS)
            except subprocess.TimeoutExpired:
                try:
                    self.when_slow()
                except Failed:
                    process.kill()
                    raise
                output, words = process.communicate()
        self.words = words.decode(errors="replace")
        return process.returncode, output

    def output(self, *arguments: str, given: bytes = b"") -> bytes:
        """Return what a call answers. Raises Failed."""
        code, output = self.try_(*arguments, given=given)
        if code:
            raise Failed("git_failed", shortened(self.words) or f"git {arguments[0]} ended with {code}")
        return output

    def text(self, *arguments: str, given: bytes = b"") -> str:
        """Return a line that a call answers. Raises Failed."""
        return self.output(*arguments, given=given).decode(errors="replace").strip()

    def records(self, *arguments: str, given: bytes = b"") -> list[bytes]:
        """Return the answer of a call that ends each part with NUL. Raises Failed."""
        return [part for part in self.output(*arguments, given=given).split(b"\0") if part]

    def hand_over(self, *arguments: str, given: bytes = b"") -> None:
        """Have a call write to our own standard output, after what was said there. A failure ends this process."""
        sys.stdout.flush()
        done = subprocess.run(
            [*self._command, *arguments], input=given, stderr=subprocess.PIPE, env=self.environment, check=False
        )
        if done.returncode:
            # The answer has begun: what came out is thrown away by whoever reads it.
            sys.exit(shortened(done.stderr.decode(errors="replace")) or f"git {arguments[0]} failed")


class Aside(Generic[T]):
    """Something that is done while the block goes on; the block's end waits for its end."""

    def __init__(self, do: Callable[[], T]) -> None:
        self._do = do
        self._done: list[T] = []
        self._failed: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        try:
            self._done.append(self._do())
        except BaseException as error:  # noqa: BLE001 -- it is raised where the result is asked for
            self._failed = error

    def __enter__(self) -> "Aside[T]":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join()

    def result(self) -> T:
        """Return what came of it, or raise what it raised."""
        if self._failed is not None:
            raise self._failed
        return self._done[0]


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
