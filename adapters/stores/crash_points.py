"""
Named points at which a process of this product kills itself, so that tests can show that nothing is lost there.

`STEERSMAN_CRASH_AT` names one, as `lost|committed|stored TOPIC [STATE] [N]`: with the batch that holds the N-th fact (from
1) of this topic, and this `state` or `decision` if one is named. `lost` dies in its transaction before anything is
written, `committed` once it is durable and before its checkpoint is in the file, `stored` with both done and nobody told.
Or as `at POINT [N]`: when one of `POINTS`, between two changes of files, is reached for the N-th time. Without the variable
nothing of this is there; one that names no point refuses the start.
"""

import os
import signal
from collections.abc import Mapping, Sequence
from threading import Lock
from typing import Any, cast

import msgspec

from ...application.ports.outside import Clock
from ..log.numbering import FactRow, Numbered
from ..log.recorder import Recorder
from ..log.sealing import Sealing
from ..log.stored_log import Opens
from ..log_format.event_codec import Envelope
from ..log_format.head import Head

VARIABLE = "STEERSMAN_CRASH_AT"
#: Every hop between two changes of files.
POINTS = frozenset(
    {
        "workplace.cleared",
        "workplace.held",
        "workplace.begun",
        "workplace.filled",
        "workplace.staged",
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


def with_crash_point(opens: Opens, environment: Mapping[str, str] = os.environ) -> Opens:
    """Return what opens the log, or one that dies where the environment says."""
    wanted = environment.get(VARIABLE, "").split()
    if not wanted:
        return opens
    if wanted[0] == "at" and wanted[1:2] and wanted[1] in POINTS:
        return opens
    if wanted[0] not in ("lost", "committed", "stored") or len(wanted) < 2:
        raise UnknownPoint(f"{VARIABLE} names no point to crash at: {' '.join(wanted)!r}")

    def opened(recorder: Recorder, clock: Clock) -> Sealing:
        return cast(Sealing, CrashingSealing(opens(recorder, clock), wanted))

    return opened


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


class CrashingSealing:
    """What seals the log's batches, and kills its process with one of them."""

    def __init__(self, sealing: Sealing, wanted: Sequence[str]) -> None:
        self._sealing = sealing
        self._when, self._topic = wanted[:2]
        self._state = next((word for word in wanted[2:] if not word.isdigit()), None)
        self._left = next((int(word) for word in wanted[2:] if word.isdigit()), 1)
        self._dies = False

    def seal(self, numbered: Numbered) -> None:
        """Seal, and die if this is the batch to be lost."""
        self._sealing.seal(numbered)
        for row in numbered.facts:
            if row.topic == self._topic and self._matches(row):
                self._left -= 1
                self._dies = self._dies or self._left == 0
        if self._dies and self._when == "lost":
            die()

    def publish(self, head: Head) -> None:
        """Publish, and die before or after it if this is the batch."""
        if self._dies and self._when == "committed":
            die()
        self._sealing.publish(head)
        if self._dies:
            die()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sealing, name)

    def _matches(self, row: FactRow) -> bool:
        said = msgspec.json.decode(msgspec.json.decode(row.state, type=Envelope).payload)
        return self._state is None or self._state in [said.get(n) for n in ("state", "decision", "status", "verb")]


def die() -> None:
    """End this process as a power failure would."""
    os.kill(os.getpid(), signal.SIGKILL)
