"""`checkpoints.log`: every signed checkpoint, outside the store, so that a store which was put back is noticed."""

import os
from collections.abc import Iterator
from pathlib import Path
from threading import Lock

import msgspec

from ..application.log_port import LogUnavailable
from .log_head import Head
from .signed_note import MAX_NOTE_CHARACTERS, NoteInvalid, parse_checkpoint

#: How much of the file's end is looked at when a log is opened: some hundred checkpoints.
TAIL_BYTES = 256 * 1024
MAX_LINE_BYTES = 2 * MAX_NOTE_CHARACTERS


class CheckpointFile:
    """
    The file, one checkpoint a line, each a note as a JSON string.

    Several processes append to it, each its own line at once, so lines may stand in another order than the log's.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
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
            self._append(line)
        except OSError as error:
            self._torn = True
            raise LogUnavailable(f"{self.path} cannot be written: {error.strerror}") from error
        # If we die here, the next start finds the line, and what it covers is stored.
        self._published, self._pending, self._torn = head.edge.size, None, False

    def _append(self, line: bytes) -> None:
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            written = b"\n" + line if self._torn else line
            if os.write(file, written) != len(written):
                raise OSError(28, "it is full")
            os.fsync(file)
        finally:
            os.close(file)


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
