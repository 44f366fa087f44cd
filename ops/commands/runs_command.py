"""`steersman runs`: the runs of a service, over its API."""

import sys
from itertools import islice
from typing import Any
from urllib.parse import urlencode

import click
import msgspec

from ..output import plain, print_json, print_table
from ..settings import client_options, read_connection
from .client import Client
from .event_words import in_words
from .finding import find_run, run_path
from .following import follow, resumable
from .show_run import show
from .sse import ServerSent


@click.group()
def command() -> None:
    """List, show and watch the runs of the service at $STEERSMAN_SERVER_URL, with $STEERSMAN_TOKEN."""


command.add_command(show)


@command.command()
@click.option("--project", help="The id of one project; without it, the runs of all that you may see.")
@click.option("--status", help="Only runs in this status.")
@click.option("--limit", type=click.IntRange(min=1), default=100, show_default=True, help="How many at most.")
@click.option("--waiting", is_flag=True, help="Only runs in which something waits for somebody.")
@client_options
def ls(project: str | None, status: str | None, waiting: bool, limit: int, as_json: bool) -> None:
    """List coordinator runs, the newest first."""
    asked = {"project_id": project, "status": status, "waiting": "true" if waiting else None}
    query = urlencode({name: value for name, value in asked.items() if value is not None})
    with Client(read_connection()) as client:
        runs: list[dict[str, Any]] = [*islice(client.pages("/api/runs" + (f"?{query}" if query else "")), limit)]
    if as_json:
        print_json(runs)
        return
    print_table(("RUN", "STATUS", "WAITS", "PLAN", "STARTED", "TASK"), [_run_cells(run) for run in runs])


@command.command()
@click.argument("run", metavar="ID")
@click.option("--after", type=click.IntRange(min=0), default=0, help="The last event id that you have.")
@click.option("--until-waits", is_flag=True, help="End where something of the run waits for somebody, with 8.")
@client_options
def watch(run: str, after: int, until_waits: bool, as_json: bool) -> None:
    """
    Follow a run's feed to its end, also across restarts of the service.

    Exits with 0 when the run reached its goal, 4 when it failed, 5 when its merge failed, 6 when it was declined, 7 when
    it was stopped.
    """
    with Client(read_connection()) as client:
        run_id = find_run(client, run)
        with resumable(run_id, lambda last: f"steersman runs watch {run_id} --after {last}", after) as seen:

            def shown(event: ServerSent) -> None:
                if as_json:
                    print_json({"id": event.id, "event": event.event, "data": msgspec.Raw(event.data.encode())})
                elif event.id is not None:
                    click.echo(f"{event.id:>5}  {plain(in_words(event.event, msgspec.json.decode(event.data)))}")
                seen(event)

            code = follow(client, run_id, shown, after=after, until_waits=until_waits)
    sys.exit(code)


@command.command()
@click.argument("run", metavar="ID")
@client_options
def explain(run: str, as_json: bool) -> None:
    """Say what a run waits for, and for whom."""
    with Client(read_connection()) as client:
        found = client.get(f"{run_path(find_run(client, run))}/explain")
    if as_json:
        print_json(found)
        return
    owner = found["owner"]
    driven = (
        "nobody"
        if owner is None
        else f"{owner['replica']} (epoch {owner['epoch']}{'' if owner['alive'] else ', silent'})"
    )
    click.echo(
        f"{'run':<10} {found['runId']}\n{'status':<10} {found['status']}, plan {found['planStatus'] or 'none yet'}"
    )
    click.echo(f"{'driven by':<10} {driven}")
    if found["isolation"] == "none":
        click.echo(f"{'isolation':<10} none: its agents had all rights of the service")
    for wait in found["waits"]:
        click.echo(f"{'waits for':<10} {wait['who']}: {plain(wait['what'])}")
        if wait["request"]:
            click.echo(f"{'':<10} {wait['request']}")
    for conflict in found["conflicts"]:
        click.echo(f"{'conflict':<10} {plain(', '.join(conflict['paths']))}: {conflict['branch']} stands")
        click.echo(f"{'':<10} the other version: {conflict['ref']}")
    for left in found["leftOut"]:
        click.echo(f"{'left out':<10} subtask {left['subtaskId']}: {left['commit']} ({left['reason']})")
    if found["movedFiles"]:
        click.echo(f"{'moved':<10} {plain(', '.join(found['movedFiles']))}")
    if found["effects"]:
        click.echo("")
        print_table(
            ("EFFECT", "KIND", "STATE", "FAILURES", "NEXT TRY", "WAITS FOR", "LAST ERROR"),
            [_effect_cells(effect) for effect in found["effects"]],
        )


def _effect_cells(effect: dict[str, Any]) -> tuple[str, ...]:
    names = ("effectId", "kind", "state", "failures", "nextTry", "waitsFor", "lastError")
    return tuple(str(effect.get(name) or "") for name in names)


def _run_cells(run: dict[str, Any]) -> tuple[str, ...]:
    waits = ", ".join(run.get("waiting", ()))
    names = ("coordinator_status", "started_at", "task")
    return (run["execution_id"], run["status"], waits, *(str(run.get(name) or "") for name in names))
