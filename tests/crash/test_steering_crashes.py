"""A service that dies at a named point of a correction, and the one that goes on from its log."""

import random
from collections import Counter
from typing import Any

import pytest

from steersman.adapters.stores.crash_points import VARIABLE
from steersman.tests.e2e.conftest import Repository
from steersman.tests.e2e.served import GATE, MANY_LIVES_SECONDS, Api, Frame, Service, part, wait_until, write

MARKER = "coordinator.revision_execution"
CLOSED = {"applied", "superseded", "needs_attention", "expired"}
FEEDBACK = "MAKE-IT-BETTER"
KILLS = 4

pytestmark = pytest.mark.timeout(MANY_LIVES_SECONDS)

POINTS = {
    "before the receipt": "lost coordinator.steering_received",
    "between the receipt's commit and its checkpoint in the file": "committed coordinator.steering_received",
    "after the receipt": "stored coordinator.steering_received",
    "before the decision": "lost coordinator.steering_decision",
    "after the decision": "stored coordinator.steering_decision",
    "before the marker": f"lost {MARKER} initiated",
    "after the marker": f"stored {MARKER} initiated",
    "before the first proof": f"lost {MARKER} effect_confirmed",
    "after the first of two proofs": f"stored {MARKER} effect_confirmed",
    "after the agent's first write": "stored tool.result",
    "before it is closed": "lost coordinator.steering applied",
    "after it is closed": "stored coordinator.steering applied",
}


def revised(*files: str) -> dict[str, Any]:
    """Return a request for changes of these files; each of their authors keeps the prompt that it gets."""
    steps = '[{"echo_prompt": {"path": "prompt.txt"}}, {"append": {"path": "log.txt", "text": "again\\n"}}]'
    return {
        "approved": False,
        "request_changes": True,
        "feedback": f"{FEEDBACK}\n```rehearsal\n{steps}\n```",
        "target_files": list(files),
    }


def at_gate(api: Api, repository: Repository) -> str:
    """Take a plan of two independent parts to its gate."""
    parts = [part(name, write(f"{name}.txt", f"{name}\n")) for name in ("one", "two")]
    run_id = api.orchestrate(api.project(repository.path), *parts)
    api.until(run_id, GATE)
    return run_id


def second_gate(api: Api, run_id: str) -> list[Frame]:
    """Return the run's frames up to the gate that follows the correction."""
    feed = api.feed(run_id)
    try:
        return feed.until(GATE) + feed.until(GATE)
    finally:
        feed.close()


def events(api: Api, run_id: str) -> list[dict[str, Any]]:
    """Return the run's events so far."""
    found: list[dict[str, Any]] = api.get(f"/api/runs/{run_id}/events?limit=1000")
    return found


def is_far(found: list[dict[str, Any]], wanted: int) -> bool:
    """Whether a run has so many events, or stands at its second gate."""
    return len(found) >= wanted or [event["type"] for event in found].count(GATE) == 2


def prompts(api: Api, run_id: str) -> list[str]:
    """Return what each child's agent was asked after the correction, as it kept it itself."""
    children = api.get(f"/api/runs/{run_id}/children")
    data = api.service.data
    return [(data / "worktrees" / child["childRunId"] / "prompt.txt").read_text(encoding="utf-8") for child in children]


def check(frames: list[Frame], directive: dict[str, Any]) -> None:
    """Check what the log says of a correction, wherever its service died."""
    of_it = [frame for frame in frames if frame.data.get("directiveId") == directive["directiveId"]]
    ends = [f.data["status"] for f in of_it if f.event == "coordinator.steering" and f.data["status"] in CLOSED]
    assert ends == ["applied"]
    proofs = Counter(f.data["childRunId"] for f in of_it if f.event == MARKER and f.data["state"] == "effect_confirmed")
    assert sorted(proofs.values()) == [1, 1]
    assert sum(f.event == "coordinator.steering_decision" for f in of_it) == 1
    assert {f.data["receiptPayloadHash"] for f in of_it if f.event == MARKER} == {directive["receipt"]["payloadHash"]}


@pytest.mark.parametrize("point", POINTS)
def test_a_correction_ends_once_wherever_its_service_dies(point: str, service: Service, repository: Repository) -> None:
    die_at(POINTS[point], service, repository)


@pytest.mark.usefixtures("on_postgres")
@pytest.mark.parametrize(
    "point",
    [
        "between the receipt's commit and its checkpoint in the file",
        "after the receipt",
        "after the first of two proofs",
    ],
)
def test_a_correction_on_postgres_ends_once_wherever_its_service_dies(
    point: str, service: Service, repository: Repository
) -> None:
    die_at(POINTS[point], service, repository)


def die_at(point: str, service: Service, repository: Repository) -> None:
    """Ask for changes of a service that dies at the point, and check what the next one makes of them."""
    api = Api(service.start())
    run_id = at_gate(api, repository)
    service.stop()
    service.variables[VARIABLE] = point
    api = Api(service.start())
    body = revised("one.txt", "two.txt")
    with service.dying():
        api.http.post(f"/api/runs/{run_id}/assembly/review", json=body, headers={"Idempotency-Key": "k1"})
    del service.variables[VARIABLE]
    api = Api(service.start())
    api.http.post(
        f"/api/runs/{run_id}/assembly/review", json=body, headers={"Idempotency-Key": "k1"}
    ).raise_for_status()
    frames = second_gate(api, run_id)
    directives = api.get(f"/api/runs/{run_id}/steering")
    assert len(directives) == 1
    check(frames, directives[0])
    for prompt in prompts(api, run_id):
        assert prompt.count(FEEDBACK) == 1
    api.review(run_id, approved=True)
    api.until(run_id, "coordinator.assembly_completed")
    assert repository.files["log.txt"].splitlines() in (["again"], ["again", "again"])


def test_a_correction_survives_kills_at_random_moments(service: Service, repository: Repository) -> None:
    chance = random.Random(20261130)
    api = Api(service.start())
    run_id = at_gate(api, repository)
    api.review(run_id, **revised("one.txt", "two.txt"))
    for _ in range(KILLS):
        wanted = len(events(api, run_id)) + chance.randrange(1, 6)
        wait_until(lambda api=api, wanted=wanted: is_far(events(api, run_id), wanted), "the run has come further")
        service.kill()
        api = Api(service.start())
    frames = second_gate(api, run_id)
    check(frames, api.get(f"/api/runs/{run_id}/steering")[0])
    for prompt in prompts(api, run_id):
        assert prompt.count(FEEDBACK) == 1
