"""`steersman fleet`: steer running workers, one or many, and see who is at work."""

import os
from typing import Any
from urllib.parse import quote

import click

from ...domain.steering.worker_command import KINDS, InvalidSteeringCommand, WorkerCommand, check
from ..output import print_json, print_table
from ..refused import Refused
from ..settings import json_option, read_connection
from .client import Client, path_part

DEFAULT_PRINCIPAL = "cli-operator"

server_option = click.option("--server", help="The service [default: $STEERSMAN_SERVER_URL].")
token_option = click.option("--token", help="The token to show it [default: $STEERSMAN_TOKEN].")


@click.group()
def command() -> None:
    """Steer the workers of the service, and list them."""


@command.command()
@click.argument("words", nargs=-1, required=True, metavar="[TASK] {pause|resume|guidance|redirect|abort}")
@click.option("--run", "run_id", help="Steer every child of this run that is running (for resume: paused).")
@click.option("--task", "tasks", multiple=True, help="Steer this task; may be given many times.")
@click.option("--guidance", default="", help="What to tell the worker (guidance).")
@click.option("--redirect-target", default="", help="The worker's new objective (redirect).")
@click.option("--reason", default="", help="Why (pause, abort).")
@click.option("--session-id", default="", help="The worker's session; found from the task when it is left out.")
@click.option("--adapter", default="", help="The adapter that owns the session (pause).")
@click.option("--worktree", default="", help="The worktree of the session (pause).")
@click.option("--principal", default=DEFAULT_PRINCIPAL, show_default=True, help="Who says that they steer.")
@click.option("--key", help="The key of a command whose outcome was unknown: it is carried out once.")
@server_option
@token_option
@json_option
def steer(
    words: tuple[str, ...],
    key: str | None,
    run_id: str | None,
    tasks: tuple[str, ...],
    server: str | None,
    token: str | None,
    as_json: bool,
    **fields: str,
) -> None:
    """
    Steer one worker (TASK is a child run's id, or COORDINATOR_RUN:SUBTASK), or with --run or --task many at once.

    The command is checked, and bound to its digest, before anything is sent.
    """
    many = run_id is not None or bool(tasks)
    if len(words) != (1 if many else 2):
        raise click.UsageError("Name a task and what to do with it; with --run or --task only what to do.")
    if run_id is not None and tasks:
        raise click.UsageError("Give either --run or --task.")
    kind = words[-1]
    if kind not in KINDS:
        raise click.UsageError(f"{kind!r} is not one of {', '.join(KINDS)}.")
    with Client(_connection(server, token)) as client:
        if many:
            _steer_many(client, kind, run_id, tasks, fields, as_json, key)
        else:
            _steer_one(client, words[0], kind, fields, as_json, key)


@command.command()
@click.option("--run", "run_id", help="Only the workers of this coordinator run.")
@server_option
@token_option
@json_option
def ls(run_id: str | None, server: str | None, token: str | None, as_json: bool) -> None:
    """List the workers: who runs, is paused or waits, since when, and what is under way for them."""
    with Client(_connection(server, token)) as client:
        workers = client.get("/api/fleet" + (f"?run={quote(run_id, safe='')}" if run_id else ""))
    if as_json:
        print_json(workers)
        return
    rows = [
        (
            worker["task_id"],
            worker["agent"],
            worker["status"],
            worker["since"],
            worker.get("last_sign_of_life") or "",
            ", ".join(f"{found['kind']}:{found['status']}" for found in worker["directives"]),
            worker["title"] or "",
        )
        for worker in workers
    ]
    print_table(("TASK", "AGENT", "STATUS", "SINCE", "LAST SIGN OF LIFE", "UNDER WAY", "TITLE"), rows)


def _connection(server: str | None, token: str | None) -> Any:
    given = {"STEERSMAN_SERVER_URL": server, "STEERSMAN_TOKEN": token}
    return read_connection({**os.environ, **{name: value for name, value in given.items() if value}})


def _steer_one(client: Client, task_id: str, kind: str, fields: dict[str, str], as_json: bool, key: str | None) -> None:
    digest = _checked(task_id, kind, fields)
    receipt = client.post(
        f"/tasks/{path_part(task_id)}/steer", {"kind": kind, **fields, "displayed_payload_hash": digest}, key
    )
    if as_json:
        print_json(receipt)
    else:
        click.echo(_line(receipt))


def _steer_many(
    client: Client,
    kind: str,
    run_id: str | None,
    tasks: tuple[str, ...],
    fields: dict[str, str],
    as_json: bool,
    key: str | None,
) -> None:
    _checked("any", kind, fields)
    body: dict[str, Any] = {"kind": kind, **fields}
    if run_id is not None:
        body["selector"] = {"run": run_id, "status": "paused" if kind == "resume" else "running"}
    else:
        body["tasks"] = tasks
    told = client.post("/api/fleet/steer", body, key)
    if as_json:
        print_json(told)
    else:
        for receipt in told["receipts"]:
            click.echo(_line(receipt))
    if told["refused"]:
        lines = (f"{found['task_id']}: HTTP {found['status']} {found['message']}" for found in told["refused"])
        raise Refused("not steered:\n" + "\n".join(lines))


def _checked(task_id: str, kind: str, fields: dict[str, str]) -> str:
    """Return the digest of a command that is as it must be. Raises Refused; nothing was sent then."""
    sent = {name: value for name, value in fields.items() if name != "principal"}
    wanted = WorkerCommand(kind=kind, task_id=task_id, **sent)
    try:
        check(wanted)
    except InvalidSteeringCommand as invalid:
        raise Refused(f"Nothing was sent: {invalid}") from invalid
    return wanted.payload_hash


def _line(receipt: dict[str, Any]) -> str:
    return (
        f"Steered {receipt['task_id']}: {receipt['kind']}, receipt {receipt['mailbox_seq']} "
        f"{receipt['payload_hash'][:24]}, directive {receipt['directive_id']} is {receipt['status']}"
    )
