"""The corrections: every verb at every door, chosen by chance among those that the run's situation offers."""

import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from .work import corrected


class Steer(NamedTuple):
    """One command, ready to be sent."""

    verb: str
    path: str
    body: dict[str, Any]
    #: What its words contain and no other's; empty if it has none.
    mark: str
    #: Whether it makes a directive: an approval, a refusal and an answer to an agent do not.
    directs: bool = True


class Situation(NamedTuple):
    """A run, as a replica shows it."""

    run: dict[str, Any]
    #: The workers that are on their way.
    workers: Sequence[dict[str, Any]]
    #: Every child, also those that are done.
    children: Sequence[dict[str, Any]]
    directives: Sequence[dict[str, Any]]
    #: What its agents have asked of people, answered or not.
    requests: Sequence[dict[str, Any]] = ()

    @property
    def at_gate(self) -> bool:
        """Whether a person is asked."""
        return bool(self.run["status"] == "awaiting_review")

    @property
    def over(self) -> bool:
        """Whether nothing that is said to it changes anything any more."""
        return self.run["status"] in ("completed", "declined") or self.run["result"] in ("steering_stop", "cancelled")

    @property
    def parked(self) -> bool:
        """Whether it stands still until somebody steers."""
        return self.run["coordinator_status"] in ("assembly_blocked", "assembly_failed")


Choice = tuple[float, Callable[[Situation, random.Random, str], Steer | None]]


def choose(situation: Situation, chance: random.Random, mark: str) -> Steer | None:
    """Return a command that the situation offers, None if there is none."""
    choices = AT_GATE if situation.at_gate else PARKED if situation.parked else AT_WORK
    weights = [weight for weight, _ in choices]
    _, make = chance.choices(choices, weights)[0]
    return make(situation, chance, mark)


def _run(situation: Situation) -> str:
    return str(situation.run["run_id"])


def _coordinator(kind: str) -> Callable[[Situation, random.Random, str], Steer | None]:
    def make(situation: Situation, chance: random.Random, mark: str) -> Steer | None:
        body: dict[str, Any] = {"kind": kind, "instruction": corrected(chance, mark)}
        children = situation.children
        if kind != "stop" and children and chance.random() < 0.4:
            body["target_child_run_id"] = chance.choice(children)["childRunId"]
        return Steer(kind, f"/api/runs/{_run(situation)}/steer", body, mark)

    return make


def _worker(kind: str) -> Callable[[Situation, random.Random, str], Steer | None]:
    def make(situation: Situation, chance: random.Random, mark: str) -> Steer | None:
        ids = [str(worker["task_id"]) for worker in situation.workers]
        if kind in ("guidance", "redirect") and not ids:
            # What is done already can be revised, too.
            ids = [str(child["childRunId"]) for child in situation.children if child["childRunId"]]
        if not ids:
            return None
        return Steer(f"task {kind}", f"/tasks/{chance.choice(ids)}/steer", _command(kind, chance, mark), mark)

    return make


def _fleet(kind: str) -> Callable[[Situation, random.Random, str], Steer | None]:
    def make(situation: Situation, chance: random.Random, mark: str) -> Steer | None:
        body = _command(kind, chance, mark)
        ids = [worker["task_id"] for worker in situation.workers]
        if ids and chance.random() < 0.5:
            body["tasks"] = ids
        else:
            body["selector"] = {"run": _run(situation), "status": "paused" if kind == "resume" else "running"}
        return Steer(f"fleet {kind}", "/api/fleet/steer", body, mark)

    return make


def _command(kind: str, chance: random.Random, mark: str) -> dict[str, Any]:
    body: dict[str, Any] = {"kind": kind, "reason": mark}
    if kind == "guidance":
        body["guidance"] = corrected(chance, mark)
    if kind == "redirect":
        body["redirect_target"] = corrected(chance, mark)
    return body


def _approve(situation: Situation, chance: random.Random, mark: str) -> Steer:
    body: dict[str, Any] = {"approved": True}
    if chance.random() < 0.3:
        body["tree_hash"] = situation.run["tree_hash"]
    return Steer("approve", f"/api/runs/{_run(situation)}/assembly/review", body, "", directs=False)


def _decline(situation: Situation, chance: random.Random, mark: str) -> Steer:
    body = {"approved": False, "feedback": mark}
    return Steer("decline", f"/api/runs/{_run(situation)}/assembly/review", body, "", directs=False)


def _request_changes(situation: Situation, chance: random.Random, mark: str) -> Steer:
    body: dict[str, Any] = {"approved": False, "request_changes": True, "feedback": corrected(chance, mark)}
    return Steer("request changes", f"/api/runs/{_run(situation)}/assembly/review", body, mark)


def _resolve(situation: Situation, chance: random.Random, mark: str) -> Steer | None:
    open_ones = [d["directiveId"] for d in situation.directives if d["status"] == "needs_attention"]
    if not open_ones:
        return None
    path = f"/api/runs/{_run(situation)}/steering/{chance.choice(open_ones)}/resolve"
    return Steer("resolve", path, {"action": chance.choice(("retry", "abandon"))}, "", directs=False)


def answer(situation: Situation, chance: random.Random, mark: str) -> Steer | None:
    """Decide on something that an agent has asked for; whoever comes second is told what was decided."""
    if not situation.requests:
        return None
    asked = chance.choice(situation.requests)
    what = chance.choice(("approvals", "denials"))
    path = f"/api/runs/{_run(situation)}/tool-{what}"
    return Steer(f"tool {what}", path, {"request_id": asked["requestId"]}, "", directs=False)


AT_WORK: Sequence[Choice] = (
    (6, answer),
    (8, _coordinator("send")),
    (8, _coordinator("redirect")),
    (6, _coordinator("amend")),
    (2, _coordinator("stop")),
    (8, _worker("guidance")),
    (8, _worker("redirect")),
    (8, _worker("pause")),
    (7, _worker("resume")),
    (3, _worker("abort")),
    (4, _fleet("guidance")),
    (3, _fleet("redirect")),
    (3, _fleet("pause")),
    (5, _fleet("resume")),
    (1, _fleet("abort")),
    (3, _resolve),
)
AT_GATE: Sequence[Choice] = (
    (5, _approve),
    (1, _decline),
    (9, _request_changes),
    (3, _coordinator("redirect")),
    (2, _coordinator("amend")),
    (2, _coordinator("send")),
    (1, _coordinator("stop")),
    (4, _worker("guidance")),
    (4, _worker("redirect")),
    (2, _resolve),
)
PARKED: Sequence[Choice] = (
    (8, _coordinator("redirect")),
    (2, _coordinator("amend")),
    (2, _coordinator("send")),
    (1, _coordinator("stop")),
)
