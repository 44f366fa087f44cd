"""The index of one checkout: read whole, written whole, under git's own lock, which a crash of ours does not leave."""

import fcntl
import os
import stat
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress

from dulwich.file import FileLocked
from dulwich.index import (
    ConflictedIndexEntry,
    Index,
    IndexChecksumWriter,
    IndexEntry,
    index_entry_from_stat,
    write_index_dict,
)
from dulwich.objects import ObjectID

from .refs import patiently

#: git sets it on entries whose changes it must not look for.
ASSUME_UNCHANGED = 0x8000
MARKER = "steersman-index"
#: In place of a lock file that may be broken: the kernel knows that this one's holder is alive.
HELD = ""


class UnreadableIndex(Exception):
    """The index is damaged, or of a kind that cannot be read whole (split or sparse)."""


class CheckoutIndex:
    """What the index of a checkout said when it was read, and how much its stat data can be trusted."""

    def __init__(self, directory: str) -> None:
        """Read the index of a git directory; a missing one is empty."""
        self._path = os.path.join(directory, "index")
        self.entries: dict[bytes, IndexEntry] = {}
        self.unmerged: set[bytes] = set()
        self.exists = os.path.exists(self._path)
        self._written_ns = os.stat(self._path).st_mtime_ns if self.exists else 0
        if self.exists:
            self._read(directory)

    @classmethod
    def of(cls, directory: str) -> "CheckoutIndex":
        """Return the index of a worktree of ours; one that cannot be read, whatever the agent did to it, is absent."""
        try:
            return cls(directory)
        except UnreadableIndex:
            return cls(os.path.join(directory, "absent"))

    def _read(self, directory: str) -> None:
        try:
            read = Index(self._path)
        except Exception as error:  # The parser says struct.error, AssertionError, ValueError and others.
            raise UnreadableIndex(str(error)) from error
        with open(self._path, "rb") as file:
            content = file.read()
        for name in os.listdir(directory):
            if name.startswith("sharedindex.") and bytes.fromhex(name.partition(".")[2]) in content:
                raise UnreadableIndex("the index is split")
        for path, entry in read.items():
            if isinstance(entry, ConflictedIndexEntry):
                self.unmerged.add(path)
            elif stat.S_ISDIR(entry.mode):
                raise UnreadableIndex("the index is sparse")
            else:
                self.entries[path] = entry

    def is_current(self, entry: IndexEntry, found: os.stat_result) -> bool:
        """Return whether the stat data alone proves that the file is what the entry says."""
        mtime = entry.mtime if isinstance(entry.mtime, tuple) else (int(entry.mtime), 0)
        mtime_ns = mtime[0] * 1_000_000_000 + mtime[1]
        return (
            # A file as young as the index may have changed after it was read, within one tick of the clock.
            mtime_ns < self._written_ns
            and mtime_ns == found.st_mtime_ns
            and entry.ctime == (found.st_ctime_ns // 1_000_000_000, found.st_ctime_ns % 1_000_000_000)
            and entry.size == found.st_size & 0xFFFFFFFF
            and entry.ino == found.st_ino & 0xFFFFFFFF
            and entry.extended_flags == 0
        )


def fresh_entry(found: os.stat_result, mode: int, name: ObjectID) -> IndexEntry:
    """Return an entry with the stat data of a file that was just read or written."""
    entry = index_entry_from_stat(found, name, mode)
    entry.size &= 0xFFFFFFFF  # as git does; the library would fail on a larger number
    entry.uid &= 0xFFFFFFFF
    entry.gid &= 0xFFFFFFFF
    return entry


def unknown_entry(mode: int, name: ObjectID) -> IndexEntry:
    """Return an entry that says nothing about the file: git looks at the content."""
    return IndexEntry(ctime=0, mtime=0, dev=0, ino=0, mode=mode, uid=0, gid=0, size=0, sha=name)


class IndexLock:
    """
    git's `index.lock`, taken as a second name of a marker file that its holder keeps locked (flock).

    After a crash the marker tells whose lock it was: the next one of ours takes it over at once, and one that git
    or an editor holds is never mistaken for it. While it stands, git refuses to change that checkout.

    Where `is_kept` is set, the lock stands also after its release, as if we had crashed.
    """

    def __init__(self, directory: str) -> None:
        """Take the lock of a git directory. Raises FileLocked."""
        self.is_kept = False
        self._directory = directory
        self._lock = os.path.join(directory, "index.lock")
        self._marker = os.path.join(directory, MARKER)
        self._file = os.open(self._marker, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            self._take()
        except BaseException:
            os.close(self._file)
            raise

    def _take(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The last holder may have removed the marker between our open and our flock.
            if not os.path.samestat(os.fstat(self._file), os.stat(self._marker)):
                raise FileLocked(self._marker, HELD)
        except (BlockingIOError, FileNotFoundError) as error:
            raise FileLocked(self._marker, HELD) from error
        try:
            os.link(self._marker, self._lock)
        except FileExistsError as error:
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(self._file), os.stat(self._lock)):
                    return  # We hold the marker, so whoever of us made this lock is dead.
            os.unlink(self._marker)
            raise FileLocked(self._lock, self._lock) from error

    def write(self, entries: Mapping[bytes, IndexEntry]) -> None:
        """Replace the index by these entries, at once and durably."""
        prepared = os.path.join(self._directory, f"{MARKER}.new")
        with open(prepared, "wb") as file:
            writer = IndexChecksumWriter(file)
            write_index_dict(writer, dict(entries), version=2)
            writer.write_checksum()
            file.flush()
            os.fsync(file.fileno())
        os.rename(prepared, os.path.join(self._directory, "index"))

    def release(self) -> None:
        """Give the lock up. The marker goes last: without it our own lock would look like somebody else's."""
        try:
            for path in () if self.is_kept else (self._lock, self._marker):
                with suppress(FileNotFoundError):
                    os.unlink(path)
        finally:
            os.close(self._file)


@contextmanager
def index_lock(directory: str, *, is_ours: bool = True) -> Generator[IndexLock]:
    """
    Hold the index lock of a git directory.

    In a worktree of ours (*is_ours*) a foreign lock is waited for, and broken when a crash left it behind; in a
    user's checkout it is respected at once. Raises FileLocked.
    """
    lock = patiently(lambda: IndexLock(directory)) if is_ours else IndexLock(directory)
    try:
        yield lock
    finally:
        lock.release()
