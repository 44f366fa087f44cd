"""The steps of the tables in SQLite. One process serves a file, so all of them are taken at once, when it is opened to serve."""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

from .schema_steps import CREATE, SELECT, Applied, Phase, Step, check, due, read_steps

LOCK_TIMEOUT_SECONDS = 10.0


def migrate(path: Path, steps: Sequence[Step] | None = None) -> Sequence[Step]:
    """Take every step that is left, and return those; this release can serve then. Raises SchemaUnfit, sqlite3.Error."""
    steps = steps or read_steps("sqlite")
    taken: list[Step] = []
    with closing(_connect(path)) as connection:
        connection.executescript(steps[0].sql)  # does no harm where the tables are, and is a transaction of its own
        check_newer(steps, _applied(connection))
        for step in due(steps, _applied(connection), None):
            connection.execute("BEGIN IMMEDIATE")
            # If we die before the commit, nothing of the step is done.
            if step.number not in _applied(connection):
                _take(connection, step)
                taken.append(step)
            connection.execute("COMMIT")
    return taken


def applied(path: Path) -> Applied:
    """Return the steps that were taken. Raises sqlite3.Error."""
    if not path.exists():
        return {}
    with closing(_connect(path)) as connection:
        return _applied(connection)


def check_newer(steps: Sequence[Step], found: Applied) -> None:
    """Return unless a newer release has taken away what this one needs. Raises SchemaUnfit."""
    known: Applied = {step.number: step.phase for step in steps}
    check(steps, {**known, **found})


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=LOCK_TIMEOUT_SECONDS, isolation_level=None)
    # A step that rewrites rows must not leave behind what somebody had erased.
    connection.execute("PRAGMA secure_delete = ON")
    return connection


def _take(connection: sqlite3.Connection, step: Step) -> None:
    if step.number > 1:
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
