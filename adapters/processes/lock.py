"""
File locks that tell at once whether a process of this machine, and everything that it kept, is gone.

Each process holds a lock of the kernel on a file of its own, and the keepers of its agents hold the same one. The kernel
gives it up when the last of them has ended, however they ended, and not a moment earlier. Of a process on another
machine this says nothing: those are told apart by the id that their kernel was given when it booted.
"""

import fcntl
import os
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class ProcessLock:
    """The lock of this process. It is held from here on, until the process and every keeper of it have ended."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(mode=0o700, exist_ok=True)
        self._directory = directory
        self.machine = BOOT_ID.read_text(encoding="ascii").strip()
        self.name = str(uuid4())
        #: For the keepers to inherit.
        self.descriptor = os.open(directory / self.name, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def is_gone(self, name: str) -> bool:
        """Whether another process of this machine, and all that it kept, has ended for certain."""
        try:
            file = os.open(self._directory / name, os.O_RDWR)
        except FileNotFoundError:
            return False  # it may use another directory: nothing is known of it
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        finally:
            os.close(file)
        return True

    def forget(self, name: str) -> None:
        """Remove the file of a process that is gone, once nobody asks about it any more."""
        with suppress(FileNotFoundError):
            (self._directory / name).unlink()

    def close(self) -> None:
        """Give the lock up. What a keeper still holds, it holds."""
        self.forget(self.name)
        os.close(self.descriptor)
