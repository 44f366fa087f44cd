"""Bearer tokens: issued once, kept as digests only, in a table beside the log that `token issue` and the service share."""

import secrets
import sqlite3
from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, Protocol, cast

import msgspec
import psycopg
from psycopg_pool import ConnectionPool, PoolTimeout

from ...application.ports.log import LogUnavailable
from ...application.writer.caller import is_reserved
from .postgres_address import noticing

Scope = Literal["viewer", "operator"]

MAX_USER_BYTES = 200
#: Longer ones are none of ours and are not looked up.
MAX_TOKEN_CHARACTERS = 200
ID_CHARACTERS = 12
SQLITE_TIMEOUT_SECONDS = 5.0
POSTGRES_TIMEOUT_SECONDS = 5.0

CREATE = (
    "CREATE TABLE IF NOT EXISTS steersman_tokens (digest TEXT PRIMARY KEY, username TEXT NOT NULL,"
    " scope TEXT NOT NULL, issued_at TEXT NOT NULL, revoked_at TEXT)"
)
SELECT = "SELECT digest, username, scope, issued_at, revoked_at FROM steersman_tokens"


class IssuedToken(msgspec.Struct, frozen=True, kw_only=True):
    """A token as it is known afterwards: the token itself is not."""

    id: str
    user: str
    scope: Scope
    issued_at: str
    revoked_at: str | None


class NoSuchToken(Exception):
    """No token, or more than one, has an id that begins so."""


class TokenRows(Protocol):
    """A connection in a transaction; placeholders are question marks."""

    def run(self, statement: str, *values: object) -> Sequence[tuple[Any, ...]]:
        """Execute a statement and return its rows, if it has any."""
        ...


class Database(Protocol):
    """Where the table is."""

    def rows(self) -> AbstractContextManager[TokenRows]:
        """Begin a transaction; leaving the block commits it. Raises LogUnavailable."""
        ...

    def close(self) -> None:
        """Release the connections."""
        ...


def create_table(database: Database, statement: str) -> None:
    """On return the table is there, whoever has made it. Raises LogUnavailable."""
    try:
        with database.rows() as rows:
            rows.run(statement)
    except LogUnavailable:
        # Two processes that create the table at once can be in each other's way; the second time it is there.
        with database.rows() as rows:
            rows.run(statement)


class TokenStore:
    """The tokens in a database; safe to use from many threads and processes at once."""

    def __init__(self, database: Database) -> None:
        self._database = database
        create_table(database, CREATE)

    def issue(self, user: str, scope: Scope) -> str:
        """Return a new token. It works from now on, in every process, and cannot be shown again."""
        if not user.strip() or len(user.encode(errors="replace")) > MAX_USER_BYTES or not user.isprintable():
            raise ValueError(f"the user must have 1 to {MAX_USER_BYTES} bytes, printable and not blank")
        if is_reserved(user):
            raise ValueError(f"{user!r} is a name of the service itself")
        raw = f"steersman_{secrets.token_urlsafe(32)}"
        with self._database.rows() as rows:
            now = datetime.now(UTC).isoformat()
            rows.run("INSERT INTO steersman_tokens VALUES (?, ?, ?, ?, NULL)", digest(raw), user, scope, now)
        return raw

    def list(self) -> Sequence[IssuedToken]:
        """Return every token that was ever issued, the oldest first."""
        with self._database.rows() as rows:
            return [_issued(row) for row in rows.run(f"{SELECT} ORDER BY issued_at, digest")]

    def revoke(self, id_prefix: str) -> IssuedToken:
        """End the one token whose id begins so; from now on it is refused. Raises NoSuchToken."""
        with self._database.rows() as rows:
            found = [row for row in rows.run(SELECT) if str(row[0])[:ID_CHARACTERS].startswith(id_prefix or "-")]
            if len(found) != 1:
                raise NoSuchToken(f"{len(found)} tokens have an id that begins with {id_prefix!r}")
            now = datetime.now(UTC).isoformat()
            rows.run(
                "UPDATE steersman_tokens SET revoked_at = coalesce(revoked_at, ?) WHERE digest = ?", now, found[0][0]
            )
            return _issued(rows.run(f"{SELECT} WHERE digest = ?", found[0][0])[0])

    def authenticate(self, raw: str) -> tuple[str, Scope] | None:
        """Return the user and scope of a token that is issued and not revoked, else None. Raises LogUnavailable."""
        if len(raw) > MAX_TOKEN_CHARACTERS:
            return None
        with self._database.rows() as rows:
            # The lookup is by digest, so that its timing tells nothing about any token.
            found = rows.run(f"{SELECT} WHERE digest = ? AND revoked_at IS NULL", digest(raw))
        return (found[0][1], found[0][2]) if found else None

    def close(self) -> None:
        """Release the connections."""
        self._database.close()


def digest(raw: str) -> str:
    """Return what is kept of a token."""
    return sha256(raw.encode(errors="replace")).hexdigest()


def _issued(row: Sequence[Any]) -> IssuedToken:
    return IssuedToken(id=row[0][:ID_CHARACTERS], user=row[1], scope=row[2], issued_at=row[3], revoked_at=row[4])


class _SqliteRows:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def run(self, statement: str, *values: object) -> Sequence[tuple[Any, ...]]:
        return self._connection.execute(statement, cast("tuple[Any, ...]", values)).fetchall()


class SqliteTokens:
    """The table in a file of its own, so that it is written while the service holds the log."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.touch(mode=0o600)

    @contextmanager
    def rows(self) -> Generator[TokenRows]:
        """Begin a transaction; see Database. A connection lives for one of them: no thread shares one."""
        try:
            connection = sqlite3.connect(self._path, timeout=SQLITE_TIMEOUT_SECONDS)
            try:
                with connection:
                    yield _SqliteRows(connection)
            finally:
                connection.close()
        except sqlite3.Error as error:
            raise LogUnavailable(f"the tokens cannot be read: {error}") from error

    def close(self) -> None:
        """Nothing is kept open."""


class _PostgresRows:
    def __init__(self, connection: psycopg.Connection) -> None:
        self._connection = connection

    def run(self, statement: str, *values: object) -> Sequence[tuple[Any, ...]]:
        cursor = self._connection.execute(statement.replace("?", "%s").encode(), values)
        return cursor.fetchall() if cursor.description else []


class PostgresTokens:
    """The table in the database that holds the log."""

    def __init__(self, conninfo: str) -> None:
        self._pool = ConnectionPool(
            noticing(conninfo), min_size=1, max_size=4, timeout=POSTGRES_TIMEOUT_SECONDS, open=True, name="tokens"
        )

    @contextmanager
    def rows(self) -> Generator[TokenRows]:
        """Begin a transaction; see Database."""
        try:
            with self._pool.connection() as connection:
                yield _PostgresRows(connection)
        except (psycopg.Error, PoolTimeout) as error:
            raise LogUnavailable(f"the tokens cannot be read: {error}") from error

    def close(self) -> None:
        """Close the pool."""
        self._pool.close()


def open_tokens(data_dir: Path, database: str | None = None) -> TokenStore:
    """Return the tokens of a data directory, or of the PostgreSQL database that it uses."""
    return TokenStore(PostgresTokens(database) if database else SqliteTokens(data_dir / "tokens.db"))
