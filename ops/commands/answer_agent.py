"""What a person answers an agent: `answer` to a question, `allow` and `deny` to a tool or a command."""

from typing import Any

import click

from ..output import print_json
from ..settings import client_options, read_connection
from .client import Client, path_part
from .decide import key_option, named
from .finding import find_item, run_path

ASKED = ("tool", "shell")


@click.command()
@click.argument("words", nargs=-1, required=True, metavar="[ID] ANSWER")
@key_option
@client_options
def answer(words: tuple[str, ...], key: str | None, as_json: bool) -> None:
    """Answer an agent's question. ID: of the question, its run or its child run; without it the one that waits."""
    word, said = named(words)
    with Client(read_connection()) as client:
        item = find_item(client, word, ("question",), "question")
        path = f"{run_path(item['child_run_id'])}/questions/{path_part(item['id'])}/answer"
        told = client.post(path, {"answer": said}, key)
    _tell(told, f"Answered {item['id']} of run {item['run_id']}.", as_json)


@click.command()
@click.argument("asked", required=False, metavar="[ID]")
@click.option(
    "--scope",
    type=click.Choice(["once", "run", "tool", "always"]),
    default="once",
    show_default=True,
    help="This call; the same tool and address in this child run; with any address; every tool in all of the run.",
)
@key_option
@client_options
def allow(asked: str | None, scope: str, key: str | None, as_json: bool) -> None:
    """Let an agent use a tool, or run a command. ID: of the request or its run; without it the one that waits."""
    with Client(read_connection()) as client:
        item = find_item(client, asked, ASKED, "request of an agent")
        if item["kind"] == "shell" and scope != "once":
            raise click.UsageError("Nothing was sent. A command that is asked about is let pass once.")
        more = {"scope": scope} if item["kind"] == "tool" else {}
        told = _decide(client, item, "approvals", more, key)
    _tell(told, _became(told, item, "allowed"), as_json)


@click.command()
@click.argument("asked", required=False, metavar="[ID]")
@key_option
@client_options
def deny(asked: str | None, key: str | None, as_json: bool) -> None:
    """Deny an agent a tool or a command; it goes on without. ID: of the request or its run; else the one that waits."""
    with Client(read_connection()) as client:
        item = find_item(client, asked, ASKED, "request of an agent")
        told = _decide(client, item, "denials", {}, key)
    _tell(told, _became(told, item, "denied"), as_json)


def _decide(client: Client, item: dict[str, Any], door: str, more: dict[str, Any], key: str | None) -> Any:
    detail = item["detail"]
    which = {"request_id": item["id"]} if item["kind"] == "tool" else {"command_hash": detail["command_hash"]}
    return client.post(f"{run_path(item['child_run_id'])}/{item['kind']}-{door}", which | more, key)


def _became(told: dict[str, Any], item: dict[str, Any], wanted: str) -> str:
    """Say what became of a request: somebody else may have been first."""
    came = told.get("approved" if wanted == "allowed" else "denied")
    said = wanted if came else f"decided otherwise before ({told.get('state')})"
    return f"Request {item['id']} of run {item['run_id']} is {said}: {item['summary']}"


def _tell(told: Any, said: str, as_json: bool) -> None:
    if as_json:
        print_json(told)
    else:
        click.echo(said)
