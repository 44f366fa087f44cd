"""The event log in one SQLite file: write-ahead log, every commit synced, each writer re-reads the head it holds."""

import json
import sqlite3
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Condition, Lock
from typing import Any

from eventsourcing.persistence import IntegrityError, OperationalError, StoredEvent
from eventsourcing.sqlite import (
    SQLiteApplicationRecorder,
    SQLiteConnection,
    SQLiteConnectionPool,
    SQLiteCursor,
    SQLiteDatastore,
)

from ..application.log_port import Answered
from ..application.ports import Announce, Clock
from ..domain.event import Event
from ..domain.log import LOG_STREAM
from .audit_entry import ENTRY_COLUMNS, Entry, entry_of
from .event_codec import EventCodec, StoredRow, StoredText
from .log_head import Head, edge_bytes, read_head, signer_text
from .memory import SYSTEM_CLOCK
from .merkle import grow, leaf_hash
from .numbering import AnswerKey, Known, Numbered, Wanted
from .sequencer import Sequencer, ignore
from .stored_log import Opens, Order, StoredLog, Transaction, refuse_signed, translated, unsealed

SCHEMA = Path(__file__).parent / "sql" / "sqlite_log.sql"
LOCK_TIMEOUT_SECONDS = 10
#: Readers beyond these wait for one to finish.
MAX_CONNECTIONS = 32

INSERT_FACT = (
    "INSERT INTO events (position, stream, version, topic, state, run, run_sequence, root, root_sequence,"
    " is_output, command_id, at, leaf_hash, mac) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
INSERT_NODE = "INSERT INTO nodes (level, number, hash) VALUES (?, ?, ?)"
SELECT_HEAD = "SELECT position, edge, mac, signer, note FROM head WHERE id = ?"
INSERT_TEXT = "INSERT INTO texts (position, digest, run, is_output, salt, words) VALUES (?, ?, ?, ?, ?, ?)"
# Only an expired answer can be there already: the younger ones were found before.
INSERT_ANSWER = (
    "INSERT OR REPLACE INTO idempotency (principal, method, path, key, body_digest, status, answer, position, created)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
SELECT_ANSWER = (
    "SELECT body_digest, status, answer, position FROM idempotency"
    " WHERE principal = ? AND method = ? AND path = ? AND key = ? AND created > ?"
)
DELETE_TEXTS = (
    "DELETE FROM texts WHERE run IN (SELECT value FROM json_each(?)) AND (? OR is_output) AND (? IS NULL OR EXISTS"
    " (SELECT 1 FROM events WHERE events.position = texts.position AND events.at < ?))"
)
SELECT_ROWS: Mapping[Order, str] = {
    "position": "? = '' AND position > ? ORDER BY position",
    "version": "stream = ? AND version > ? ORDER BY version",
    "run_sequence": "run = ? AND run_sequence > ? ORDER BY run_sequence",
    "root_sequence": "root = ? AND root_sequence > ? AND NOT is_output ORDER BY root_sequence",
}


class SafePool(SQLiteConnectionPool):
    """Connections that lose nothing which was committed, and keep nothing which was erased."""

    def _create_connection(self) -> SQLiteConnection:
        connection = super()._create_connection()
        cursor = connection.cursor()
        cursor.execute("PRAGMA synchronous = FULL")
        cursor.execute("PRAGMA secure_delete = ON")
        return connection


class SqliteTransaction:
    """A transaction that began IMMEDIATE: it is the only writer."""

    def __init__(self, cursor: SQLiteCursor) -> None:
        self._cursor = cursor

    def known(self, wanted: Wanted, answers_since: str) -> Known:
        """Return what the log holds of *wanted*."""
        self._cursor.execute(SELECT_HEAD, (1,))
        head = read_head(*self._cursor.fetchone())
        return Known(
            position=head.edge.size,
            head=head,
            streams={n: self._number("SELECT max(version) FROM events WHERE stream = ?", n) for n in wanted.streams},
            runs={n: self._number("SELECT max(run_sequence) FROM events WHERE run = ?", n) for n in wanted.runs},
            roots={n: self._number("SELECT max(root_sequence) FROM events WHERE root = ?", n) for n in wanted.roots},
            commands={command: self._stored(command) for command in wanted.commands},
            answers={
                key: answer
                for key in wanted.answers
                if (answer := select_answer(self._cursor, key, answers_since)) is not None
            },
        )

    def write(self, numbered: Numbered, now: str, answers_since: str) -> None:
        """Write facts, texts, answers and the new head."""
        facts, head = numbered.facts, numbered.head
        self._cursor.executemany(
            INSERT_FACT,
            [
                (f.position, f.stream, f.version, f.topic, f.state, f.run, f.run_sequence, f.root, f.root_sequence,
                 f.is_output, f.command_id, f.at, leaf, mac)
                for f, leaf, mac in zip(facts, numbered.leaves, numbered.macs, strict=True)
            ],
        )  # fmt: skip
        self._cursor.executemany(
            INSERT_TEXT,
            [(f.position, t.digest, f.run, f.is_output, t.salt, t.words) for f in facts for t in f.texts],
        )
        if numbered.answers:
            self._cursor.execute("DELETE FROM idempotency WHERE created <= ?", (answers_since,))
            self._cursor.executemany(
                INSERT_ANSWER,
                [
                    (i.principal, i.method, i.path, i.key, i.body_digest, i.status, i.answer, row.position, now)
                    for row in numbered.answers
                    for i in (row.idempotency,)
                ],
            )
        self._cursor.executemany(INSERT_NODE, [(node.level, node.index, node.hash) for node in numbered.nodes])
        self._cursor.execute(
            "UPDATE head SET position = ?, edge = ?, mac = ?, signer = ?, note = ?",
            (numbered.position, edge_bytes(head.edge), head.mac, signer_text(head.signer), head.note),
        )

    def _number(self, statement: str, name: str | int) -> int:
        self._cursor.execute(statement, (name,))
        return self._cursor.fetchone()[0] or 0

    def _stored(self, command_id: str) -> list[StoredRow]:
        self._cursor.execute(
            "SELECT position, run, state FROM events WHERE command_id = ? ORDER BY position", (command_id,)
        )
        return [StoredRow(*row) for row in self._cursor.fetchall()]


class SqliteRecorder(SQLiteApplicationRecorder):
    """The library's recorder on our tables: it numbers without gaps, and reads what both of us wrote."""

    def __init__(self, datastore: SQLiteDatastore) -> None:
        super().__init__(datastore, events_table_name="stored_events")
        self._writing = Lock()
        self._lending = Condition()
        self._lent = 0
        self._is_closed = False

    def create_table(self) -> None:
        """On return the tables are there, whoever made them."""
        with translated(), self._connection() as connection:
            connection.cursor().sqlite_cursor.executescript(SCHEMA.read_text(encoding="utf-8"))

    def insert_events(self, stored_events: Sequence[StoredEvent], **kwargs: Any) -> Sequence[int] | None:
        """Store the library's own kind of event, bytes as they come; return the positions."""
        if not stored_events:
            return None
        with self._immediate() as cursor:
            cursor.execute(SELECT_HEAD, (1,))
            head = read_head(*cursor.fetchone())
            first = head.edge.size + 1
            leaves = [leaf_hash(event.state) for event in stored_events]
            edge, nodes = grow(refuse_signed(head).edge, leaves)
            cursor.executemany(
                "INSERT INTO events (position, stream, version, topic, state, leaf_hash) VALUES (?, ?, ?, ?, ?, ?)",
                [
                    (position, str(e.originator_id), e.originator_version, e.topic, e.state, leaf)
                    for position, (e, leaf) in enumerate(zip(stored_events, leaves, strict=True), first)
                ],
            )
            cursor.executemany(INSERT_NODE, [(node.level, node.index, node.hash) for node in nodes])
            cursor.execute("UPDATE head SET position = ?, edge = ?", (edge.size, edge_bytes(edge)))
        return list(range(first, first + len(stored_events)))

    @contextmanager
    def transaction(self) -> Generator[Transaction]:
        """Hold the head; see Recorder."""
        with translated(), self._immediate() as cursor:
            yield SqliteTransaction(cursor)

    def rows(self, order: Order, name: str, after: int, limit: int) -> list[StoredRow]:
        """Return the facts that *order* and *name* select, ascending from *after*."""
        found = self._select(
            f"SELECT position, run, state FROM events WHERE {SELECT_ROWS[order]} LIMIT ?", (name, after, max(limit, 0))
        )
        return [StoredRow(*row) for row in found]

    def words(self, positions: Sequence[int]) -> dict[int, dict[str, bytes]]:
        """Return the words of these facts that are not erased."""
        words: dict[int, dict[str, bytes]] = {}
        for position, digest, text in self._select(
            "SELECT position, digest, words FROM texts WHERE position IN (SELECT value FROM json_each(?))",
            (json.dumps(positions),),
        ):
            words.setdefault(position, {})[digest] = text
        return words

    def head(self) -> int:
        """Return the last durable position."""
        return self._select("SELECT position FROM head", ())[0][0]

    def run_head(self, run: str) -> int:
        """Return the run's last run_sequence."""
        return self._select("SELECT max(run_sequence) FROM events WHERE run = ?", (run,))[0][0] or 0

    def tree_head(self) -> Head:
        """Return the head."""
        return read_head(*self._select(SELECT_HEAD, (1,))[0])

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
        statement = "SELECT position, leaf_hash, mac FROM events WHERE position IN (SELECT value FROM json_each(?))"
        return {position: (leaf, mac) for position, leaf, mac in self._select(statement, (json.dumps(positions),))}

    def entries(self, root: str | None, after: int, limit: int) -> list[Entry]:
        """Return rows as they are, for an auditor: of the log by position, or of a tree by root_sequence."""
        if root is None:
            return self._entries("position > ? ORDER BY position LIMIT ?", (after, limit))
        where = "root = ? AND root_sequence > ? ORDER BY root_sequence LIMIT ?"
        return self._entries(where, (root, after, limit))

    def log_entries(self) -> list[Entry]:
        """Return the rows of the facts that the log holds about itself."""
        return self._entries("stream = ? ORDER BY version", (LOG_STREAM,))

    def _entries(self, where: str, values: tuple[Any, ...]) -> list[Entry]:
        found = self._select(f"SELECT {ENTRY_COLUMNS} FROM events WHERE {where}", values)
        rows = {row[0]: row for row in found}
        texts: dict[Any, list[StoredText]] = {}
        statement = "SELECT position, digest, salt, words FROM texts WHERE position IN (SELECT value FROM json_each(?))"
        for position, *text in self._select(statement, (json.dumps(list(rows)),)):
            texts.setdefault(position, []).append(StoredText(*text))
        return [entry_of(row, texts.get(position, ())) for position, row in rows.items()]

    def answered(self, key: AnswerKey, answers_since: str) -> Answered | None:
        """Return the stored answer, unless it is older than *answers_since*."""
        with translated(), self._connection() as connection:
            return select_answer(connection.cursor(), key, answers_since)

    def erase(self, runs: Sequence[str], *, output_only: bool, before: str | None) -> int:
        """Delete words and salts for good: not even the file holds them on return, unless a reader is in the way."""
        with translated():
            with self._immediate() as cursor:
                cursor.execute(DELETE_TEXTS, (json.dumps(runs), not output_only, before, before))
                erased = cursor.sqlite_cursor.rowcount
            with self._connection() as connection:
                # The write-ahead log still holds the pages as they were; this empties it.
                connection.cursor().execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return erased

    def close(self) -> None:
        """Close every connection, once nobody uses it: SQLite would crash the process under a thread that does."""
        with self._lending:
            self._is_closed = True
            if self._lending.wait_for(lambda: self._lent == 0, 2 * LOCK_TIMEOUT_SECONDS):
                self.datastore.close()

    def _select(self, statement: str, values: tuple[Any, ...]) -> list[Any]:
        with translated(), self._connection() as connection:
            cursor = connection.cursor()
            cursor.execute(statement, values)
            return cursor.fetchall()

    @contextmanager
    def _immediate(self) -> Generator[SQLiteCursor]:
        # The threads of this process take turns here: SQLite would let them poll for the lock.
        with self._writing, self._connection() as connection:
            cursor = connection.cursor()
            cursor.execute("BEGIN IMMEDIATE")
            try:
                yield cursor
                connection.commit()
            except BaseException:
                connection.rollback()
                raise

    @contextmanager
    def _connection(self) -> Generator[SQLiteConnection]:
        """Lend a connection; what SQLite raises leaves as the library's error of that name."""
        with self._lending:
            if self._is_closed:
                raise OperationalError("the event log is closed")
            self._lent += 1
        try:
            # Not as a "writer": the pool would keep that lock for ever when a connection cannot be made.
            connection = self.datastore.pool.get_connection()
            try:
                yield connection
            finally:
                self.datastore.pool.put_connection(connection)
        except sqlite3.IntegrityError as error:
            raise IntegrityError(str(error)) from error
        except sqlite3.Error as error:
            raise OperationalError(str(error)) from error
        finally:
            with self._lending:
                self._lent -= 1
                self._lending.notify_all()


def select_answer(cursor: SQLiteCursor, key: AnswerKey, answers_since: str) -> Answered | None:
    """Return the stored answer to a request, unless it is older than *answers_since*."""
    cursor.execute(SELECT_ANSWER, (*key, answers_since))
    row = cursor.fetchone()
    if row is None:
        return None
    return Answered(body_digest=row[0], status=row[1], answer=row[2], position=row[3])


def open_datastore(path: Path, *, read_only: bool = False) -> SQLiteDatastore:
    """Return the library's datastore on the file, with connections that are safe for a log."""
    address = path.absolute().as_uri() + ("?mode=ro" if read_only else "")
    datastore = SQLiteDatastore(address, originator_id_type="text")
    datastore.pool = SafePool(
        db_name=address,
        lock_timeout=LOCK_TIMEOUT_SECONDS,
        pool_size=MAX_CONNECTIONS // 4,
        max_overflow=MAX_CONNECTIONS - MAX_CONNECTIONS // 4,
        pool_timeout=LOCK_TIMEOUT_SECONDS,
    )
    return datastore


class SqliteLog(StoredLog):
    """The event log of one serving process."""

    def __init__(
        self,
        path: Path,
        catalogue: Mapping[str, type[Event]],
        *,
        clock: Clock = SYSTEM_CLOCK,
        announce: Announce = ignore,
        seal: Opens = unsealed,
    ) -> None:
        recorder = SqliteRecorder(open_datastore(path))
        try:
            recorder.create_table()
            sealing = seal(recorder, clock)
        except BaseException:
            recorder.close()
            raise
        super().__init__(recorder, EventCodec(catalogue), Sequencer(recorder, clock, announce, sealing), clock)
