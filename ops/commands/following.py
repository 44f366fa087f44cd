"""A run followed to where it waits for somebody, or to its end; and what a command ends with then."""

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

import click
import msgspec

from ..output import note, plain, print_json
from .client import Client
from .event_words import in_words
from .finding import run_path, waiting_items
from .show_waiting import print_item
from .sse import ServerSent

#: What a command ends with that has followed a run; one that reached its goal: 0. They are told in docs/commands.md.
OUTCOMES = {"failed": 4, "merge_failed": 5, "declined": 6, "stopped": 7}
WAITS_FOR_YOU = 8
#: The results of a run that somebody stopped.
STOPPED = frozenset({"steering_stop", "steering_abort", "cancelled", "project_deleted", "deleted"})
#: With one of these something may begin to wait, or have its run go on all the same: then it is looked at.
MAY_WAIT = frozenset(
    {
        "coordinator.assembly_blocked",
        "coordinator.assembly_merge_blocked",
        "coordinator.assembly_review_requested",
        "coordinator.autopilot_failed",
        "coordinator.child_approval_required",
        "coordinator.child_question",
        "coordinator.effect_held",
        "coordinator.outcome_spec",
        "coordinator.steering",
        "run.budget_reached",
    }
)
#: With what something begins to wait, so that whoever answers it is shown what came of that, and not all before.
BEGINS_WITH = {
    "gate": "coordinator.assembly_review_requested",
    "outcome_spec": "coordinator.outcome_spec",
    "blocked": "coordinator.assembly_blocked",
    "budget": "run.budget_reached",
}
MOST_EVENTS = 1_000


def outcome_code(status: str, result: str | None) -> int:
    """Return what a command ends with that has followed a run to its end."""
    if status == "failed" and result in STOPPED:
        return OUTCOMES["stopped"]
    return OUTCOMES.get(status, 0)


def follow(
    client: Client,
    run_id: str,
    seen: Callable[[ServerSent], object],
    *,
    after: int = 0,
    until_waits: bool = False,
    answered: Sequence[dict[str, Any]] = (),
) -> int:
    """
    Follow a run's feed behind the event *after* to its end, or with *until_waits* to where something of it waits that was
    not *answered* just now.

    *seen* is called with each event. Return what the command ends with. Raises Refused.
    """
    if until_waits and _waits(client, run_id, answered):
        return WAITS_FOR_YOU
    for event in client.follow(f"{run_path(run_id)}/stream", after):
        seen(event)
        if until_waits and event.event in MAY_WAIT and _waits(client, run_id, answered):
            return WAITS_FOR_YOU
    client.catch_up()
    ended = client.get(run_path(run_id))
    return outcome_code(ended["status"], ended.get("result"))


def _waits(client: Client, run_id: str, answered: Sequence[dict[str, Any]]) -> bool:
    client.catch_up()
    known = {(item["id"], item["since"]) for item in answered}
    return any((item["id"], item["since"]) not in known for item in waiting_items(client, run_id=run_id))


def begun_with(client: Client, answered: Sequence[dict[str, Any]]) -> int:
    """Return the number of the event with which the last of these began to wait, 0 where it is not looked up."""
    topic = BEGINS_WITH.get(answered[-1]["kind"]) if answered else None
    if topic is None:
        return 0
    found = client.get(f"{run_path(answered[-1]['run_id'])}/events?type={topic}&limit={MOST_EVENTS}")
    return found[-1]["sequence"] if found else 0


@contextmanager
def resumable(run_id: str, how: Callable[[int], str], after: int = 0) -> Generator[Callable[[ServerSent], None]]:
    """Give what is told of each event that was shown; whoever ends it by Ctrl-C hears *how* to go on behind the last."""
    last = after

    def seen(event: ServerSent) -> None:
        nonlocal last
        last = event.id or last

    try:
        yield seen
    except KeyboardInterrupt:
        note(f"To go on: {how(last)}")
        raise


def conclusion(run: dict[str, Any], code: int) -> str:
    """Return in a line how a run stands that was followed to there."""
    match code:
        case 0:
            commit = run.get("merged_commit_hash")
            deliver: dict[str, Any] = run.get("deliver") or {}
            if commit and deliver.get("mode") == "branch":
                return f"on the new branch {deliver['branch']}: {commit}"
            return f"merged into {run['originating_branch']}: {commit}" if commit else str(run["status"])
        case 8:
            return "waits for you"
        case 5:
            return "its merge failed"
        case _:
            return next(word for word, known in OUTCOMES.items() if known == code)


def wait_for(client: Client, run_id: str, as_json: bool, answered: Sequence[dict[str, Any]] = ()) -> int:
    """
    Follow a run to where it waits for somebody, but for what was *answered* just now, or to its end; say how it stands, and
    return what to end with.
    """
    with resumable(run_id, lambda last: f"steersman runs watch {run_id} --after {last} --until-waits") as seen:

        def shown(event: ServerSent) -> None:
            seen(event)
            if event.id is not None and not as_json:
                note(f"{event.id:>5}  {plain(in_words(event.event, msgspec.json.decode(event.data)))}")

        after = begun_with(client, answered)
        code = follow(client, run_id, shown, after=after, until_waits=True, answered=answered)
    run = client.get(run_path(run_id))
    if as_json:
        print_json({"run": run, "exit": code})
    else:
        click.echo(f"Run {run_id}: {conclusion(run, code)}")
        for item in waiting_items(client, run_id=run_id) if code == WAITS_FOR_YOU else ():
            print_item(item)
        if code not in (0, WAITS_FOR_YOU):
            click.echo(f"Why: steersman show {run_id}")
    return code
