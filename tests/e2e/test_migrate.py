"""The service works only on tables that it knows, and `steersman migrate` says which steps they have taken."""

import json
import sqlite3
from typing import Any

import psycopg

from steersman.tests.e2e.served import Service, steersman


def steps(service: Service, *arguments: str) -> Any:
    """Return what `migrate` says."""
    return json.loads(steersman("migrate", *arguments, "--json", "--data", service.data, **service.variables))


def execute(service: Service, statement: str) -> None:
    """Change the store behind the service's back."""
    if database := service.variables.get("STEERSMAN_DATABASE"):
        with psycopg.connect(database) as postgres:
            postgres.execute(statement.encode())
    else:
        with sqlite3.connect(service.data / "log.db") as sqlite:
            sqlite.execute(statement)
        sqlite.close()


def test_a_service_makes_its_tables_and_migrating_again_changes_nothing(service: Service) -> None:
    assert {step["applied"] for step in steps(service, "--show")} == {False}
    service.start()
    assert {step["applied"] for step in steps(service, "--show")} == {True}
    service.stop()
    assert {step["applied"] for step in steps(service, "--before")} == {True}
    assert {step["applied"] for step in steps(service, "--after")} == {True}
    service.start()


def test_a_service_refuses_tables_that_a_newer_release_took_something_from(service: Service) -> None:
    service.start()
    service.stop()
    execute(service, "INSERT INTO steersman_schema VALUES (98, 'before', 'x', 'now')")
    service.start()
    service.stop()
    execute(service, "INSERT INTO steersman_schema VALUES (99, 'after', 'x', 'now')")
    said = steersman("serve", "--port", "0", "--data", service.data, expect=1, **service.variables)
    assert "A newer release has taken away what this one needs (step 99 of the tables)." in said


def test_sqlite_is_migrated_by_the_service_alone_while_it_serves(tmp_path_factory: Any) -> None:
    service = Service(tmp_path_factory.mktemp("service"))
    try:
        service.start()
        assert "serves" in steersman("migrate", "--data", service.data, expect=1)
    finally:
        service.close()
