"""Leases in PostgreSQL, next to the log: who drives which run, on the server's clock."""

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from threading import Lock
from typing import Any, Final, LiteralString

import msgspec
import psycopg

from ...application.ports.effect_state import EffectState
from ...application.ports.leases import Holder, LeaseStanding
from ...application.ports.log import LogUnavailable
from ..processes.lock import ProcessLock
from .postgres_address import noticing

CONNECT_TIMEOUT_SECONDS = 3
#: A renewal that takes longer is worth nothing any more.
STATEMENT_TIMEOUT: Final = "3s"
SETTINGS: Final = f"SET statement_timeout = '{STATEMENT_TIMEOUT}'; SET lock_timeout = '{STATEMENT_TIMEOUT}'"
#: Rows of replicas that are gone are kept this many times as long as it takes to be taken for gone.
FORGOTTEN_AFTER = 20

LIVE: Final = "SELECT replica FROM replicas WHERE renewed > clock_timestamp() - %(stale)s * interval '1 second'"
ENTER: Final = (
    "INSERT INTO replicas (replica, renewed, machine, process)"
    " VALUES (%(me)s, clock_timestamp(), %(machine)s, %(process)s)"
)
NEIGHBOURS: Final = "SELECT replica, process FROM replicas WHERE machine = %(machine)s AND process <> %(process)s"
# Only who is still taken for alive may renew: others may have claimed what a late one held. Said of the row itself, so
# that it is looked at again when the row was changed while we waited for it.
RENEW: Final = (
    "UPDATE replicas SET renewed = clock_timestamp(), draining = %(draining)s"
    " WHERE replica = %(me)s AND renewed > clock_timestamp() - %(stale)s * interval '1 second'"
)
FORGET: Final = "DELETE FROM replicas WHERE renewed < clock_timestamp() - %(forgotten)s * interval '1 second'"
OPEN: Final = "SELECT root, epoch, replica FROM leases WHERE is_open AND (replica IS NULL OR replica <> %(me)s)"
MINE: Final = "SELECT root, epoch FROM leases WHERE replica = %(me)s"
DRIVING: Final = f"{LIVE} AND NOT draining"
CLAIM: Final = (
    "INSERT INTO leases AS known (root, epoch, replica) SELECT name, 1, %(me)s FROM unnest(%(roots)s::text[]) AS name"
    " ON CONFLICT (root) DO UPDATE SET epoch = known.epoch + 1, replica = %(me)s, is_open = true, effects = '[]'"
    f" WHERE known.replica IS NULL OR known.replica NOT IN ({LIVE}) RETURNING root, epoch"
)
CLAIM_FREE: Final = (
    f"WITH live AS MATERIALIZED ({LIVE}), free AS (SELECT root FROM leases WHERE is_open AND root <> ALL(%(declined)s)"
    " AND (replica IS NULL OR replica NOT IN (SELECT replica FROM live))"
    " ORDER BY root LIMIT %(limit)s FOR UPDATE SKIP LOCKED)"
    " UPDATE leases SET epoch = epoch + 1, replica = %(me)s, effects = '[]' FROM free"
    " WHERE leases.root = free.root RETURNING leases.root, leases.epoch"
)
RELEASE: Final = (
    "UPDATE leases SET replica = NULL, is_open = is_open AND NOT %(closed)s, effects = '[]'"
    " WHERE replica = %(me)s AND root = ANY(%(roots)s)"
)
REPORT: Final = "UPDATE leases SET effects = %(effects)s WHERE replica = %(me)s AND root = %(root)s"
HOLDER: Final = (
    f"SELECT replica, epoch, replica IN ({LIVE}), effects FROM leases WHERE root = %(root)s AND replica IS NOT NULL"
)
COUNTS: Final = (
    f"WITH live AS MATERIALIZED ({LIVE}) SELECT count(*) FILTER (WHERE replica IN (SELECT replica FROM live)), count(*)"
    " FROM leases WHERE is_open"
)


class PostgresLeases:
    """
    The port `Leases`. One connection, made anew after each fault; its tables are made with the log's.

    A process of the same machine is known to be gone by its lock, before it was silent for long.
    """

    def __init__(self, url: str, stale_seconds: float, process: ProcessLock) -> None:
        self._address = noticing(url)
        self._process = process
        self._stale_seconds = stale_seconds
        self._connection: psycopg.Connection | None = None
        self._lock = Lock()

    @property
    def stale_seconds(self) -> float:
        """How long a replica may be silent before others take its runs."""
        return self._stale_seconds

    def enter(self, replica: str) -> None:
        """Take up an id that was never used before; the replica is alive from now on."""
        with self._transaction() as connection:
            machine, process = self._process.machine, self._process.name
            connection.execute(ENTER, {"me": replica, "machine": machine, "process": process})
            connection.execute(FORGET, {"forgotten": self._stale_seconds * FORGOTTEN_AFTER})

    def renew(self, replica: str, *, draining: bool) -> LeaseStanding | None:
        """Show that the replica is alive. None: it was silent for too long, its runs are anybody's, its id is used up."""
        values = self._values(me=replica, draining=draining)
        with self._transaction() as connection:
            if connection.execute(RENEW, values).rowcount == 0:
                return None
            gone = self._bury(connection)
            live = {name for (name,) in connection.execute(LIVE, values)}
            driving = {name for (name,) in connection.execute(DRIVING, values)}
            mine = dict(connection.execute(MINE, values).fetchall())
            others = connection.execute(OPEN, values).fetchall()
        for process in gone:
            self._process.forget(process)
        loads = dict.fromkeys(driving, 0)
        for holder in [*(replica for _ in mine), *(holder for _, _, holder in others)]:
            if holder in loads:
                loads[holder] += 1
        return LeaseStanding(
            held=mine,
            loads=loads,
            elsewhere=frozenset(root for root, _, holder in others if holder in live),
            free=sum(holder not in live for _, _, holder in others),
        )

    def claim(self, replica: str, roots: Sequence[str]) -> Mapping[str, int]:
        """Lease those of the runs that nobody alive holds; return them with their new epochs."""
        with self._transaction() as connection:
            return dict(connection.execute(CLAIM, self._values(me=replica, roots=list(roots))).fetchall())

    def claim_free(self, replica: str, limit: int, declined: Sequence[str]) -> Mapping[str, int]:
        """Lease runs whose holders are gone, at most *limit* and none of *declined*; return them with their new epochs."""
        values = self._values(me=replica, limit=limit, declined=list(declined))
        with self._transaction() as connection:
            return dict(connection.execute(CLAIM_FREE, values).fetchall())

    def release(self, replica: str, roots: Sequence[str], *, closed: bool = False) -> None:
        """Let go of runs, for others to claim; closed ones are claimed by name only."""
        with self._transaction() as connection:
            connection.execute(RELEASE, {"me": replica, "roots": list(roots), "closed": closed})

    def leave(self, replica: str) -> None:
        """Let go of every run and of the id."""
        with self._transaction() as connection:
            _leave(connection, replica)

    def report(self, replica: str, effects: Mapping[str, bytes]) -> None:
        """Keep, for whoever asks, how the effects stand (JSON) in each of these runs that the replica holds."""
        with self._transaction() as connection:
            for root, words in effects.items():
                connection.execute(REPORT, {"me": replica, "root": root, "effects": words})

    def holder(self, root: str) -> Holder | None:
        """Return who drives a run, None if nobody does."""
        row = self._one(HOLDER, root=root)
        if row is None:
            return None
        replica, epoch, alive, effects = row
        stand = msgspec.json.decode(bytes(effects), type=tuple[EffectState, ...])
        return Holder(replica=replica, epoch=epoch, alive=alive, effects=stand)

    def counts(self) -> Mapping[str, int]:
        """Return how many runs there are: `held` by live replicas, and `free`."""
        held, everything = self._one(COUNTS) or (0, 0)
        return {"held": held, "free": everything - held}

    def settle_home(self, home_id: str) -> str:
        """Return the id of the data directory that the replicas share: this one's if there was none."""
        with self._transaction() as connection:
            connection.execute("INSERT INTO home (id, home_id) VALUES (1, %s) ON CONFLICT DO NOTHING", (home_id,))
        found = self._one("SELECT home_id FROM home")
        return str(found[0]) if found else home_id

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            self._drop()

    def _bury(self, connection: psycopg.Connection) -> set[str]:
        """Let go of what the dead of this machine held; return their processes."""
        values = {"machine": self._process.machine, "process": self._process.name}
        gone: set[str] = set()
        for replica, process in connection.execute(NEIGHBOURS, values).fetchall():
            if process in gone or self._process.is_gone(process):
                gone.add(process)
                _leave(connection, replica)
        return gone

    def _one(self, statement: LiteralString, **values: Any) -> tuple[Any, ...] | None:
        with self._transaction() as connection:
            return connection.execute(statement, self._values(**values)).fetchone()

    def _values(self, **values: Any) -> dict[str, Any]:
        return {"stale": self._stale_seconds, **values}

    @contextmanager
    def _transaction(self) -> Generator[psycopg.Connection]:
        with self._lock:
            try:
                if self._connection is None:
                    self._connection = psycopg.connect(
                        self._address,
                        autocommit=True,
                        connect_timeout=CONNECT_TIMEOUT_SECONDS,
                        application_name="steersman leases",
                    )
                    # Not as options of the connection: those are the URL's, which may say where the tables are.
                    self._connection.execute(SETTINGS)
                with self._connection.transaction():
                    yield self._connection
            except psycopg.Error as error:
                # Whatever it was, the next call begins with a connection of which nothing is known to be wrong.
                self._drop()
                raise LogUnavailable(f"the leases cannot be reached: {error}") from error

    def _drop(self) -> None:
        if self._connection is not None:
            with suppress(psycopg.Error):
                self._connection.close()
            self._connection = None


def _leave(connection: psycopg.Connection, replica: str) -> None:
    connection.execute("UPDATE leases SET replica = NULL, effects = '[]' WHERE replica = %s", (replica,))
    connection.execute("DELETE FROM replicas WHERE replica = %s", (replica,))
