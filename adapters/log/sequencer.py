"""
One writer for each process: what is waiting goes into one transaction, and everybody is answered.

Whoever comes when nobody writes writes at once, in its own thread, which saves two switches of threads. Callers that
come together, and those who must not be kept waiting, leave it to the sequencer's thread.
"""

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from threading import Condition, Lock, Thread
from time import monotonic
from typing import Protocol

import structlog

from ...application.ports.log import LogRolledBack, LogUnavailable, Proposal, Stored, Tell
from ...application.ports.outside import Announce
from .stored_log import Commit
from .writing import Outcome

#: How many appends may wait; more have to wait for a place among them.
MAX_WAITING = 1024
#: How many proposals one transaction takes: a batch holds the head for all replicas, so it has to stay short.
MAX_BATCH = 256
#: How long an append waits for a place before its caller is told to come again.
PLACE_TIMEOUT_SECONDS = 10.0

log = structlog.get_logger(__name__)


class Observer(Protocol):
    """Whoever measures the writer. It is called by one thread at a time, the one that writes: do not block."""

    def committed(self, facts: int, seconds: Sequence[float]) -> None:
        """Take note of a transaction: how many facts it stored, and how long each of its appends took until then."""
        ...


class Unobserved:
    """Nobody measures."""

    def committed(self, facts: int, seconds: Sequence[float]) -> None:
        """Take note of nothing."""


UNOBSERVED = Unobserved()


class Waiting:
    """A proposal on its way, and who is told of its outcome."""

    __slots__ = ("began", "is_settled", "proposal", "tell")

    def __init__(self, proposal: Proposal, tell: Tell) -> None:
        self.proposal = proposal
        self.tell = tell
        self.began = monotonic()
        self.is_settled = False

    def settle(self, outcome: Outcome) -> None:
        """Hand the outcome over, once."""
        if not self.is_settled:
            self.is_settled = True
            self.tell(outcome)


class Sequencer:
    """Group commit. *announce* is told each new head after its facts are durable."""

    def __init__(self, commit: Commit, announce: Announce, observer: Observer = UNOBSERVED) -> None:
        self._commit_batch = commit
        self._observer = observer
        self._announce = announce
        self._queue: deque[Waiting] = deque()
        self._closed = False
        self._is_writing = False
        #: Whether the last transaction had several appends: then its callers are about to come together again.
        self._is_crowded = False
        lock = Lock()
        self._filled = Condition(lock)
        self._freed = Condition(lock)
        self._thread = Thread(target=self._drain, name="sequencer", daemon=True)
        self._thread.start()

    def append(self, proposal: Proposal) -> Stored:
        """
        Return once the facts are durable, with the batch that they became part of.

        Raises:
            ConcurrencyConflict, AlreadyAnswered, Fenced, whatever the decision raises: nothing of this proposal was stored.
            LogUnavailable: it is not known whether the facts are stored; the same command id tells, later.
        """
        future = Future[Outcome]()
        waiting = Waiting(proposal, future.set_result)
        with self._freed:
            if not self._freed.wait_for(self._takes_more, PLACE_TIMEOUT_SECONDS):
                raise LogUnavailable("too many commands are waiting to be stored")
            if self._closed:
                raise LogUnavailable("the event log is closed")
            is_alone = not (self._is_writing or self._queue or self._is_crowded)
            if is_alone:
                self._is_writing = True
            else:
                self._put(waiting)
        if is_alone:
            self._write([waiting])
        outcome = future.result()
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def submit(self, proposal: Proposal, tell: Tell) -> None:
        """Return at once; *tell* is given what `append` returns or raises, by the thread that writes."""
        waiting = Waiting(proposal, tell)
        with self._filled:
            if not self._closed and len(self._queue) < MAX_WAITING:
                self._put(waiting)
                return
        waiting.settle(LogUnavailable("too many commands are waiting to be stored, or the event log is closed"))

    def _put(self, waiting: Waiting) -> None:
        self._queue.append(waiting)
        self._filled.notify()

    @property
    def waiting(self) -> int:
        """How many appends wait for the next transaction."""
        return len(self._queue)

    def close(self) -> None:
        """Answer everybody who waits, and end the writer."""
        with self._filled:
            self._closed = True
            self._filled.notify_all()
            self._freed.notify_all()
        self._thread.join()

    def _takes_more(self) -> bool:
        return self._closed or len(self._queue) < MAX_WAITING

    def _drain(self) -> None:
        while batch := self._take():
            self._write(batch)

    def _write(self, batch: Sequence[Waiting]) -> None:
        """Settle a batch while nobody else does; then whatever came meanwhile is next."""
        try:
            self._settle(batch)
        except Exception as error:
            # A writer that dies of it would let everybody wait for ever, those who come later too.
            log.exception("a batch could not be settled; whether it is stored is not known")
            for waiting in batch:
                waiting.settle(LogUnavailable(f"it is not known whether this is stored: {error}"))
        finally:
            with self._filled:
                self._is_writing = False
                self._filled.notify()

    def _take(self) -> list[Waiting]:
        """Return what waits, as much as one transaction takes; nothing only when closed and drained."""
        with self._filled:
            self._filled.wait_for(lambda: not self._is_writing and (self._queue or self._closed))
            batch = [self._queue.popleft() for _ in range(min(len(self._queue), MAX_BATCH))]
            self._is_writing, self._is_crowded = bool(batch), len(batch) > 1
            self._freed.notify(len(batch))
            return batch

    def _settle(self, batch: Sequence[Waiting]) -> None:
        try:
            outcomes = self._commit([waiting.proposal for waiting in batch])
        except LogUnavailable as error:
            for waiting in batch:  # each its own error: threads that raise one share its traceback
                waiting.settle(type(error)(str(error)))
        except Exception as error:  # noqa: BLE001 - whatever it is, it belongs to one append, and the others go on
            self._settle_apart(batch, error)
        else:
            self._observe(batch, outcomes)
            for waiting, outcome in zip(batch, outcomes, strict=True):
                waiting.settle(outcome)
            self._tell(outcomes)

    def _settle_apart(self, batch: Sequence[Waiting], error: Exception) -> None:
        """One append of the batch spoils the transaction: each gets its own, so that only that one fails."""
        if len(batch) == 1:
            batch[0].settle(error)
            return
        for waiting in batch:
            self._settle([waiting])

    def _commit(self, batch: Sequence[Proposal]) -> list[Outcome]:
        try:
            return self._commit_batch(batch)
        except LogRolledBack:
            raise
        except LogUnavailable:
            # Once more at once, for a connection that died while it was idle. If the first commit did succeed
            # and only its acknowledgement was lost, the command ids answer now.
            return self._commit_batch(batch)

    def _observe(self, batch: Sequence[Waiting], outcomes: Sequence[Outcome]) -> None:
        """Tell what was stored now: not what conflicted, nor what an earlier transaction had stored."""
        now = monotonic()
        stored = [
            (len(outcome.facts), now - waiting.began)
            for waiting, outcome in zip(batch, outcomes, strict=True)
            if isinstance(outcome, Stored) and not outcome.is_repeat
        ]
        if stored:
            # Before the callers are answered, so that whoever has an answer finds it counted. They have it in any case.
            try:
                self._observer.committed(sum(facts for facts, _ in stored), [seconds for _, seconds in stored])
            except Exception:
                log.exception("what was stored could not be counted", facts=sum(facts for facts, _ in stored))

    def _tell(self, outcomes: Sequence[Outcome]) -> None:
        positions = [o.facts[-1].position for o in outcomes if isinstance(o, Stored) and o.facts]
        if positions:
            # A hint that fails costs latency; a writer that dies of it would cost every command after it.
            with suppress(Exception):
                self._announce(max(positions))


def ignore(position: int) -> None:
    """Announce to nobody."""
