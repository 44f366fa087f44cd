"""What a feed shows: a run's facts, or those of the whole log that somebody may see, stored or live."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from ..domain.child_run import ENDED
from ..projections import server_sent_events
from ..projections.timeline import TERMINAL_TOPICS
from .access import Access, RunPlace
from .events import read_on
from .given import Frame, Principal, Services

#: How many facts are read, and sent, at a time.
PAGE = 200


class Sent(NamedTuple):
    """A frame, the id that the client goes on from, and whether a run may have ended with it."""

    id: int
    data: bytes
    is_terminal: bool = False


class Source(Protocol):
    """One feed. Every method may take its time, and runs in a thread; only `shown` may say that it needs none."""

    @property
    def shows_at_once(self) -> bool:
        """Whether `shown` looks at nothing but the frames."""
        ...

    @property
    def run(self) -> str | None:
        """The run whose live frames are wanted; None for all."""
        ...

    def head(self) -> int:
        """Return the newest id."""
        ...

    def page(self, after: int) -> Sequence[Sent]:
        """Return what is stored after an id, nothing if that is all."""
        ...

    def shown(self, frames: Sequence[Frame]) -> Sequence[Sent]:
        """Return live frames as they are sent, with empty data where the client may not see them."""
        ...

    def is_over(self, after: int) -> bool:
        """Return whether nothing more can come after an id."""
        ...


class RunSource:
    """The feed of one run."""

    shows_at_once = True

    def __init__(self, services: Services, place: RunPlace) -> None:
        self._services = services
        self._place = place
        self.run: str | None = place.run_id

    def head(self) -> int:
        """Return the run's last run_sequence."""
        return self._services.log.run_head(self._place.run_id)

    def page(self, after: int) -> Sequence[Sent]:
        """Return stored frames; see Source."""
        facts = self._services.log.read_run(self._place.run_id, after, PAGE)
        return [
            Sent(fact.run_sequence or 0, server_sent_events.of_run(fact), fact.topic in TERMINAL_TOPICS)
            for fact in facts
        ]

    def shown(self, frames: Sequence[Frame]) -> Sequence[Sent]:
        """Return live frames; see Source."""
        return [Sent(f.fact.run_sequence or 0, f.of_run, f.fact.topic in TERMINAL_TOPICS) for f in frames]

    def is_over(self, after: int) -> bool:
        """Return whether the run has ended with the fact that has this run_sequence."""
        run = self._services.runs.run(self._place.root)
        if run.deleted:
            return True
        # In this order: if nothing is stored behind *after* now, the run that was folded before is the run at *after*.
        if self.head() > after:
            return False
        if self._place.is_coordinator:
            return run.ended
        child = run.children.get(self._place.run_id)
        return child is not None and child.status in ENDED


class LogSource:
    """The feed of everything that a principal may see. It has no end."""

    shows_at_once = False

    def __init__(self, services: Services, access: Access, principal: Principal) -> None:
        self._services = services
        self._access = access
        self._principal = principal
        self.run: str | None = None

    def head(self) -> int:
        """Return the last position."""
        return self._services.log.head()

    def page(self, after: int) -> Sequence[Sent]:
        """Return stored frames; see Source."""
        facts, _ = read_on(self._services.log, after, PAGE)
        sees = self._access.seeing(self._principal)
        return [Sent(fact.position, server_sent_events.of_log(fact) if sees(fact) else b"") for fact in facts]

    def shown(self, frames: Sequence[Frame]) -> Sequence[Sent]:
        """Return live frames; see Source."""
        sees = self._access.seeing(self._principal)
        return [Sent(f.fact.position, f.of_log if sees(f.fact) else b"") for f in frames]

    def is_over(self, after: int) -> bool:
        """Return that more can come."""
        return False
