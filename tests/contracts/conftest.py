"""The stores that the event log's claims are tried on, and small facts to try them with."""

from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from steersman.adapters.log.recorder import Recorder
from steersman.adapters.log.stored_log import StoredLog
from steersman.adapters.stores.memory import MemoryLog, MemoryRecorder
from steersman.adapters.stores.postgres_log import LogDatastore, PostgresLog, PostgresRecorder
from steersman.adapters.stores.sqlite_log import SqliteLog, SqliteRecorder, open_datastore
from steersman.domain.event import Event

from .facts import CATALOGUE


class SettableClock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.time = datetime(2026, 3, 1, 12, tzinfo=UTC)

    def now(self) -> datetime:
        """Return the time that was set."""
        return self.time

    def advance(self, by: timedelta) -> None:
        """Move on."""
        self.time += by


class Store:
    """One place where facts are kept, which several logs may open, as several processes would."""

    def __init__(self, kind: str, place: Any, stack: ExitStack) -> None:
        self.kind = kind
        self.place = place
        self.clock = SettableClock()
        self._stack = stack

    def open(self, catalogue: dict[str, type[Event]] = CATALOGUE, **options: Any) -> StoredLog:
        """Return a log on this store; it is closed when the test ends."""
        options = {"clock": self.clock, **options}
        log: StoredLog
        match self.kind:
            case "memory":
                log = MemoryLog(catalogue, recorder=self.place, **options)
            case "sqlite":
                log = SqliteLog(self.place, catalogue, **options)
            case _:
                log = PostgresLog(self.place, catalogue, **options)
        self._stack.callback(log.close)
        return log

    def recorder(self) -> Recorder:
        """Return a bare recorder on this store."""
        recorder: Recorder
        match self.kind:
            case "memory":
                return self.place
            case "sqlite":
                recorder = made = SqliteRecorder(open_datastore(self.place))
            case _:
                recorder = made = PostgresRecorder(LogDatastore(self.place))
        made.create_table()
        self._stack.callback(made.close)
        return recorder


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """Each kind of store, empty."""
    place: Any
    match request.param:
        case "memory":
            place = MemoryRecorder()
        case "sqlite":
            place = tmp_path / "a log #1?.db"
        case _:
            place = request.getfixturevalue("postgres_url")
    with ExitStack() as stack:
        yield Store(request.param, place, stack)
