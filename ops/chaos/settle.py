"""Let everything come to rest: nobody hurts any more, and whoever waits for a person gets one."""

import random
import time
from collections.abc import Mapping, Sequence
from typing import Any

from .client import ReplicaClient
from .facts import CLOSED, Acknowledged
from .scene import look, requests
from .steers import Situation

OVER = ("completed", "declined", "merge_failed", "failed")
PARKED = ("assembly_blocked",)
PATIENCE_SECONDS = 300.0
AGAIN_SECONDS = 0.5
#: For so long somebody who is named must be waited for after he has asked for another try.
HELD_SECONDS = 20.0
#: For so long nothing may be added to a log that is at rest.
STILL_SECONDS = 2.0


def settle(
    client: ReplicaClient, runs: Sequence[str], chance: random.Random, acknowledged: list[Acknowledged]
) -> list[str]:
    """On return every run is at rest and the log stands still; what is not, after a long time, is told."""
    until = time.monotonic() + PATIENCE_SECONDS
    left = list(runs)
    asked: dict[str, float] = {}
    tries = 0
    while left and time.monotonic() < until:
        tries += 1
        for run_id in tuple(left):
            situation = look(client, run_id, chance)
            effects = outstanding(client, run_id, chance)
            if is_at_rest(situation) and not effects:
                left.remove(run_id)
            elif effects and all(effect["waitsFor"] for effect in effects):
                # Whatever was hurt is whole again, and whoever is waited for says so.
                if run_id not in asked:
                    client.post(f"/api/runs/{run_id}/retry", {}, f"retry-{run_id}-{tries}", chance)
                    asked[run_id] = time.monotonic()
                elif time.monotonic() - asked[run_id] > HELD_SECONDS:
                    left.remove(run_id)
            else:
                asked.pop(run_id, None)
                _help(client, situation, f"{tries}", chance, acknowledged)
        time.sleep(AGAIN_SECONDS)
    stuck = [
        f"{run_id} did not come to rest: {told(look(client, run_id, chance))}, "
        f"outstanding {[_line(effect) for effect in outstanding(client, run_id, chance)]}"
        for run_id in left
    ]
    return stuck + _stand_still(client, chance, until)


def is_at_rest(situation: Situation) -> bool:
    """Whether nothing goes on in a run before somebody says something."""
    run = situation.run
    stands = run["status"] in (*OVER, "awaiting_review") or run["coordinator_status"] in PARKED
    return stands and all(d["status"] in CLOSED for d in situation.directives) and not situation.workers


def outstanding(client: ReplicaClient, run_id: str, chance: random.Random) -> list[Mapping[str, Any]]:
    """Return what the log of a run calls for and no fact has proved, as the service explains it."""
    explained = client.get(f"/api/runs/{run_id}/explain", chance)
    return list(explained["effects"])


def _line(effect: Mapping[str, Any]) -> str:
    return f"{effect['effectId']} {effect['state']} {effect['waitsFor'] or ''}".rstrip()


def told(situation: Situation) -> str:
    """Return how a run stands, in a line."""
    run = situation.run
    workers = [f"{w['task_id']} {w['status']}" for w in situation.workers]
    waiting = [
        f"{d['directiveId']} {d['kind']} {d['status']}" for d in situation.directives if d["status"] not in CLOSED
    ]
    return f"{run['status']} {run['coordinator_status']}, workers {workers}, directives {waiting}"


def _help(
    client: ReplicaClient, situation: Situation, tries: str, chance: random.Random, acknowledged: list[Acknowledged]
) -> None:
    """Let paused workers go on, and agents have what they ask for."""
    for worker in situation.workers:
        task = worker["task_id"]
        if worker["status"] == "paused" and not any(d["kind"] == "resume" for d in worker["directives"]):
            mark = f"mark-settle-{task}-{tries}-"
            answer = client.post(f"/tasks/{task}/steer", {"kind": "resume", "reason": mark}, mark, chance)
            if answer.done:
                acknowledged.append(
                    Acknowledged(mark=mark, directive_id=answer.body["directive_id"], root=situation.run["run_id"])
                )
    run_id = situation.run["run_id"]
    for asked in requests(client, run_id, chance):
        # Whatever was decided before stays as it is.
        key = f"approve-{asked['requestId']}-{tries}"
        client.post(f"/api/runs/{run_id}/tool-approvals", {"request_id": asked["requestId"]}, key, chance)


def _stand_still(client: ReplicaClient, chance: random.Random, until: float) -> list[str]:
    head, since = "", time.monotonic()
    while time.monotonic() < max(until, since + 2 * STILL_SECONDS):
        now = str(client.get("/health", chance)["position"])
        if now != head:
            head, since = now, time.monotonic()
        elif time.monotonic() - since > STILL_SECONDS:
            return []
        time.sleep(AGAIN_SECONDS)
    return ["the log did not come to a stand"]
