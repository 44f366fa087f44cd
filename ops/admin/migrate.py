"""`steersman migrate`: change the tables of the store before and after a release takes over."""

from pathlib import Path

import click

from ...adapters.stores import postgres_schema, sqlite_schema
from ...adapters.stores.schema_steps import Applied, Phase, read_steps
from ..output import print_json, print_table
from ..serving.data_dir import alone_in, prepare_data_dir
from ..serving.tables import ask_store
from ..settings import Settings, data_option, json_option, read_settings


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
    taken = ask_store(lambda: _applied(settings))
    rows = [(step.number, step.phase, step.name, step.number in taken) for step in steps]
    if as_json:
        print_json([{"step": number, "phase": p, "name": name, "applied": done} for number, p, name, done in rows])
    else:
        print_table(
            ("STEP", "PHASE", "NAME", "STATE"),
            [(str(number), p, name, "applied" if done else "pending") for number, p, name, done in rows],
        )


def _migrate(settings: Settings, phase: Phase | None) -> None:
    if settings.database is not None:
        url = settings.database
        ask_store(lambda: postgres_schema.migrate(url, phase))
        return
    with alone_in(settings.data):
        ask_store(lambda: sqlite_schema.migrate(settings.data / "log.db"))


def _applied(settings: Settings) -> Applied:
    if settings.database is not None:
        return postgres_schema.applied(settings.database)
    return sqlite_schema.applied(settings.data / "log.db")
