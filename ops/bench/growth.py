"""
Show that an append costs the same in a long log: its statements, and on PostgreSQL the pages that it touches.

A signed log is filled to 1,000 facts and then to 100,000; at both sizes some hundred single appends are counted:

    python ops/bench/growth.py [--facts 100000]

PostgreSQL is $STEERSMAN_DATABASE (use an empty database), or a server of our own for the time of the run.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
from psycopg.rows import TupleRow

sys.path.insert(0, str(Path(__file__).parent))
from append import NoteTaken, ours, postgres

from steersman.adapters.log.opening import sealed_by
from steersman.adapters.log.stored_log import StoredLog
from steersman.adapters.log_format.checkpoint_file import CheckpointFile
from steersman.adapters.log_format.keys import Keyring
from steersman.adapters.stores.postgres_log import PostgresLog
from steersman.adapters.stores.sqlite_log import SqliteLog
from steersman.application.ports.log import Append
from steersman.domain.event import Draft

SMALL = 1_000
BATCH = 2_000
COUNTED = 200
ROUNDS = 3
#: How many times the pages of the small log an append in the large one may touch: its indexes are a level higher.
MOST_PAGES = 1.5
PAGES = (
    "SELECT sum(heap_blks_read + heap_blks_hit + coalesce(idx_blks_read, 0) + coalesce(idx_blks_hit, 0))"
    " FROM pg_statio_user_tables"
)


class AppendCost(NamedTuple):
    """What one append costs."""

    statements: float
    pages: float


def fill(log: StoredLog, upto: int) -> None:
    """Append notes until the log holds so many, thousands at a time."""
    while (head := log.head()) < upto:
        names = [f"fill-{head + n}" for n in range(min(BATCH, upto - head))]
        drafts = tuple(Draft(stream=name, event=NoteTaken(words="a note"), run=name, root=name) for name in names)
        expected = dict.fromkeys(names, 0)
        log.append(
            Append(drafts=drafts, expected=expected, at=datetime.now(UTC), principal="bench", command_id=f"fill-{head}")
        )


def cost(log: StoredLog, statements: Callable[[], int], pages: Callable[[], int]) -> AppendCost:
    """Return what one append costs: the least of ROUNDS, over COUNTED of them each."""
    save = ours(log)
    save(f"warm-{log.head()}")
    rounds: list[AppendCost] = []
    for _ in range(ROUNDS):
        head, before = log.head(), (statements(), pages())
        for n in range(COUNTED):
            save(f"counted-{head}-{n}")
        after = statements(), pages()
        rounds.append(AppendCost((after[0] - before[0]) / COUNTED, (after[1] - before[1]) / COUNTED))
    # What a server's housekeeping touches meanwhile is counted, too, but not in every round.
    return min(rounds, key=lambda found: found.pages)


def on_sqlite(log: SqliteLog) -> Callable[[], int]:
    """Return what counts the statements that the writer's connection executes."""
    recorder: Any = log._recorder  # pyright: ignore[reportPrivateUsage]
    seen: list[str] = []
    connection = recorder.datastore.pool.get_connection()
    connection._sqlite_conn.set_trace_callback(seen.append)
    recorder.datastore.pool.put_connection(connection)
    return lambda: len(seen)


def on_postgres(log: PostgresLog) -> tuple[Callable[[], int], Callable[[], int]]:
    """Return what counts the statements of this process, and the pages of tables and indexes that they touched."""
    recorder: Any = log._recorder  # pyright: ignore[reportPrivateUsage]
    pool = recorder.datastore.pool
    executed: list[int] = []
    execute = psycopg.Cursor[TupleRow].execute

    def counting(cursor: Any, *given: Any, **more: Any) -> Any:
        executed.append(1)
        return execute(cursor, *given, **more)

    # In the place of the driver's own, in this process alone: the store has no door for who counts its statements.
    driver: Any = psycopg.Cursor
    driver.execute = counting

    def pages() -> int:
        # Each server process tells what it has counted when it is asked to, or some time later: else what filled the log
        # through another connection would be told while the appends are counted.
        taken = [pool.getconn() for _ in range(pool.get_stats()["pool_size"])]
        for connection in taken:
            connection.execute("SELECT pg_stat_force_next_flush()")
            connection.commit()
            pool.putconn(connection)
        return int(recorder._select(PAGES, ())[0][0])

    return lambda: len(executed), pages


def main() -> int:
    """Print the costs at both sizes; return 0 if they are about the same."""
    parser = argparse.ArgumentParser(description="Show that an append costs the same in a long log.")
    parser.add_argument("--facts", type=int, default=100_000)
    given = parser.parse_args()
    sound = True
    print(f"{'store':<12}{'facts':>10}{'statements':>14}{'pages':>10}")
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="steersman-bench-")))
        url = stack.enter_context(postgres())
        catalogue = {NoteTaken.TOPIC: NoteTaken}
        for store in ("SQLite", "PostgreSQL"):
            seal = sealed_by(Keyring(home / f"{store} keys"), CheckpointFile(home / f"{store} checkpoints.log"))
            if store == "SQLite":
                log: Any = SqliteLog(home / "log.db", catalogue, seal=seal)
                counts: Any = (on_sqlite(log), int)
            else:
                log = PostgresLog(url, catalogue, seal=seal)
                counts = on_postgres(log)
            stack.callback(log.close)
            costs: list[AppendCost] = []
            for facts in (SMALL, given.facts):
                fill(log, facts)
                costs.append(cost(log, *counts))
                print(f"{store:<12}{facts:>10}{costs[-1].statements:>14.2f}{costs[-1].pages:>10.1f}", flush=True)
            small, large = costs
            sound &= abs(large.statements - small.statements) < 0.5 and large.pages <= MOST_PAGES * small.pages
    return 0 if sound else 1


if __name__ == "__main__":
    sys.exit(main())
