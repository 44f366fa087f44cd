"""
`checkpoints.log`: the signed checkpoints, outside the store, so that a store which was put back is noticed.

The newest are all there, and of each log's name the last one. Of the older ones more and more are left out, so that the
file stays short: they only narrow down where a log was changed.
"""

import os
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from fcntl import LOCK_EX, LOCK_NB, LOCK_SH, flock
from pathlib import Path
from threading import Lock

import msgspec

from ...application.ports.log import LogUnavailable
from .head import Head
from .signed_note import MAX_NOTE_CHARACTERS, NoteInvalid, parse_checkpoint

#: How much of the file's end is looked at when a log is opened: some hundred checkpoints.
TAIL_BYTES = 256 * 1024
MAX_LINE_BYTES = 2 * MAX_NOTE_CHARACTERS
#: How long the file becomes before it is thinned to about half of that.
MAX_BYTES = 8 * 1024 * 1024
#: How many of the newest checkpoints are never left out.
KEPT_NEWEST = 1_024


class CheckpointFile:
    """
    The file, one checkpoint a line, each a note as a JSON string.

    Several processes append to it, each its own line at once, so lines may stand in another order than the log's.
    Whoever makes it too long thins it, while the others wait.
    """

    def __init__(self, path: Path, max_bytes: int = MAX_BYTES) -> None:
        self.path = path
        self._max_bytes = max_bytes
        self._thinned_at = max_bytes
        self._lock = Lock()
        self._published = 0
        self._pending: Head | None = None
        # The file may end in half a line, of a process that died while it wrote.
        self._torn = True

    def publish(self, head: Head) -> None:
        """On return the newest checkpoint of the log is on disk. Raises LogUnavailable, and tries again next time."""
        with self._lock:
            if head.edge.size > self._published or self._pending is not None:
                self._pending = head
                self._flush()

    def ready(self) -> None:
        """
        Return if everything is on disk that should be. Raises LogUnavailable.

        Until then nothing more is to be stored: a disk that is full or dead leaves at most one batch unanswered.
        """
        with self._lock:
            if self._pending is not None:
                self._flush()

    def _flush(self) -> None:
        head = self._pending
        assert head is not None
        line = msgspec.json.encode(head.note) + b"\n"
        try:
            size = self._append(line)
        except OSError as error:
            self._torn = True
            raise LogUnavailable(f"{self.path} cannot be written: {error.strerror}") from error
        # If we die here, the next start finds the line, and what it covers is stored.
        self._published, self._pending, self._torn = head.edge.size, None, False
        if size > self._thinned_at:
            # The line is there already. What keeps the file from being thinned, a full disk or another process that
            # appends just now, puts it off to the next line.
            with suppress(OSError):
                self._thinned_at = max(self._max_bytes, 2 * thin(self.path, self._max_bytes))

    def _append(self, line: bytes) -> int:
        """Return how long the file is with the line."""
        with _locked(self.path, LOCK_SH) as file:
            written = b"\n" + line if self._torn else line
            if os.write(file, written) != len(written):
                raise OSError(28, "it is full")
            os.fsync(file)
            size = os.fstat(file).st_size
            if size == len(written):
                _sync_folder(self.path)
            return size


def thin(path: Path, max_bytes: int) -> int:
    """Leave out older checkpoints if the file is too long, and return how long it is. Raises OSError: then it stays."""
    with _locked(path, LOCK_EX | LOCK_NB) as file:
        size = os.fstat(file).st_size
        if size <= max_bytes:
            return size  # another process has done it
        beside = path.with_name(f"{path.name}.new")
        try:
            with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as made:
                made.writelines(msgspec.json.encode(note) + b"\n" for note in _thinned(path, -(-2 * size // max_bytes)))
                made.flush()
                os.fsync(made.fileno())
                size = made.tell()
            # If we die before this, the file is as it was; after it, whoever waits to append finds the other one.
            beside.rename(path)
        except OSError:
            beside.unlink(missing_ok=True)
            raise
        _sync_folder(path)
        return size


def _thinned(path: Path, every: int) -> Iterator[str]:
    """Give one of *every* so many notes, all of the newest, and the largest of each log's name."""
    count, largest = 0, dict[str, tuple[int, int]]()
    for note in read_notes(path):
        found = parse_checkpoint(note)
        largest[found.origin] = max(largest.get(found.origin, (0, 0)), (found.size, count))
        count += 1
    kept = {number for _, number in largest.values()}
    for number, note in enumerate(read_notes(path)):
        if number >= count - KEPT_NEWEST or number % every == 0 or number in kept:
            yield note


@contextmanager
def _locked(path: Path, how: int) -> Generator[int]:
    """Give the file that has the name, to append, locked: while that is waited for another may take its place."""
    while True:  # ends: a file is replaced once in many thousand lines
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            flock(file, how)
            if os.path.samestat(os.fstat(file), path.stat()):
                yield file
                return
        finally:
            os.close(file)


def _sync_folder(path: Path) -> None:
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def read_notes(path: Path, *, tail: int | None = None) -> Iterator[str]:
    """Give the notes in the file, or in its last *tail* bytes, in its order. What is no checkpoint is passed over."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        if tail is not None and file.seek(0, os.SEEK_END) > tail:
            file.seek(-tail, os.SEEK_END)
            file.readline(MAX_LINE_BYTES)
        else:
            file.seek(0)
        while line := file.readline(MAX_LINE_BYTES):
            note = _note(line)
            if note is not None:
                yield note


def _note(line: bytes) -> str | None:
    try:
        note = msgspec.json.decode(line, type=str)
        parse_checkpoint(note)
    except (msgspec.DecodeError, NoteInvalid, UnicodeDecodeError):
        return None
    return note
