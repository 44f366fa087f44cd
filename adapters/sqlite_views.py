"""
Views in a SQLite file of their own, beside the log's.

Commits are not synced (`synchronous = NORMAL`): after a power cut the newest ones may be gone, rows and positions
alike, and are folded again from the log. The log's own file is never treated like this.
"""

import sqlite3
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock, local

from ..application.check_views import Snapshot
from ..application.log_port import LogUnavailable
from ..application.ports import ViewRow
from ..application.project_views import Changes, Head, StoredRows
from .position_waiters import PositionWaiters

SCHEMA = Path(__file__).parent / "sql" / "sqlite_views.sql"
LOCK_TIMEOUT_SECONDS = 10
#: How long the emptying of the journal waits for a reader; then it is left to the next batch.
READER_PATIENCE_MILLISECONDS = 100

SELECT_HEADS = "SELECT generation, version, position, active FROM view_heads WHERE view = ? ORDER BY generation"
# The active generation is found in the statement that reads the row: a swap between two statements would show neither.
OF_ACTIVE = "FROM view_rows JOIN view_heads USING (view, generation) WHERE view = ? AND active"
SELECT_BODY = "SELECT body FROM view_rows WHERE view = ? AND generation = ? AND key = ?"
SELECT_GROUP = "SELECT key, body FROM view_rows WHERE view = ? AND generation = ? AND grouping = ?"
SELECT_ROWS = "SELECT key, grouping, ordering, body FROM view_rows WHERE view = ? AND generation = ? ORDER BY key"
INSERT_ROW = (
    "INSERT OR REPLACE INTO view_rows (view, generation, key, grouping, ordering, body) VALUES (?, ?, ?, ?, ?, ?)"
)
INSERT_HEAD = "INSERT INTO view_heads (view, generation, version, position, active) VALUES (?, ?, ?, 0, ?)"


class SqliteRows:
    """A generation's rows, read through one connection."""

    def __init__(self, connection: sqlite3.Connection, view: str, head: Head | None) -> None:
        self._connection = connection
        self._view = view
        self.head = head

    @property
    def _generation(self) -> tuple[str, int]:
        return self._view, self.head.generation if self.head else 0

    def row(self, key: str) -> bytes | None:
        """Return a row's bytes."""
        with _translated():
            found = self._connection.execute(SELECT_BODY, (*self._generation, key)).fetchone()
        return None if found is None else found[0]

    def group(self, name: str) -> Mapping[str, bytes]:
        """Return the bytes of every row of a group, by key."""
        with _translated():
            return dict(self._connection.execute(SELECT_GROUP, (*self._generation, name)).fetchall())

    def rows(self) -> Iterator[ViewRow]:
        """Return the rows by key."""
        for row in self._connection.execute(SELECT_ROWS, self._generation):
            yield _view_row(row)


class SqliteViews:
    """The view store of one data directory. Any process that opens the file may read and fold."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._waiters = PositionWaiters()
        self._here = local()
        self._opened: list[sqlite3.Connection] = []
        self._guard = Lock()
        #: Whether the journal may hold rows that are removed: what died before us may have left some.
        self._leftovers = True
        with _translated():
            self._connection().executescript(SCHEMA.read_text(encoding="utf-8"))

    def get(self, view: str, key: str) -> bytes | None:
        """Return a row's bytes as they were stored."""
        with _translated():
            found = self._connection().execute(f"SELECT body {OF_ACTIVE} AND key = ?", (view, key)).fetchone()
        return None if found is None else found[0]

    def list(self, view: str, group: str, *, before: int | None = None, limit: int = 100) -> Sequence[ViewRow]:
        """Return a group's rows, the highest order first, those below *before*."""
        statement = (
            f"SELECT key, grouping, ordering, body {OF_ACTIVE} AND grouping = ? AND (? IS NULL OR ordering < ?)"
            " ORDER BY ordering DESC LIMIT ?"
        )
        with _translated():
            rows = self._connection().execute(statement, (view, group, before, before, max(limit, 0))).fetchall()
        return [_view_row(row) for row in rows]

    def position(self, view: str) -> int:
        """Return the position up to which the view has folded the log."""
        return next((head.position for head in self.heads(view) if head.active), 0)

    def wait(self, view: str, position: int, timeout_seconds: float) -> bool:
        """Return True as soon as the view has reached *position*, False when the time is over before."""
        return self._waiters.wait(lambda: self.position(view), position, timeout_seconds)

    def heads(self, view: str) -> Sequence[Head]:
        """Return the view's generations, the oldest first."""
        with _translated():
            return _heads(self._connection(), view)

    def begin(self, view: str, version: int, *, beside: int | None) -> None:
        """Begin a generation at position 0; see ViewStore."""
        with self._transaction() as connection:
            heads = _heads(connection, view)
            active = next((head.generation for head in heads if head.active), None)
            if active == beside and not any(head.version == version and not head.active for head in heads):
                number = max((head.generation for head in heads), default=0) + 1
                connection.execute(INSERT_HEAD, (view, number, version, active is None))

    def extend(
        self, view: str, generation: int, *, after: int, upto: int, fold: Callable[[StoredRows], Changes]
    ) -> bool:
        """Take a generation from *after* to *upto*; see ViewStore."""
        with self._transaction() as connection:
            head = next((h for h in _heads(connection, view) if h.generation == generation), None)
            if head is None or head.position != after:
                return False
            changes = fold(SqliteRows(connection, view, head))
            connection.executemany(INSERT_ROW, [(view, generation, key, *p) for key, p in changes.items() if p])
            connection.executemany(
                "DELETE FROM view_rows WHERE view = ? AND generation = ? AND key = ?",
                [(view, generation, key) for key, placed in changes.items() if placed is None],
            )
            # If we die before the commit, neither the rows nor this is stored.
            connection.execute(
                "UPDATE view_heads SET position = ? WHERE view = ? AND generation = ?", (upto, view, generation)
            )
        if self._leftovers or any(placed is None for placed in changes.values()):
            self._empty_journal()
        self._waiters.progressed()
        return True

    def _empty_journal(self) -> None:
        """Take care that the write-ahead log holds no removed row either; a reader in the way only puts it off."""
        with _translated():
            connection = self._connection()
            connection.execute(f"PRAGMA busy_timeout = {READER_PATIENCE_MILLISECONDS}")
            busy, _, _ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            connection.execute(f"PRAGMA busy_timeout = {int(LOCK_TIMEOUT_SECONDS * 1_000)}")
        self._leftovers = bool(busy)

    def swap(self, view: str, generation: int) -> bool:
        """Make the generation the active one; see ViewStore."""
        with self._transaction() as connection:
            heads = _heads(connection, view)
            new = next((head for head in heads if head.generation == generation), None)
            old = next((head for head in heads if head.active), None)
            if new is None or new.active or (old is not None and new.position < old.position):
                return False
            if old is not None:
                _drop(connection, view, old.generation)
            connection.execute("UPDATE view_heads SET active = 1 WHERE view = ? AND generation = ?", (view, generation))
        self._waiters.progressed()
        return True

    def drop(self, view: str, generation: int) -> None:
        """Forget a generation."""
        with self._transaction() as connection:
            _drop(connection, view, generation)

    @contextmanager
    def snapshot(self, view: str) -> Generator[Snapshot]:
        """Hold the view as it is now, through a connection of its own."""
        connection = _connect(self._path)
        try:
            with _translated():
                connection.execute("BEGIN")  # the first read below fixes what it sees
                yield SqliteRows(connection, view, next((h for h in _heads(connection, view) if h.active), None))
        finally:
            connection.close()

    def close(self) -> None:
        """Close every connection; the store is not used again."""
        with self._guard:
            while self._opened:
                self._opened.pop().close()

    def _connection(self) -> sqlite3.Connection:
        """Return this thread's connection."""
        connection: sqlite3.Connection | None = getattr(self._here, "connection", None)
        if connection is None:
            connection = self._here.connection = _connect(self._path)
            with self._guard:
                self._opened.append(connection)
        return connection

    @contextmanager
    def _transaction(self) -> Generator[sqlite3.Connection]:
        with _translated():
            connection = self._connection()
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=LOCK_TIMEOUT_SECONDS, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    # What a run's owner had erased must not stay behind in free pages.
    connection.execute("PRAGMA secure_delete = ON")
    return connection


def _heads(connection: sqlite3.Connection, view: str) -> list[Head]:
    return [
        Head(generation=generation, version=version, position=position, active=bool(active))
        for generation, version, position, active in connection.execute(SELECT_HEADS, (view,)).fetchall()
    ]


def _drop(connection: sqlite3.Connection, view: str, generation: int) -> None:
    connection.execute("DELETE FROM view_rows WHERE view = ? AND generation = ?", (view, generation))
    connection.execute("DELETE FROM view_heads WHERE view = ? AND generation = ?", (view, generation))


def _view_row(row: tuple[str, str, int, bytes]) -> ViewRow:
    key, group, order, body = row
    return ViewRow(key=key, group=group, order=order, body=body)


@contextmanager
def _translated() -> Generator[None]:
    """Let no driver's error out: a store that is locked, full or away may be there again later."""
    try:
        yield
    except sqlite3.OperationalError as error:
        raise LogUnavailable(f"the views cannot be read or written now: {error}") from error
