"""The driver's newest rounds over all open runs: what each came to, for whoever wonders whether anybody drives."""

from collections import deque
from collections.abc import Sequence
from threading import Lock
from typing import Literal

import msgspec

#: How many rounds are remembered; older ones are forgotten.
MAX_ROUNDS = 100

#: What driving a run came to: nothing was to be done, something was decided or begun, or it could not be driven.
Outcome = Literal["rested", "acted", "failed"]


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """One look at every open run."""

    #: How many runs something was decided for, or begun in.
    acted: int
    #: How many could not be driven, or 1 if they could not even be listed.
    failed: int
    milliseconds: int
    #: When it ended, RFC 3339.
    at: str


class Rounds:
    """The newest rounds of this process. Written by the driver, read from any thread."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._rounds: deque[Round] = deque(maxlen=MAX_ROUNDS)

    def add(self, outcomes: Sequence[Outcome], seconds: float, at: str) -> None:
        """Remember a round."""
        done = Round(
            acted=outcomes.count("acted"), failed=outcomes.count("failed"), milliseconds=round(seconds * 1000), at=at
        )
        with self._lock:
            self._rounds.append(done)

    def newest(self) -> Sequence[Round]:
        """Return the rounds, the newest first."""
        with self._lock:
            return tuple(reversed(self._rounds))
