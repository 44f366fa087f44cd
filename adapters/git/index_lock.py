"""git's lock of a user's checkout, taken so that it is known as ours after a crash, and nobody else's is mistaken for it."""

import fcntl
import os
from contextlib import suppress

MARKER = "steersman-index"


class LockHeld(Exception):
    """Somebody is at work in the checkout."""


class IndexLock:
    """
    git's `index.lock`, taken as a second name of a marker file that its holder keeps locked (flock).

    After a crash the marker tells whose lock it was: the next one of ours takes it over at once, and one that git
    or an editor holds is never mistaken for it. While it stands, git refuses to change that checkout.

    Where `is_kept` is set, the lock stands also after its release, as if we had crashed.
    """

    def __init__(self, directory: str) -> None:
        """Take the lock of a git directory. Raises LockHeld."""
        self.is_kept = False
        #: Whether it was found standing, left by one of ours that died.
        self.is_inherited = False
        self._lock = os.path.join(directory, "index.lock")
        self._marker = os.path.join(directory, MARKER)
        self._file = os.open(self._marker, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
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
                raise LockHeld(self._marker)
        except (BlockingIOError, FileNotFoundError) as error:
            raise LockHeld(self._marker) from error
        try:
            os.link(self._marker, self._lock)
        except FileExistsError as error:
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(self._file), os.stat(self._lock)):
                    # We hold the marker, so whoever of us made this lock is dead.
                    self.is_inherited = True
                    return
            os.unlink(self._marker)
            raise LockHeld(self._lock) from error

    def release(self) -> None:
        """Give the lock up. The marker goes last: without it our own lock would look like somebody else's."""
        try:
            for path in () if self.is_kept else (self._lock, self._marker):
                with suppress(FileNotFoundError):
                    os.unlink(path)
        finally:
            os.close(self._file)
