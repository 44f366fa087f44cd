"""The worker's door to steering: which tasks there are, and in which order it refuses."""

from typing import Any

import pytest

GUIDANCE = {"kind": "guidance", "guidance": "Mind the gap."}
NOBODY = "f36800fd-f2f8-418c-958e-aae3e4921ba6"


def steer(client: Any, task_id: str, **body: Any) -> Any:
    """Steer a task."""
    return client.post(f"/tasks/{task_id}/steer", json=body or GUIDANCE)


@pytest.mark.parametrize(
    "number", ["0", "3", "", "-1", "1.0", "x", "\u0661", "1:1", "9" * 5_000], ids=lambda number: number[:4] or "none"
)
def test_a_number_that_no_subtask_has_is_no_task_however_long_it_is(api: Any, story: Any, number: str) -> None:
    story.start()
    story.advance()
    assert steer(story.client, f"{story.run_id}:1").status_code == 201
    head = api.services.log.head()
    refused = steer(story.client, f"{story.run_id}:{number}")
    assert (refused.status_code, refused.json()["error"]) == (404, "run_not_found")
    assert api.services.log.head() == head


def test_a_fleet_command_that_names_a_task_longer_than_any_is_400_before_anybody_is_steered(
    api: Any, story: Any
) -> None:
    story.start()
    story.advance()
    head = api.services.log.head()
    tasks = [story.child(1), f"{story.run_id}:{'9' * 5_000}"]
    refused = story.client.post("/api/fleet/steer", json={**GUIDANCE, "tasks": tasks})
    assert (refused.status_code, refused.json()["error"]) == (400, "invalid")
    assert api.services.log.head() == head


@pytest.mark.parametrize("task_id", ["nope", "nope:1", NOBODY, f"{NOBODY}:1", "%00", "a%3Ab%3Ac"])
def test_an_unknown_task_is_404_whatever_else_is_wrong_with_the_request(story: Any, task_id: str) -> None:
    for body in (GUIDANCE, {"kind": "nonsense"}, {**GUIDANCE, "displayed_payload_hash": "sha256:0"}):
        refused = steer(story.client, task_id, **body)
        assert (refused.status_code, refused.json()["error"]) == (404, "run_not_found")


def test_a_fleet_command_is_told_of_an_unknown_task_as_the_workers_door_tells_it(story: Any) -> None:
    answer = story.client.post("/api/fleet/steer", json={**GUIDANCE, "tasks": ["nope", NOBODY]})
    assert answer.status_code == 201
    assert [(one["task_id"], one["status"], one["error"]) for one in answer.json()["refused"]] == [
        ("nope", 404, "run_not_found"),
        (NOBODY, 404, "run_not_found"),
    ]


def test_the_refusals_come_in_the_order_401_404_422_403_409(api: Any, story: Any) -> None:
    story.start()
    story.advance()
    viewer = api.client("alice", "viewer")
    wrong, mismatched = {"kind": "nonsense"}, {**GUIDANCE, "displayed_payload_hash": "sha256:0"}
    assert steer(api.anonymous(), "nope", **wrong).status_code == 401
    assert steer(viewer, "nope", **wrong).status_code == 404
    assert steer(viewer, story.child(1), **wrong).status_code == 422
    assert steer(viewer, story.child(1), **mismatched).status_code == 403
    assert steer(story.client, story.child(1), **mismatched).status_code == 409
