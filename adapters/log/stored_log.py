"""The event log over any store that can lock its head: encode, sequence, decode."""

from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime, timedelta
from typing import Literal, Protocol, cast

from eventsourcing.domain import EventSourcingError
from eventsourcing.persistence import (
    DatabaseError,
    DataError,
    IntegrityError,
    NotSupportedError,
    PersistenceError,
    ProgrammingError,
)

from ...application.log_port import (
    Answered,
    Append,
    Conflict,
    Forged,
    LogUnavailable,
    Undecodable,
)
from ...application.ports import Clock
from ...domain.event import Fact
from ..audit.entry import Entry
from .chain_check import ChainCheck, with_macs
from .event_codec import EventCodec, StoredRow, StoredText, stored_time
from .head import Head
from .numbering import AnswerKey, Known, Numbered, Outcome, Prepared, Stored, Wanted, number, prepare, wanted
from .proofs import StoredProofs
from .sealing import UNSEALED, Ring, Sealing, Unsealed

#: How long the answer to a request is kept for its repetitions.
ANSWERS_KEPT = timedelta(hours=24)

Order = Literal["position", "version", "run_sequence", "root_sequence"]


class Transaction(Protocol):
    """A write transaction that holds the log's head: nobody else writes until it ends."""

    def known(self, wanted: Wanted, answers_since: str) -> Known:
        """Return what the log holds of *wanted*; answers older than *answers_since* are absent."""
        ...

    def write(self, numbered: Numbered, now: str, answers_since: str) -> None:
        """Write facts, texts, answers and the new head; drop answers older than *answers_since*, now and then."""
        ...


class Recorder(Protocol):
    """A store of facts. Every method may be called from any thread and raises LogUnavailable when the store is away."""

    def transaction(self) -> AbstractContextManager[Transaction]:
        """
        Lock the head. Leaving the block commits: then all of it is durable and visible. An error in it rolls back.

        Raises:
            LogUnavailable: also when it is not known whether the commit succeeded.
            Conflict: a row was there already, so somebody wrote without the lock.
        """
        ...

    def rows(self, order: Order, name: str, after: int, limit: int) -> list[StoredRow]:
        """Return the facts of the log, stream, run or tree (without output) called *name*, ascending from *after*."""
        ...

    def words(self, positions: Sequence[int]) -> dict[int, dict[str, StoredText]]:
        """Return the words of these facts that are not erased, by position and digest."""
        ...

    def head(self) -> int:
        """Return the last durable position."""
        ...

    def bounds(self) -> tuple[int, int, int]:
        """Return the head's position, and the first and the last one that a fact has: 1 and 0 if there is none."""
        ...

    def run_head(self, run: str) -> int:
        """Return the run's last run_sequence, 0 if it has none."""
        ...

    def tree_head(self) -> Head:
        """Return the head: the edge of the tree, who signs it, and the newest checkpoint."""
        ...

    def hashes(self, level: int, first: int, count: int) -> list[bytes]:
        """Return stored hashes of the tree, ascending from the index *first*; level 0 are the leaves."""
        ...

    def receipts(self, positions: Sequence[int]) -> dict[int, tuple[bytes, bytes | None]]:
        """Return the leaf hash and the MAC of these facts."""
        ...

    def entries(self, root: str | None, after: int, limit: int) -> list[Entry]:
        """Return rows as they are, for an auditor: of the log by position, or of a tree by root_sequence."""
        ...

    def log_entries(self) -> list[Entry]:
        """Return the rows of the facts that the log holds about itself."""
        ...

    def answered(self, key: AnswerKey, answers_since: str) -> Answered | None:
        """Return the stored answer, unless it is older than *answers_since*."""
        ...

    def erase(self, runs: Sequence[str], *, output_only: bool, before: str | None) -> int:
        """Erase words and salts for good; return how many: no statement finds one that was erased before."""
        ...

    def erase_stream(self, stream: str) -> int:
        """Erase the words and salts of one stream for good; return how many."""
        ...

    def erase_tree(self, root: str) -> int:
        """Erase the words and salts of a coordinator's tree for good; return how many."""
        ...

    def close(self) -> None:
        """Release what the recorder holds; it is not used again."""
        ...


#: Return what seals the log's batches, once its head is looked at; the log is not written before that returns.
Opens = Callable[[Recorder, Clock], Sealing]


def unsealed(recorder: Recorder, clock: Clock) -> Sealing:
    """Open a log to read it, or to test something else with one that nobody signs."""
    return UNSEALED


def to_read(ring: Ring) -> Opens:
    """Return what opens a log to read it: with what keys there are, what is read is checked."""
    return lambda recorder, clock: Unsealed(ring)


class Sequencing(Protocol):
    """What puts appends one after the other."""

    def append(self, prepared: Prepared) -> Stored:
        """Return once the facts are durable. Raises Conflict, AlreadyAnswered, LogUnavailable."""
        ...

    def close(self) -> None:
        """Finish what was accepted, and accept no more."""
        ...


def commit_batch(
    recorder: Recorder, batch: Sequence[Prepared], now: datetime, sealing: Sealing = UNSEALED
) -> list[Outcome]:
    """
    Store what can be stored of the batch, in one transaction, and return each append's outcome.

    An append that conflicts, or was answered before, takes nothing from the others.
    """
    since = stored_time(now - ANSWERS_KEPT)
    sealing.ready()
    with recorder.transaction() as transaction:
        numbered = number(batch, transaction.known(wanted(batch), since))
        # If we die before the block ends, nothing of the batch is stored. If we die right after it, all of it
        # is, and its callers find their own facts by command id.
        if numbered.facts or numbered.answers:
            sealing.seal(numbered)
            transaction.write(numbered, stored_time(now), since)
    # If we die here, the next start finds the checkpoint in the store and puts it into the file. It is published also
    # when nothing was written: what an append finds here as its own may be of a batch whose commit nobody saw succeed.
    sealing.publish(numbered.head)
    return numbered.outcomes


@contextmanager
def translated() -> Generator[None]:
    """Let no driver's or library's error out: a store that is away is LogUnavailable, a row that was there Conflict."""
    try:
        yield
    except IntegrityError as error:
        raise Conflict(str(error)) from error
    except (ProgrammingError, DataError, NotSupportedError):
        raise  # our own mistake: waiting would not mend it
    except (DatabaseError, PersistenceError, EventSourcingError) as error:
        raise LogUnavailable(str(error) or type(error).__name__) from error


class StoredLog(StoredProofs):
    """An EventLog. The store, the codec and the sequencing are handed in."""

    def __init__(
        self, recorder: Recorder, codec: EventCodec, sequencing: Sequencing, clock: Clock, sealing: Sealing = UNSEALED
    ) -> None:
        super().__init__(recorder, sealing)
        self._recorder = recorder
        self._codec = codec
        self._sequencing = sequencing
        self._clock = clock
        self._chain = ChainCheck(recorder, sealing.ring) if sealing.ring is not None else None

    def append(self, append: Append) -> Sequence[Fact]:
        """Store the drafts as consecutive facts; see the port. Raises TypeError, ValueError for what cannot be stored."""
        prepared = prepare(append, self._codec)
        stored = self._sequencing.append(prepared)
        if stored.is_repeat:
            return self._facts(with_macs(self._recorder, stored.rows) if self._chain else stored.rows)
        return [
            self._codec.decode(row, {text.digest: text for text in fact.texts})
            for row, fact in zip(stored.rows, prepared.facts, strict=True)
        ]

    def read(self, after: int = 0, limit: int = 500) -> Sequence[Fact]:
        """Return facts of the whole log in position order, those greater than *after*."""
        return self._read("position", "", after, limit)

    def read_stream(self, stream: str, after: int = 0, limit: int = 500) -> Sequence[Fact]:
        """Return a stream's facts in version order, those with a version greater than *after*."""
        return self._read("version", stream, after, limit)

    def read_run(self, run: str, after: int = 0, limit: int = 500) -> Sequence[Fact]:
        """Return one run's facts, output included, with a run_sequence greater than *after*."""
        return self._read("run_sequence", run, after, limit)

    def read_tree(self, root: str, after: int = 0, limit: int = 500) -> Sequence[Fact]:
        """Return the non-output facts of a coordinator's tree with a root_sequence greater than *after*."""
        return self._read("root_sequence", root, after, limit)

    def head(self) -> int:
        """Return the position of the last durable fact, 0 if there is none."""
        return self._recorder.head()

    def run_head(self, run: str) -> int:
        """Return the run_sequence of the run's last fact, 0 if there is no such run."""
        return self._recorder.run_head(run)

    def answered(self, principal: str, method: str, path: str, key: str) -> Answered | None:
        """Return the stored answer for an idempotency key, if it is younger than 24 hours."""
        return self._recorder.answered((principal, method, path, key), stored_time(self._clock.now() - ANSWERS_KEPT))

    def erase_texts(self, runs: Sequence[str], *, output_only: bool = False, before: datetime | None = None) -> int:
        """Forget the words, and their salts, of these runs for good; return how many texts were erased."""
        bound = None if before is None else stored_time(before)
        return self._recorder.erase(runs, output_only=output_only, before=bound)

    def erase_stream_texts(self, stream: str) -> int:
        """Forget the words, and their salts, of one stream for good; return how many texts were erased."""
        return self._recorder.erase_stream(stream)

    def erase_tree_texts(self, root: str) -> int:
        """Forget the words, and their salts, of a coordinator's tree for good; return how many texts were erased."""
        return self._recorder.erase_tree(root)

    def close(self) -> None:
        """Finish the appends that were accepted, accept no more, and release the store."""
        self._sequencing.close()
        self._recorder.close()

    def _read(self, order: Order, name: str, after: int, limit: int) -> list[Fact]:
        """Return facts, none of which stands where it was not written."""
        rows, last = self._recorder.rows(order, name, after, limit), max(after, 0)
        if self._chain is not None and order == "position" and rows and rows[0].position != last + 1:
            raise self._alarmed(Forged(last + 1, None, "it is gone"))
        facts = self._facts(rows)
        if self._chain is None:
            return facts
        for at, fact in enumerate(facts):
            fault = _misplaced(fact, order, name, last)
            if fault is not None:
                if at:
                    return facts[:at]
                raise self._alarmed(Forged(fact.position if order != "position" else last + 1, fact.run, fault))
            last = getattr(fact, order)
        return facts

    def _facts(self, rows: Sequence[StoredRow]) -> list[Fact]:
        # Only an envelope that names a digest has words beside it: most pages need one query, not two.
        positions = [row.position for row in rows if _names_words(row)]
        words = self._recorder.words(positions) if positions else {}
        facts: list[Fact] = []
        for row in rows:
            try:
                fault = None if self._chain is None else self._chain.fault(row)
                if fault is not None:
                    raise self._alarmed(Forged(row.position, row.run, fault))
                facts.append(self._codec.decode(row, words.get(row.position, {})))
                self._sound(row.position)
            except Undecodable as error:
                if not facts:
                    raise self._alarmed(error) from error.__cause__
                break  # whoever reads on from the last good fact meets the bad one first, and is told
        return facts


def _names_words(row: StoredRow) -> bool:
    state = cast("object", row.state)  # SQLite keeps any type in any column
    return isinstance(state, bytes) and b'"digest"' in state


def _misplaced(fact: Fact, order: Order, name: str, last: int) -> str | None:
    """Return why a fact, which is what it was, does not belong where it was found behind *last*; None if it does."""
    found = {"position": "", "version": fact.stream, "run_sequence": fact.run, "root_sequence": fact.root}[order]
    if found != name:
        return f"it is of {found}, not of {name}"
    place = getattr(fact, order)
    # What an agent said is left out of a tree, so its numbers have holes.
    if place != last + 1 and not (order == "root_sequence" and place > last):
        return f"where the {order} {last + 1} should be it has {place}"
    return None
