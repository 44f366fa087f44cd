"""`steersman audit watch`: a witness on another machine, which finds a history that was written anew."""

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import click

from ...adapters.audit.witness import Alarming, RemoteLog, Unusable, Watcher
from ...adapters.clock import SYSTEM_CLOCK
from ...application.ports.verdict import EXIT_CODES
from ..commands.client import Client
from ..output import note, print_json
from ..refused import Refused
from ..settings import json_option, read_connection

EVERY_SECONDS = 60


class ServedLog:
    """The log of a service, over HTTP."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def checkpoint(self) -> str:
        """Return the newest checkpoint. Raises Refused."""
        return self._client.text("/api/log/checkpoint")

    def verifier_key(self) -> tuple[str, Sequence[str]]:
        """Return the key that the log names, and the notes by which keys were handed over. Raises Refused."""
        found = self._map("/api/log/key")
        endorsements: object = found.get("endorsements")
        return str(found.get("verifier_key")), _texts(endorsements)

    def consistency(self, old: int, new: int) -> Sequence[str]:
        """Return the proof. Raises Refused."""
        return _texts(self._map(f"/api/log/proof/consistency?from={old}&to={new}").get("hashes"))

    def _map(self, path: str) -> dict[str, Any]:
        found = self._client.get(path)
        if not isinstance(found, dict):
            raise Refused(f"{path} does not answer as a Steersman does.")
        return cast("dict[str, Any]", found)


@click.command()
@click.option(
    "--keep",
    "folder",
    required=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="The directory of this witness: its pins, and its key. The machine that keeps the log must not reach it.",
)
@click.option("--key", help="The log's verifier key, from when you trusted it [default: the first that the log names].")
@click.option(
    "--name", help="Cosign as this witness (a name like a URL without its scheme, such as example.org/witness)."
)
@click.option(
    "--every", default=EVERY_SECONDS, show_default=True, type=click.IntRange(1), help="Seconds between visits."
)
@click.option("--once", is_flag=True, help="Visit the log once.")
@json_option
def watch(folder: Path, key: str | None, name: str | None, every: int, once: bool, as_json: bool) -> None:
    """
    Keep checkpoints of a service's log, and check at each visit that it goes on from the last one.

    Run it on a machine that whoever can change the log cannot change. It ends with 20 when the log was cut, changed or told
    twice, and keeps what it was shown; with --once it ends with 0 when all is well, and with 30 when it could not look.
    Its newest pin is what `audit verify --pin DIR/pins.log` takes.
    """
    watcher = Watcher(folder, _checked(name))
    with Client(read_connection()) as client:
        log = ServedLog(client)
        while True:  # ends: with an alarm, or by a signal
            try:
                _visit(watcher, log, key, as_json)
            except Alarming as error:
                note(f"ALARM: {error}. What the log showed is kept in {folder}/evidence.log.")
                sys.exit(EXIT_CODES["tampered"])
            except (Unusable, Refused) as error:
                note(f"The log could not be looked at: {error}")
                if once or isinstance(error, Unusable):
                    sys.exit(EXIT_CODES["unchecked"])
            if once:
                return
            time.sleep(every)


def _visit(watcher: Watcher, log: RemoteLog, key: str | None, as_json: bool) -> None:
    visit, witness = watcher.visit(log, SYSTEM_CLOCK.now, key), watcher.witness
    if as_json:
        print_json({"visit": visit, "witness": witness.verifier_key if witness else None})
        return
    grown = "first seen" if visit.grown is None else f"{visit.grown} more than at the last visit"
    click.echo(f"{visit.origin}: {visit.size} facts, {grown}")
    if visit.grown is None and key is None:
        click.echo(f"  its key was taken on first sight: {visit.key}")
    if witness is not None and visit.grown != 0:
        click.echo(f"  cosigned by {witness.verifier_key}")


def _checked(name: str | None) -> str | None:
    if name is not None and (not name or "+" in name or any(letter.isspace() for letter in name)):
        raise click.UsageError("The name of a witness has no space and no plus sign.")
    return name


def _texts(listed: object) -> Sequence[str]:
    return [str(item) for item in cast("list[object]", listed)] if isinstance(listed, list) else ()
