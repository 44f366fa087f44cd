"""
Random bytes and ids, drawn from the system many at a time.

A draw lets go of the interpreter, and a thread that has to be quick, the event loop above all, gets it back only when
another one is through with its turn (5 ms). So few draws are made.
"""

import os
from threading import Lock
from uuid import UUID

#: How much is drawn at once: 256 ids.
DRAWN_BYTES = 4_096


class Randomness:
    """Bytes from the system's own source; none of them is given twice, nor to a process that was forked meanwhile."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._drawn, self._given = b"", 0
        os.register_at_fork(after_in_child=self._forget)

    def take(self, count: int) -> bytes:
        """Return so many bytes."""
        with self._lock:
            if self._given + count > len(self._drawn):
                self._drawn, self._given = os.urandom(max(count, DRAWN_BYTES)), 0
            self._given += count
            return self._drawn[self._given - count : self._given]

    def new_id(self) -> str:
        """Return an id that no other has: a UUID of version 4."""
        return str(UUID(bytes=self.take(16), version=4))

    def _forget(self) -> None:
        # The lock may be held by a thread that the child does not have.
        self._lock, self._drawn, self._given = Lock(), b"", 0


RANDOMNESS = Randomness()
