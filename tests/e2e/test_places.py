"""Few places and many runs, over HTTP: who waits for a person is in nobody's way, and who waits knows for whom."""

from typing import Any

import pytest

from steersman.tests.e2e.conftest import Repository
from steersman.tests.e2e.served import GATE, Api, Service, part, wait_until, write

#: What agents, places and branches do is the same on each store.
STORES = ("sqlite",)

ASKS = ({"ask": "Which colour?"}, write("colour.txt", "blue\n"))
HANGS = ({"say": "I begin."}, {"hang": {}})
ASKED = "coordinator.child_question"


class As(Api):
    """Another user of the same service."""

    def __init__(self, service: Service, user: str) -> None:
        super().__init__(service)
        self.http = service.client(service.issue(user))


@pytest.fixture
def other(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    return Repository(tmp_path_factory.mktemp("other") / "repository")


def asked(api: Api, run_id: str, count: int = 1) -> dict[str, Any]:
    """Wait until a run has asked so often; return what it asked last."""

    def questions() -> list[dict[str, Any]]:
        events = api.get(f"/api/runs/{run_id}/events?limit=1000")
        return [event["payload"] for event in events if event["type"] == ASKED]

    found: list[dict[str, Any]] = wait_until(lambda: len(q := questions()) >= count and q, f"{run_id} has asked")
    return found[-1]


def answer(api: Api, run_id: str, question: dict[str, Any]) -> None:
    api.post(f"/api/runs/{run_id}/questions/{question['requestId']}/answer", {"answer": "Blue."})


def test_four_runs_that_wait_for_an_answer_leave_all_places_to_another_user(
    service: Service, repository: Repository, other: Repository
) -> None:
    alice = Api(service.start())
    bob = As(service, "bob")
    project = alice.project(repository.path)
    waiting = [alice.orchestrate(project, part("colour", *ASKS)) for _ in range(4)]
    questions = {run_id: asked(alice, run_id) for run_id in waiting}
    mine = bob.orchestrate(bob.project(other.path), part("mine", write("mine.txt", "mine\n")))
    bob.until(mine, GATE)
    shown = alice.get(f"/api/runs/{waiting[0]}/explain")
    assert [effect["state"] for effect in shown["effects"]] == ["waits_for_person"]
    assert [wait["who"] for wait in shown["waits"]] == ["person"]
    for run_id, question in questions.items():
        answer(alice, run_id, question)
    for run_id in waiting:
        alice.until(run_id, GATE)


def test_a_run_that_waits_for_a_place_says_who_holds_them_and_names_no_run_of_others(
    service: Service, repository: Repository, other: Repository
) -> None:
    service.variables["STEERSMAN_MAX_AGENTS"] = "2"
    alice = Api(service.start())
    bob = As(service, "bob")
    project = alice.project(repository.path)
    holding = [alice.orchestrate(project, part("long", *HANGS)) for _ in range(2)]
    for run_id in holding:
        alice.until(run_id, "subtask.running")
    next_one = alice.orchestrate(project, part("next", *HANGS))
    mine = bob.orchestrate(bob.project(other.path), part("mine", write("mine.txt", "mine\n")))

    def waits(api: Api, run_id: str) -> Any:
        found = api.get(f"/api/runs/{run_id}/explain")
        return found if [e["state"] for e in found["effects"]] == ["waits_for_place"] else None

    seen = wait_until(lambda: waits(alice, next_one), "alice's next run waits for a place")
    (effect,), (wait,) = seen["effects"], seen["waits"]
    assert {place["runId"] for place in effect["heldBy"]} == set(holding)
    assert {place["projectId"] for place in effect["heldBy"]} == {project}
    assert all(run_id in wait["what"] for run_id in holding)

    hidden = wait_until(lambda: waits(bob, mine), "bob's run waits for a place")
    (effect,), (wait,) = hidden["effects"], hidden["waits"]
    assert (effect["heldBy"], effect["heldByOthers"]) == ([], 2)
    assert "2 more by runs of others" in wait["what"]
    assert not any(run_id in str(hidden) for run_id in (*holding, project))

    # The place that becomes free is bob's, who has none, although alice has asked before.
    alice.post(f"/api/runs/{holding[0]}/steer", {"kind": "stop"}, 201)
    bob.until(mine, GATE)
    wait_until(lambda: not waits(alice, next_one), "the next place is alice's again")


def test_through_a_death_of_the_service_who_waits_for_an_answer_still_holds_no_place(
    service: Service, repository: Repository
) -> None:
    service.variables["STEERSMAN_MAX_AGENTS"] = "1"
    api = Api(service.start())
    project = api.project(repository.path)
    waiting = [api.orchestrate(project, part("colour", *ASKS)) for _ in range(3)]
    for run_id in waiting:
        asked(api, run_id)
    service.kill()
    api = Api(service.start())
    again = {run_id: asked(api, run_id, 2) for run_id in waiting}
    api.until(api.orchestrate(project, part("plain", write("plain.txt", "plain\n"))), GATE)
    for run_id, question in again.items():
        answer(api, run_id, question)
    for run_id in waiting:
        api.until(run_id, GATE)
