"""
Named points at which a process of this product kills itself, so that tests can show that nothing is lost there.

`STEERSMAN_CRASH_AT` names one, as `lost|stored TOPIC [STATE] [N]`: at the N-th append (from 1) of a fact with this
topic, and this `state` or `decision` if one is named. `lost` dies with the append not yet made, `stored` with it
durable and not yet acknowledged. Or as `at POINT [N]`: when one of `POINTS`, between two changes of files, is reached
for the N-th time. Without the variable nothing of this is there; one that names no point refuses the start.
"""

import os
import signal
from collections.abc import Mapping, Sequence
from threading import Lock
from typing import Any, cast

from ..application.log_port import Append, EventLog
from ..domain.event import Event, Fact

VARIABLE = "STEERSMAN_CRASH_AT"
#: Every hop between two changes of files.
POINTS = frozenset(
    {
        "workplace.cleared",
        "workplace.held",
        "workplace.begun",
        "workplace.filled",
        "workplace.staged",
        "workplace.stored",
        "workplace.taken",
        "workplace.converted",
        "workplace.set_aside",
        "workplace.removed",
        "merge.stored",
        "merge.held",
        "landing.locked",
        "landing.written",
        "landing.moved",
        "landing.swapped",
        "landing.indexed",
    }
)


class UnknownPoint(ValueError):
    """`STEERSMAN_CRASH_AT` names no point at which this process could die."""


def with_crash_point(log: EventLog, environment: Mapping[str, str] = os.environ) -> EventLog:
    """Return the log, or one that dies where the environment says."""
    wanted = environment.get(VARIABLE, "").split()
    if not wanted:
        return log
    if wanted[0] == "at" and wanted[1:2] and wanted[1] in POINTS:
        return log
    if wanted[0] in ("lost", "stored") and len(wanted) >= 2:
        return cast(EventLog, CrashingLog(log, wanted))
    raise UnknownPoint(f"{VARIABLE} names no point to crash at: {' '.join(wanted)!r}")


class _Reached:
    """How often the one point of this process was reached."""

    def __init__(self) -> None:
        self.count = 0
        self.lock = Lock()


_reached = _Reached()


def reached(point: str, environment: Mapping[str, str] = os.environ) -> None:
    """Die here if the environment says so."""
    assert point in POINTS, f"{point} is not registered"
    wanted = environment.get(VARIABLE, "").split()
    if wanted[:2] != ["at", point]:
        return
    with _reached.lock:
        _reached.count += 1
        dies = _reached.count == int(wanted[2] if len(wanted) > 2 else 1)
    if dies:
        die()


class CrashingLog:
    """An event log that kills its process at one append."""

    def __init__(self, log: EventLog, wanted: Sequence[str]) -> None:
        self._log = log
        self._lock = Lock()
        self._when, self._topic = wanted[:2]
        self._state = next((word for word in wanted[2:] if not word.isdigit()), None)
        self._left = next((int(word) for word in wanted[2:] if word.isdigit()), 1)

    def append(self, append: Append) -> Sequence[Fact]:
        """Append, and die before it or after it if this is the one."""
        dies = any(self._matches(draft.event) for draft in append.drafts) and self._is_the_one()
        if dies and self._when == "lost":
            die()
        facts = self._log.append(append)
        if dies:
            die()
        return facts

    def _is_the_one(self) -> bool:
        # Others append meanwhile: whoever looked at the count again after the append might find it passed.
        with self._lock:
            self._left -= 1
            return self._left == 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    def _matches(self, event: Event) -> bool:
        if event.TOPIC != self._topic:
            return False
        said = {getattr(event, name, None) for name in ("state", "decision", "status", "verb")}
        return self._state is None or self._state in said


def die() -> None:
    """End this process as a power failure would."""
    os.kill(os.getpid(), signal.SIGKILL)
