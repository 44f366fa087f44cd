"""The outcome spec over HTTP: it is there from the start, and takes one decision from somebody who may decide."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from steersman.domain.event import Text
from steersman.domain.facts.outcome_spec import OutcomeDraft
from steersman.domain.runs import define_outcome, review

from .conftest import patient

STRANGER = "f36800fd-f2f8-418c-958e-aae3e4921ba6"
DRAFT = OutcomeDraft(desired_outcome=Text("Things are sold"), scope=Text("The shop"), assumptions=Text("None"))


def begin(story: Any, **more: Any) -> None:
    """Start a run whose outcome is to be defined."""
    story.project()
    body = {"goal": "Sell things", **more}
    response = story.client.post(f"/api/projects/{story.project_id}/orchestrations", json=body).raise_for_status()
    story.run_id = response.json()["runId"]


def to_gate(story: Any) -> None:
    """Start such a run and let its writer answer."""
    begin(story)
    story.decide(lambda run: define_outcome.put_draft(run, run.outcome_spec.round, DRAFT))


def show(story: Any, run_id: str | None = None) -> Any:
    return story.client.get(f"/api/runs/{run_id or story.run_id}/outcome-spec")


def decide(story: Any, what: str, body: Any = None, client: Any = None, **headers: str) -> Any:
    path = f"/api/runs/{story.run_id}/outcome-spec/{what}"
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return (client or story.client).post(path, json=body, headers=named)


def test_without_a_start_mode_the_outcome_is_defined_first(story: Any) -> None:
    begin(story)
    assert show(story).json() == {"goal": "Sell things", "status": "drafting"}
    begin(story, startMode="define_outcome")
    assert show(story).status_code == 200


def test_a_read_waits_for_the_first_draft(story: Any) -> None:
    begin(story)
    with patient(story.api.services) as url, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(story.client.get, f"{url}/api/runs/{story.run_id}/outcome-spec")
        story.decide(lambda run: define_outcome.put_draft(run, 1, DRAFT))
        assert waiting.result().json() == {
            "goal": "Sell things",
            "desiredOutcome": "Things are sold",
            "scope": "The shop",
            "assumptions": "None",
            "status": "awaiting_confirmation",
        }


def test_a_direct_run_and_a_child_run_have_no_outcome_spec(story: Any) -> None:
    story.start()
    story.advance()
    for run_id in (story.run_id, story.child(1)):
        assert (show(story, run_id).status_code, show(story, run_id).json()["error"]) == (404, "outcome_spec_not_found")
    for what, body in (("confirm", None), ("revise", {"feedback": "More"})):
        assert (decide(story, what, body).status_code, decide(story, what, body).json()["error"]) == (
            409,
            "no_pending_gate",
        )
    child = story.client.post(f"/api/runs/{story.child(1)}/outcome-spec/confirm")
    assert (child.status_code, child.json()["error"]) == (409, "use_coordinator")


def test_a_confirmation_is_in_the_name_of_whoever_gave_it_and_consumes_the_gate(api: Any, story: Any) -> None:
    to_gate(story)
    response = decide(story, "confirm", Idempotency_Key="one")
    assert (response.status_code, response.json()["status"]) == (200, "confirmed")
    assert response.json()["confirmedBy"] == api.name("alice")
    head = api.services.log.head()
    assert int(response.headers["steersman-position"]) == head
    again = decide(story, "confirm", Idempotency_Key="one")
    assert (again.status_code, again.headers["idempotent-replayed"]) == (200, "true")
    for what, body in (("confirm", None), ("revise", {"feedback": "More"})):
        late = decide(story, what, body)
        assert (late.status_code, late.json()["error"]) == (409, "no_pending_gate")
    assert api.services.log.head() == head


def test_a_revision_opens_the_next_round(story: Any) -> None:
    to_gate(story)
    response = decide(story, "revise", {"feedback": "Only one device"})
    assert (response.status_code, response.json()["status"]) == (200, "drafting")
    assert response.json()["desiredOutcome"] == "Things are sold"
    assert story.run.outcome_spec.round == 2
    assert [str(words) for words in story.run.outcome_spec.feedback] == ["Only one device"]
    assert decide(story, "confirm").json()["error"] == "no_pending_gate"


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({}, "feedback_required"),
        ({"feedback": ""}, "feedback_required"),
        ({"feedback": " \n"}, "feedback_required"),
        ({"feedback": "x" * 16_385}, "feedback_required"),
        ({"feedback": 1}, "invalid_request"),
        ({"feedback": "x", "colour": "red"}, "invalid_request"),
        ([], "invalid_request"),
    ],
)
def test_a_revision_without_usable_feedback_is_400_and_leaves_the_gate(
    api: Any, story: Any, body: Any, error: str
) -> None:
    to_gate(story)
    head = api.services.log.head()
    response = decide(story, "revise", body)
    assert (response.status_code, response.json()["error"]) == (400, error)
    assert api.services.log.head() == head
    assert decide(story, "confirm").status_code == 200


def test_whoever_may_not_decide_is_403_and_the_gate_is_intact(api: Any, story: Any) -> None:
    to_gate(story)
    viewer, stranger = api.client(scope="viewer"), api.client("mallory")
    for client in (viewer, stranger):
        for what, body in (("confirm", None), ("revise", {"feedback": "More"})):
            response = decide(story, what, body, client)
            assert (response.status_code, response.json()["error"]) == (403, "forbidden")
    assert viewer.get(f"/api/runs/{story.run_id}/outcome-spec").status_code == 200
    assert stranger.get(f"/api/runs/{story.run_id}/outcome-spec").status_code == 403
    assert decide(story, "confirm").status_code == 200


def test_an_unknown_run_is_404_and_an_id_that_is_none_400(api: Any) -> None:
    client = api.client()
    for call in (
        lambda run: client.get(f"/api/runs/{run}/outcome-spec"),
        lambda run: client.post(f"/api/runs/{run}/outcome-spec/confirm"),
        lambda run: client.post(f"/api/runs/{run}/outcome-spec/revise", json={"feedback": "More"}),
    ):
        assert (call(STRANGER).status_code, call(STRANGER).json()["error"]) == (404, "run_not_found")
        assert (call("nonsense").status_code, call("nonsense").json()["error"]) == (400, "invalid_run_id")


def test_a_run_that_has_ended_is_409_run_not_active(story: Any) -> None:
    to_gate(story)
    story.decide(lambda run: review.fail_run(run, error_code="x", message="It broke.", retryable=False))
    for what, body in (("confirm", None), ("revise", {"feedback": "More"})):
        response = decide(story, what, body)
        assert (response.status_code, response.json()["error"]) == (409, "run_not_active")


def test_of_many_decisions_at_once_one_is_taken(story: Any) -> None:
    to_gate(story)
    calls = [("confirm", None), ("revise", {"feedback": "More"})] * 4
    with ThreadPoolExecutor(8) as pool:
        statuses = list(pool.map(lambda call: decide(story, *call).status_code, calls))
    assert sorted(statuses) == [200] + [409] * 7
