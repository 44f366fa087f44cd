"""What one process writes: a batch is decided under the log's head, command by command, and stored in one transaction."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from weakref import WeakMethod, WeakSet

import structlog

from ...application.ports.log import AlreadyAnswered, Append, DecisionStates, Fenced, LogUnavailable, Proposal, Stored
from ...application.ports.outside import Clock
from ...domain.event import Event, Fact
from ..log_format.event_codec import EventCodec, StoredRow, stored_time
from ..log_format.head import Head
from .numbering import BatchNeeds, FactRow, Known, Numbering, encode_facts
from .proofs import receipt_of
from .recorder import Recorder
from .sealing import Sealing

#: How long the answer to a request is kept for its repetitions.
ANSWERS_KEPT = timedelta(hours=24)
#: How many facts of others are read while the head is held; what is further behind catches up before it takes the head.
MAX_NEWS = 1_000
#: How often a batch that was too far behind is begun again.
MAX_TRIES = 8
#: How many names' numbers are kept.
MAX_NUMBERS = 100_000

Outcome = Stored | Exception

log = structlog.get_logger(__name__)


class TooFarBehind(LogUnavailable):
    """Others have stored so much that it is to be read before the head is taken."""


class Numbers:
    """The last numbers that this process gave, for as long as the stored head is the one that it wrote."""

    def __init__(self) -> None:
        self.head: Head | None = None
        #: Whether others write as well, so that the next batch had better ask for its numbers.
        self.is_shared = False
        self.streams: dict[str, int] = {}
        self.runs: dict[str, int] = {}
        self.roots: dict[str, int] = {}

    def forget(self) -> None:
        """Keep nothing: it is asked for again."""
        self.head, self.streams, self.runs, self.roots = None, {}, {}, {}

    def meet(self, head: Head) -> None:
        """Keep nothing if the head is not the one that was written last."""
        # As a whole: a store that was put back may be as long as it was.
        self.is_shared = self.head is not None and self.head != head
        if self.head != head or len(self.streams) + len(self.runs) + len(self.roots) > MAX_NUMBERS:
            self.forget()

    def complete(self, known: Known) -> None:
        """Put what is kept beside what was asked for; the batch goes on counting in these."""
        for kept, asked in ((self.streams, known.streams), (self.runs, known.runs), (self.roots, known.roots)):
            kept.update(asked)
        known.streams, known.runs, known.roots = self.streams, self.runs, self.roots


class Writing:
    """Commits batches, one at a time: whoever calls `commit` sees to that."""

    def __init__(
        self,
        recorder: Recorder,
        codec: EventCodec,
        clock: Clock,
        sealing: Sealing,
        read: Callable[[int], Sequence[Fact]],
        stored: Callable[[Sequence[StoredRow]], Stored],
    ) -> None:
        """*read* gives the facts after a position, a page at a time; *stored* gives what rows found by command id are."""
        self._recorder = recorder
        self._codec = codec
        self._clock = clock
        self._sealing = sealing
        self._read = read
        self._stored = stored
        self._numbers = Numbers()
        self._states = WeakSet[DecisionStates]()
        #: The command ids of a batch of which nobody knows whether it is stored.
        self._doubtful = frozenset[str]()
        #: By command id: what the batch that is being decided is about to store.
        self._batch: dict[str, Stored] = {}
        self._followers: list[WeakMethod[Callable[[Sequence[Fact]], None]]] = []

    def hand_on(self, follower: Callable[[Sequence[Fact]], None]) -> None:
        """Hand what is stored from now on to a method, for as long as its owner lives."""
        self._followers = [each for each in self._followers if each() is not None]
        self._followers.append(WeakMethod(follower))

    def commit(self, batch: Sequence[Proposal]) -> list[Outcome]:
        """
        Decide the batch and store what comes of it, in one transaction; return each proposal's outcome.

        One that is refused, fails, conflicts, or was answered before takes nothing from the others. Raises LogUnavailable:
        nobody knows whether anything of it is stored; the command ids tell. Other exceptions: nothing is stored.
        """
        self._sealing.ready()
        self._states.update(each.states for each in batch if each.states is not None)
        states = list(self._states)
        for _ in range(MAX_TRIES):
            outcomes = dict(self._loaded(batch))
            try:
                facts = self._commit(batch, outcomes, states)
            except TooFarBehind:
                head = self._recorder.head()
                for each in states:
                    each.meet(head, self._news)
                continue
            except BaseException:
                # What the batch has made of the states may be stored, or not: the next one reads what is.
                self._numbers.forget()
                self._doubtful = frozenset(proposal.command_id for proposal in batch)
                for each in states:
                    each.settle(None)
                raise
            self._tell(facts)
            return [outcomes[n] for n in range(len(batch))]
        raise TooFarBehind("others store faster than this process reads")

    def _loaded(self, batch: Sequence[Proposal]) -> Iterator[tuple[int, Outcome]]:
        """Load the states that the batch is about, before the head is held; return the outcomes of those who have none."""
        for n, proposal in enumerate(batch):
            if proposal.states is not None and proposal.root is not None:
                try:
                    proposal.states.load(proposal.root)
                except Exception as error:  # noqa: BLE001 - whatever it is, it is this one's
                    yield n, error

    def _commit(
        self, batch: Sequence[Proposal], outcomes: dict[int, Outcome], states: Sequence[DecisionStates]
    ) -> list[Fact]:
        now = self._clock.now()
        since = stored_time(now - ANSWERS_KEPT)
        facts: list[Fact] = []
        self._batch = {}
        with self._recorder.transaction() as transaction:
            known = transaction.known(self._wanted(batch, states), since)
            self._numbers.meet(known.head)
            self._numbers.complete(known)
            for each in states:
                if not each.meet(known.position, self._news, MAX_NEWS):
                    raise TooFarBehind
            first = known.position
            numbering = Numbering(known, lambda wanted: transaction.known(wanted, since))
            for n, proposal in enumerate(batch):
                if n not in outcomes:
                    outcomes[n] = self._outcome(proposal, numbering, states, facts)
            for each in states:
                for append in each.follow(self._clock.now()):
                    self._outcome(append, numbering, states, facts, is_decided=True)
            numbered = numbering.finish()
            # If we die before the block ends, nothing of the batch is stored. If we die right after it, all of it
            # is, and its callers find their own facts by command id.
            if numbered.facts or numbered.answers:
                self._sealing.seal(numbered)
                transaction.write(numbered, stored_time(now), since)
        self._numbers.head = numbered.head
        for each in states:
            each.settle(known.position)
        # If we die here, the next start finds the checkpoint in the store and puts it into the file. It is published also
        # when nothing was written: what a command finds here as its own may be of a batch whose commit nobody saw succeed.
        self._sealing.publish(numbered.head)
        for n, outcome in outcomes.items():
            if isinstance(outcome, Stored) and not outcome.is_repeat:
                places = [fact.position - first - 1 for fact in outcome.facts]
                receipts = [receipt_of(first + 1 + i, numbered.leaves[i], numbered.macs[i]) for i in places]
                outcomes[n] = Stored(outcome.facts, receipts)
        return facts

    def _wanted(self, batch: Sequence[Proposal], states: Sequence[DecisionStates]) -> BatchNeeds:
        """Return what has to be known, as far as it is known before anything is decided."""
        numbers = self._numbers
        roots = {each.root for each in batch if each.root is not None}
        appends = [each for each in batch if isinstance(each, Append)]
        streams = {stream for each in appends for stream in each.expected}
        streams |= {draft.stream for each in appends for draft in each.drafts}
        runs = roots | {draft.run for each in appends for draft in each.drafts if draft.run is not None}
        roots |= {draft.root for each in appends for draft in each.drafts if draft.root is not None}
        leases = {each.fence.root for each in batch if each.fence is not None}
        for each in states:
            leases.update(each.leased(sorted(roots)))
        if not numbers.is_shared:
            streams, runs, roots = (
                streams - numbers.streams.keys(),
                runs - numbers.runs.keys(),
                roots - numbers.roots.keys(),
            )
        return BatchNeeds(
            streams=list(streams),
            runs=list(runs),
            roots=list(roots),
            commands=list(dict.fromkeys(each.command_id for each in batch if self._may_be_stored(each))),
            answers=list(dict.fromkeys(each.key for each in batch if each.key is not None)),
            leases=list(leases),
        )

    def _may_be_stored(self, proposal: Proposal) -> bool:
        return not proposal.is_first_try or proposal.command_id in self._doubtful

    def _outcome(
        self,
        proposal: Proposal,
        numbering: Numbering,
        states: Sequence[DecisionStates],
        facts: list[Fact],
        *,
        is_decided: bool = False,
    ) -> Outcome:
        """Decide one proposal and make it part of the batch. *is_decided*: it rests on states that are as of the head."""
        known = numbering.known
        try:
            # Before anything else: one whose acknowledgement was lost finds its own facts, and would otherwise
            # be refused because of them, or be told of its own answer.
            if stored := known.commands.get(proposal.command_id):
                return self._stored(stored)
            if again := self._batch.get(proposal.command_id):
                return again
            if proposal.key is not None and proposal.key in known.answers:
                return AlreadyAnswered(known.answers[proposal.key])
            fence = proposal.fence
            if fence is not None and known.leases.get(fence.root) != fence.epoch:
                return Fenced(f"the run {fence.root} was taken over: epoch {fence.epoch} is over")
            append = proposal.decide()
            if append is None:
                return Stored(())
            encoded = encode_facts(append, self._codec)
            numbering.versions(append.expected, is_known=is_decided or append is not proposal)
            rows = numbering.place(append, encoded)
            at = append.at.astimezone(UTC)
            new = [_fact(append, at, row, fact.event) for row, fact in zip(rows, encoded, strict=True)]
            for each in states:
                each.add(new)
            numbering.add(append, rows)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is this one's, and the others go on
            return error
        facts += new
        stored_now = self._batch[append.command_id] = Stored(new)
        return stored_now

    def _news(self, after: int) -> Iterator[Sequence[Fact]]:
        while page := self._read(after):  # ends: what is stored at the head, which is held or was read before
            yield page
            after = page[-1].position

    def _tell(self, facts: Sequence[Fact]) -> None:
        if not facts:
            return
        for reference in self._followers:
            follower = reference()
            if follower is not None:
                # They find what they missed by themselves; a writer that dies of it would cost every command after it.
                with suppress(Exception):
                    follower(facts)


def _fact(append: Append, at: datetime, row: FactRow, event: Event) -> Fact:
    """Return a fact as whoever reads it will have it."""
    return Fact(
        position=row.position,
        stream=row.stream,
        version=row.version,
        topic=row.topic,
        run=row.run,
        run_sequence=row.run_sequence,
        root=row.root,
        root_sequence=row.root_sequence,
        at=at,
        principal=append.principal,
        command_id=append.command_id,
        traceparent=append.traceparent,
        event=event,
    )
