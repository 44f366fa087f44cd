"""The event log: what is appended, what is read, and what can go wrong with either."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Protocol

import msgspec

from ...domain.event import Draft, Fact
from .proofs import LogProofs, Receipt

#: What makes a request one request: principal, method, path and idempotency key.
AnswerKey = tuple[str, str, str, str]


class Idempotency(msgspec.Struct, frozen=True, kw_only=True):
    """One request that must take effect at most once, and the answer that every repetition gets."""

    principal: str
    method: str
    path: str
    key: str
    #: SHA-256 of the request's body, in hex.
    body_digest: str
    #: The HTTP status and body of the first answer.
    status: int
    answer: bytes


class Answered(msgspec.Struct, frozen=True, kw_only=True):
    """The stored answer of an earlier request with the same idempotency key."""

    body_digest: str
    status: int
    answer: bytes
    #: The position of the last fact that the request appended.
    position: int


class Fence(msgspec.Struct, frozen=True, kw_only=True):
    """The entitlement to drive a run: the epoch of its lease that the driver was given."""

    root: str
    epoch: int


class Append(msgspec.Struct, frozen=True, kw_only=True):
    """Facts that are stored together or not at all."""

    drafts: tuple[Draft, ...]
    #: For each stream that the decision read or writes: the version that it saw (0: no fact yet).
    #: Output streams are written without one.
    expected: Mapping[str, int]
    at: datetime
    principal: str
    #: Unique for each command: a repeated append after a lost acknowledgement is recognised by it.
    command_id: str
    traceparent: str | None = None
    idempotency: Idempotency | None = None
    #: Of a driver that shares the log with others: store this only while nobody has taken the run over.
    fence: Fence | None = None

    @property
    def key(self) -> AnswerKey | None:
        """The identity of the request, if it has an idempotency key."""
        row = self.idempotency
        return None if row is None else (row.principal, row.method, row.path, row.key)

    @property
    def is_first_try(self) -> bool:
        """Not known: whoever has no answer appends again under the same command id."""
        return False

    @property
    def states(self) -> "DecisionStates | None":
        """Nothing: what is to be stored is decided already."""
        return None

    @property
    def root(self) -> str | None:
        """No run: the versions that the decision saw are named instead."""
        return None

    def decide(self) -> "Append":
        """Return what is to be stored."""
        return self


class Proposal(Protocol):
    """A command that waits for the writer: what has to be known before it is decided, and the decision."""

    @property
    def command_id(self) -> str:
        """Made before it waits, so that it is recognised after a commit of which nobody knows."""
        ...

    @property
    def is_first_try(self) -> bool:
        """Whether the command id was made for this one proposal, so that nobody looks for what it has stored before."""
        ...

    @property
    def key(self) -> AnswerKey | None:
        """The identity of the request, if it has an idempotency key."""
        ...

    @property
    def fence(self) -> Fence | None:
        """What entitles a driver to it."""
        ...

    @property
    def states(self) -> "DecisionStates | None":
        """What the decision reads."""
        ...

    @property
    def root(self) -> str | None:
        """The run that the decision is about."""
        ...

    def decide(self) -> Append | None:
        """
        Return what is to be stored, None for nothing. Nobody else writes meanwhile, so it blocks for nothing.

        Called again, on other states, where a commit failed. What it raises its caller is told.
        """
        ...


class DecisionStates(Protocol):
    """What a process keeps of the log to decide on. The writer's thread alone calls these, one batch after the other."""

    def load(self, root: str) -> None:
        """On return the run is kept, as far as it was stored when this was called. Raises Undecodable, LogUnavailable."""
        ...

    def meet(self, position: int, read: Callable[[int], Iterator[Sequence[Fact]]], limit: int | None = None) -> bool:
        """
        On True what is kept is as of the head, which is at *position*. *read* gives what was stored after one, in pages.

        False: more than *limit* facts would have to be read for it.
        """
        ...

    def add(self, facts: Sequence[Fact]) -> None:
        """Take note of what the batch is about to store."""
        ...

    def follow(self, now: datetime) -> Iterator[Append]:
        """Return what follows from the states that the batch has changed; each is noted, or not, before the next is asked for."""
        ...

    def leased(self, roots: Iterable[str]) -> Sequence[str]:
        """Return those of the batch's runs whose leases `follow` rests on: this process drives them."""
        ...

    def settle(self, position: int | None) -> None:
        """Keep what the batch has made of the states, up to this position; None: nobody knows, so keep nothing at all."""
        ...


class Stored(msgspec.Struct, frozen=True):
    """What an append came to: its facts, in the log, and their receipts. `is_repeat`: an earlier one had stored them."""

    facts: Sequence[Fact]
    receipts: Sequence[Receipt] = ()
    is_repeat: bool = False


#: Takes the outcome of a proposal.
Tell = Callable[[Stored | Exception], None]


class ConcurrencyConflict(Exception):
    """What the decision rests on has changed. Nothing was stored: look, and decide again."""


class Fenced(Exception):
    """Another process has taken the run over. Nothing was stored, and nothing more of this driver's will be."""


class AlreadyAnswered(Exception):
    """A request with this idempotency key was stored before. Nothing was stored now: replay `answered`."""

    def __init__(self, answered: Answered) -> None:
        super().__init__("a request with this idempotency key was stored before")
        self.answered = answered


class LogUnavailable(Exception):
    """The event log cannot be written or read now. What was acknowledged is kept; send the command again later."""


class LogRolledBack(LogUnavailable):
    """
    The store holds less than was signed: it was put back to an earlier state. Nothing is stored until somebody accepts
    that with `steersman audit accept-restore`.
    """


class LogTampered(LogUnavailable):
    """What the store holds is not what was signed. Nothing rests on it until somebody has looked: `steersman audit verify`."""


class Undecodable(Exception):
    """A stored fact of a known topic cannot be understood. Let go of its run; read on after `position`."""

    def __init__(self, position: int, run: str | None, reason: str) -> None:
        super().__init__(f"the fact at position {position} cannot be decoded: {reason}")
        self.position = position
        self.run = run
        self.reason = reason


class Forged(Undecodable):
    """
    What the store holds in the place of a fact, or of its words, is not what was written there.

    Nothing is decided, driven, prompted or shown by it. Somebody has changed the store: `steersman audit verify` says where.
    """

    def __init__(self, position: int, run: str | None, reason: str) -> None:
        super().__init__(position, run, reason)
        self.args = (f"what is stored at position {position} is not what was written there: {reason}",)


class Alarm(msgspec.Struct, frozen=True, kw_only=True):
    """Something in the store that is not what was written there, met by a reader of this process."""

    #: None: it belongs to no fact.
    position: int | None
    run: str | None
    reason: str


class EventLog(LogProofs, Protocol):
    """The one append-only log. What it has once returned, it returns for ever, byte for byte."""

    def append(self, proposal: Proposal) -> Sequence[Fact]:
        """
        Decide, and store the drafts as consecutive facts; on return they are durable and visible to every reader.

        A reader that has seen position N has seen, or can read, every fact below N.

        Raises:
            ConcurrencyConflict: an expected version is not the stream's.
            AlreadyAnswered: the idempotency row exists; compare its body_digest.
            Fenced: the run is leased to another process.
            LogUnavailable: the store cannot be reached; whether the facts are stored is known on the
                next append with the same command_id, which then answers the facts that are stored.
            Exception: whatever the decision raises.
        """
        ...

    def submit(self, proposal: Proposal, tell: "Tell") -> None:
        """
        Do the same for somebody who must not be kept waiting: *tell* is given what `append` returns or raises.

        It is called by the thread that writes, and must neither block nor raise.
        """
        ...

    def hand_on(self, follower: Callable[[Sequence[Fact]], None]) -> None:
        """
        Hand the facts that this process stores to a method of somebody, for as long as there is somebody.

        In commit order, right after each commit, from the thread that writes: it must neither block nor raise. What other
        processes store is not among them, so whoever finds a gap reads the log.
        """
        ...

    def read(self, after: int = 0, limit: int = 500) -> Sequence[Fact]:
        """
        Return facts of the whole log in position order, those greater than *after*.

        Here and in the reads below, facts end before the first one that cannot be decoded: only an empty
        answer says that there are no more.

        Raises:
            Undecodable: the very first fact after *after* cannot be decoded.
        """
        ...

    def read_stream(self, stream: str, after: int = 0, limit: int = 500) -> Sequence[Fact]:
        """Return a stream's facts in version order, those with a version greater than *after*."""
        ...

    def read_run(self, run: str, after: int = 0, limit: int = 500) -> Sequence[Fact]:
        """Return one run's facts, output included, with a run_sequence greater than *after*."""
        ...

    def read_tree(self, root: str, after: int = 0, limit: int = 500) -> Sequence[Fact]:
        """Return the non-output facts of a coordinator's tree with a root_sequence greater than *after*."""
        ...

    def head(self) -> int:
        """Return the position of the last durable fact, 0 if there is none."""
        ...

    def run_head(self, run: str) -> int:
        """Return the run_sequence of the run's last fact, 0 if there is no such run."""
        ...

    def answered(self, principal: str, method: str, path: str, key: str) -> Answered | None:
        """Return the stored answer for an idempotency key, if it is younger than 24 hours."""
        ...

    def erase_texts(self, runs: Sequence[str], *, output_only: bool = False, before: datetime | None = None) -> int:
        """Forget the words, and their salts, of these runs for good; return how many texts were erased."""
        ...

    def erase_stream_texts(self, stream: str) -> int:
        """Forget the words, and their salts, of one stream for good; return how many texts were erased."""
        ...

    def erase_tree_texts(self, root: str) -> int:
        """Forget the words, and their salts, of a coordinator's tree for good, whether its facts can be decoded or not."""
        ...
