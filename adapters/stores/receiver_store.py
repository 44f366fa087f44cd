"""Receivers of notices: their addresses, their secrets, and how far each was told, in a table beside the tokens."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from ...application.ports.notices import Receiver, SigningSecret
from .token_store import Database, PostgresTokens, SqliteTokens, create_table

CREATE = (
    "CREATE TABLE IF NOT EXISTS steersman_receivers (id TEXT PRIMARY KEY, secrets TEXT NOT NULL, body TEXT NOT NULL,"
    " holder TEXT NOT NULL DEFAULT '', held_until DOUBLE PRECISION NOT NULL DEFAULT 0)"
)
SELECT = "SELECT secrets, body FROM steersman_receivers"


class ReceiverStore:
    """The receivers in a database; safe to use from many threads and processes at once. See the port for what holds."""

    def __init__(self, database: Database) -> None:
        self._database = database
        create_table(database, CREATE)

    def add(self, receiver: Receiver) -> None:
        """Keep a receiver; one that is known stays as it is."""
        with self._database.rows() as rows:
            rows.run(
                "INSERT INTO steersman_receivers (id, secrets, body) VALUES (?, ?, ?) ON CONFLICT (id) DO NOTHING",
                receiver.id,
                _encoded(receiver.secrets),
                _body(receiver),
            )

    def get(self, receiver_id: str) -> Receiver | None:
        """Return a receiver as it stands now."""
        with self._database.rows() as rows:
            found = rows.run(f"{SELECT} WHERE id = ?", receiver_id)
        return _receiver(found[0]) if found else None

    def every(self) -> Sequence[Receiver]:
        """Return all receivers."""
        with self._database.rows() as rows:
            return [_receiver(row) for row in rows.run(f"{SELECT} ORDER BY id")]

    def replace_secrets(self, receiver_id: str, secrets: Sequence[SigningSecret]) -> None:
        """Sign with these from now on."""
        with self._database.rows() as rows:
            rows.run("UPDATE steersman_receivers SET secrets = ? WHERE id = ?", _encoded(secrets), receiver_id)

    def remove(self, receiver_id: str) -> None:
        """Forget a receiver, its address and its secrets."""
        with self._database.rows() as rows:
            rows.run("DELETE FROM steersman_receivers WHERE id = ?", receiver_id)

    def hold(self, receiver_id: str, holder: str, now: float, until: float) -> bool:
        """Return True if the holder has it until then; False while another one has it."""
        with self._database.rows() as rows:
            held = rows.run(
                "UPDATE steersman_receivers SET holder = ?, held_until = ?"
                " WHERE id = ? AND (holder = ? OR held_until <= ?) RETURNING id",
                *(holder, until, receiver_id, holder, now),
            )
        return bool(held)

    def save(self, receiver: Receiver, holder: str) -> bool:
        """Keep how far it was told; False if the holder has lost it meanwhile."""
        with self._database.rows() as rows:
            kept = rows.run(
                "UPDATE steersman_receivers SET body = ? WHERE id = ? AND holder = ? RETURNING id",
                *(_body(receiver), receiver.id, holder),
            )
        return bool(kept)

    def let_go(self, holder: str) -> None:
        """Let others hold what this one holds."""
        with self._database.rows() as rows:
            rows.run("UPDATE steersman_receivers SET holder = '', held_until = 0 WHERE holder = ?", holder)

    def close(self) -> None:
        """Release the connections."""
        self._database.close()


def _encoded(secrets: Sequence[SigningSecret]) -> str:
    return msgspec.json.encode(tuple(secrets)).decode()


def _body(receiver: Receiver) -> str:
    return msgspec.json.encode(msgspec.structs.replace(receiver, secrets=())).decode()


def _receiver(row: Sequence[Any]) -> Receiver:
    secrets = msgspec.json.decode(row[0], type=tuple[SigningSecret, ...])
    return msgspec.structs.replace(msgspec.json.decode(row[1], type=Receiver), secrets=secrets)


def open_receivers(data_dir: Path, database: str | None = None) -> ReceiverStore:
    """Return the receivers of a data directory, or of the PostgreSQL database that it uses."""
    return ReceiverStore(PostgresTokens(database) if database else SqliteTokens(data_dir / "tokens.db"))
