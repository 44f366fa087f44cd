"""What a person decides about a run: `approve`, `decline` and `changes` at its gates, `retry`, `cancel` and `steer`."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click

from ..output import print_json
from ..refused import Refused
from ..settings import client_options, read_connection
from .client import Client, path_part
from .finding import find_item, find_run, run_path, waiting_items
from .following import wait_for

KINDS = ("stop", "send", "redirect", "amend")
#: What a redirect says that nobody worded.
AGAIN = "Try again: what failed before is to be done now."

key_option = click.option("--key", help="The key of a command whose outcome was unknown: it is carried out once.")
wait_option = click.option("--wait", is_flag=True, help="Follow the run to where it waits for you, or to its end.")
run_argument = click.argument("run", required=False)


@click.command()
@run_argument
@click.option("--tree", help="The tree that you have seen: another one is not approved.")
@wait_option
@key_option
@client_options
def approve(run: str | None, tree: str | None, wait: bool, key: str | None, as_json: bool) -> None:
    """Approve the assembled work of RUN, which merges it, or what its goal is taken to mean. RUN: the one that waits."""
    with Client(read_connection()) as client:
        item = find_item(client, run, ("gate", "outcome_spec"), "gate")
        if item["kind"] == "outcome_spec":
            told = client.post(f"{_at(item)}/outcome-spec/confirm", None, key)
            said = f"Confirmed what the goal of run {item['run_id']} means: planning begins."
        else:
            seen = tree or item["detail"]["tree_hash"]
            told = client.post(f"{_at(item)}/assembly/review", {"approved": True, "tree_hash": seen}, key)
            said = f"Approved tree {seen} of run {item['run_id']}."
        _end(client, item["run_id"], told, said, answered=[item], wait=wait, as_json=as_json)


@click.command()
@run_argument
@click.option("--reason", default="", help="Why: it is kept with the decision.")
@key_option
@client_options
def decline(run: str | None, reason: str, key: str | None, as_json: bool) -> None:
    """Decline the assembled work of RUN: nothing is merged, and the run ends. RUN: the one that waits."""
    with Client(read_connection()) as client:
        item = find_item(client, run, ("gate",), "gate")
        body = {"approved": False, "feedback": reason, "tree_hash": item["detail"]["tree_hash"]}
        told = client.post(f"{_at(item)}/assembly/review", body, key)
        _end(client, item["run_id"], told, f"Declined run {item['run_id']}. Nothing is merged.", as_json=as_json)


@click.command()
@click.argument("words", nargs=-1, required=True, metavar="[RUN] WHAT")
@click.option("--file", "files", multiple=True, help="A file that it is about; may be given many times.")
@wait_option
@key_option
@client_options
def changes(words: tuple[str, ...], files: tuple[str, ...], wait: bool, key: str | None, as_json: bool) -> None:
    """Ask for changes of the assembled work, or of what the goal is taken to mean: its authors go on where they were."""
    run, feedback = named(words)
    with Client(read_connection()) as client:
        item = find_item(client, run, ("gate", "outcome_spec"), "gate")
        if item["kind"] == "outcome_spec":
            told = client.post(f"{_at(item)}/outcome-spec/revise", {"feedback": feedback}, key)
        else:
            body: dict[str, Any] = {"approved": False, "request_changes": True, "feedback": feedback}
            body |= {"tree_hash": item["detail"]["tree_hash"]} | ({"target_files": files} if files else {})
            told = client.post(f"{_at(item)}/assembly/review", body, key)
        said = f"Asked for changes of run {item['run_id']}."
        _end(client, item["run_id"], told, said, answered=[item], wait=wait, as_json=as_json)


@click.command()
@click.argument("run")
@click.argument("words", required=False, metavar="[HOW]")
@wait_option
@key_option
@client_options
def retry(run: str, words: str | None, wait: bool, key: str | None, as_json: bool) -> None:
    """Try again what of RUN failed, is blocked or could not be carried out. HOW tells its agents what to do otherwise."""
    with Client(read_connection()) as client:
        run_id = find_run(client, run)
        waits = [item for item in waiting_items(client, run_id=run_id) if item["for"] == "person"]
        stuck = next((item for item in waits if item["kind"] == "needs_attention"), None)
        goes_on = run_id
        if any(item["kind"] == "blocked" for item in waits):
            body = {"kind": "redirect", "instruction": words or AGAIN}
            told = client.post(f"{run_path(run_id)}/steer", body, key)
        elif words is not None:
            raise Refused(
                "Only a run whose plan stands still takes words with a retry. Without them it is tried again."
            )
        elif stuck is not None:
            path = f"{run_path(run_id)}/steering/{path_part(stuck['id'])}/resolve"
            told = client.post(path, {"action": "retry"}, key)
        else:
            told = client.post(f"{run_path(run_id)}/retry", None, key)
            goes_on = told["run_id"]
        said = f"Run {run_id} goes on." if goes_on == run_id else f"Run {run_id} is tried again as run {goes_on}."
        _end(client, goes_on, told, said, answered=waits, wait=wait, as_json=as_json)


@click.command()
@click.argument("run")
@key_option
@client_options
def cancel(run: str, key: str | None, as_json: bool) -> None:
    """Stop everything that is at work for RUN, and keep its record."""
    with Client(read_connection()) as client:
        run_id = find_run(client, run)
        told = client.post(f"{run_path(run_id)}/cancel", None, key)
        how = "had ended before" if told["already_terminal"] else "is cancelled"
        _end(client, run_id, told, f"Run {run_id} {how}; it is {told['status']}.", as_json=as_json)


@click.command()
@click.argument("run")
@click.argument("kind", type=click.Choice(KINDS))
@click.argument("words", required=False, default="")
@click.option("--child", help="Only this child run.")
@wait_option
@key_option
@client_options
def steer(run: str, kind: str, words: str, child: str | None, wait: bool, key: str | None, as_json: bool) -> None:
    """Correct RUN while it works: stop it, send its agents WORDS, redirect them, or amend what they have to do."""
    with Client(read_connection()) as client:
        run_id = find_run(client, run)
        body = {"kind": kind, "instruction": words} | ({"target_child_run_id": child} if child else {})
        told = client.post(f"{run_path(run_id)}/steer", body, key)
        said = f"Steered run {run_id}: {kind}, directive {_directive(told)}."
        _end(client, run_id, told, said, wait=wait, as_json=as_json)


def _end(
    client: Client,
    run_id: str,
    told: Any,
    said: str,
    *,
    answered: Sequence[dict[str, Any]] = (),
    wait: bool = False,
    as_json: bool = False,
) -> None:
    if wait:
        if not as_json:
            click.echo(said)
        sys.exit(wait_for(client, run_id, as_json, [item for item in answered if item["run_id"] == run_id]))
    if as_json:
        print_json(told)
    else:
        click.echo(said)


def _at(item: Mapping[str, Any]) -> str:
    return run_path(item["run_id"])


def named(words: Sequence[str]) -> tuple[str | None, str]:
    """Return what is named, if anything is, and what is said about it."""
    if len(words) > 2:
        raise click.UsageError("Nothing was sent. Put what you say in quotes.")
    return (words[0] if len(words) == 2 else None), words[-1]


def _directive(told: Mapping[str, Any]) -> str:
    return str(told.get("directiveId") or told.get("id") or "")
