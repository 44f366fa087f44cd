"""Keep on the log who tried to steer and may not."""

from datetime import datetime
from threading import Lock

from ...domain.facts.directive import SteeringDenied
from ..writer.caller import Caller
from ..writer.run_log import RunLog

MAX_KEPT = 10_000


class Denials:
    """
    The denials of this process: the first of a minute, for a principal and a target, is stored at once; the others of
    that minute are counted and stand in the next one's count.
    """

    def __init__(self, runs: RunLog) -> None:
        self._runs = runs
        self._lock = Lock()
        self._last: dict[tuple[str, str], tuple[datetime, int]] = {}

    def deny(self, root: str, by: Caller, *, scope: str, kind: str, target: str, reason: str) -> None:
        """On return the denial is on the run's log, or counted."""
        minute = self._runs.clock.now().replace(second=0, microsecond=0)
        with self._lock:
            last, uncounted = self._last.get((by.principal, target), (None, 0))
            repeated = last == minute
            if len(self._last) >= MAX_KEPT:
                self._last.clear()
            self._last[by.principal, target] = (minute, uncounted + 1 if repeated else 0)
        if repeated:
            return
        denied = SteeringDenied(
            denied_principal=by.principal, scope=scope, kind=kind, target=target, reason=reason, count=uncounted + 1
        )
        self._runs.decide(root, lambda run: (run.coordinator(denied),), by)
