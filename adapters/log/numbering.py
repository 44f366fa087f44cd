"""Give every fact of a batch its numbers. Pure: what is in the log is handed in, what is to be written comes out."""

from collections.abc import Sequence

import msgspec

from ...application.log_port import AlreadyAnswered, Answered, Append, Conflict, Fenced, Idempotency
from .event_codec import (
    ENVELOPE_VERSION,
    Encoded,
    Envelope,
    EventCodec,
    StoredRow,
    StoredText,
    refuse_unstorable,
    stored_time,
)
from .head import Head
from .merkle import Node, grow, leaf_hash

AnswerKey = tuple[str, str, str, str]


class Prepared(msgspec.Struct, frozen=True):
    """An append whose facts are encoded: everything that can be wrong with it alone was found before it queues."""

    append: Append
    facts: tuple[Encoded, ...]
    at: str

    @property
    def answer_key(self) -> AnswerKey | None:
        """The identity of the request, if it has an idempotency key."""
        return None if self.append.idempotency is None else answer_key(self.append.idempotency)


class Wanted(msgspec.Struct):
    """What has to be known about a batch before it can be numbered, each name once."""

    streams: list[str]
    runs: list[str]
    roots: list[str]
    commands: list[str]
    answers: list[AnswerKey]
    #: The runs whose leases the batch rests on.
    leases: list[str]


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


class Stored(msgspec.Struct, frozen=True):
    """The facts of an append, in the log. `is_repeat`: an earlier append of the same command stored them."""

    rows: list[StoredRow]
    is_repeat: bool = False


Outcome = Stored | Conflict | AlreadyAnswered | Fenced


class Numbered(msgspec.Struct):
    """What one transaction writes, and what each append of the batch is answered once that is durable."""

    position: int
    facts: list[FactRow]
    answers: list[AnswerRow]
    outcomes: list[Outcome]
    #: The head as it will be. Whoever seals the batch gives it its note, and the facts their MACs.
    head: Head
    #: The leaf hash of each fact, and the nodes of the tree that they complete.
    leaves: list[bytes] = []
    nodes: list[Node] = []
    macs: Sequence[bytes | None] = ()


def answer_key(idempotency: Idempotency) -> AnswerKey:
    """Return what makes a request one request."""
    return idempotency.principal, idempotency.method, idempotency.path, idempotency.key


def prepare(append: Append, codec: EventCodec) -> Prepared:
    """Return the append with its facts encoded. Raises TypeError or ValueError if it cannot be stored."""
    for name in (append.principal, append.command_id, append.traceparent, *append.expected):
        refuse_unstorable(name)
    if append.idempotency is not None:
        for name in answer_key(append.idempotency):
            refuse_unstorable(name)
    facts = tuple(codec.encode(draft) for draft in append.drafts)
    for fact in facts:
        if not fact.is_output and fact.stream not in append.expected:
            raise ValueError(
                f"{fact.topic} is to be written to {fact.stream}, whose version the decision does not name"
            )
    return Prepared(append, facts, stored_time(append.at))


def wanted(batch: Sequence[Prepared]) -> Wanted:
    """Return what `number` has to know about the batch."""
    facts = [fact for prepared in batch for fact in prepared.facts]
    streams = {stream for prepared in batch for stream in prepared.append.expected} | {fact.stream for fact in facts}
    return Wanted(
        streams=list(streams),
        runs=list({fact.run for fact in facts if fact.run is not None}),
        roots=list({fact.root for fact in facts if fact.root is not None}),
        commands=list({prepared.append.command_id for prepared in batch}),
        answers=list({key for prepared in batch if (key := prepared.answer_key) is not None}),
        leases=list({fence.root for prepared in batch if (fence := prepared.append.fence) is not None}),
    )


def number(batch: Sequence[Prepared], known: Known) -> Numbered:
    """Return each append's outcome, in turn: the later ones see what the earlier ones write."""
    numbered = Numbered(known.position, [], [], [], known.head)
    for prepared in batch:
        numbered.outcomes.append(_settle(prepared, known, numbered))
    numbered.leaves = [leaf_hash(fact.state) for fact in numbered.facts]
    numbered.macs = [None] * len(numbered.facts)
    edge, numbered.nodes = grow(known.head.edge, numbered.leaves)
    numbered.head = msgspec.structs.replace(known.head, edge=edge)
    return numbered


def _settle(prepared: Prepared, known: Known, numbered: Numbered) -> Outcome:
    append = prepared.append
    # Before anything else: an append whose acknowledgement was lost finds its own facts, and would otherwise
    # conflict with them, or be told of its own answer.
    stored = known.commands.get(append.command_id)
    if stored:
        return Stored(stored, is_repeat=True)
    key = prepared.answer_key
    if key is not None and key in known.answers:
        return AlreadyAnswered(known.answers[key])
    fence = append.fence
    if fence is not None and known.leases.get(fence.root) != fence.epoch:
        return Fenced(f"the run {fence.root} was taken over: epoch {fence.epoch} is over")
    for stream, version in append.expected.items():
        actual = known.streams.get(stream, 0)
        if actual != version:
            return Conflict(f"{stream} is at version {actual}, not {version}")
    rows = [_place(prepared, fact, known) for fact in prepared.facts]
    numbered.facts += rows
    numbered.position = known.position
    stored = [StoredRow(row.position, row.run, row.state) for row in rows]
    known.commands[append.command_id] = stored
    if append.idempotency is not None and key is not None:
        numbered.answers.append(AnswerRow(append.idempotency, known.position))
        known.answers[key] = answered(append.idempotency, known.position)
    return Stored(stored)


def answered(idempotency: Idempotency, position: int) -> Answered:
    """Return what every repetition of the request is answered."""
    return Answered(
        body_digest=idempotency.body_digest,
        status=idempotency.status,
        answer=idempotency.answer,
        position=position,
    )


def _place(prepared: Prepared, fact: Encoded, known: Known) -> FactRow:
    append = prepared.append
    known.position += 1
    version = _next(known.streams, fact.stream)
    run_sequence = None if fact.run is None else _next(known.runs, fact.run)
    root_sequence = None if fact.root is None else _next(known.roots, fact.root)
    envelope = Envelope(
        at=prepared.at,
        command_id=append.command_id,
        payload=fact.payload,
        position=known.position,
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
        position=known.position,
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
        at=prepared.at,
        texts=fact.texts,
    )


def _next(heads: dict[str, int], name: str) -> int:
    heads[name] = heads.get(name, 0) + 1
    return heads[name]
