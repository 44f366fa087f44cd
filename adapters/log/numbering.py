"""Give every fact of a batch its numbers. Pure: what is in the log is handed in, what is to be written comes out."""

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from ...application.ports.log import Answered, AnswerKey, Append, ConcurrencyConflict, Idempotency, Proposal
from ..log_format.event_codec import (
    ENVELOPE_VERSION,
    Encoded,
    Envelope,
    EventCodec,
    StoredRow,
    StoredText,
    refuse_unstorable,
    stored_time,
)
from ..log_format.head import Head
from ..log_format.merkle import Node, grow, leaf_hash


class BatchNeeds(msgspec.Struct):
    """What has to be known about a batch before it can be numbered, each name once."""

    streams: list[str] = []
    runs: list[str] = []
    roots: list[str] = []
    commands: list[str] = []
    answers: list[AnswerKey] = []
    #: The runs whose leases the batch rests on.
    leases: list[str] = []


class Known(msgspec.Struct):
    """What the log holds about a batch, read while nobody else can write."""

    position: int
    #: The last version of each stream, the last run_sequence of each run, the last root_sequence of each root.
    streams: dict[str, int]
    runs: dict[str, int]
    roots: dict[str, int]
    #: By command id: the facts that an earlier append of the same command stored.
    commands: dict[str, list[StoredRow]]
    #: The answers, younger than 24 hours, to requests of the batch.
    answers: dict[AnswerKey, Answered]
    head: Head = Head()
    #: By run: the epoch of its lease.
    leases: dict[str, int] = {}


class FactRow(msgspec.Struct, frozen=True):
    """One row of the events table."""

    position: int
    stream: str
    version: int
    topic: str
    state: bytes
    run: str | None
    run_sequence: int | None
    root: str | None
    root_sequence: int | None
    is_output: bool
    command_id: str
    at: str
    texts: tuple[StoredText, ...]


class AnswerRow(msgspec.Struct, frozen=True):
    """One row of the idempotency table."""

    idempotency: Idempotency
    position: int


class Numbered(msgspec.Struct):
    """What one transaction writes."""

    facts: list[FactRow]
    answers: list[AnswerRow]
    #: The head as it will be. Whoever seals the batch gives it its note, and the facts their MACs.
    head: Head
    #: The leaf hash of each fact, and the nodes of the tree that they complete.
    leaves: list[bytes]
    nodes: list[Node]
    macs: Sequence[bytes | None]


def check_names(proposal: Proposal) -> None:
    """Return if the store can be asked for what the proposal names. Raises ValueError: it would spoil its whole batch."""
    for name in (proposal.command_id, *(proposal.key or ())):
        refuse_unstorable(name)
    if isinstance(proposal, Append):
        for draft in proposal.drafts:
            for name in (draft.stream, draft.run, draft.root):
                refuse_unstorable(name)
        for stream in proposal.expected:
            refuse_unstorable(stream)


def encode_facts(append: Append, codec: EventCodec) -> list[Encoded]:
    """Return the append's facts as they are to be stored. Raises TypeError or ValueError if they cannot be."""
    for name in (append.principal, append.command_id, append.traceparent, *append.expected, *(append.key or ())):
        refuse_unstorable(name)
    facts = [codec.encode(draft) for draft in append.drafts]
    for fact in facts:
        if not fact.is_output and fact.stream not in append.expected:
            raise ValueError(
                f"{fact.topic} is to be written to {fact.stream}, whose version the decision does not name"
            )
    return facts


class Numbering:
    """A batch that grows: each append gets its numbers, and the later ones see what the earlier ones write."""

    def __init__(self, known: Known, look_up: Callable[[BatchNeeds], Known]) -> None:
        """*look_up* is asked for the numbers of names that are not in *known*, while nobody else can write."""
        self.known = known
        self._look_up = look_up
        self._rows: list[FactRow] = []
        self._answers: list[AnswerRow] = []

    def versions(self, expected: Mapping[str, int], *, is_known: bool) -> None:
        """
        Return if every stream is at the version that is expected. Raises ConcurrencyConflict.

        *is_known*: whoever expects it has seen, under the same lock, all that is stored of the streams.
        """
        streams = self.known.streams
        if is_known:
            for stream, version in expected.items():
                streams.setdefault(stream, version)
        else:
            self._complete(streams=expected)
        for stream, version in expected.items():
            if streams[stream] != version:
                raise ConcurrencyConflict(f"{stream} is at version {streams[stream]}, not {version}")

    def place(self, append: Append, facts: Sequence[Encoded]) -> list[FactRow]:
        """Return the rows of the facts behind what the batch holds so far; they are part of it once they are added."""
        self._complete(
            streams=[fact.stream for fact in facts],
            runs=[fact.run for fact in facts if fact.run is not None],
            roots=[fact.root for fact in facts if fact.root is not None],
        )
        taken = Taken({}, {}, {})
        at = stored_time(append.at)
        return [self._place(append, at, fact, self.known.position + n, taken) for n, fact in enumerate(facts, 1)]

    def add(self, append: Append, rows: Sequence[FactRow]) -> None:
        """Make the rows, and the answer of their request, part of the batch."""
        known = self.known
        for row in rows:
            known.streams[row.stream] = row.version
            if row.run is not None and row.run_sequence is not None:
                known.runs[row.run] = row.run_sequence
            if row.root is not None and row.root_sequence is not None:
                known.roots[row.root] = row.root_sequence
        known.position += len(rows)
        self._rows += rows
        if append.idempotency is not None and append.key is not None:
            self._answers.append(AnswerRow(append.idempotency, known.position))
            known.answers[append.key] = answered(append.idempotency, known.position)

    def finish(self) -> Numbered:
        """Return what the batch writes."""
        leaves = [leaf_hash(row.state) for row in self._rows]
        edge, nodes = grow(self.known.head.edge, leaves)
        head = msgspec.structs.replace(self.known.head, edge=edge)
        return Numbered(self._rows, self._answers, head, leaves, nodes, [None] * len(leaves))

    def _complete(self, *, streams: Iterable[str] = (), runs: Iterable[str] = (), roots: Iterable[str] = ()) -> None:
        """On return all these names are known."""
        known = self.known
        missing = BatchNeeds(
            streams=[name for name in dict.fromkeys(streams) if name not in known.streams],
            runs=[name for name in dict.fromkeys(runs) if name not in known.runs],
            roots=[name for name in dict.fromkeys(roots) if name not in known.roots],
        )
        if missing.streams or missing.runs or missing.roots:
            found = self._look_up(missing)
            known.streams.update(found.streams)
            known.runs.update(found.runs)
            known.roots.update(found.roots)

    def _place(self, append: Append, at: str, fact: Encoded, position: int, taken: "Taken") -> FactRow:
        known = self.known
        version = _next(taken.streams, known.streams, fact.stream)
        run_sequence = None if fact.run is None else _next(taken.runs, known.runs, fact.run)
        root_sequence = None if fact.root is None else _next(taken.roots, known.roots, fact.root)
        envelope = Envelope(
            at=at,
            command_id=append.command_id,
            payload=fact.payload,
            position=position,
            principal=append.principal,
            root=fact.root,
            root_sequence=root_sequence,
            run=fact.run,
            run_sequence=run_sequence,
            stream=fact.stream,
            topic=fact.topic,
            traceparent=msgspec.UNSET if append.traceparent is None else append.traceparent,
            v=ENVELOPE_VERSION,
            version=version,
        )
        return FactRow(
            position=position,
            stream=fact.stream,
            version=version,
            topic=fact.topic,
            state=msgspec.json.encode(envelope),
            run=fact.run,
            run_sequence=run_sequence,
            root=fact.root,
            root_sequence=root_sequence,
            is_output=fact.is_output,
            command_id=append.command_id,
            at=at,
            texts=fact.texts,
        )


class Taken(msgspec.Struct):
    """The numbers that the facts of one append take."""

    streams: dict[str, int]
    runs: dict[str, int]
    roots: dict[str, int]


def answered(idempotency: Idempotency, position: int) -> Answered:
    """Return what every repetition of the request is answered."""
    return Answered(
        body_digest=idempotency.body_digest,
        status=idempotency.status,
        answer=idempotency.answer,
        position=position,
    )


def _next(taken: dict[str, int], known: dict[str, int], name: str) -> int:
    taken[name] = taken.get(name, known[name]) + 1
    return taken[name]
