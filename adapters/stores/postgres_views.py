"""Views in PostgreSQL, for any number of processes: whoever holds a generation's head row folds it."""

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import psycopg
from psycopg import Connection, IsolationLevel
from psycopg.rows import TupleRow
from psycopg_pool import ConnectionPool, PoolTimeout

from ...application.ports.log import LogUnavailable
from ...application.views.check_views import Snapshot
from .postgres_address import noticing
from .postgres_statements import native, read_sql
from .view_tables import Statements, TableViews, active_rows

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
SCHEMA = read_sql("postgres_views")


class PostgresStatements:
    """A connection that a thread has got from the pool."""

    def __init__(self, connection: Connection[TupleRow]) -> None:
        self._connection = connection

    def run(self, statement: str, *values: Any) -> Sequence[Sequence[Any]]:
        """Execute a statement and return its rows, if it has any."""
        with _translated():
            cursor = self._connection.execute(native(statement), values)
            return cursor.fetchall() if cursor.description else []

    def run_many(self, statement: str, values: Sequence[Sequence[Any]]) -> None:
        """Execute a statement once for each of *values*."""
        if values:
            with _translated(), self._connection.cursor() as cursor:
                cursor.executemany(native(statement), values)

    def stream(self, statement: str, *values: Any) -> Iterator[Sequence[Any]]:
        """Return the rows one after the other, a page of them in memory."""
        with self._connection.cursor(name="view_rows") as cursor:
            cursor.itersize = SNAPSHOT_PAGE
            yield from cursor.execute(native(statement), values)


class PostgresViews(TableViews):
    """The view store of all replicas."""

    HOLDING = " FOR UPDATE"

    def __init__(self, url: str) -> None:
        super().__init__()
        self._pool = ConnectionPool(
            noticing(url),
            kwargs={"autocommit": True, "connect_timeout": CONNECT_TIMEOUT_SECONDS},
            min_size=MIN_CONNECTIONS,
            max_size=MAX_CONNECTIONS,
            timeout=CONNECT_TIMEOUT_SECONDS,
            configure=_settle,
            open=True,
        )
        try:
            with _translated(), self._pool.connection() as connection, connection.transaction():
                connection.execute(SCHEMA)
        except BaseException:
            self._pool.close()
            raise

    @contextmanager
    def snapshot(self, view: str) -> Generator[Snapshot]:
        """Hold the view as it is now."""
        with _translated(), self._pool.connection() as connection:
            connection.isolation_level = IsolationLevel.REPEATABLE_READ
            try:
                with connection.transaction():
                    # Building the other side may take long, and nothing is asked of this connection meanwhile.
                    connection.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
                    yield active_rows(PostgresStatements(connection), view)
            finally:
                connection.isolation_level = None

    def close(self) -> None:
        """Close every connection; the store is not used again."""
        self._pool.close()

    @contextmanager
    def _reading(self) -> Generator[Statements]:
        with _translated(), self._pool.connection() as connection:
            yield PostgresStatements(connection)

    @contextmanager
    def _writing(self) -> Generator[Statements]:
        with _translated(), self._pool.connection() as connection, connection.transaction():
            yield PostgresStatements(connection)

    def _alone(self, statements: Statements, view: str) -> None:
        # There may be no row to lock yet, so the view's name is locked instead.
        statements.run("SELECT pg_advisory_xact_lock(hashtext('steersman views'), hashtext(?))", view)

    def _forgetting(self, statements: Statements) -> None:
        """Nothing is noted."""

    def tidy(self) -> None:
        """Nothing: no statement reads what was removed, and when its bytes go is up to the server's vacuum and its archive."""


def _settle(connection: Connection[TupleRow]) -> None:
    connection.execute(SETTINGS)


@contextmanager
def _translated() -> Generator[None]:
    """Let no driver's error out: a database that is away, or busy, may be there again later."""
    try:
        yield
    except (psycopg.OperationalError, psycopg.InterfaceError, PoolTimeout) as error:
        raise LogUnavailable(f"the views cannot be read or written now: {error}") from error
