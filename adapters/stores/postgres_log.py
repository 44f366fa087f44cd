"""The event log in PostgreSQL, for any number of processes: whoever holds the head's row writes."""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, LiteralString, Unpack

import psycopg
from eventsourcing.persistence import StoredEvent
from eventsourcing.postgres import PostgresApplicationRecorder, PostgresDatastore
from psycopg import Connection, Cursor
from psycopg.rows import DictRow, TupleRow, dict_row, tuple_row

from ...application.ports.log import Answered, LogUnavailable
from ...domain.event import Event
from ..log.numbering import BatchNeeds, Known, Numbered
from ..log.recorder import Transaction, translated
from ..log.rows import (
    DELETE_ANSWERS,
    LIBRARY_COLUMNS,
    NODE_COLUMNS,
    SELECT_HEAD,
    LogRows,
    answer_rows,
    fact_rows,
    head_values,
    library_rows,
    node_rows,
    stored_head,
    text_rows,
)
from ..log.sequenced_log import LogOptions, SequencedLog
from ..log_format.event_codec import StoredRow
from ..log_format.head import Head, edge_bytes
from .postgres_address import noticing
from .postgres_statements import native, read_sql

CONNECT_TIMEOUT_SECONDS = 5
#: How long the head is waited for.
LOCK_TIMEOUT: Final = "10s"
#: A writer that froze while it held the head loses it after this long.
IDLE_IN_TRANSACTION_TIMEOUT: Final = "10s"
MIN_CONNECTIONS = 2
MAX_CONNECTIONS = 16


SCHEMA = read_sql("postgres_log")
KNOWN = read_sql("postgres_known")
WRITE = read_sql("postgres_write")
ANSWERS = read_sql("postgres_answers")
KEEP_ANSWERS = read_sql("postgres_keep_answers")

# Every query of the log goes by an index, so one plan is right for all values and all lengths of the log, also one that
# was made while the tables were empty. To make it anew for every append takes longer than all the rest.
SETTINGS = (
    f"SET lock_timeout = '{LOCK_TIMEOUT}';"
    f"SET idle_in_transaction_session_timeout = '{IDLE_IN_TRANSACTION_TIMEOUT}';"
    "SET synchronous_commit = on;"
    "SET default_transaction_isolation = 'read committed';"
    "SET enable_seqscan = off;"
    "SET plan_cache_mode = force_generic_plan"
)


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
        self.pool.conninfo = noticing(url)
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
    """
    A transaction that holds the head's row, from when it asks what is known: that comes first.

    Nothing waits for an answer before it has to. From one round trip it knows all, in another all is written.
    """

    def __init__(self, connection: Connection[Any]) -> None:
        self._connection = connection
        self._head: Head | None = None

    def known(self, wanted: BatchNeeds, answers_since: str) -> Known:
        """Return what the log holds of *wanted*."""
        head: Cursor[TupleRow] | None = None
        if self._head is None:
            self._sent("BEGIN")
            # Whoever gets the row sees, from its next statement on, all that its predecessors committed.
            head = self._sent(f"{SELECT_HEAD} FOR UPDATE")
        names = {name: getattr(wanted, name) for name in ("streams", "runs", "roots", "commands", "leases")}
        numbers = self._sent(KNOWN, names)
        answers = None
        if wanted.answers:
            asked = [list(column) for column in zip(*wanted.answers, strict=True)]
            answers = self._sent(ANSWERS, (*asked, answers_since))
        if head is not None:
            self._head = stored_head(head.fetchall())
        assert self._head is not None
        known = _known(self._head, numbers.fetchall())
        for *key, body_digest, status, answer, position in answers.fetchall() if answers else ():
            found = Answered(body_digest=body_digest, status=status, answer=answer, position=position)
            known.answers[key[0], key[1], key[2], key[3]] = found
        return known

    def write(self, numbered: Numbered, now: str, answers_since: str) -> None:
        """Write facts, texts, answers and the new head."""
        values: list[list[Any]] = []
        for rows, width in ((fact_rows(numbered), 14), (text_rows(numbered), 6), (node_rows(numbered.nodes), 3)):
            values += [list(column) for column in zip(*rows, strict=True)] or [[]] * width
        self._sent(WRITE, (*values, *head_values(numbered.head)))
        if numbered.answers:
            self._sent(native(DELETE_ANSWERS), (answers_since,))
            self._sent(KEEP_ANSWERS, [list(column) for column in zip(*answer_rows(numbered, now), strict=True)])

    def commit(self) -> None:
        """Send the end of the transaction; it is over when the pipeline is left without an error."""
        self._sent("COMMIT")

    def _sent(self, statement: LiteralString, values: Any = None) -> Cursor[TupleRow]:
        return self._connection.cursor(row_factory=tuple_row).execute(statement, values)


def _known(head: Head, rows: Sequence[TupleRow]) -> Known:
    known = Known(head.edge.size, {}, {}, {}, {}, {}, head)
    numbers = {"stream": known.streams, "run": known.runs, "root": known.roots, "lease": known.leases}
    for kind, name, number, run, state in rows:
        if kind == "command":
            known.commands.setdefault(name, []).append(StoredRow(number, run, state))
        else:
            numbers[kind][name] = number or 0
    for stored in known.commands.values():
        stored.sort(key=lambda row: row.position)
    return known


class PostgresRecorder(LogRows, PostgresApplicationRecorder):
    """The library's recorder on our tables: it numbers without gaps, and reads what both of us wrote."""

    AMONG = "= ANY(?)"

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
        with self._rolling_back() as connection, connection.cursor(row_factory=tuple_row) as cursor:
            cursor.execute(f"BEGIN; {SELECT_HEAD} FOR UPDATE")
            cursor.nextset()
            rows, edge, nodes = library_rows(stored_head(cursor.fetchall()), stored_events)
            cursor.executemany(f"INSERT INTO events ({LIBRARY_COLUMNS}) VALUES (%s, %s, %s, %s, %s, %s)", rows)
            cursor.executemany(f"INSERT INTO nodes ({NODE_COLUMNS}) VALUES (%s, %s, %s)", node_rows(nodes))
            cursor.execute("UPDATE head SET position = %s, edge = %s", (edge.size, edge_bytes(edge)))
            # The library's own subscriptions listen for this.
            cursor.execute("NOTIFY stored_events")
            connection.commit()
        return [row[0] for row in rows]

    @contextmanager
    def transaction(self) -> Generator[Transaction]:
        """Hold the head; see Recorder."""
        with self._available(), self._rolling_back() as connection, connection.pipeline():
            transaction = PostgresTransaction(connection)
            yield transaction
            transaction.commit()

    def erase(self, runs: Sequence[str], *, output_only: bool, before: str | None) -> int:
        """Delete words and salts for good; return how many. PostgreSQL frees their bytes at its next vacuum."""
        return self._erase(*self._erasing(runs, output_only=output_only, before=before))

    def erase_stream(self, stream: str) -> int:
        """Delete the words and salts of one stream, in the same way."""
        return self._erase(*self._erasing_stream(stream))

    def erase_tree(self, root: str) -> int:
        """Delete the words and salts of a coordinator's tree, in the same way."""
        return self._erase(*self._erasing_tree(root))

    def _erase(self, statement: str, values: Sequence[Any]) -> int:
        with self._available(), self._cursor() as cursor:
            return cursor.execute(native(statement), values).rowcount

    def close(self) -> None:
        """Close every connection."""
        self.datastore.close()

    def _list(self, values: Sequence[Any]) -> Any:
        return list(values)

    def _select(self, statement: str, values: Sequence[Any]) -> list[TupleRow]:
        try:
            return self._run(native(statement), values)
        except LogUnavailable:  # once more, for a connection that died while it was idle
            return self._run(native(statement), values)

    def _run(self, statement: LiteralString, values: Sequence[Any]) -> list[TupleRow]:
        with self._available(), self._cursor() as cursor:
            return cursor.execute(statement, values).fetchall()

    @contextmanager
    def _rolling_back(self) -> Generator[Connection[Any]]:
        """Lend a connection; after an error nothing is left of its transaction."""
        with self.datastore.get_connection() as connection:
            try:
                yield connection
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


class PostgresLog(SequencedLog):
    """The event log that several processes share."""

    def __init__(self, url: str, catalogue: Mapping[str, type[Event]], **opening: Unpack[LogOptions]) -> None:
        super().__init__(PostgresRecorder(LogDatastore(url)), catalogue, **opening)
