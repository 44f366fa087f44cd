"""The event log in one SQLite file: write-ahead log, every commit synced, each writer re-reads the head it holds."""

import json
import sqlite3
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Condition, Lock
from typing import Any, Final, Unpack

from eventsourcing.persistence import IntegrityError, OperationalError, StoredEvent
from eventsourcing.sqlite import (
    SQLiteApplicationRecorder,
    SQLiteConnection,
    SQLiteConnectionPool,
    SQLiteCursor,
    SQLiteDatastore,
)

from ...domain.event import Event
from ..log.numbering import BatchNeeds, Known, Numbered
from ..log.recorder import Transaction, translated
from ..log.rows import (
    DELETE_ANSWERS,
    FACT_COLUMNS,
    INSERT_ANSWER,
    LIBRARY_COLUMNS,
    NODE_COLUMNS,
    SELECT_ANSWER,
    SELECT_HEAD,
    TEXT_COLUMNS,
    LogRows,
    answer_rows,
    fact_rows,
    head_values,
    library_rows,
    node_rows,
    read_answer,
    stored_head,
    stored_number,
    text_rows,
)
from ..log.sequenced_log import LogOptions, SequencedLog
from ..log_format.event_codec import StoredRow
from ..log_format.head import edge_bytes
from .schema_steps import read_steps
from .sqlite_schema import READER_PATIENCE_MILLISECONDS, empty_journal, take_steps

LOCK_TIMEOUT_SECONDS = 10
#: How much of the write-ahead log is filled before a commit has to empty it, which takes two more flushes.
CHECKPOINT_PAGES = 4_000
SETTINGS = (
    "journal_mode = WAL",
    "synchronous = FULL",
    "secure_delete = ON",
    f"wal_autocheckpoint = {CHECKPOINT_PAGES}",
)
CACHED_STATEMENTS = 64
#: Readers beyond these wait for one to finish.
MAX_CONNECTIONS = 32

INSERT_FACT = f"INSERT INTO events ({FACT_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
INSERT_EVENT = f"INSERT INTO events ({LIBRARY_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?)"
INSERT_TEXT = f"INSERT INTO kept_texts ({TEXT_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?)"
INSERT_NODE = f"INSERT INTO nodes ({NODE_COLUMNS}) VALUES (?, ?, ?)"
# In place: as long as a row keeps its length SQLite writes over it, and no row moves. A deleted row has others moved to its
# place some day, and leaves what they were where nothing finds it again; see step 3 of the tables.
ZEROES: Final = "zeroblob(length(CAST({0} AS blob)))"
ZERO_TEXTS: Final = (
    f"UPDATE kept_texts SET salt = {ZEROES.format('salt')}, words = {ZEROES.format('words')}"
    f" WHERE (salt <> {ZEROES.format('salt')} OR words <> {ZEROES.format('words')})"
    " AND position IN (SELECT position FROM events WHERE {facts})"
)
UPDATE_HEAD = "UPDATE head SET position = ?, edge = ?, mac = ?, signer = ?, note = ?"


class SafePool(SQLiteConnectionPool):
    """Connections that lose nothing which was committed, and keep nothing which was erased."""

    settings: Sequence[str] = SETTINGS

    def _create_connection(self) -> SQLiteConnection:
        # Not the library's own, which keeps one statement compiled: an append has a dozen.
        made = sqlite3.connect(
            self.db_name,
            uri=True,
            check_same_thread=False,
            isolation_level=None,
            cached_statements=CACHED_STATEMENTS,
            timeout=LOCK_TIMEOUT_SECONDS,
        )
        try:
            for setting in self.settings:
                made.execute(f"PRAGMA {setting}")
        except BaseException:
            made.close()
            raise
        made.row_factory = sqlite3.Row
        return SQLiteConnection(made, self.max_age)


class SqliteTransaction:
    """A transaction that began IMMEDIATE: it is the only writer."""

    def __init__(self, cursor: SQLiteCursor) -> None:
        self._cursor = cursor

    def known(self, wanted: BatchNeeds, answers_since: str) -> Known:
        """Return what the log holds of *wanted*."""
        self._cursor.execute(SELECT_HEAD)
        head = stored_head(self._cursor.fetchall())
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
                if (answer := read_answer(self._one(SELECT_ANSWER, (*key, answers_since)))) is not None
            },
        )

    def write(self, numbered: Numbered, now: str, answers_since: str) -> None:
        """Write facts, texts, answers and the new head."""
        self._many(INSERT_FACT, fact_rows(numbered))
        self._many(INSERT_TEXT, text_rows(numbered))
        if numbered.answers:
            self._cursor.execute(DELETE_ANSWERS, (answers_since,))
            self._many(INSERT_ANSWER, answer_rows(numbered, now))
        self._many(INSERT_NODE, node_rows(numbered.nodes))
        self._cursor.execute(UPDATE_HEAD, head_values(numbered.head))

    def _many(self, statement: str, rows: Sequence[Any]) -> None:
        if rows:
            self._cursor.executemany(statement, rows)

    def _one(self, statement: str, values: Sequence[Any]) -> Any:
        self._cursor.execute(statement, values)
        return self._cursor.fetchone()

    def _number(self, statement: str, name: str | int) -> int:
        return stored_number([self._one(statement, (name,))])

    def _stored(self, command_id: str) -> list[StoredRow]:
        self._cursor.execute(
            "SELECT position, run, state FROM events WHERE command_id = ? ORDER BY position", (command_id,)
        )
        return [StoredRow(*row) for row in self._cursor.fetchall()]


class SqliteRecorder(LogRows, SQLiteApplicationRecorder):
    """The library's recorder on our tables: it numbers without gaps, and reads what both of us wrote."""

    AMONG = "IN (SELECT value FROM json_each(?))"
    ERASE_TEXTS = ZERO_TEXTS

    def __init__(self, datastore: SQLiteDatastore) -> None:
        super().__init__(datastore, events_table_name="stored_events")
        self._writing = Lock()
        self._lending = Condition()
        self._lent = 0
        self._is_closed = False
        #: Whether the file, or its write-ahead log, may hold what was erased: a reader was in the way.
        self._leftovers = False

    def create_table(self) -> None:
        """On return the tables are there, as this release knows them. Raises LogUnavailable, SchemaUnfit."""
        with translated(), self._connection() as connection:
            take_steps(connection.cursor().sqlite_cursor.connection, read_steps("sqlite"))
        # What ran before us may have died before it did this.
        with translated():
            self._empty_journal(READER_PATIENCE_MILLISECONDS)

    def insert_events(self, stored_events: Sequence[StoredEvent], **kwargs: Any) -> Sequence[int] | None:
        """Store the library's own kind of event, bytes as they come; return the positions."""
        if not stored_events:
            return None
        with self._immediate() as cursor:
            cursor.execute(SELECT_HEAD)
            rows, edge, nodes = library_rows(stored_head(cursor.fetchall()), stored_events)
            cursor.executemany(INSERT_EVENT, rows)
            cursor.executemany(INSERT_NODE, node_rows(nodes))
            cursor.execute("UPDATE head SET position = ?, edge = ?", (edge.size, edge_bytes(edge)))
        return [row[0] for row in rows]

    @contextmanager
    def transaction(self) -> Generator[Transaction]:
        """Hold the head; see Recorder."""
        with translated():
            with self._immediate() as cursor:
                yield SqliteTransaction(cursor)
            if self._leftovers:
                self._empty_journal(0)

    def erase(self, runs: Sequence[str], *, output_only: bool, before: str | None) -> int:
        """
        Erase words and salts for good: on return they are in no file.

        If a reader is in the way, somebody who audits the log, the first batch of facts that is stored after they have
        done empties the files, or the next start does.
        """
        return self._erase(*self._erasing(runs, output_only=output_only, before=before))

    def erase_stream(self, stream: str) -> int:
        """Erase the words and salts of one stream, in the same way."""
        return self._erase(*self._erasing_stream(stream))

    def erase_tree(self, root: str) -> int:
        """Erase the words and salts of a coordinator's tree, in the same way."""
        return self._erase(*self._erasing_tree(root))

    def _erase(self, statement: str, values: Sequence[Any]) -> int:
        with translated():
            with self._immediate() as cursor:
                cursor.execute(statement, values)
                erased = cursor.sqlite_cursor.rowcount
            # The file, or the write-ahead log, still holds the pages as they were. If we die here, the next start does it.
            self._empty_journal(READER_PATIENCE_MILLISECONDS)
        return erased

    def _empty_journal(self, patience_milliseconds: int) -> None:
        # Noted first: an erasure that is committed while this empties the journal notes it again.
        self._leftovers, emptied = False, False
        try:
            with self._connection() as connection:
                emptied = empty_journal(connection.cursor().sqlite_cursor.connection, patience_milliseconds)
        finally:
            if not emptied:
                self._leftovers = True

    def close(self) -> None:
        """Close every connection, once nobody uses it: SQLite would crash the process under a thread that does."""
        with self._lending:
            self._is_closed = True
            if self._lending.wait_for(lambda: self._lent == 0, 2 * LOCK_TIMEOUT_SECONDS):
                self.datastore.close()

    def _list(self, values: Sequence[Any]) -> Any:
        return json.dumps(values)

    def _select(self, statement: str, values: Sequence[Any]) -> list[Any]:
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


def open_datastore(path: Path, *, read_only: bool = False, immutable: bool = False) -> SQLiteDatastore:
    """
    Return the library's datastore on the file, with connections that are safe for a log.

    *immutable* is for a file that nobody writes, where none can be made beside it: SQLite would need one to share it.
    """
    address = path.absolute().as_uri() + ("?mode=ro" if read_only else "") + ("&immutable=1" if immutable else "")
    datastore = SQLiteDatastore(address, originator_id_type="text")
    datastore.pool = pool = SafePool(
        db_name=address,
        lock_timeout=LOCK_TIMEOUT_SECONDS,
        pool_size=MAX_CONNECTIONS // 4,
        max_overflow=MAX_CONNECTIONS - MAX_CONNECTIONS // 4,
        pool_timeout=LOCK_TIMEOUT_SECONDS,
    )
    if read_only:
        # However it is kept: a backup is one file, and may lie where nothing can be written.
        pool.settings = ()
    return datastore


class SqliteLog(SequencedLog):
    """The event log of one serving process."""

    def __init__(self, path: Path, catalogue: Mapping[str, type[Event]], **opening: Unpack[LogOptions]) -> None:
        super().__init__(SqliteRecorder(open_datastore(path)), catalogue, **opening)
