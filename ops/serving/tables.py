"""Bring the tables of the store to what this release works with."""

import sqlite3
from collections.abc import Callable
from typing import TypeVar

import psycopg

from ...adapters.stores import postgres_schema, sqlite_schema
from ...adapters.stores.schema_steps import SchemaUnfit
from ..refused import Refused
from ..settings import Settings

Answer = TypeVar("Answer")


def prepare_schema(settings: Settings) -> None:
    """On return the tables are those that this release works with. Raises Refused."""
    if settings.database is not None:
        url = settings.database
        ask_store(lambda: postgres_schema.prepare(url))
    else:
        ask_store(lambda: sqlite_schema.migrate(settings.data / "log.db"))


def ask_store(ask: Callable[[], Answer]) -> Answer:
    try:
        return ask()
    except SchemaUnfit as error:
        raise Refused(str(error)) from error
    except (psycopg.Error, sqlite3.Error) as error:
        raise Refused(f"The tables cannot be looked at or changed: {error}") from error
