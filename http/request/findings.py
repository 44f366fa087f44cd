"""What any request found wrong with the log, so that /health says it, too: whoever looks there shall not be told "ok"."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from threading import Lock

import msgspec

from ...application.ports.log import Undecodable
from ...domain.rejected import Rejected

#: How many findings are remembered.
MAX_KEPT = 1_000


class LogDamaged(Rejected):
    """The log does not hold what it was signed to hold, so this cannot be shown; see /health, and `audit verify`."""

    code = "log_damaged"
    status = 503


class Damage(msgspec.Struct, frozen=True, kw_only=True):
    """Something that the log should hold and does not, or not as it was signed."""

    reason: str
    position: int | None = None


class Findings:
    """What this process has met so far."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._undecodable: dict[int, Undecodable] = {}
        self._damages: dict[Damage, None] = {}

    def met(self, undecodable: Undecodable) -> None:
        """Remember a fact that cannot be read."""
        with self._lock:
            if len(self._undecodable) < MAX_KEPT:
                self._undecodable.setdefault(undecodable.position, undecodable)

    def damaged(self, reason: str, position: int | None = None) -> None:
        """Remember what is not as it was signed."""
        with self._lock:
            if len(self._damages) < MAX_KEPT:
                self._damages[Damage(reason=reason, position=position)] = None

    @property
    def undecodable(self) -> Sequence[Undecodable]:
        """The facts that could not be read."""
        with self._lock:
            return list(self._undecodable.values())

    @property
    def damages(self) -> Sequence[Damage]:
        """What is not as it was signed."""
        with self._lock:
            return list(self._damages)

    @contextmanager
    def watching(self, position: int | None = None) -> Generator[None]:
        """Remember, and refuse with LogDamaged, what the log cannot prove of that which it holds."""
        try:
            yield
        except (LookupError, ValueError) as error:
            reason = f"A stored fact cannot be proved: {error or type(error).__name__}"
            self.damaged(reason, position)
            raise LogDamaged from error
