"""`steersman waiting`: what waits for somebody, and the command that ends it."""

from collections.abc import Iterator, Mapping
from typing import Any

import click

from ..output import plain, print_json
from ..settings import client_options, read_connection
from .client import Client
from .finding import find_run, waiting_items
from .screen import age, coloured

KINDS = ("gate", "outcome_spec", "tool", "shell", "question", "needs_attention", "blocked")


@click.command()
@click.argument("run", required=False)
@click.option("--project", help="Only what waits in this project, by its id.")
@click.option("--kind", type=click.Choice(KINDS), help="Only what is of this kind.")
@click.option("--mine", is_flag=True, help="Only what waits in runs that you have started.")
@client_options
def command(run: str | None, project: str | None, kind: str | None, mine: bool, as_json: bool) -> None:
    """List what waits for somebody, in all your projects or in one RUN, the oldest first, and how to answer it."""
    with Client(read_connection()) as client:
        run_id = find_run(client, run) if run is not None else None
        found = waiting_items(client, run_id=run_id, project_id=project, kind=kind, mine="true" if mine else None)
    if as_json:
        print_json(found)
        return
    if not found:
        click.echo("Nothing waits.")
    for item in found:
        print_item(item)


def print_item(item: Mapping[str, Any]) -> None:
    """Print something that waits, and what ends it."""
    click.echo(f"{coloured(item['kind'], 'waiting')}  of run {item['run_id']}, for {age(item['since'])}")
    click.echo(f"    {plain(item['summary'])}")
    if "requests" not in item:
        click.echo("    You may look at this project, and answer nothing in it.")
        return
    for words in answers_to(item):
        click.echo(f"    {words}")


def answers_to(item: Mapping[str, Any]) -> Iterator[str]:
    """Give the commands that end this waiting."""
    run, item_id = item["run_id"], item["id"]
    if item["for"] != "person":
        yield f"steersman runs explain {run}"
        yield f"steersman retry {run}"
        return
    match item["kind"]:
        case "gate":
            yield f"steersman diff {run}"
            yield f"steersman approve {run}"
            yield f'steersman changes {run} "…"'
            yield f"steersman decline {run}"
        case "outcome_spec":
            yield f"steersman approve {run}"
            yield f'steersman changes {run} "…"'
        case "tool" | "shell":
            yield f"steersman allow {item_id}"
            yield f"steersman deny {item_id}"
        case "question":
            yield f'steersman answer {item_id} "…"'
        case "budget":
            of = " --of-project" if item["detail"].get("limit_of") == "project" else ""
            yield f"steersman budget {run}{of} --{item['detail']['limit']} …"
            yield f"steersman cancel {run}"
        case "blocked":
            yield f'steersman retry {run} "…"'
            yield f"steersman cancel {run}"
        case _:
            yield f"steersman retry {run}"
