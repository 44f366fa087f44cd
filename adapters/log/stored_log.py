"""The event log over any store that can lock its head: encode, sequence, decode."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Protocol, cast

from ...application.ports.log import Answered, Forged, Proposal, Stored, Tell, Undecodable
from ...application.ports.outside import Clock
from ...application.views.project_views import FORGETTING
from ...domain.event import Fact
from ..log_format.event_codec import EventCodec, StoredRow, stored_time
from ..log_format.keys import Ring
from .chain_check import ChainCheck, with_macs
from .numbering import check_names
from .proofs import StoredProofs
from .recent_facts import RecentFacts
from .recorder import Order, Recorder
from .sealing import UNSEALED, Sealing, Unsealed
from .writing import ANSWERS_KEPT, Outcome, Writing

#: Return what seals the log's batches, once its head is looked at; the log is not written before that returns.
Opens = Callable[[Recorder, Clock], Sealing]


def unsealed(recorder: Recorder, clock: Clock) -> Sealing:
    """Open a log to read it, or to test something else with one that nobody signs."""
    return UNSEALED


def to_read(ring: Ring) -> Opens:
    """Return what opens a log to read it: with what keys there are, what is read is checked."""
    return lambda recorder, clock: Unsealed(ring)


class Sequencing(Protocol):
    """What puts proposals one after the other."""

    def append(self, proposal: Proposal) -> Stored:
        """Return once the facts are durable. Raises what the proposal is refused for, and LogUnavailable."""
        ...

    def submit(self, proposal: Proposal, tell: Tell) -> None:
        """Do the same without keeping the caller waiting."""
        ...

    def close(self) -> None:
        """Finish what was accepted, and accept no more."""
        ...


#: Store a batch; see Writing.
Commit = Callable[[Sequence[Proposal]], list[Outcome]]


class StoredLog(StoredProofs):
    """An EventLog. The store, the codec and the sequencing are handed in."""

    def __init__(
        self,
        recorder: Recorder,
        codec: EventCodec,
        sequenced: Callable[[Commit], Sequencing],
        clock: Clock,
        sealing: Sealing = UNSEALED,
    ) -> None:
        super().__init__(recorder, sealing)
        self._recorder = recorder
        self._codec = codec
        self._clock = clock
        self._chain = ChainCheck(recorder, sealing.ring) if sealing.ring is not None else None
        self._recent = RecentFacts()
        self._writing = Writing(recorder, codec, clock, sealing, self.read, self._stored)
        self._writing.hand_on(self._recent.add)
        self._sequencing = sequenced(self._writing.commit)

    def append(self, proposal: Proposal) -> Sequence[Fact]:
        """Store what is decided as consecutive facts; see the port. Raises TypeError, ValueError for what cannot be."""
        check_names(proposal)
        return self._sequencing.append(proposal).facts

    def submit(self, proposal: Proposal, tell: Tell) -> None:
        """Do the same for somebody who must not be kept waiting; see the port. Raises ValueError."""
        check_names(proposal)
        self._sequencing.submit(proposal, tell)

    def hand_on(self, follower: Callable[[Sequence[Fact]], None]) -> None:
        """Hand the facts that this process stores to a method; see the port."""
        self._writing.hand_on(follower)

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
        return self._erased(self._recorder.erase(runs, output_only=output_only, before=bound))

    def erase_stream_texts(self, stream: str) -> int:
        """Forget the words, and their salts, of one stream for good; return how many texts were erased."""
        return self._erased(self._recorder.erase_stream(stream))

    def erase_tree_texts(self, root: str) -> int:
        """Forget the words, and their salts, of a coordinator's tree for good; return how many texts were erased."""
        return self._erased(self._recorder.erase_tree(root))

    def close(self) -> None:
        """Finish the appends that were accepted, accept no more, and release the store."""
        self._sequencing.close()
        self._recorder.close()

    def _erased(self, texts: int) -> int:
        """Keep no words in memory of what was erased."""
        self._recent.forget()
        return texts

    def _stored(self, rows: Sequence[StoredRow]) -> Stored:
        """Return what an earlier append had stored as these rows."""
        facts = self._facts(with_macs(self._recorder, rows) if self._chain else rows)
        receipts = self.receipts([fact.position for fact in facts])
        return Stored(facts, [receipts[fact.position] for fact in facts], is_repeat=True)

    def _read(self, order: Order, name: str, after: int, limit: int) -> Sequence[Fact]:
        """Return facts, none of which stands where it was not written."""
        if order == "position" and (found := self._recent.after(after, limit)):
            return found
        rows, last = self._recorder.rows(order, name, after, limit), max(after, 0)
        if self._chain is not None and order == "position" and rows and rows[0].position != last + 1:
            raise self._alarmed(Forged(last + 1, None, "it is gone"))
        facts = self._facts(rows)
        if any(fact.topic in FORGETTING for fact in facts):
            # Another process erases, or has erased, words that this one may keep in memory.
            self._recent.forget()
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
