"""The services of the end-to-end tests, for tests that kill them: on SQLite, unless a test asks for the other store."""

from collections.abc import Callable

import pytest

from steersman.tests.e2e.conftest import repository, service

__all__ = ["repository", "service"]


@pytest.fixture
def store(request: pytest.FixtureRequest) -> Callable[[], dict[str, str]]:
    """A function that returns the environment of a service with an empty store of its own."""
    if "on_postgres" not in request.fixturenames:
        return dict
    new_database: Callable[[], str] = request.getfixturevalue("new_database")
    return lambda: {"STEERSMAN_DATABASE": new_database()}


@pytest.fixture
def on_postgres() -> None:
    """Ask for a service on PostgreSQL."""
