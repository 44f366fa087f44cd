"""`steersman runs`: the runs of a service, over its API."""

import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

import click
import msgspec

from .client import Client, path_part
from .event_words import in_words
from .output import note, plain, print_json, print_table
from .settings import json_option, read_connection

#: What `watch` ends with; everything else has reached its goal.
OUTCOMES = {"failed": 4, "merge_failed": 5, "declined": 6, "stopped": 7}
#: The results of a run that somebody stopped.
STOPPED = frozenset({"steering_stop", "steering_abort", "cancelled", "project_deleted", "deleted"})


@click.group()
def command() -> None:
    """List, show and watch the runs of the service at $STEERSMAN_SERVER_URL, with $STEERSMAN_TOKEN."""


@command.command()
@click.option("--project", help="The id of one project; without it, the runs of all that you may see.")
@json_option
def ls(project: str | None, as_json: bool) -> None:
    """List coordinator runs, the newest of each project first."""
    with Client(read_connection()) as client:
        projects = [project] if project else [found["project_id"] for found in client.get("/api/projects")]
        runs: list[dict[str, Any]] = [
            run for one in projects for run in client.get(f"/api/projects/{path_part(one)}/runs")
        ]
    if as_json:
        print_json(runs)
        return
    print_table(("RUN", "STATUS", "PLAN", "STARTED", "TASK"), [_run_cells(run) for run in runs])


@command.command()
@click.argument("run_id", metavar="ID")
@json_option
def show(run_id: str, as_json: bool) -> None:
    """Show a run, its work plan and its child runs."""
    path = f"/api/runs/{path_part(run_id)}"
    with Client(read_connection()) as client:
        run = client.get(path)
        is_coordinator = run.get("parent_run_id") is None
        has_plan = is_coordinator and run.get("coordinator_status") is not None
        plan = client.get(f"{path}/work-plan") if has_plan else None
        children: list[dict[str, Any]] = client.get(f"{path}/children") if is_coordinator else []
    if as_json:
        print_json({"run": run, "work_plan": plan, "children": children})
        return
    for name in ("run_id", "task", "status", "coordinator_status", "coordinator_status_reason", "result", "model_id"):
        if run.get(name):
            click.echo(f"{name:<26} {plain(str(run[name]))}")
    for held in run.get("held", ()):
        words = f"{held['kind']} waits for {held['waits_for']} since {held['since']}: {held['error_code']}"
        click.echo(f"{'held':<26} {plain(words)}")
    if run.get("error"):
        click.echo(f"{'error':<26} {plain(msgspec.json.encode(run['error']).decode())}")
    if plan:
        click.echo("")
        print_subtasks(plan["subtasks"], children)


def print_subtasks(subtasks: Sequence[dict[str, Any]], children: Sequence[dict[str, Any]]) -> None:
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


@command.command()
@click.argument("run_id", metavar="ID")
@click.option("--after", type=click.IntRange(min=0), default=0, help="The last event id that you have.")
@json_option
def watch(run_id: str, after: int, as_json: bool) -> None:
    """
    Follow a run's feed to its end, also across restarts of the service.

    Exits with 0 when the run reached its goal, 4 when it failed, 5 when its merge failed, 6 when it was declined, 7 when
    it was stopped.
    """
    path = f"/api/runs/{path_part(run_id)}"
    with Client(read_connection()) as client, _resumable(run_id, after) as seen:
        for event in client.follow(f"{path}/stream", after):
            if as_json:
                print_json({"id": event.id, "event": event.event, "data": msgspec.Raw(event.data.encode())})
            elif event.id is not None:
                click.echo(f"{event.id:>5}  {plain(in_words(event.event, msgspec.json.decode(event.data)))}")
            seen(event.id)
        ended = client.get(path)
    sys.exit(outcome_code(ended["status"], ended.get("result")))


def outcome_code(status: str, result: str | None) -> int:
    """Return what a command ends with that has followed a run to its end."""
    if status == "failed" and result in STOPPED:
        return OUTCOMES["stopped"]
    return OUTCOMES.get(status, 0)


@contextmanager
def _resumable(run_id: str, after: int) -> Generator[Callable[[int | None], None]]:
    """Give what is told of each event that was shown; whoever ends it by Ctrl-C hears how to go on behind the last."""
    last = after

    def seen(event_id: int | None) -> None:
        nonlocal last
        last = event_id or last

    try:
        yield seen
    except KeyboardInterrupt:
        note(f"To go on: steersman runs watch {run_id} --after {last}")
        raise


@command.command()
@click.argument("run_id", metavar="ID")
@json_option
def explain(run_id: str, as_json: bool) -> None:
    """Say what a run waits for, and for whom."""
    with Client(read_connection()) as client:
        found = client.get(f"/api/runs/{path_part(run_id)}/explain")
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
    names = ("execution_id", "status", "coordinator_status", "started_at", "task")
    return tuple(str(run.get(name) or "") for name in names)
