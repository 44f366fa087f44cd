"""The event sourcing library's own suites, on our recorders."""

import sys
from pathlib import Path
from typing import Any
from uuid import uuid4

import eventsourcing.cryptography
import pytest
from eventsourcing.persistence import ApplicationRecorder

from steersman.adapters.stores.postgres_log import LogDatastore, PostgresRecorder
from steersman.adapters.stores.sqlite_log import SqliteRecorder, open_datastore

# The suites' module also holds tests of ciphers, and imports the one of a package that we do not need. The library has
# the same class on `cryptography`.
sys.modules.setdefault("eventsourcing.cipher", eventsourcing.cryptography)
from eventsourcing.tests.persistence import (
    ApplicationRecorderTestCase,
    NonInterleavingNotificationIDsBaseCase,
)


class OnSqlite:
    """Make recorders on a new file."""

    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path) -> None:
        self.recorder = SqliteRecorder(open_datastore(tmp_path / "log.db"))
        self.recorder.create_table()
        # Not closed here: the suites leave threads that still read, past our lending, and SQLite crashes the process
        # when its connection is closed under one. The datastore closes itself once the last of them lets go of it.

    def new_originator_id(self) -> str:
        return str(uuid4())

    def create_recorder(self) -> ApplicationRecorder:
        return self.recorder


class OnPostgres:
    """Make recorders on an empty database."""

    @pytest.fixture(autouse=True)
    def _place(self, postgres_url: str) -> Any:
        self.recorder = PostgresRecorder(LogDatastore(postgres_url))
        self.recorder.create_table()
        yield
        self.recorder.close()

    def new_originator_id(self) -> str:
        return str(uuid4())

    def create_recorder(self) -> ApplicationRecorder:
        return self.recorder


class TestSqliteApplicationRecorder(OnSqlite, ApplicationRecorderTestCase[Any]):
    """SQLite as an application recorder; the library has no subscriptions there."""


class TestSqliteNonInterleaving(OnSqlite, NonInterleavingNotificationIDsBaseCase):
    """SQLite keeps each transaction's positions together."""


class TestPostgresApplicationRecorder(OnPostgres, ApplicationRecorderTestCase[Any]):
    """PostgreSQL as an application recorder, with the library's subscriptions."""

    def test_insert_subscribe(self) -> None:
        self.optional_test_insert_subscribe()


class TestPostgresNonInterleaving(OnPostgres, NonInterleavingNotificationIDsBaseCase):
    """PostgreSQL keeps each transaction's positions together."""


# The library collects by inheritance: without this its abstract suites would be run by themselves.
del ApplicationRecorderTestCase, NonInterleavingNotificationIDsBaseCase
