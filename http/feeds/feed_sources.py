"""What a feed shows: a run's facts, or those of the whole log that somebody may see, stored or live."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from ...domain.facts.child_run import ENDED
from ...domain.runs.retry import RETRYABLE
from ...projections.feeds import server_sent_events
from ...projections.feeds.timeline import may_end
from ..request.access import Access, RunPlace
from ..request.given import FeedFrame, Principal, Services
from .events import read_on

#: How many facts are read, and sent, at a time; fewer when they are large.
PAGE = 200
#: What is sent at a time: whoever does not read costs us so much, and a single larger fact.
PAGE_BYTES = 32 * 1024
#: How many facts are read first, while nobody knows how large they are.
FIRST_PAGE = 8


class Sent(NamedTuple):
    """A frame, the id that the client goes on from, and whether a run may have ended with it."""

    id: int
    data: bytes
    is_terminal: bool = False


class Page(NamedTuple):
    """Stored frames, and whether there were no more at that moment."""

    sent: Sequence[Sent]
    is_last: bool


class Pages:
    """How much is read at a time: about what is sent at a time, however large the facts are."""

    def __init__(self) -> None:
        self.limit = FIRST_PAGE

    def cut(self, frames: Sequence[Sent]) -> Page:
        """Return as much of what was read as is sent at a time, and read as much the next time."""
        kept, size = 0, 0
        for frame in frames:
            size += len(frame.data)
            if kept and size > PAGE_BYTES:
                break
            kept += 1
        is_last = len(frames) < self.limit and kept == len(frames)
        self.limit = min(PAGE, 2 * self.limit if kept == len(frames) else kept)
        return Page(frames[:kept], is_last)


def slices(sent: Sequence[Sent]) -> Iterator[Sequence[Sent]]:
    """Yield frames in parts of what is sent at a time."""
    begin, size = 0, 0
    for number, one in enumerate(sent):
        size += len(one.data)
        if size > PAGE_BYTES and number > begin:
            yield sent[begin:number]
            begin, size = number, len(one.data)
    if begin < len(sent):
        yield sent[begin:]


class FeedSource(Protocol):
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

    def page(self, after: int) -> Page:
        """Return the next of what is stored after an id."""
        ...

    def shown(self, frames: Sequence[FeedFrame]) -> Sequence[Sent]:
        """Return live frames as they are sent, with empty data where the client may not see them."""
        ...

    def is_over(self, after: int) -> bool:
        """Return whether nothing more can come after an id, unless somebody takes the run up again."""
        ...

    def is_closed(self, after: int) -> bool:
        """Return whether nothing can ever come after an id, whoever asks for what."""
        ...


class RunSource:
    """The feed of one run."""

    shows_at_once = True

    def __init__(self, services: Services, place: RunPlace) -> None:
        self._services = services
        self._place = place
        self._pages = Pages()
        self.run: str | None = place.run_id

    def head(self) -> int:
        """Return the run's last run_sequence."""
        return self._services.log.run_head(self._place.run_id)

    def page(self, after: int) -> Page:
        """Return stored frames; see FeedSource."""
        facts = self._services.log.read_run(self._place.run_id, after, self._pages.limit)
        return self._pages.cut(
            [Sent(fact.run_sequence or 0, server_sent_events.of_run(fact), may_end(fact)) for fact in facts]
        )

    def shown(self, frames: Sequence[FeedFrame]) -> Sequence[Sent]:
        """Return live frames; see FeedSource."""
        return [Sent(f.fact.run_sequence or 0, f.of_run, may_end(f.fact)) for f in frames]

    def is_over(self, after: int) -> bool:
        """Return whether the run has ended with the fact that has this run_sequence."""
        run = self._services.runs.run(self._place.root)
        if run.deleted:
            return True
        # In this order: if nothing is stored behind *after* now, the run that was folded before is the run at *after*.
        if self.head() > after:
            return False
        if self._place.is_coordinator:
            return run.ended and not run.open_directives()
        child = run.children.get(self._place.run_id)
        return child is not None and child.status in ENDED

    def is_closed(self, after: int) -> bool:
        """Return whether the run that this one belongs to has ended, is cleared away, and cannot be tried again."""
        run = self._services.runs.run(self._place.root)
        return (run.deleted or (run.closed and run.status not in RETRYABLE)) and self.is_over(after)


class LogSource:
    """The feed of everything that a principal may see. It has no end."""

    shows_at_once = False

    def __init__(self, services: Services, access: Access, principal: Principal) -> None:
        self._services = services
        self._access = access
        self._principal = principal
        self._pages = Pages()
        self.run: str | None = None

    def head(self) -> int:
        """Return the last position."""
        return self._services.log.head()

    def page(self, after: int) -> Page:
        """Return stored frames; see FeedSource."""
        facts, _ = read_on(self._services.log, after, self._pages.limit)
        sees = self._access.seeing(self._principal)
        return self._pages.cut(
            [Sent(fact.position, server_sent_events.of_log(fact) if sees(fact) else b"") for fact in facts]
        )

    def shown(self, frames: Sequence[FeedFrame]) -> Sequence[Sent]:
        """Return live frames; see FeedSource."""
        sees = self._access.seeing(self._principal)
        return [Sent(f.fact.position, f.of_log if sees(f.fact) else b"") for f in frames]

    def is_over(self, after: int) -> bool:
        """Return that more can come."""
        return False

    def is_closed(self, after: int) -> bool:
        """Return that more can come."""
        return False
