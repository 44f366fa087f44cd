"""Views in PostgreSQL, for any number of processes: whoever holds a generation's head row folds it."""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, LiteralString, cast

import psycopg
from psycopg import Connection, IsolationLevel
from psycopg.rows import TupleRow
from psycopg_pool import ConnectionPool, PoolTimeout

from ..application.check_views import Snapshot
from ..application.log_port import LogUnavailable
from ..application.ports import ViewRow
from ..application.project_views import Changes, Head, StoredRows
from .position_waiters import PositionWaiters

CONNECT_TIMEOUT_SECONDS = 5
#: How long a head that another process holds is waited for.
LOCK_TIMEOUT: Final = "10s"
#: A process that froze in the middle of a batch loses its locks after this long.
IDLE_IN_TRANSACTION_TIMEOUT: Final = "30s"
MIN_CONNECTIONS = 1
MAX_CONNECTIONS = 16
#: How many rows a check holds in memory at once.
SNAPSHOT_PAGE = 500

# A commit that a crash takes back takes back rows and position alike; they are folded again from the log.
SETTINGS = (
    f"SET lock_timeout = '{LOCK_TIMEOUT}';"
    f"SET idle_in_transaction_session_timeout = '{IDLE_IN_TRANSACTION_TIMEOUT}';"
    "SET synchronous_commit = off"
)
SCHEMA = cast("LiteralString", (Path(__file__).parent / "sql" / "postgres_views.sql").read_text(encoding="utf-8"))

SELECT_HEADS: Final = "SELECT generation, version, position, active FROM view_heads WHERE view = %s ORDER BY generation"
# The active generation is found in the statement that reads the row: a swap between two statements would show neither.
OF_ACTIVE: Final = "FROM view_rows JOIN view_heads USING (view, generation) WHERE view = %s AND active"
SELECT_ACTIVE_BODY: Final = f"SELECT body {OF_ACTIVE} AND key = %s"
SELECT_LIST: Final = (
    f'SELECT key, "grouping", ordering, body {OF_ACTIVE} AND "grouping" = %s AND (%s::bigint IS NULL OR ordering < %s)'
    " ORDER BY ordering DESC LIMIT %s"
)
SELECT_BODY: Final = "SELECT body FROM view_rows WHERE view = %s AND generation = %s AND key = %s"
SELECT_GROUP: Final = 'SELECT key, body FROM view_rows WHERE view = %s AND generation = %s AND "grouping" = %s'
SELECT_ROWS: Final = (
    'SELECT key, "grouping", ordering, body FROM view_rows WHERE view = %s AND generation = %s ORDER BY key'
)
INSERT_ROW: Final = (
    'INSERT INTO view_rows (view, generation, key, "grouping", ordering, body) VALUES (%s, %s, %s, %s, %s, %s)'
    " ON CONFLICT (view, generation, key) DO UPDATE SET"
    ' "grouping" = excluded."grouping", ordering = excluded.ordering, body = excluded.body'
)
DELETE_ROWS: Final = "DELETE FROM view_rows WHERE view = %s AND generation = %s AND key = ANY(%s)"
UPDATE_POSITION: Final = "UPDATE view_heads SET position = %s WHERE view = %s AND generation = %s"
INSERT_HEAD: Final = "INSERT INTO view_heads (view, generation, version, position, active) VALUES (%s, %s, %s, 0, %s)"


class PostgresRows:
    """A generation's rows, read through one connection."""

    def __init__(self, connection: Connection[TupleRow], view: str, head: Head | None) -> None:
        self._connection = connection
        self._of = view, head.generation if head else 0
        self.head = head

    def row(self, key: str) -> bytes | None:
        """Return a row's bytes."""
        with _translated():
            found = self._connection.execute(SELECT_BODY, (*self._of, key)).fetchone()
        return None if found is None else found[0]

    def group(self, name: str) -> Mapping[str, bytes]:
        """Return the bytes of every row of a group, by key."""
        with _translated():
            return dict(self._connection.execute(SELECT_GROUP, (*self._of, name)).fetchall())

    def rows(self) -> Iterator[ViewRow]:
        """Return the rows by key."""
        with self._connection.cursor(name="view_rows") as cursor:
            cursor.itersize = SNAPSHOT_PAGE
            for row in cursor.execute(SELECT_ROWS, self._of):
                yield _view_row(row)


class PostgresViews:
    """The view store of all replicas."""

    def __init__(self, url: str) -> None:
        self._waiters = PositionWaiters()
        self._pool = ConnectionPool(
            url,
            kwargs={"autocommit": True, "connect_timeout": CONNECT_TIMEOUT_SECONDS},
            min_size=MIN_CONNECTIONS,
            max_size=MAX_CONNECTIONS,
            timeout=CONNECT_TIMEOUT_SECONDS,
            configure=_settle,
            open=True,
        )
        try:
            with self._transaction() as connection:
                connection.execute(SCHEMA)
        except BaseException:
            self._pool.close()
            raise

    def get(self, view: str, key: str) -> bytes | None:
        """Return a row's bytes as they were stored."""
        found = self._select(SELECT_ACTIVE_BODY, (view, key))
        return found[0][0] if found else None

    def list(self, view: str, group: str, *, before: int | None = None, limit: int = 100) -> Sequence[ViewRow]:
        """Return a group's rows, the highest order first, those below *before*."""
        return [_view_row(row) for row in self._select(SELECT_LIST, (view, group, before, before, max(limit, 0)))]

    def position(self, view: str) -> int:
        """Return the position up to which the view has folded the log."""
        return next((head.position for head in self.heads(view) if head.active), 0)

    def wait(self, view: str, position: int, timeout_seconds: float) -> bool:
        """Return True as soon as the view has reached *position*, False when the time is over before."""
        return self._waiters.wait(lambda: self.position(view), position, timeout_seconds)

    def heads(self, view: str) -> Sequence[Head]:
        """Return the view's generations, the oldest first."""
        return [_head(row) for row in self._select(SELECT_HEADS, (view,))]

    def begin(self, view: str, version: int, *, beside: int | None) -> None:
        """Begin a generation at position 0; see ViewStore."""
        with self._transaction() as connection:
            # There may be no row to lock yet, so the view's name is locked instead.
            connection.execute("SELECT pg_advisory_xact_lock(hashtext('steersman views'), hashtext(%s))", (view,))
            heads = _heads(connection, view, lock=False)
            active = next((head.generation for head in heads if head.active), None)
            if active == beside and not any(head.version == version and not head.active for head in heads):
                number = max((head.generation for head in heads), default=0) + 1
                connection.execute(INSERT_HEAD, (view, number, version, active is None))

    def extend(
        self, view: str, generation: int, *, after: int, upto: int, fold: Callable[[StoredRows], Changes]
    ) -> bool:
        """Take a generation from *after* to *upto*; see ViewStore."""
        with self._transaction() as connection:
            found = connection.execute(
                "SELECT generation, version, position, active FROM view_heads"
                " WHERE view = %s AND generation = %s FOR UPDATE",
                (view, generation),
            ).fetchone()
            if found is None or _head(found).position != after:
                return False
            changes = fold(PostgresRows(connection, view, _head(found)))
            with connection.cursor() as cursor:
                cursor.executemany(INSERT_ROW, [(view, generation, key, *p) for key, p in changes.items() if p])
            connection.execute(DELETE_ROWS, (view, generation, [key for key, p in changes.items() if p is None]))
            # If we die before the commit, neither the rows nor this is stored.
            connection.execute(UPDATE_POSITION, (upto, view, generation))
        self._waiters.progressed()
        return True

    def swap(self, view: str, generation: int) -> bool:
        """Make the generation the active one; see ViewStore."""
        with self._transaction() as connection:
            heads = _heads(connection, view, lock=True)
            new = next((head for head in heads if head.generation == generation), None)
            old = next((head for head in heads if head.active), None)
            if new is None or new.active or (old is not None and new.position < old.position):
                return False
            if old is not None:
                _drop(connection, view, old.generation)
            connection.execute(
                "UPDATE view_heads SET active = true WHERE view = %s AND generation = %s", (view, generation)
            )
        self._waiters.progressed()
        return True

    def drop(self, view: str, generation: int) -> None:
        """Forget a generation."""
        with self._transaction() as connection:
            _drop(connection, view, generation)

    @contextmanager
    def snapshot(self, view: str) -> Generator[Snapshot]:
        """Hold the view as it is now."""
        with _translated(), self._pool.connection() as connection:
            connection.isolation_level = IsolationLevel.REPEATABLE_READ
            try:
                with connection.transaction():
                    # Building the other side may take long, and nothing is asked of this connection meanwhile.
                    connection.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
                    heads = _heads(connection, view, lock=False)
                    yield PostgresRows(connection, view, next((head for head in heads if head.active), None))
            finally:
                connection.isolation_level = None

    def close(self) -> None:
        """Close every connection; the store is not used again."""
        self._pool.close()

    def _select(self, statement: LiteralString, values: tuple[Any, ...]) -> Sequence[TupleRow]:
        with _translated(), self._pool.connection() as connection:
            return connection.execute(statement, values).fetchall()

    @contextmanager
    def _transaction(self) -> Generator[Connection[TupleRow]]:
        with _translated(), self._pool.connection() as connection, connection.transaction():
            yield connection


def _settle(connection: Connection[TupleRow]) -> None:
    connection.execute(SETTINGS)


def _heads(connection: Connection[TupleRow], view: str, *, lock: bool) -> list[Head]:
    statement: LiteralString = SELECT_HEADS + " FOR UPDATE" if lock else SELECT_HEADS
    return [_head(row) for row in connection.execute(statement, (view,)).fetchall()]


def _head(row: TupleRow) -> Head:
    generation, version, position, active = row
    return Head(generation=generation, version=version, position=position, active=active)


def _drop(connection: Connection[TupleRow], view: str, generation: int) -> None:
    # The head first: a process that folds into this generation holds it, and finds it gone afterwards.
    connection.execute("DELETE FROM view_heads WHERE view = %s AND generation = %s", (view, generation))
    connection.execute("DELETE FROM view_rows WHERE view = %s AND generation = %s", (view, generation))


def _view_row(row: TupleRow) -> ViewRow:
    key, group, order, body = row
    return ViewRow(key=key, group=group, order=order, body=body)


@contextmanager
def _translated() -> Generator[None]:
    """Let no driver's error out: a database that is away, or busy, may be there again later."""
    try:
        yield
    except (psycopg.OperationalError, psycopg.InterfaceError, PoolTimeout) as error:
        raise LogUnavailable(f"the views cannot be read or written now: {error}") from error
