"""Wait until a view has come far enough: woken by this process's own progress, polling for that of others."""

from collections.abc import Callable
from threading import Condition
from time import monotonic

#: How long progress made by another process may stay unseen by a waiter.
POLL_SECONDS = 0.05


class PositionWaiters:
    """Those who wait, in this process."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._changes = 0
        self._waiting = 0

    def rest(self, seconds: float) -> None:
        """Return when the time is over, or as soon as somebody waits."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting > 0, seconds)

    def progressed(self) -> None:
        """Wake every waiter: some view has a new position."""
        with self._changed:
            self._changes += 1
            self._changed.notify_all()

    def wait(self, position_now: Callable[[], int], position: int, timeout_seconds: float) -> bool:
        """Return True as soon as *position_now* answers *position* or more, False when the time is over before."""
        if position_now() >= position:
            return True
        with self._changed:
            self._waiting += 1
            self._changed.notify_all()
        try:
            return self._wait(position_now, position, monotonic() + timeout_seconds)
        finally:
            with self._changed:
                self._waiting -= 1

    def _wait(self, position_now: Callable[[], int], position: int, deadline: float) -> bool:
        while True:
            seen = self._changes  # before the look, so that progress between look and sleep is not slept through
            if position_now() >= position:
                return True
            left = deadline - monotonic()
            if left <= 0:
                return False
            with self._changed:
                self._changed.wait_for(lambda seen=seen: self._changes != seen, min(POLL_SECONDS, left))
