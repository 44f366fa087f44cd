"""`steersman migrate`: change the tables of the store before and after a release takes over."""

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import click
import psycopg

from ..adapters.stores import postgres_schema, sqlite_schema
from ..adapters.stores.schema_steps import Applied, Phase, SchemaUnfit, read_steps
from .data_dir import alone_in, prepare_data_dir
from .output import print_json, print_table
from .refused import Refused
from .settings import Settings, data_option, json_option, read_settings

Answer = TypeVar("Answer")


@click.command()
@click.option("--before", "phase", flag_value="before", help="What the new release needs; the old one goes on.")
@click.option(
    "--after", "phase", flag_value="after", help="What only the old release needed; none of it serves any more."
)
@click.option("--show", is_flag=True, help="Change nothing; list the steps.")
@data_option
@json_option
def command(phase: Phase | None, show: bool, data: Path | None, as_json: bool) -> None:
    """
    Change the tables of the store to those of this release; without an option all of them, while nothing serves.

    With PostgreSQL: `--before`, then replace the processes one by one, then `--after`. SQLite needs none of it: `serve`
    does it all when it starts.
    """
    settings = read_settings(data)
    prepare_data_dir(settings.data)
    if not show:
        _migrate(settings, phase)
    steps = read_steps("postgres" if settings.database else "sqlite")
    taken = _asked(lambda: _applied(settings))
    rows = [(step.number, step.phase, step.name, step.number in taken) for step in steps]
    if as_json:
        print_json([{"step": number, "phase": p, "name": name, "applied": done} for number, p, name, done in rows])
    else:
        print_table(
            ("STEP", "PHASE", "NAME", "STATE"),
            [(str(number), p, name, "applied" if done else "pending") for number, p, name, done in rows],
        )


def prepare_schema(settings: Settings) -> None:
    """On return the tables are those that this release works with. Raises Refused."""
    if settings.database is not None:
        url = settings.database
        _asked(lambda: postgres_schema.prepare(url))
    else:
        _asked(lambda: sqlite_schema.migrate(settings.data / "log.db"))


def _migrate(settings: Settings, phase: Phase | None) -> None:
    if settings.database is not None:
        url = settings.database
        _asked(lambda: postgres_schema.migrate(url, phase))
        return
    with alone_in(settings.data):
        _asked(lambda: sqlite_schema.migrate(settings.data / "log.db"))


def _applied(settings: Settings) -> Applied:
    if settings.database is not None:
        return postgres_schema.applied(settings.database)
    return sqlite_schema.applied(settings.data / "log.db")


def _asked(ask: Callable[[], Answer]) -> Answer:
    try:
        return ask()
    except SchemaUnfit as error:
        raise Refused(str(error)) from error
    except (psycopg.Error, sqlite3.Error) as error:
        raise Refused(f"The tables cannot be looked at or changed: {error}") from error
