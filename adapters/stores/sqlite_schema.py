"""The steps of the tables in SQLite. One process serves a file, so all of them are taken at once, when it is opened to write."""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

from .schema_steps import CREATE, SELECT, Applied, Phase, SchemaStep, check, due, read_steps

LOCK_TIMEOUT_SECONDS = 10.0
#: How long the emptying of the write-ahead log waits for a reader.
READER_PATIENCE_MILLISECONDS = 100


def migrate(path: Path, steps: Sequence[SchemaStep] | None = None) -> Sequence[SchemaStep]:
    """Take every step that is left, and return those; this release can serve then. Raises SchemaUnfit, sqlite3.Error."""
    with closing(_connect(path)) as connection:
        taken = take_steps(connection, steps or read_steps("sqlite"))
        empty_journal(connection, READER_PATIENCE_MILLISECONDS)
        return taken


def take_steps(connection: sqlite3.Connection, steps: Sequence[SchemaStep]) -> Sequence[SchemaStep]:
    """
    Take every step that is left, through a connection with *secure_delete*, and return those.

    What a step took away is in no file any more once the journal is emptied. Raises SchemaUnfit, sqlite3.Error.
    """
    taken: list[SchemaStep] = []
    check_newer(steps, _applied(connection))
    for step in due(steps, _applied(connection), None):
        connection.execute("BEGIN IMMEDIATE")
        try:
            # If we die before the commit, nothing of the step is done.
            if step.number not in _applied(connection):
                _take(connection, step)
                taken.append(step)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
    return taken


def empty_journal(connection: sqlite3.Connection, patience_milliseconds: int) -> bool:
    """
    Return True when all that was committed is in the file and the write-ahead log is empty, so that neither holds a page
    as it was before; False when a reader is in the way for longer than that. Whoever writes waits meanwhile, too.
    """
    ((patience,),) = connection.execute("PRAGMA busy_timeout").fetchall()
    connection.execute(f"PRAGMA busy_timeout = {patience_milliseconds}")
    try:
        is_busy, _, _ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    finally:
        connection.execute(f"PRAGMA busy_timeout = {patience}")
    return not is_busy


def applied(path: Path) -> Applied:
    """Return the steps that were taken. Raises sqlite3.Error."""
    if not path.exists():
        return {}
    with closing(_connect(path)) as connection:
        return _applied(connection)


def check_newer(steps: Sequence[SchemaStep], found: Applied) -> None:
    """Return unless a newer release has taken away what this one needs. Raises SchemaUnfit."""
    known: Applied = {step.number: step.phase for step in steps}
    check(steps, {**known, **found})


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=LOCK_TIMEOUT_SECONDS, isolation_level=None)
    # A step that rewrites rows must not leave behind what somebody had erased.
    connection.execute("PRAGMA secure_delete = ON")
    return connection


def _take(connection: sqlite3.Connection, step: SchemaStep) -> None:
    for statement in statements(step.sql):
        connection.execute(statement)
    now = datetime.now(UTC).isoformat()
    connection.execute(CREATE)
    connection.execute("INSERT INTO steersman_schema VALUES (?, ?, ?, ?)", (step.number, step.phase, step.name, now))


def _applied(connection: sqlite3.Connection) -> Applied:
    tables = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'steersman_schema'"
    if connection.execute(tables).fetchone() is None:
        return {}
    found: dict[int, Phase] = dict(connection.execute(SELECT).fetchall())
    return found


def statements(sql: str) -> Iterator[str]:
    """Give the statements one by one: a script as a whole would commit the transaction around it first."""
    statement = ""
    for line in sql.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
    if statement.strip():
        raise ValueError(f"a statement does not end: {statement!r}")
