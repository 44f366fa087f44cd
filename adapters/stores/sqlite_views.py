"""
Views in a SQLite file of their own, beside the log's.

Commits are not synced (`synchronous = NORMAL`): after a power cut the newest ones may be gone, rows and positions
alike, and are folded again from the log. The log's own file is never treated like this.

**What was forgotten** is in none of the files once `tidy` has returned. `secure_delete` is not enough for that: it zeroes
a row that is removed, but not the copies that SQLite leaves in the unused part of a page when it moves rows from page to
page. Only writing the whole file anew is sure to leave none, so that is done, but not for every row that is removed: for
what `extend` was told to forget, and for a generation. How often that was noted is counted in the same transaction, and
so is up to where it was done: a process that dies in between leaves it to the next one.
"""

import sqlite3
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Lock, local
from typing import Any

from ...application.ports.log import LogUnavailable
from ...application.views.check_views import Snapshot
from .view_tables import Statements, TableViews, active_rows

SCHEMA = Path(__file__).parent / "sql" / "sqlite_views.sql"
LOCK_TIMEOUT_SECONDS = 10
#: How long the emptying of the journal waits for a reader; then it is left to the next call.
READER_PATIENCE_MILLISECONDS = 100
SELECT_FORGOTTEN = "SELECT forgotten, gone FROM view_forgotten"
UPDATE_FORGOTTEN = "UPDATE view_forgotten SET forgotten = forgotten + 1"
UPDATE_GONE = "UPDATE view_forgotten SET gone = max(gone, ?)"


class SqliteStatements:
    """A connection that a thread uses."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def run(self, statement: str, *values: Any) -> Sequence[Sequence[Any]]:
        """Execute a statement and return its rows, if it has any."""
        with _translated():
            return self._connection.execute(statement, values).fetchall()

    def run_many(self, statement: str, values: Sequence[Sequence[Any]]) -> None:
        """Execute a statement once for each of *values*."""
        with _translated():
            self._connection.executemany(statement, values)

    def stream(self, statement: str, *values: Any) -> Iterator[Sequence[Any]]:
        """Return the rows one after the other."""
        return self._connection.execute(statement, values)


class SqliteViews(TableViews):
    """The view store of one data directory. Any process that opens the file may read and fold."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._here = local()
        self._opened: list[sqlite3.Connection] = []
        self._guard = Lock()
        #: Up to where the file was written anew; a reader may have kept the journal since.
        self._rewritten = 0
        with _translated():
            self._connection().executescript(SCHEMA.read_text(encoding="utf-8"))

    @contextmanager
    def snapshot(self, view: str) -> Generator[Snapshot]:
        """Hold the view as it is now, through a connection of its own."""
        connection = _connect(self._path)
        try:
            with _translated():
                connection.execute("BEGIN")  # the first read below fixes what it sees
                yield active_rows(SqliteStatements(connection), view)
        finally:
            connection.close()

    def tidy(self) -> None:
        """Write the file anew if something was forgotten, and empty the journal; see ViewStore."""
        with _translated():
            forgotten, gone = self._connection().execute(SELECT_FORGOTTEN).fetchone()
            if forgotten == gone:
                return
            with closing(_connect(self._path)) as connection:
                if self._rewritten != forgotten:
                    connection.execute("VACUUM")  # readers go on; it is in the journal until that is emptied
                    self._rewritten = forgotten
                connection.execute(f"PRAGMA busy_timeout = {READER_PATIENCE_MILLISECONDS}")
                is_busy, _, _ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
                if not is_busy:
                    # If we die before this, all of it is done once more.
                    connection.execute(UPDATE_GONE, (forgotten,))

    def close(self) -> None:
        """Close every connection; the store is not used again."""
        with self._guard:
            while self._opened:
                self._opened.pop().close()

    @contextmanager
    def _reading(self) -> Generator[Statements]:
        with _translated():
            yield SqliteStatements(self._connection())

    @contextmanager
    def _writing(self) -> Generator[Statements]:
        with _translated():
            connection = self._connection()
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield SqliteStatements(connection)
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    def _alone(self, statements: Statements, view: str) -> None:
        """Nothing: a transaction that writes is the only one."""

    def _forgetting(self, statements: Statements) -> None:
        statements.run(UPDATE_FORGOTTEN)

    def _connection(self) -> sqlite3.Connection:
        """Return this thread's connection."""
        connection: sqlite3.Connection | None = getattr(self._here, "connection", None)
        if connection is None:
            connection = self._here.connection = _connect(self._path)
            with self._guard:
                self._opened.append(connection)
        return connection


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=LOCK_TIMEOUT_SECONDS, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    # What a run's owner had erased must not stay behind in free pages.
    connection.execute("PRAGMA secure_delete = ON")
    return connection


@contextmanager
def _translated() -> Generator[None]:
    """Let no driver's error out: a store that is locked, full or away may be there again later."""
    try:
        yield
    except sqlite3.OperationalError as error:
        raise LogUnavailable(f"the views cannot be read or written now: {error}") from error
