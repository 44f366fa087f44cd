"""The in-memory twins: a log that forgets everything when the process ends, a clock, wake-ups within one process."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import attrgetter
from threading import Condition, Lock

from ...application.ports.log import Answered, AnswerKey, Proposal, Stored, Tell
from ...application.ports.outside import Announce, Clock
from ...domain.event import Event
from ...domain.kinds.log import LOG_STREAM
from ..clock import SYSTEM_CLOCK
from ..log.numbering import AnswerRow, BatchNeeds, FactRow, Known, Numbered, answered
from ..log.recorder import Order, Transaction
from ..log.sealing import UNSEALED, OneKey, Sealed, Sealing, signer_of
from ..log.stored_log import Commit, StoredLog
from ..log_format.entry import ENTRY_COLUMNS, Entry, entry_of
from ..log_format.event_codec import EventCodec, StoredRow, StoredText
from ..log_format.head import Head
from ..log_format.keys import LogKeys, new_keys


class MemoryWakeups:
    """Wake-ups between the threads of one process."""

    def __init__(self) -> None:
        self._position = 0
        self._changed = Condition()

    def announce(self, position: int) -> None:
        """Tell every waiter that the log has reached *position*."""
        with self._changed:
            self._position = max(self._position, position)
            self._changed.notify_all()

    def wait(self, after: int, timeout_seconds: float) -> int:
        """Return the newest announced position, as soon as it is greater than *after* or the time is over."""
        with self._changed:
            self._changed.wait_for(lambda: self._position > after, timeout_seconds)
            return self._position


class MemoryTransaction:
    """What one writer is about to write: a block that fails wrote nothing."""

    def __init__(self, recorder: "MemoryRecorder") -> None:
        self._recorder = recorder
        self.written: tuple[Numbered, str] | None = None

    def known(self, wanted: BatchNeeds, answers_since: str) -> Known:
        """Return what the log holds of *wanted*."""
        return self._recorder.known(wanted, answers_since)

    def write(self, numbered: Numbered, now: str, answers_since: str) -> None:
        """Write facts, texts, answers and the new head."""
        self.written = numbered, now


class MemoryRecorder:
    """The tables as lists and maps. With keys, every log on them signs with these."""

    def __init__(self, keys: LogKeys | None = None) -> None:
        self.sealing: Sealing = UNSEALED
        self._head = Head()
        if keys is not None:
            self._head = Head(signer=signer_of("steersman.memory", keys))
            self.sealing = Sealed(OneKey(keys), signer_of("steersman.memory", keys))
        self._hashes: dict[int, list[bytes]] = {0: []}
        self._macs: list[bytes | None] = []
        self._lock = Lock()
        self._facts: list[FactRow] = []
        #: The same, by what they are read by.
        self._lists: dict[tuple[Order, str], list[FactRow]] = {}
        self._words: dict[int, dict[str, StoredText]] = {}
        self._answers: dict[AnswerKey, tuple[AnswerRow, str]] = {}
        self._streams = Counter[str]()
        self._runs = Counter[str]()
        self._roots = Counter[str]()
        self._commands: dict[str, list[StoredRow]] = {}

    @contextmanager
    def transaction(self) -> Generator[Transaction]:
        """Hold the head; see Recorder."""
        with self._lock:
            transaction = MemoryTransaction(self)
            yield transaction
            if transaction.written is not None:
                self._apply(*transaction.written)

    def known(self, wanted: BatchNeeds, answers_since: str) -> Known:
        """Return what the log holds of *wanted*."""
        return Known(
            position=len(self._facts),
            streams={name: self._streams[name] for name in wanted.streams},
            runs={name: self._runs[name] for name in wanted.runs},
            roots={name: self._roots[name] for name in wanted.roots},
            commands={command: list(self._commands.get(command, ())) for command in wanted.commands},
            answers={key: found for key in wanted.answers if (found := self.answered(key, answers_since)) is not None},
            head=self._head,
        )

    def _apply(self, numbered: Numbered, now: str) -> None:
        for fact in numbered.facts:
            self._words[fact.position] = {text.digest: text for text in fact.texts}
            self._streams[fact.stream] += 1
            self._runs.update(() if fact.run is None else (fact.run,))
            self._roots.update(() if fact.root is None else (fact.root,))
            self._commands.setdefault(fact.command_id, []).append(_stored(fact))
        for row in numbered.answers:
            i = row.idempotency
            self._answers[i.principal, i.method, i.path, i.key] = row, now
        self._hashes[0] += numbered.leaves
        for node in numbered.nodes:
            self._hashes.setdefault(node.level, []).append(node.hash)
        self._macs += numbered.macs
        self._head = numbered.head
        grown: dict[tuple[Order, str], list[FactRow]] = {}
        for fact in numbered.facts:
            for place in _places(fact):
                grown.setdefault(place, []).append(fact)
        # Readers take no lock: a fact is in a list only when its words are in place, and with all of its append.
        self._facts += numbered.facts
        for place, facts in grown.items():
            self._lists.setdefault(place, []).extend(facts)

    def rows(self, order: Order, name: str, after: int, limit: int) -> list[StoredRow]:
        """Return the facts that *order* and *name* select, ascending from *after*."""
        if order == "position":
            return [_stored(fact) for fact in self._facts[after : after + max(limit, 0)]]
        found = self._lists.get((order, name), [])
        first = bisect_right(found, after, key=attrgetter(order))
        return [_stored(fact) for fact in found[first : first + max(limit, 0)]]

    def words(self, positions: Sequence[int]) -> dict[int, dict[str, StoredText]]:
        """Return the words of these facts that are not erased."""
        return {position: self._words.get(position, {}) for position in positions}

    def head(self) -> int:
        """Return the last position."""
        return len(self._facts)

    def run_head(self, run: str) -> int:
        """Return the run's last run_sequence."""
        return self._runs[run]

    def bounds(self) -> tuple[int, int, int]:
        """Return the head's position, and the first and the last one that a fact has."""
        return len(self._facts), 1, len(self._facts)

    def tree_head(self) -> Head:
        """Return the head."""
        return self._head

    def hashes(self, level: int, first: int, count: int) -> list[bytes]:
        """Return stored hashes of the tree."""
        return self._hashes.get(level, [])[first : first + count]

    def receipts(self, positions: Sequence[int]) -> dict[int, tuple[bytes, bytes | None]]:
        """Return the leaf hash and the MAC of these facts."""
        known = [position for position in positions if 0 < position <= len(self._facts)]
        return {position: (self._hashes[0][position - 1], self._macs[position - 1]) for position in known}

    def entries(self, root: str | None, after: int, limit: int) -> list[Entry]:
        """Return rows as they are, for an auditor: of the log by position, or of a tree by root_sequence."""
        facts = self._facts[after:] if root is None else [f for f in self._facts if f.root == root][after:]
        return [self._entry(fact) for fact in facts[:limit]]

    def log_entries(self) -> list[Entry]:
        """Return the rows of the facts that the log holds about itself."""
        return [self._entry(fact) for fact in self._facts if fact.stream == LOG_STREAM]

    def _entry(self, fact: FactRow) -> Entry:
        kept = self._words.get(fact.position, {})
        columns = [getattr(fact, name, None) for name in ENTRY_COLUMNS.split(", ")[:-2]]
        hashes = self._hashes[0][fact.position - 1], self._macs[fact.position - 1]
        return entry_of([*columns, *hashes], [text for text in fact.texts if text.digest in kept])

    def answered(self, key: AnswerKey, answers_since: str) -> Answered | None:
        """Return the stored answer, unless it is older than *answers_since*."""
        row, created = self._answers.get(key, (None, ""))
        return None if row is None or created <= answers_since else answered(row.idempotency, row.position)

    def erase(self, runs: Sequence[str], *, output_only: bool, before: str | None) -> int:
        """Forget words for good; return how many."""
        with self._lock:
            return self._erase(
                fact.position
                for fact in self._facts
                if fact.run in runs and (fact.is_output or not output_only) and (before is None or fact.at < before)
            )

    def erase_stream(self, stream: str) -> int:
        """Forget the words of one stream for good; return how many."""
        with self._lock:
            return self._erase(fact.position for fact in self._facts if fact.stream == stream)

    def erase_tree(self, root: str) -> int:
        """Forget the words of a coordinator's tree for good; return how many."""
        with self._lock:
            return self._erase(fact.position for fact in self._facts if fact.root == root)

    def _erase(self, positions: Iterable[int]) -> int:
        return sum(len(self._words.pop(position, {})) for position in positions)

    def close(self) -> None:
        """Keep everything: whoever still holds the recorder may read it."""


class InTurn:
    """Proposals one after the other, each in its caller's thread."""

    def __init__(self, commit: Commit, announce: Announce | None) -> None:
        self._commit = commit
        self._announce = announce
        self._lock = Lock()

    def append(self, proposal: Proposal) -> Stored:
        """Return once the facts are stored. Raises what the proposal is refused for."""
        with self._lock:
            (outcome,) = self._commit([proposal])
        if not isinstance(outcome, Stored):
            raise outcome
        if self._announce is not None and outcome.facts:
            self._announce(outcome.facts[-1].position)
        return outcome

    def submit(self, proposal: Proposal, tell: Tell) -> None:
        """Do it now: nothing here takes long."""
        try:
            stored = self.append(proposal)
        except Exception as error:  # noqa: BLE001 - whoever waits for the outcome is told
            tell(error)
        else:
            tell(stored)

    def close(self) -> None:
        """Nothing waits here."""


class MemoryLog(StoredLog):
    """The EventLog in memory: the same codec, numbering and refusals, so the same bytes. *recorder* reopens one."""

    def __init__(
        self,
        catalogue: Mapping[str, type[Event]],
        *,
        clock: Clock = SYSTEM_CLOCK,
        announce: Announce | None = None,
        recorder: MemoryRecorder | None = None,
    ) -> None:
        recorder = recorder or MemoryRecorder(new_keys())
        super().__init__(
            recorder, EventCodec(catalogue), lambda commit: InTurn(commit, announce), clock, recorder.sealing
        )
        # Nobody else can change these lists, and no fact of theirs names the keys.
        self._chain = None


def _stored(fact: FactRow) -> StoredRow:
    return StoredRow(fact.position, fact.run, fact.state)


def _places(fact: FactRow) -> Iterator[tuple[Order, str]]:
    yield "version", fact.stream
    if fact.run is not None:
        yield "run_sequence", fact.run
    if fact.root is not None and not fact.is_output:
        yield "root_sequence", fact.root
