"""The event log in PostgreSQL, for any number of processes: whoever holds the head's row writes."""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, LiteralString, cast

import psycopg
from eventsourcing.persistence import StoredEvent
from eventsourcing.postgres import PostgresApplicationRecorder, PostgresDatastore
from psycopg import Connection, Cursor
from psycopg.rows import DictRow, TupleRow, dict_row, tuple_row

from ..application.log_port import Answered, LogUnavailable
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

CONNECT_TIMEOUT_SECONDS = 5
#: How long the head is waited for.
LOCK_TIMEOUT: Final = "10s"
#: A writer that froze while it held the head loses it after this long.
IDLE_IN_TRANSACTION_TIMEOUT: Final = "10s"
MIN_CONNECTIONS = 2
MAX_CONNECTIONS = 16


def _sql(name: str) -> LiteralString:
    text = (Path(__file__).parent / "sql" / f"{name}.sql").read_text(encoding="utf-8")
    return cast("LiteralString", text)  # our own file, as fixed as a literal


SCHEMA = _sql("postgres_log")
KNOWN = _sql("postgres_known")
WRITE = _sql("postgres_write")

# Every query of the log goes by an index. A plan that was made while the tables were empty must not scan them later.
SETTINGS = (
    f"SET lock_timeout = '{LOCK_TIMEOUT}';"
    f"SET idle_in_transaction_session_timeout = '{IDLE_IN_TRANSACTION_TIMEOUT}';"
    "SET synchronous_commit = on;"
    "SET default_transaction_isolation = 'read committed';"
    "SET enable_seqscan = off"
)
SELECT_HEAD: Final = "SELECT position, edge, mac, signer, note FROM head"
SELECT_ANSWER = (
    "SELECT body_digest, status, answer, position FROM idempotency"
    " WHERE principal = %s AND method = %s AND path = %s AND key = %s AND created > %s"
)
# Only an expired answer can be there already: the younger ones were found before.
INSERT_ANSWER = (
    "INSERT INTO idempotency (principal, method, path, key, body_digest, status, answer, position, created)"
    " VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s) ON CONFLICT (principal, method, path, key) DO UPDATE SET"
    " body_digest = excluded.body_digest, status = excluded.status, answer = excluded.answer,"
    " position = excluded.position, created = excluded.created"
)
DELETE_TEXTS = (
    "DELETE FROM texts WHERE run = ANY(%s) AND (%s OR is_output) AND (%s::text IS NULL OR EXISTS"
    " (SELECT 1 FROM events WHERE events.position = texts.position AND events.at < %s))"
)
SELECT_ROWS: Mapping[Order, LiteralString] = {
    "position": "%s = '' AND position > %s ORDER BY position",
    "version": "stream = %s AND version > %s ORDER BY version",
    "run_sequence": "run = %s AND run_sequence > %s ORDER BY run_sequence",
    "root_sequence": "root = %s AND root_sequence > %s AND NOT is_output ORDER BY root_sequence",
}


class LogDatastore(PostgresDatastore):
    """The library's connections, made from a URL, with the settings that the log relies on."""

    def __init__(self, url: str) -> None:
        super().__init__(
            dbname="",
            host="",
            port="",
            user="",
            password="",
            connect_timeout=CONNECT_TIMEOUT_SECONDS,
            pool_size=MIN_CONNECTIONS,
            max_overflow=MAX_CONNECTIONS - MIN_CONNECTIONS,
            originator_id_type="text",
        )
        # The pool is not open yet. The URL says all: host lists, TLS, sockets, which five fields could not.
        self.pool.conninfo = url
        self.pool.kwargs = {"row_factory": dict_row, "connect_timeout": CONNECT_TIMEOUT_SECONDS}

    def register_type_adapters(self) -> None:
        """Nothing: only the library's own tables use its composite types."""

    def after_connect_func(self) -> Callable[[Connection[Any]], None]:
        """Return what is done to each new connection."""

        def settle(connection: Connection[Any]) -> None:
            connection.autocommit = True
            connection.execute(SETTINGS)

        return settle


class PostgresTransaction:
    """A transaction that holds the head's row. Its statements see everything that was committed before it got it."""

    def __init__(self, cursor: Cursor[TupleRow], head: Head) -> None:
        self._cursor = cursor
        self._head = head

    def known(self, wanted: Wanted, answers_since: str) -> Known:
        """Return what the log holds of *wanted*."""
        known = Known(self._head.edge.size, {}, {}, {}, {}, {}, self._head)
        heads = {"stream": known.streams, "run": known.runs, "root": known.roots}
        names = {"streams": wanted.streams, "runs": wanted.runs, "roots": wanted.roots, "commands": wanted.commands}
        for kind, name, number, run, state in self._cursor.execute(KNOWN, names).fetchall():
            if kind == "command":
                known.commands.setdefault(name, []).append(StoredRow(number, run, state))
            else:
                heads[kind][name] = number or 0
        for stored in known.commands.values():
            stored.sort(key=lambda row: row.position)
        for key in wanted.answers:
            answer = select_answer(self._cursor, key, answers_since)
            if answer is not None:
                known.answers[key] = answer
        return known

    def write(self, numbered: Numbered, now: str, answers_since: str) -> None:
        """Write facts, texts, answers and the new head."""
        facts, head = numbered.facts, numbered.head
        columns = zip(
            *(
                (f.position, f.stream, f.version, f.topic, f.state, f.run, f.run_sequence, f.root, f.root_sequence,
                 f.is_output, f.command_id, f.at, leaf, mac)
                for f, leaf, mac in zip(facts, numbered.leaves, numbered.macs, strict=True)
            ),
            strict=True,
        )  # fmt: skip
        texts = zip(
            *((f.position, t.digest, f.run, f.is_output, t.salt, t.words) for f in facts for t in f.texts), strict=True
        )
        nodes = zip(*((node.level, node.index, node.hash) for node in numbered.nodes), strict=True)
        values = [list(column) for column in columns] or [[]] * 14
        values += [list(column) for column in texts] or [[]] * 6
        values += [list(column) for column in nodes] or [[]] * 3
        ends = (numbered.position, edge_bytes(head.edge), head.mac, signer_text(head.signer), head.note)
        self._cursor.execute(WRITE, (*values, *ends))
        if numbered.answers:
            self._cursor.execute("DELETE FROM idempotency WHERE created <= %s", (answers_since,))
            self._cursor.executemany(
                INSERT_ANSWER,
                [
                    (i.principal, i.method, i.path, i.key, i.body_digest, i.status, i.answer, row.position, now)
                    for row in numbered.answers
                    for i in (row.idempotency,)
                ],
            )


class PostgresRecorder(PostgresApplicationRecorder):
    """The library's recorder on our tables: it numbers without gaps, and reads what both of us wrote."""

    def __init__(self, datastore: PostgresDatastore) -> None:
        super().__init__(datastore, events_table_name="stored_events")

    def create_table(self) -> None:
        """On return the tables are there, whoever made them."""
        with self._available(), self.datastore.transaction(commit=True) as cursor:
            cursor.execute(SCHEMA)

    def insert_events(self, stored_events: Sequence[StoredEvent], **kwargs: Any) -> Sequence[int] | None:
        """Store the library's own kind of event, bytes as they come; return the positions."""
        if not stored_events:
            return None
        with self._holding_head() as (cursor, head):
            position = head.edge.size
            positions = list(range(position + 1, position + 1 + len(stored_events)))
            rows = [
                (str(e.originator_id), e.originator_version, e.topic, e.state, leaf_hash(e.state))
                for e in stored_events
            ]
            edge, nodes = grow(refuse_signed(head).edge, (row[-1] for row in rows))
            cursor.execute(
                "INSERT INTO events (position, stream, version, topic, state, leaf_hash)"
                " SELECT * FROM unnest(%s::bigint[], %s::text[], %s::bigint[], %s::text[], %s::bytea[], %s::bytea[])",
                (positions, *(list(column) for column in zip(*rows, strict=True))),
            )
            cursor.executemany(
                "INSERT INTO nodes (level, number, hash) VALUES (%s, %s, %s)",
                [(node.level, node.index, node.hash) for node in nodes],
            )
            cursor.execute("UPDATE head SET position = %s, edge = %s", (positions[-1], edge_bytes(edge)))
            # The library's own subscriptions listen for this.
            cursor.execute("NOTIFY stored_events")
        return positions

    @contextmanager
    def transaction(self) -> Generator[Transaction]:
        """Hold the head; see Recorder."""
        with self._available(), self._holding_head() as (cursor, head):
            yield PostgresTransaction(cursor, head)

    def rows(self, order: Order, name: str, after: int, limit: int) -> list[StoredRow]:
        """Return the facts that *order* and *name* select, ascending from *after*."""
        found = self._select(
            f"SELECT position, run, state FROM events WHERE {SELECT_ROWS[order]} LIMIT %s", (name, after, max(limit, 0))
        )
        return [StoredRow(*row) for row in found]

    def words(self, positions: Sequence[int]) -> dict[int, dict[str, bytes]]:
        """Return the words of these facts that are not erased."""
        words: dict[int, dict[str, bytes]] = {}
        statement = "SELECT position, digest, words FROM texts WHERE position = ANY(%s)"
        for position, digest, text in self._select(statement, (list(positions),)):
            words.setdefault(position, {})[digest] = text
        return words

    def head(self) -> int:
        """Return the last durable position."""
        return self._select("SELECT position FROM head", ())[0][0]

    def run_head(self, run: str) -> int:
        """Return the run's last run_sequence."""
        return self._select("SELECT max(run_sequence) FROM events WHERE run = %s", (run,))[0][0] or 0

    def tree_head(self) -> Head:
        """Return the head."""
        return read_head(*self._select(SELECT_HEAD, ())[0])

    def hashes(self, level: int, first: int, count: int) -> list[bytes]:
        """Return stored hashes of the tree."""
        bounds = (first, first + count)
        if level == 0:
            leaves = "SELECT leaf_hash FROM events WHERE position > %s AND position <= %s ORDER BY position"
            return [row[0] for row in self._select(leaves, bounds)]
        nodes = "SELECT hash FROM nodes WHERE level = %s AND number >= %s AND number < %s ORDER BY number"
        return [row[0] for row in self._select(nodes, (level, *bounds))]

    def receipts(self, positions: Sequence[int]) -> dict[int, tuple[bytes, bytes | None]]:
        """Return the leaf hash and the MAC of these facts."""
        statement = "SELECT position, leaf_hash, mac FROM events WHERE position = ANY(%s)"
        return {position: (leaf, mac) for position, leaf, mac in self._select(statement, (list(positions),))}

    def entries(self, root: str | None, after: int, limit: int) -> list[Entry]:
        """Return rows as they are, for an auditor: of the log by position, or of a tree by root_sequence."""
        if root is None:
            return self._entries("position > %s ORDER BY position LIMIT %s", (after, limit))
        where = "root = %s AND root_sequence > %s ORDER BY root_sequence LIMIT %s"
        return self._entries(where, (root, after, limit))

    def log_entries(self) -> list[Entry]:
        """Return the rows of the facts that the log holds about itself."""
        return self._entries("stream = %s ORDER BY version", (LOG_STREAM,))

    def _entries(self, where: LiteralString, values: tuple[Any, ...]) -> list[Entry]:
        found = self._select(f"SELECT {ENTRY_COLUMNS} FROM events WHERE {where}", values)
        rows = {row[0]: row for row in found}
        texts: dict[Any, list[StoredText]] = {}
        statement = "SELECT position, digest, salt, words FROM texts WHERE position = ANY(%s)"
        for position, *text in self._select(statement, (list(rows),)):
            texts.setdefault(position, []).append(StoredText(*text))
        return [entry_of(row, texts.get(position, ())) for position, row in rows.items()]

    def answered(self, key: AnswerKey, answers_since: str) -> Answered | None:
        """Return the stored answer, unless it is older than *answers_since*."""
        with self._available(), self._cursor() as cursor:
            return select_answer(cursor, key, answers_since)

    def erase(self, runs: Sequence[str], *, output_only: bool, before: str | None) -> int:
        """Delete words and salts for good; return how many. PostgreSQL frees their bytes at its next vacuum."""
        with self._available(), self._cursor() as cursor:
            return cursor.execute(DELETE_TEXTS, (list(runs), not output_only, before, before)).rowcount

    def close(self) -> None:
        """Close every connection."""
        self.datastore.close()

    def _select(self, statement: LiteralString, values: tuple[Any, ...]) -> list[TupleRow]:
        try:
            with self._available(), self._cursor() as cursor:
                return cursor.execute(statement, values).fetchall()
        except LogUnavailable:  # once more, for a connection that died while it was idle
            with self._available(), self._cursor() as cursor:
                return cursor.execute(statement, values).fetchall()

    @contextmanager
    def _holding_head(self) -> Generator[tuple[Cursor[TupleRow], Head]]:
        with self.datastore.get_connection() as connection, connection.cursor(row_factory=tuple_row) as cursor:
            try:
                # Both in one round trip. Whoever gets the row sees, from its next statement on, all that its
                # predecessors committed.
                cursor.execute(f"BEGIN; {SELECT_HEAD} FOR UPDATE")
                cursor.nextset()
                yield cursor, read_head(*cursor.fetchall()[0])
                connection.commit()
            except BaseException:
                with suppress(psycopg.Error):  # a dead connection has rolled back already
                    connection.rollback()
                raise

    @contextmanager
    def _cursor(self) -> Generator[Cursor[TupleRow]]:
        connection: Connection[DictRow]
        with self.datastore.get_connection() as connection, connection.cursor(row_factory=tuple_row) as cursor:
            yield cursor

    @contextmanager
    def _available(self) -> Generator[None]:
        try:
            with translated():
                yield
        except LogUnavailable:
            # The server may have closed all connections at once, and the next caller should not meet the others.
            with suppress(psycopg.Error):
                self.datastore.pool.check()
            raise


def select_answer(cursor: Cursor[TupleRow], key: AnswerKey, answers_since: str) -> Answered | None:
    """Return the stored answer to a request, unless it is older than *answers_since*."""
    row = cursor.execute(SELECT_ANSWER, (*key, answers_since)).fetchone()
    if row is None:
        return None
    return Answered(body_digest=row[0], status=row[1], answer=row[2], position=row[3])


class PostgresLog(StoredLog):
    """The event log that several processes share."""

    def __init__(
        self,
        url: str,
        catalogue: Mapping[str, type[Event]],
        *,
        clock: Clock = SYSTEM_CLOCK,
        announce: Announce = ignore,
        seal: Opens = unsealed,
    ) -> None:
        recorder = PostgresRecorder(LogDatastore(url))
        try:
            recorder.create_table()
            sealing = seal(recorder, clock)
        except BaseException:
            recorder.close()
            raise
        super().__init__(recorder, EventCodec(catalogue), Sequencer(recorder, clock, announce, sealing), clock)
