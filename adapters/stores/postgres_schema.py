"""The steps of the tables in PostgreSQL. Whoever takes them holds a lock of the database, so that each is taken once."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final

import psycopg
from psycopg import Connection

from .postgres_address import noticing
from .schema_steps import CREATE, FILES, SELECT, Applied, Phase, SchemaStep, SchemaUnfit, check, due, read_steps

CONNECT_TIMEOUT_SECONDS = 5
#: How long whoever takes steps at this moment is waited for.
PATIENCE: Final = "60s"
#: How long a step waits for a table, and everybody behind it with it.
LOCK_TIMEOUT: Final = "5s"


def migrate(url: str, phase: Phase | None = None, steps: Sequence[SchemaStep] | None = None) -> Sequence[SchemaStep]:
    """Take the steps that are due, and return them. Raises SchemaUnfit, psycopg.Error; what was taken before stays."""
    with _holding(url) as connection:
        return _take(connection, due(steps or read_steps("postgres"), _applied(connection), phase))


def prepare(url: str, steps: Sequence[SchemaStep] | None = None) -> None:
    """On return this release can serve: a database without a fact has every step, another was checked. Raises as above."""
    steps = steps or read_steps("postgres")
    with _holding(url) as connection:
        if not _holds_facts(connection):
            _take(connection, due(steps, _applied(connection), None))
        check(steps, _applied(connection))


def applied(url: str) -> Applied:
    """Return the steps that were taken. Raises psycopg.Error."""
    with _holding(url) as connection:
        return _applied(connection)


@contextmanager
def _holding(url: str) -> Generator[Connection[Any]]:
    with psycopg.connect(
        noticing(url), autocommit=True, connect_timeout=CONNECT_TIMEOUT_SECONDS, application_name="steersman migrate"
    ) as connection:
        connection.execute(f"SET lock_timeout = '{PATIENCE}'")
        connection.execute("SELECT pg_advisory_lock(hashtext('steersman schema'))")
        # The lock is the session's: it is gone with it, however this ends.
        yield connection


def _take(connection: Connection[Any], steps: Sequence[SchemaStep]) -> Sequence[SchemaStep]:
    for step in steps:
        try:
            # If we die in here, nothing of the step is done.
            with connection.transaction():
                connection.execute(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'")
                connection.execute(step.sql.encode())
                if step.number == 1:
                    connection.execute((FILES / "postgres_views.sql").read_bytes())
                connection.execute(CREATE)
                connection.execute(
                    "INSERT INTO steersman_schema VALUES (%s, %s, %s, %s) ON CONFLICT DO NOTHING",
                    (step.number, step.phase, step.name, datetime.now(UTC).isoformat()),
                )
        except psycopg.errors.LockNotAvailable as error:
            raise SchemaUnfit(f"{step} waited {LOCK_TIMEOUT} for a table: nothing of it is done. Try again.") from error
    return steps


def _applied(connection: Connection[Any]) -> Applied:
    found: dict[int, Phase] = {}
    if _exists(connection, "steersman_schema"):
        found = dict(connection.execute(SELECT).fetchall())
    # Whoever opened the log before anybody took steps has made the tables.
    return {1: "before", **found} if _exists(connection, "events") else found


def _holds_facts(connection: Connection[Any]) -> bool:
    return _exists(connection, "events") and connection.execute("SELECT 1 FROM events LIMIT 1").fetchone() is not None


def _exists(connection: Connection[Any], table: str) -> bool:
    row = connection.execute("SELECT to_regclass(%s)", (table,)).fetchone()
    return row is not None and row[0] is not None
