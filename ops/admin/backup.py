"""`steersman backup`: a copy of a data directory with SQLite that can be put back, made while the service works."""

import os
import shutil
import sqlite3
from pathlib import Path

import click

from ...adapters.stores.sqlite_backup import copy_database, sync
from ..output import note
from ..refused import Refused
from ..settings import Settings, data_option, read_settings

DATABASES = ("log.db", "tokens.db")
A_DIRECTORY = click.Path(path_type=Path, file_okay=False)


@click.command()
@data_option
@click.option(
    "--to", "target", type=A_DIRECTORY, required=True, help="The directory to make; it must not be there yet."
)
def command(data: Path | None, target: Path) -> None:
    """
    Copy the log, its checkpoints and the tokens; the service may go on meanwhile.

    Not in it: the keys (keep them elsewhere), views and worktrees (both are made anew), and the projects' repositories.
    """
    settings = read_settings(data)
    if settings.database is not None:
        raise Refused("The log is in PostgreSQL: use its own tools, and keep checkpoints.log (see ops/runbook.md).")
    if not (settings.data / "log.db").is_file():
        raise Refused(f"There is no log in {settings.data}.")
    target = target.absolute()
    if target.exists():
        raise Refused(f"{target} is there already.")
    try:
        back_up(settings, target)
    except (OSError, sqlite3.Error) as error:
        raise Refused(f"The backup cannot be made: {error}") from error
    note(f"Backed up {settings.data} to {target}. The keys in {settings.keys} are not in it.")


def back_up(settings: Settings, target: Path) -> None:
    """On return *target* is a whole backup, or, if this raises, not there at all."""
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    made = target.with_name(f".{target.name}.{os.getpid()}")
    made.mkdir(mode=0o700)
    try:
        # The checkpoints first: what they cover is in the log that is copied after them. The other way round the copy
        # would hold a checkpoint of facts that it does not have, which is what a log that was cut short looks like.
        for name in (settings.checkpoints.name, "agents.toml"):
            if (settings.data / name).is_file():
                shutil.copyfile(settings.data / name, made / name)
                (made / name).chmod(0o600)
                sync(made / name)
        for name in DATABASES:
            if (settings.data / name).is_file():
                copy_database(settings.data / name, made / name)
        sync(made)
        made.rename(target)
        sync(target.parent)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise
