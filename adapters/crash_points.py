"""
Named points at which a process of this product kills itself, so that tests can show that nothing is lost there.

`STEERSMAN_CRASH_AT` names one, as `lost|stored TOPIC [STATE] [N]`: at the N-th append (from 1) of a fact with this
topic, and this `state` or `decision` if one is named. `lost` dies with the append not yet made, `stored` with it
durable and not yet acknowledged. Without the variable nothing of this is there.
"""

import os
import signal
from collections.abc import Mapping, Sequence
from threading import Lock
from typing import Any, cast

from ..application.log_port import Append, EventLog
from ..domain.event import Event, Fact

VARIABLE = "STEERSMAN_CRASH_AT"


def with_crash_point(log: EventLog, environment: Mapping[str, str] = os.environ) -> EventLog:
    """Return the log, or one that dies where the environment says."""
    wanted = environment.get(VARIABLE, "").split()
    return cast(EventLog, CrashingLog(log, wanted)) if len(wanted) >= 2 else log


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
