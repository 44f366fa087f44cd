"""The human gate: the first decision wins, and it is about exactly what was seen."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest


def review(story: Any, body: Any = None, **headers: str) -> Any:
    """Decide; approve unless told otherwise."""
    body = {"approved": True} if body is None else body
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return story.client.post(f"/api/runs/{story.run_id}/assembly/review", json=body, headers=named)


def stored(api: Any, story: Any) -> list[str]:
    """The types of the run's facts."""
    return [e["type"] for e in story.client.get(f"/api/runs/{story.run_id}/events?limit=1000").json()]


def test_an_approval_is_stored_and_the_merge_begins(api: Any, story: Any) -> None:
    made = story.to_gate()
    response = review(story)
    assert (response.status_code, response.json()) == (
        200,
        {"runId": story.run_id, "accepted": True, "deferred": False},
    )
    assert stored(api, story)[-2:] == ["coordinator.assembly_review_approved", "coordinator.assembly_merge_started"]
    assert story.run.assembly.approved_by == api.name("alice")
    assert story.run.assembly.head == made


def test_a_decline_ends_the_run(api: Any, story: Any) -> None:
    story.to_gate()
    assert review(story, {"approved": False, "feedback": "No."}).status_code == 200
    run = story.client.get(f"/api/runs/{story.run_id}", headers=api.settled()).json()
    assert (run["status"], run["coordinator_status"]) == ("declined", "assembly_declined")
    assert run["reviewed_by"] == api.name("alice")


@pytest.mark.parametrize("first", [True, False])
def test_a_second_decision_is_409_and_stores_nothing(api: Any, story: Any, first: bool) -> None:
    story.to_gate()
    assert review(story, {"approved": first}).status_code == 200
    head = api.services.log.head()
    for second in (True, False):
        response = review(story, {"approved": second})
        assert (response.status_code, response.json()["error"]) == (409, "no_assembly_review_pending")
    assert api.services.log.head() == head


DECISIONS: dict[str, Any] = {
    "approved": {"approved": True},
    "declined": {"approved": False},
    "request_changes": {"approved": False, "request_changes": True, "feedback": "More."},
}


@pytest.mark.parametrize("loser", DECISIONS)
@pytest.mark.parametrize("winner", DECISIONS)
def test_who_decides_second_is_handed_the_winners_receipt(api: Any, story: Any, winner: str, loser: str) -> None:
    story.to_gate()
    assert (
        story.client.get(f"/api/runs/{story.run_id}", headers=story.api.settled()).json()["status"] == "awaiting_review"
    )
    review(story, DECISIONS[winner]).raise_for_status()
    refused = review(story, DECISIONS[loser])
    assert (refused.status_code, refused.json()["error"]) == (409, "no_assembly_review_pending")
    told = refused.json()["winner"]
    assert (told["decision"], told["principal"]) == (winner, api.name("alice"))
    (fact,) = api.services.log.read(told["position"] - 1, 1)
    if winner == "request_changes":
        assert (fact.topic, fact.event.directive_id) == ("coordinator.steering_received", told["directiveId"])
    receipt = api.services.log.receipts([fact.position])[fact.position]
    assert told["receipt"]["position"] == fact.position
    assert (told["receipt"]["leafHash"], told["receipt"]["receiptHash"]) == (receipt.leaf_hash, receipt.receipt_hash)


def test_who_decides_before_there_is_a_gate_has_no_winner(api: Any, story: Any) -> None:
    story.start()
    assert "winner" not in review(story).json()


def test_who_steers_what_is_being_merged_is_handed_the_approvals_receipt(api: Any, story: Any) -> None:
    story.to_gate()
    review(story).raise_for_status()
    body = {"kind": "redirect", "instruction": "More."}
    refused = story.client.post(f"/api/runs/{story.run_id}/steer", json=body)
    assert (refused.status_code, refused.json()["error"]) == (409, "already_merged")
    assert refused.json()["winner"]["decision"] == "approved"


def test_of_many_decisions_at_once_one_is_taken(api: Any, story: Any) -> None:
    story.to_gate()
    with ThreadPoolExecutor(8) as pool:
        statuses = list(pool.map(lambda n: review(story, {"approved": n % 2 == 0}).status_code, range(8)))
    assert sorted(statuses) == [200] + [409] * 7


def test_a_decision_before_the_gate_is_409(api: Any, story: Any) -> None:
    story.start()
    response = review(story)
    assert (response.status_code, response.json()["error"]) == (409, "no_assembly_review_pending")


def test_a_decision_about_another_tree_is_409_and_says_which_tree_is_there(api: Any, story: Any) -> None:
    made = story.to_gate()
    head = api.services.log.head()
    response = review(story, {"approved": True, "tree_hash": "0" * 40})
    assert (response.status_code, response.json()["error"]) == (409, "head_moved_since_review")
    assert (response.json()["expected"], response.json()["actual"]) == ("0" * 40, made.tree)
    assert api.services.log.head() == head
    assert review(story, {"approved": True, "tree_hash": made.tree}).status_code == 200


def test_a_decision_about_an_older_state_of_the_run_is_412(api: Any, story: Any) -> None:
    story.to_gate()
    tag = story.client.get(f"/api/runs/{story.run_id}", headers=api.settled()).headers["etag"]
    head = api.services.log.head()
    for old in ('"1"', 'W/"1"', f"W/{tag}", '"1", "2"', '""'):
        response = review(story, If_Match=old)
        assert (response.status_code, response.json()["error"]) == (412, "precondition_failed")
        assert (response.json()["expected"], response.json()["actual"]) == (old, tag)
    for nonsense in ("1", '"1', "abc", '"1" "2"', ","):
        assert review(story, If_Match=nonsense).status_code == 400
    assert api.services.log.head() == head
    assert review(story, If_Match=f'"1", {tag}').status_code == 200


def test_any_state_matches_a_star(api: Any, story: Any) -> None:
    story.to_gate()
    assert review(story, If_Match="*").status_code == 200


def test_a_dirty_checkout_is_409_and_the_gate_stays_open(api: Any, story: Any, repository: Path) -> None:
    story.to_gate()
    (repository / "README").write_text("mine\n")
    head = api.services.log.head()
    response = review(story)
    assert (response.status_code, response.json()["error"]) == (409, "repository_dirty")
    assert response.json()["retryable"] is True
    assert response.headers["retry-after"]
    assert api.services.log.head() == head
    (repository / "README").write_text("shop\n")
    assert review(story).status_code == 200


def test_a_child_run_sends_its_reviewer_to_the_coordinator(api: Any, story: Any) -> None:
    story.to_gate()
    child = story.child(1)
    response = story.client.post(f"/api/runs/{child}/assembly/review", json={"approved": True})
    assert (response.status_code, response.json()["error"]) == (409, "use_coordinator")
    assert response.json()["coordinator_run_id"] == story.run_id
    files = story.client.get(f"/api/runs/{child}/assembly/files", headers=api.settled())
    assert (files.status_code, files.json()["error"]) == (409, "use_coordinator")


@pytest.mark.parametrize(
    ("body", "status", "error"),
    [
        ({}, 400, "invalid_request"),
        ({"approved": "yes"}, 400, "invalid_request"),
        ({"approved": True, "colour": "red"}, 400, "invalid_request"),
        ({"approved": True, "request_changes": True}, 400, "invalid"),
        ({"approved": False, "feedback": "x" * 16_385}, 400, "invalid"),
        ({"approved": False, "feedback": "a\0b"}, 400, "invalid"),
        ({"approved": False, "target_files": ["x"] * 1001}, 400, "invalid_request"),
    ],
)
def test_a_decision_that_is_not_valid_is_refused_and_stores_nothing(
    api: Any, story: Any, body: Any, status: int, error: str
) -> None:
    story.to_gate()
    head = api.services.log.head()
    response = review(story, body)
    assert (response.status_code, response.json()["error"]) == (status, error)
    assert api.services.log.head() == head


def test_an_unknown_run_is_404_and_a_malformed_id_400(api: Any) -> None:
    client = api.client()
    for run_id, status in (("f36800fd-f2f8-418c-958e-aae3e4921ba6", 404), ("nonsense", 400)):
        assert client.post(f"/api/runs/{run_id}/assembly/review", json={"approved": True}).status_code == status
