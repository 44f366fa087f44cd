"""What keeps orchestrations, corrections and faults together: all are spread over one another, evenly."""

import threading

#: How many orchestrations are started before the first corrections, and how far faults may lag behind.
AHEAD = 3
SLACK = 2


class Pace:
    """Corrections lead; orchestrations are started, and faults injected, as they go on."""

    def __init__(self, orchestrations: int, steers: int, faults: int) -> None:
        self._orchestrations = max(1, orchestrations)
        self._steers = max(1, steers)
        self._faults = faults
        self._changed = threading.Condition()
        self._steered = 0
        self._injected = 0
        self._stopped = False

    def may_start(self, number: int) -> None:
        """Wait until the orchestration with this number (from 0) is due."""
        due = (number - AHEAD + 1) * self._steers / self._orchestrations
        with self._changed:
            self._changed.wait_for(lambda: self._steered >= due or self._stopped)

    def may_steer(self, number: int) -> None:
        """Wait until the faults have come far enough for the correction with this number."""
        due = number * self._faults / self._steers - SLACK
        with self._changed:
            self._changed.wait_for(lambda: self._injected >= due or self._stopped)

    def may_inject(self, number: int) -> None:
        """Wait until the fault with this number is due."""
        due = (number + 0.5) * self._steers / max(1, self._faults)
        with self._changed:
            self._changed.wait_for(lambda: self._steered >= min(due, self._steers) or self._stopped)

    def steered(self) -> None:
        """A correction is done, whatever became of it."""
        with self._changed:
            self._steered += 1
            self._changed.notify_all()

    def injected(self) -> None:
        """A fault has begun."""
        with self._changed:
            self._injected += 1
            self._changed.notify_all()

    def stop(self) -> None:
        """Nobody waits any more."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
