"""
What both stores of the log say alike: the rows that a batch makes, and every look-up that holds no lock.

Statements are written with `?` for each value; what the dialects say differently a store puts in through `AMONG`.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

import msgspec
from eventsourcing.persistence import ProgrammingError, StoredEvent

from ...application.ports.log import Answered, AnswerKey, LogTampered
from ...domain.kinds.log import LOG_STREAM
from ..log_format.entry import ENTRY_COLUMNS, Entry, entry_of
from ..log_format.event_codec import StoredRow, StoredText
from ..log_format.head import Head, edge_bytes, read_head, signer_text
from ..log_format.merkle import Edge, Node, grow, leaf_hash
from .numbering import Numbered
from .recorder import Order

#: The columns of what one transaction writes, in the order of the rows below.
FACT_COLUMNS: Final = (
    "position, stream, version, topic, state, run, run_sequence, root, root_sequence, is_output, command_id, at,"
    " leaf_hash, mac"
)
LIBRARY_COLUMNS: Final = "position, stream, version, topic, state, leaf_hash"
TEXT_COLUMNS: Final = "position, digest, run, is_output, salt, words"
NODE_COLUMNS: Final = "level, number, hash"

SELECT_HEAD: Final = "SELECT position, edge, mac, signer, note FROM head"
# One statement, so that all three are of one moment.
SELECT_BOUNDS: Final = (
    "SELECT (SELECT position FROM head), (SELECT min(position) FROM events), (SELECT max(position) FROM events)"
)
SELECT_ANSWER: Final = (
    "SELECT body_digest, status, answer, position FROM idempotency"
    " WHERE principal = ? AND method = ? AND path = ? AND key = ? AND created > ?"
)
# Only an expired answer can be there already: the younger ones were found before.
INSERT_ANSWER: Final = (
    "INSERT INTO idempotency (principal, method, path, key, body_digest, status, answer, position, created)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (principal, method, path, key) DO UPDATE SET"
    " body_digest = excluded.body_digest, status = excluded.status, answer = excluded.answer,"
    " position = excluded.position, created = excluded.created"
)
DELETE_ANSWERS: Final = "DELETE FROM idempotency WHERE created <= ?"
# By the facts that hold them: these columns an auditor compares with what was signed. What a text says of its own run
# nobody does, and to go by it would leave one run's words, and take another's, for whoever can write to that column.
DELETE_TEXTS: Final = "DELETE FROM texts WHERE position IN (SELECT position FROM events WHERE {facts})"
SELECT_ROWS: Mapping[Order, str] = {
    "position": "? = '' AND position > ? ORDER BY position",
    "version": "stream = ? AND version > ? ORDER BY version",
    "run_sequence": "run = ? AND run_sequence > ? ORDER BY run_sequence",
    "root_sequence": "root = ? AND root_sequence > ? AND NOT is_output ORDER BY root_sequence",
}
# With the MAC of the entry before, which an entry's own covers; and how far the head vouches. As a condition that would lead
# PostgreSQL to another index.
ROW_COLUMNS: Final = (
    "position, run, state, mac,"
    " (SELECT mac FROM events AS before WHERE before.position = events.position - 1) AS previous_mac,"
    " (SELECT position FROM head) AS vouched"
)


def fact_rows(numbered: Numbered) -> list[tuple[Any, ...]]:
    """Return the rows of the events table, as FACT_COLUMNS."""
    return [
        (f.position, f.stream, f.version, f.topic, f.state, f.run, f.run_sequence, f.root, f.root_sequence,
         f.is_output, f.command_id, f.at, leaf, mac)
        for f, leaf, mac in zip(numbered.facts, numbered.leaves, numbered.macs, strict=True)
    ]  # fmt: skip


def text_rows(numbered: Numbered) -> list[tuple[Any, ...]]:
    """Return the rows of the texts table, as TEXT_COLUMNS."""
    return [(f.position, t.digest, f.run, f.is_output, t.salt, t.words) for f in numbered.facts for t in f.texts]


def node_rows(nodes: Sequence[Node]) -> list[tuple[Any, ...]]:
    """Return the rows of the nodes table, as NODE_COLUMNS."""
    return [(node.level, node.index, node.hash) for node in nodes]


def answer_rows(numbered: Numbered, now: str) -> list[tuple[Any, ...]]:
    """Return the values of INSERT_ANSWER."""
    return [
        (i.principal, i.method, i.path, i.key, i.body_digest, i.status, i.answer, row.position, now)
        for row in numbered.answers
        for i in (row.idempotency,)
    ]


def head_values(head: Head) -> tuple[Any, ...]:
    """Return the head as SELECT_HEAD gives it."""
    return head.edge.size, edge_bytes(head.edge), head.mac, signer_text(head.signer), head.note


def library_rows(head: Head, events: Sequence[StoredEvent]) -> tuple[list[tuple[Any, ...]], Edge, list[Node]]:
    """
    Return the rows of the library's own kind of event, as LIBRARY_COLUMNS, and how the tree grows by them.

    Raises:
        ProgrammingError: the log is signed, and the library's own facts would go past whoever signs it.
    """
    if head.signer is not None:
        raise ProgrammingError("this log is signed: append to it through the log")
    leaves = [leaf_hash(event.state) for event in events]
    edge, nodes = grow(head.edge, leaves)
    rows = [
        (position, str(e.originator_id), e.originator_version, e.topic, e.state, leaf)
        for position, (e, leaf) in enumerate(zip(events, leaves, strict=True), head.edge.size + 1)
    ]
    return rows, edge, nodes


def read_answer(row: Sequence[Any] | None) -> Answered | None:
    """Return the answer that SELECT_ANSWER found."""
    if row is None:
        return None
    return Answered(body_digest=row[0], status=row[1], answer=row[2], position=row[3])


def stored_head(rows: Sequence[Sequence[Any]]) -> Head:
    """Return the head that SELECT_HEAD found. Raises LogTampered for what is none: SQLite keeps any type in any column."""
    try:
        return read_head(*rows[0])
    except (IndexError, TypeError, ValueError, msgspec.MsgspecError) as error:
        raise LogTampered(f"the head of the log is gone or was changed: {error}") from error


def stored_number(rows: Sequence[Sequence[Any]]) -> int:
    """Return the one number that was found, 0 for none. Raises LogTampered."""
    found = rows[0][0] if rows else ""
    if found is not None and not isinstance(found, int):
        raise LogTampered(f"where a number is kept the store holds {str(found)[:40]!r}")
    return found or 0


class LogRows(ABC):
    """The reading half of a Recorder, over whatever runs a statement."""

    #: Says that the column before it is one of a list, which `_list` makes a value of.
    AMONG: ClassVar[str]
    #: What erases the texts of the facts that a condition selects.
    ERASE_TEXTS: ClassVar[str] = DELETE_TEXTS

    @abstractmethod
    def _select(self, statement: str, values: Sequence[Any]) -> list[Any]:
        """Return what the statement finds, or raise LogUnavailable."""

    @abstractmethod
    def _list(self, values: Sequence[Any]) -> Any:
        """Return the list as AMONG takes it."""

    def rows(self, order: Order, name: str, after: int, limit: int) -> list[StoredRow]:
        """Return the facts that *order* and *name* select, ascending from *after*."""
        found = self._select(
            f"SELECT {ROW_COLUMNS} FROM events WHERE {SELECT_ROWS[order]} LIMIT ?", (name, after, max(limit, 0))
        )
        # Only what the head vouches for is a fact: another row somebody has put there. It can only stand behind all others.
        return [StoredRow(*row) for *row, vouched in found if isinstance(vouched, int) and 1 <= row[0] <= vouched]

    def words(self, positions: Sequence[int]) -> dict[int, dict[str, StoredText]]:
        """Return the words of these facts that are not erased, with what their digests cover."""
        words: dict[int, dict[str, StoredText]] = {}
        statement = f"SELECT position, digest, salt, words FROM texts WHERE position {self.AMONG}"
        for position, *text in self._select(statement, (self._list(positions),)):
            words.setdefault(position, {})[text[0]] = StoredText(*text)
        return words

    def head(self) -> int:
        """Return the last durable position."""
        return stored_number(self._select("SELECT position FROM head", ()))

    def bounds(self) -> tuple[int, int, int]:
        """Return the head's position, and the first and the last one that a row has."""
        ((head, first, last),) = self._select(SELECT_BOUNDS, ())
        return head, 1 if first is None else first, last or 0

    def run_head(self, run: str) -> int:
        """Return the run's last run_sequence."""
        return stored_number(self._select("SELECT max(run_sequence) FROM events WHERE run = ?", (run,)))

    def tree_head(self) -> Head:
        """Return the head."""
        return stored_head(self._select(SELECT_HEAD, ()))

    def hashes(self, level: int, first: int, count: int) -> list[bytes]:
        """Return stored hashes of the tree."""
        bounds = (first, first + count)
        if level == 0:
            leaves = "SELECT leaf_hash FROM events WHERE position > ? AND position <= ? ORDER BY position"
            return [row[0] for row in self._select(leaves, bounds)]
        nodes = "SELECT hash FROM nodes WHERE level = ? AND number >= ? AND number < ? ORDER BY number"
        return [row[0] for row in self._select(nodes, (level, *bounds))]

    def receipts(self, positions: Sequence[int]) -> dict[int, tuple[bytes, bytes | None]]:
        """Return the leaf hash and the MAC of these facts."""
        statement = f"SELECT position, leaf_hash, mac FROM events WHERE position {self.AMONG}"
        return {position: (leaf, mac) for position, leaf, mac in self._select(statement, (self._list(positions),))}

    def entries(self, root: str | None, after: int, limit: int) -> list[Entry]:
        """Return rows as they are, for an auditor: of the log by position, or of a tree by root_sequence."""
        if root is None:
            return self._entries("position > ? ORDER BY position LIMIT ?", (after, limit))
        where = "root = ? AND root_sequence > ? ORDER BY root_sequence LIMIT ?"
        return self._entries(where, (root, after, limit))

    def log_entries(self) -> list[Entry]:
        """Return the rows of the facts that the log holds about itself."""
        return self._entries("stream = ? ORDER BY version", (LOG_STREAM,))

    def answered(self, key: AnswerKey, answers_since: str) -> Answered | None:
        """Return the stored answer, unless it is older than *answers_since*."""
        found = self._select(SELECT_ANSWER, (*key, answers_since))
        return read_answer(found[0] if found else None)

    def _entries(self, where: str, values: Sequence[Any]) -> list[Entry]:
        rows = {row[0]: row for row in self._select(f"SELECT {ENTRY_COLUMNS} FROM events WHERE {where}", values)}
        texts: dict[Any, list[StoredText]] = {}
        statement = f"SELECT position, digest, salt, words FROM texts WHERE position {self.AMONG}"
        for position, *text in self._select(statement, (self._list(list(rows)),)):
            texts.setdefault(position, []).append(StoredText(*text))
        return [entry_of(row, texts.get(position, ())) for position, row in rows.items()]

    def _erasing(self, runs: Sequence[str], *, output_only: bool, before: str | None) -> tuple[str, tuple[Any, ...]]:
        """Return the statement that erases words and salts, and its values."""
        of_runs = f"run {self.AMONG} AND (? OR is_output) AND (CAST(? AS text) IS NULL OR at < ?)"
        return self.ERASE_TEXTS.format(facts=of_runs), (self._list(runs), not output_only, before, before)

    def _erasing_stream(self, stream: str) -> tuple[str, tuple[Any, ...]]:
        """Return the same for one stream."""
        return self.ERASE_TEXTS.format(facts="stream = ?"), (stream,)

    def _erasing_tree(self, root: str) -> tuple[str, tuple[Any, ...]]:
        """Return the same for a coordinator's tree."""
        return self.ERASE_TEXTS.format(facts="root = ?"), (root,)
