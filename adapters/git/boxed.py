"""Our own programs inside a box: a question goes in, an answer comes out through a bounded pipe, then perhaps a pack."""

import json
import marshal
import os
import sys
import threading
import time
import uuid
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, TypeVar, cast

import msgspec

from ..processes.box import Box, Inside, Mount, begin
from ..removal import remove_tree
from .large_files import take_large
from .program import CHUNK_BYTES, NOTHING_RUNS, GitFailed, Program, Words, end_group, ending, environment, find_git

INSIDE = Path(__file__).parent / "inside" / "main.py"
#: How long a program may work: a filter that hangs ends with it.
SECONDS = 1_800.0
#: The line of JSON that it answers.
ANSWER_BYTES = 64 * 1024 * 1024
#: Packs with more objects, or bytes, are kept as packs.
LOOSE_OBJECTS = 100
LOOSE_BYTES = 16 * 1024 * 1024
#: What says that a pack of ours is kept until a ref leads to it.
KEEP = "steersman"
STALE_SECONDS = 24 * 3600.0

T = TypeVar("T")


class Unable(OSError):
    """The program inside could not do it. `code` is its word for why."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class BoxedResult(msgspec.Struct, frozen=True, kw_only=True):
    """What came out: the answer, and the packs that are kept until `release`."""

    said: Mapping[str, Any]
    kept: tuple[str, ...] = ()

    def release(self) -> None:
        """A ref leads to what came out: nothing need keep it any longer."""
        for path in self.kept:
            with suppress(OSError):
                os.unlink(path)


class Boxed:
    """A box, and a place on disk for what is worked on in it."""

    def __init__(self, box: Box, scratch: Path, seconds: float = SECONDS) -> None:
        self.box = box
        self._scratch = scratch
        self._seconds = seconds

    @contextmanager
    def room(self, owned_like: Path | None = None) -> Generator[Path]:
        """
        Give an empty directory, which belongs to whoever works in the box, and remove it afterwards.

        *owned_like*: it belongs to that one's owner, for what works as its directory's owner.
        """
        self._scratch.mkdir(parents=True, exist_ok=True)
        self._sweep()
        room = self._scratch / uuid.uuid4().hex
        room.mkdir(mode=0o755)
        try:
            if owned_like is None:
                self.box.give(room)
            elif os.getuid() == 0:
                owner = owned_like.stat()
                os.chown(room, owner.st_uid, owner.st_gid)
            yield room
        finally:
            remove_tree(room)

    def _sweep(self) -> None:
        """Remove what calls that died long ago left behind."""
        for old in self._scratch.iterdir():
            with suppress(OSError):
                if time.time() - old.lstat().st_mtime > STALE_SECONDS:
                    remove_tree(old)

    def ask(
        self,
        name: str,
        question: Mapping[str, Any],
        mounts: Sequence[Mount],
        cwd: Path,
        into: Program | None = None,
        limit_bytes: int = 1 << 62,
        seconds: float | None = None,
        *,
        as_owner: bool = False,
    ) -> BoxedResult:
        """
        Run a program to its end; the pack that it hands over is stored by *into*, checked object by object.

        Before the pack come large files, as LFS keeps them, each as long as the answer says.

        Raises Unable, GitFailed.
        """
        inside = Inside(cwd=cwd, env=environment(), mounts=tuple(mounts), as_owner=as_owner)
        command = [sys.executable, "-I", "-S", str(INSIDE), name]
        question = {**question, "git": find_git(), "nothing_runs": NOTHING_RUNS}
        process = begin(self.box, command, inside, stdin=-1)
        words = Words(process.stderr)
        seconds = seconds or self._seconds
        with ending(process, seconds) as late:
            feeder = threading.Thread(target=_feed, args=(process.stdin, question), daemon=True)
            feeder.start()
            assert process.stdout is not None, "it is a pipe"
            line = process.stdout.readline(ANSWER_BYTES)
            kept: tuple[str, ...] = ()
            stored: GitFailed | None = None
            said = _parsed(line)
            if said is not None and "error" not in said and into is not None:
                try:
                    take_large(process.stdout, said.get("large", ()), into.path("lfs"), limit_bytes)
                    kept = _store(into, process.stdout, limit_bytes)
                except GitFailed as failed:
                    stored = failed
                    end_group(process)
            code = process.wait()
            if late.is_set():
                raise Unable("took_too_long", f"it took more than {seconds:.0f} s")
            if stored is not None and code <= 0:
                raise stored
            if code or said is None:
                raise Unable("box_failed", words.said().strip()[-2000:] or f"git's helper ended with {code}")
        if "error" in said:
            raise Unable(str(said["error"]), str(said["message"]))
        return BoxedResult(said=said, kept=kept)


def _feed(pipe: IO[bytes] | None, question: dict[str, Any]) -> None:
    with suppress(OSError, ValueError):
        if pipe is not None:
            pipe.write(marshal.dumps(question))
            pipe.close()


def _parsed(line: bytes) -> dict[str, Any] | None:
    with suppress(ValueError):
        found = json.loads(line)
        if isinstance(found, dict):
            return cast("dict[str, Any]", found)
    return None


def _store(git: Program, pack: IO[bytes], limit_bytes: int) -> tuple[str, ...]:
    """Store a pack as it comes; return what keeps it. Nothing at all is no pack. Raises GitFailed."""
    head = pack.read(CHUNK_BYTES)
    if not head:
        return ()
    _let_go(git)
    # The signature, the format, then how many objects there are.
    few = head[:4] == b"PACK" and int.from_bytes(head[8:12]) < LOOSE_OBJECTS and len(head) < CHUNK_BYTES
    arguments = ("unpack-objects", "-q", "--strict")
    if not few:
        arguments = ("index-pack", "--stdin", "--fix-thin", "--strict", f"--keep={KEEP}")
    process = git.start(*arguments, stdin=-1)
    words = Words(process.stderr)
    with ending(process):
        assert process.stdin is not None, "it is a pipe"
        assert process.stdout is not None, "it is a pipe"
        size = 0
        try:
            while head:
                size += len(head)
                if size > limit_bytes:
                    raise GitFailed(arguments[0], f"there are more than {limit_bytes} bytes")
                process.stdin.write(head)
                head = pack.read(CHUNK_BYTES)
            process.stdin.close()
        except BrokenPipeError:
            pass  # It says why it ended.
        output = process.stdout.read(1024).decode(errors="replace").split()
        if process.wait():
            raise GitFailed(arguments[0], words.said())
    if output[:1] == ["keep"]:
        return (git.path("objects", "pack", f"pack-{output[1]}.keep"),)
    return ()


def _let_go(git: Program) -> None:
    """Let packs go that are kept for a call of ours which died long ago: what a ref leads to stays all the same."""
    for keep in Path(git.path("objects", "pack")).glob("*.keep"):
        with suppress(OSError):
            if time.time() - keep.stat().st_mtime > STALE_SECONDS and keep.read_bytes().strip() == KEEP.encode():
                keep.unlink()


def missing(git: Program, commit: str, parents: Sequence[str]) -> str:
    """Return git's words about what is missing below a commit that is not below its parents; empty if nothing is."""
    answer = git.ask("rev-list", "--objects", "--quiet", commit, "--not", *parents, ok=range(256))
    return (answer.words.strip() or "something is missing") if answer.code else ""
