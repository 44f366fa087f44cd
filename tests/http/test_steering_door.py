"""The coordinator's door to steering: what it answers, and what it refuses without storing anything but the refusal."""

from typing import Any

import pytest

NOBODY = "f36800fd-f2f8-418c-958e-aae3e4921ba6"


def steer(client: Any, run_id: str, **body: Any) -> Any:
    """Steer a run."""
    return client.post(f"/api/runs/{run_id}/steer", json={"kind": "send", "instruction": "Look here.", **body})


def test_a_correction_is_201_with_the_directive_in_both_spellings(story: Any) -> None:
    story.start()
    story.advance()
    for name in ("target_child_run_id", "targetChildRunId"):
        answer = steer(story.client, story.run_id, kind=" Redirect ", **{name: story.child(1)})
        assert answer.status_code == 201
        directive = answer.json()
        assert (directive["kind"], directive["targetChildRunId"]) == ("redirect", story.child(1))
        assert (directive["status"], directive["instruction"]) == ("queued", "Look here.")
        assert directive["directiveId"] == directive["id"]
        assert directive["relayedAt"] is None, "no agent was given it yet"


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({"kind": "pause"}, "kind_required"),
        ({"kind": ""}, "kind_required"),
        ({"kind": "redirect", "instruction": " "}, "steering_invalid"),
        ({"kind": "amend", "instruction": ""}, "steering_invalid"),
        ({"target_child_run_id": NOBODY}, "steering_invalid"),
        ({"kind": 1}, "invalid_request"),
    ],
)
def test_a_correction_that_cannot_be_is_400_and_stores_nothing(api: Any, story: Any, body: Any, error: str) -> None:
    story.start()
    story.advance()
    head = api.services.log.head()
    refused = steer(story.client, story.run_id, **body)
    assert (refused.status_code, refused.json()["error"]) == (400, error)
    assert api.services.log.head() == head


def test_no_run_is_404_a_malformed_id_400_and_an_ended_run_409(story: Any) -> None:
    story.to_gate()
    assert steer(story.client, NOBODY).status_code == 404
    assert steer(story.client, "nonsense").status_code == 400
    story.client.post(f"/api/runs/{story.run_id}/review", json={"approved": False}).raise_for_status()
    refused = steer(story.client, story.run_id)
    assert (refused.status_code, refused.json()["error"]) == (409, "run_not_active")


@pytest.mark.parametrize("spelled", [str.lower, str.upper])
def test_somebody_elses_run_is_403_and_the_attempt_is_kept_on_its_log(api: Any, story: Any, spelled: Any) -> None:
    story.start()
    assert steer(api.client("mallory"), spelled(story.run_id)).status_code == 403
    last = story.client.get(f"/api/runs/{story.run_id}/events?limit=1000").json()[-1]
    assert (last["type"], last["payload"]["target"]) == ("coordinator.steering_denied", story.run_id)
