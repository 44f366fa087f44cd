"""`steersman show` and `steersman diff`: how a run stands, what waits in it, why a part of it failed, what it has changed."""

from collections.abc import Mapping, Sequence
from typing import Any

import click

from ..output import plain, print_json, print_table
from ..refused import Refused
from ..settings import client_options, read_connection
from .budgets import budget_in_words, usage_in_words
from .client import Client
from .finding import find_run, run_path, waiting_items
from .screen import coloured, show_long
from .show_waiting import print_item

SHOWN = ("run_id", "task", "status", "coordinator_status", "coordinator_status_reason", "result", "model_id")
#: What of a plan's part says that it has no result.
LOST = ("failed", "blocked", "rai_flagged")


@click.command()
@click.argument("run", metavar="ID")
@client_options
def show(run: str, as_json: bool) -> None:
    """Show a run: how it stands, what waits in it, its plan, its child runs, and why what failed has failed."""
    with Client(read_connection()) as client:
        path = run_path(find_run(client, run))
        found = client.get(path)
        is_coordinator = found.get("parent_run_id") is None
        has_plan = is_coordinator and found.get("coordinator_status") is not None
        plan = client.get(f"{path}/work-plan") if has_plan else None
        children: list[dict[str, Any]] = client.get(f"{path}/children") if is_coordinator else []
        waits = waiting_items(client, run_id=found["run_id"])
        # What can be made of a run that has failed waits for nobody in particular.
        ways_out: list[dict[str, Any]] = []
        if found["status"] in ("failed", "merge_failed"):
            ways_out = client.get(f"{path}/explain")["waits"]
    if as_json:
        print_json({"run": found, "work_plan": plan, "children": children, "waiting": waits, "ways_out": ways_out})
        return
    _print_run(found)
    if plan:
        click.echo("")
        print_subtasks(plan["subtasks"], children)
        _print_causes(plan["subtasks"])
    for item in waits:
        click.echo("")
        print_item(item)
    for way in ways_out:
        click.echo("")
        click.echo(plain(way["what"]))
        if way["request"] and way["request"].endswith("/retry"):
            click.echo(f"    steersman retry {found['run_id']}")


def _print_run(run: Mapping[str, Any]) -> None:
    for name in SHOWN:
        if run.get(name):
            click.echo(f"{name:<26} {coloured(str(run[name]))}")
    for held in run.get("held", ()):
        words = f"{held['kind']} waits for {held['waits_for']} since {held['since']}: {held['error_code']}"
        click.echo(f"{'held':<26} {plain(words)}")
    if usage := run.get("usage"):
        click.echo(f"{'used':<26} {plain(usage_in_words(usage))}")
    if budget := run.get("budget"):
        click.echo(f"{'budget':<26} {plain(budget_in_words(budget))}")
    if (deliver := run.get("deliver")) and deliver["mode"] != "merge":
        click.echo(f"{'deliver':<26} {plain('onto the new branch ' + str(deliver['branch']))}")
    if error := run.get("error"):
        words = f"{error['errorCode']}: {error['message']}"
        click.echo(f"{'error':<26} {plain(words)}")


def print_subtasks(subtasks: Sequence[Mapping[str, Any]], children: Sequence[Mapping[str, Any]]) -> None:
    """Print a plan's subtasks, each with its child run."""
    trees = {child["childRunId"]: child.get("treeHash") or "" for child in children}
    rows = [
        (
            str(part["subtaskId"]),
            part["status"],
            part["assignedAgent"],
            part["childRunId"] or "",
            trees.get(part["childRunId"], "")[:12],
            part["title"] or "",
        )
        for part in subtasks
    ]
    print_table(("SUBTASK", "STATUS", "AGENT", "RUN", "TREE", "TITLE"), rows)


def _print_causes(subtasks: Sequence[Mapping[str, Any]]) -> None:
    for part in subtasks:
        if part["status"] in LOST and part.get("cause"):
            words = f"subtask {part['subtaskId']} {part['status']}: {part['cause']}: {part.get('reason') or ''}"
            click.echo(coloured(words, "failed"))


@click.command()
@click.argument("run", metavar="ID")
@client_options
def diff(run: str, as_json: bool) -> None:
    """Show what a run has changed: the assembled work of a coordinator run, or that of one child run."""
    with Client(read_connection()) as client:
        found = client.get(run_path(find_run(client, run)))
    text = found.get("diff")
    if as_json:
        print_json({"run_id": found["run_id"], "diff": text})
        return
    if not text:
        raise Refused(f"Run {found['run_id']} has changed nothing yet; it is {found['status']}.")
    show_long(text)
