"""
Views in two tables, the same in every database: what may be said of generations, rows and positions by statements.

Statements are written with `?` for each value. What the databases do differently is left to a store of each: how a
transaction begins, what it locks, and what its connections are.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from threading import local
from typing import Any, Final, Protocol

from ...application.ports.outside import ViewRow
from ...application.views.project_views import Changes, GenerationRows, ViewHead
from .position_waiters import PositionWaiters

SELECT_HEADS: Final = "SELECT generation, version, position, active FROM view_heads WHERE view = ? ORDER BY generation"
SELECT_HEAD: Final = "SELECT generation, version, position, active FROM view_heads WHERE view = ? AND generation = ?"
# The active generation is found in the statement that reads the row: a swap between two statements would show neither.
OF_ACTIVE: Final = "FROM view_rows JOIN view_heads USING (view, generation) WHERE view = ? AND active"
SELECT_ACTIVE_BODY: Final = f"SELECT body {OF_ACTIVE} AND key = ?"
SELECT_LIST: Final = (
    f'SELECT key, "grouping", ordering, body {OF_ACTIVE} AND "grouping" = ?'
    " AND (CAST(? AS bigint) IS NULL OR ordering < ?) ORDER BY ordering DESC LIMIT ?"
)
SELECT_BODY: Final = "SELECT body FROM view_rows WHERE view = ? AND generation = ? AND key = ?"
SELECT_GROUP: Final = 'SELECT key, body FROM view_rows WHERE view = ? AND generation = ? AND "grouping" = ?'
SELECT_ROWS: Final = (
    'SELECT key, "grouping", ordering, body FROM view_rows WHERE view = ? AND generation = ? ORDER BY key'
)
INSERT_ROW: Final = (
    'INSERT INTO view_rows (view, generation, key, "grouping", ordering, body) VALUES (?, ?, ?, ?, ?, ?)'
    " ON CONFLICT (view, generation, key) DO UPDATE SET"
    ' "grouping" = excluded."grouping", ordering = excluded.ordering, body = excluded.body'
)
DELETE_ROW: Final = "DELETE FROM view_rows WHERE view = ? AND generation = ? AND key = ?"
UPDATE_POSITION: Final = "UPDATE view_heads SET position = ? WHERE view = ? AND generation = ?"
INSERT_HEAD: Final = "INSERT INTO view_heads (view, generation, version, position, active) VALUES (?, ?, ?, 0, ?)"


class Statements(Protocol):
    """A connection, or a transaction of one. Raises LogUnavailable when the database is locked, full or away."""

    def run(self, statement: str, *values: Any) -> Sequence[Sequence[Any]]:
        """Execute a statement and return its rows, if it has any."""
        ...

    def run_many(self, statement: str, values: Sequence[Sequence[Any]]) -> None:
        """Execute a statement once for each of *values*."""
        ...

    def stream(self, statement: str, *values: Any) -> Iterator[Sequence[Any]]:
        """Return the rows one after the other, without holding all of them."""
        ...


class TableRows:
    """A generation's rows, read through one connection."""

    def __init__(self, statements: Statements, view: str, head: ViewHead | None) -> None:
        self._statements = statements
        self._of = view, head.generation if head else 0
        self.head = head

    def row(self, key: str) -> bytes | None:
        """Return a row's bytes."""
        found = self._statements.run(SELECT_BODY, *self._of, key)
        return found[0][0] if found else None

    def group(self, name: str) -> Mapping[str, bytes]:
        """Return the bytes of every row of a group, by key."""
        return {key: body for key, body in self._statements.run(SELECT_GROUP, *self._of, name)}

    def rows(self) -> Iterator[ViewRow]:
        """Return the rows by key."""
        return map(_view_row, self._statements.stream(SELECT_ROWS, *self._of))


class TableViews(ABC):
    """A ViewStore over the two tables."""

    #: What keeps a row that was read from everybody else until the transaction ends.
    HOLDING = ""

    def __init__(self) -> None:
        self._waiters = PositionWaiters()
        #: The transaction that a thread has begun for several steps.
        self._shared = local()

    @abstractmethod
    def _reading(self) -> AbstractContextManager[Statements]:
        """Lend a connection for one statement."""

    @abstractmethod
    def _writing(self) -> AbstractContextManager[Statements]:
        """Begin a transaction. Leaving the block commits it; an error in it rolls back."""

    @abstractmethod
    def _alone(self, statements: Statements, view: str) -> None:
        """On return nobody else begins a generation of the view until the transaction ends."""

    @abstractmethod
    def _forgetting(self, statements: Statements) -> None:
        """On return, once the transaction is committed, whoever calls `tidy` next has something to do."""

    @abstractmethod
    def tidy(self) -> None:
        """Keep no copy of what was forgotten; see ViewStore."""

    @contextmanager
    def together(self) -> Generator[None]:
        """Make one transaction of what this thread does in the block; see ViewStore."""
        with self._writing() as statements:
            self._shared.statements = statements
            try:
                yield
            finally:
                self._shared.statements = None
        self._waiters.progressed()

    def rest(self, seconds: float) -> None:
        """Return when the time is over, or as soon as somebody waits for a view."""
        self._waiters.rest(seconds)

    @contextmanager
    def _transaction(self) -> Generator[Statements]:
        """Begin a transaction, or go on with the shared one; whoever waits is told once it is stored."""
        shared: Statements | None = getattr(self._shared, "statements", None)
        if shared is not None:
            yield shared
            return
        with self._writing() as statements:
            yield statements
        self._waiters.progressed()

    @contextmanager
    def _looking(self) -> Generator[Statements]:
        """Lend a connection for one statement: that of the shared transaction, if there is one."""
        shared: Statements | None = getattr(self._shared, "statements", None)
        if shared is not None:
            yield shared
            return
        with self._reading() as statements:
            yield statements

    def get(self, view: str, key: str) -> bytes | None:
        """Return a row's bytes as they were stored."""
        with self._reading() as statements:
            found = statements.run(SELECT_ACTIVE_BODY, view, key)
        return found[0][0] if found else None

    def list(self, view: str, group: str, *, before: int | None = None, limit: int = 100) -> Sequence[ViewRow]:
        """Return a group's rows, the highest order first, those below *before*."""
        with self._reading() as statements:
            found = statements.run(SELECT_LIST, view, group, before, before, max(limit, 0))
        return [_view_row(row) for row in found]

    def position(self, view: str) -> int:
        """Return the position up to which the view has folded the log."""
        return next((head.position for head in self.heads(view) if head.active), 0)

    def wait(self, view: str, position: int, timeout_seconds: float) -> bool:
        """Return True as soon as the view has reached *position*, False when the time is over before."""
        return self._waiters.wait(lambda: self.position(view), position, timeout_seconds)

    def heads(self, view: str) -> Sequence[ViewHead]:
        """Return the view's generations, the oldest first."""
        with self._looking() as statements:
            return heads_of(statements, view)

    def begin(self, view: str, version: int, *, beside: int | None) -> None:
        """Begin a generation at position 0; see ViewStore."""
        with self._transaction() as statements:
            self._alone(statements, view)
            heads = heads_of(statements, view)
            active = next((head.generation for head in heads if head.active), None)
            if active == beside and not any(head.version == version and not head.active for head in heads):
                number = max((head.generation for head in heads), default=0) + 1
                statements.run(INSERT_HEAD, view, number, version, active is None)

    def extend(
        self,
        view: str,
        generation: int,
        *,
        after: int,
        upto: int,
        fold: Callable[[GenerationRows], Changes],
        forgets: bool = False,
    ) -> bool:
        """Take a generation from *after* to *upto*; see ViewStore."""
        with self._transaction() as statements:
            found = statements.run(SELECT_HEAD + self.HOLDING, view, generation)
            head = _head(found[0]) if found else None
            if head is None or head.position != after:
                return False
            changes = fold(TableRows(statements, view, head))
            placed = [(view, generation, key, *place) for key, place in changes.items() if place]
            statements.run_many(INSERT_ROW, placed)
            removed = [(view, generation, key) for key, place in changes.items() if place is None]
            statements.run_many(DELETE_ROW, removed)
            if forgets:
                self._forgetting(statements)
            # If we die before the commit, neither the rows nor this is stored.
            statements.run(UPDATE_POSITION, upto, view, generation)
        return True

    def swap(self, view: str, generation: int) -> bool:
        """Make the generation the active one; see ViewStore."""
        with self._transaction() as statements:
            heads = heads_of(statements, view, self.HOLDING)
            new = next((head for head in heads if head.generation == generation), None)
            old = next((head for head in heads if head.active), None)
            if new is None or new.active or (old is not None and new.position < old.position):
                return False
            if old is not None:
                self._drop(statements, view, old.generation)
            statements.run("UPDATE view_heads SET active = ? WHERE view = ? AND generation = ?", True, view, generation)
        return True

    def drop(self, view: str, generation: int) -> None:
        """Forget a generation."""
        with self._transaction() as statements:
            self._drop(statements, view, generation)

    def _drop(self, statements: Statements, view: str, generation: int) -> None:
        # The head first: a process that folds into this generation holds it, and finds it gone afterwards.
        statements.run("DELETE FROM view_heads WHERE view = ? AND generation = ?", view, generation)
        statements.run("DELETE FROM view_rows WHERE view = ? AND generation = ?", view, generation)
        # An old version may hold what was forgotten since: only this one folds no more.
        self._forgetting(statements)


def active_rows(statements: Statements, view: str) -> TableRows:
    """Return the rows of the view's active generation, as the connection's transaction sees them."""
    return TableRows(statements, view, next((head for head in heads_of(statements, view) if head.active), None))


def heads_of(statements: Statements, view: str, holding: str = "") -> list[ViewHead]:
    """Return the view's generations, the oldest first."""
    return [_head(row) for row in statements.run(SELECT_HEADS + holding, view)]


def _head(row: Sequence[Any]) -> ViewHead:
    generation, version, position, active = row
    return ViewHead(generation=generation, version=version, position=position, active=bool(active))


def _view_row(row: Sequence[Any]) -> ViewRow:
    key, group, order, body = row
    return ViewRow(key=key, group=group, order=order, body=body)
