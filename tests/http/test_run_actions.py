"""Review, commit and request-changes on a coordinator run: the single-run shapes, and what a repetition is answered."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from steersman.domain.git import Commit
from steersman.domain.runs import review
from steersman.http.request.given import Services

from .conftest import git, patient


def act(story: Any, action: str, body: Any = None, **headers: str) -> Any:
    """Post an action of the run; approve unless told otherwise."""
    body = {"approved": True} if body is None and action == "review" else body
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return story.client.post(f"/api/runs/{story.run_id}/{action}", json=body, headers=named)


def test_an_approval_merges_and_the_same_again_is_answered_with_the_stored_merge(story: Any) -> None:
    made = story.to_gate()
    first = act(story, "review")
    merging = {"run_id": story.run_id, "status": "merging", "merge_result": None}
    assert (first.status_code, first.json()) == (200, merging)
    story.merge(made)
    merged = {"run_id": story.run_id, "status": "merged", "merge_result": f"merged:{made.commit}"}
    for _ in range(2):
        again = act(story, "review")
        assert (again.status_code, again.json()) == (200, merged)
    head = story.api.services.log.head()
    assert act(story, "review", {"approved": False}).status_code == 409
    assert story.api.services.log.head() == head


def test_an_approval_with_a_key_is_replayed_as_the_run_is_now(story: Any) -> None:
    made = story.to_gate()
    assert act(story, "review", Idempotency_Key="k").json()["status"] == "merging"
    story.merge(made)
    again = act(story, "review", Idempotency_Key="k")
    assert (again.json()["merge_result"], again.headers["idempotent-replayed"]) == (f"merged:{made.commit}", "true")


def test_a_decline_is_answered_again_and_an_approval_after_it_is_409(story: Any) -> None:
    story.to_gate()
    declined = {"run_id": story.run_id, "status": "declined", "merge_result": None}
    for _ in range(2):
        response = act(story, "review", {"approved": False})
        assert (response.status_code, response.json()) == (200, declined)
    refused = act(story, "review")
    assert (refused.status_code, refused.json()["error"]) == (409, "no_assembly_review_pending")
    assert refused.json()["message"] == "Run is in status 'declined' and cannot be reviewed."


def test_a_request_for_changes_in_the_review_is_a_revision(story: Any) -> None:
    story.to_gate()
    response = act(story, "review", {"approved": False, "request_changes": True, "feedback": "Better."})
    assert (response.status_code, response.json()["status"]) == (200, "revision_requested")
    assert act(story, "review", {"approved": True, "request_changes": True}).status_code == 400


def test_a_commit_is_an_approval_and_is_409_outside_the_gate(story: Any) -> None:
    made = story.to_gate()
    assert act(story, "commit").json()["status"] == "merging"
    refused = act(story, "commit")
    assert (refused.status_code, refused.json()["run_status"]) == (409, "in_progress")
    story.merge(made)
    refused = act(story, "commit")
    assert (refused.status_code, refused.json()["message"]) == (
        409,
        "Run is in status 'completed' and cannot be reviewed.",
    )


def test_a_merge_that_conflicts_names_the_files(story: Any) -> None:
    story.to_gate()
    assert act(story, "commit", Idempotency_Key="k").json()["status"] == "merging"
    story.decide(lambda run: review.fail_merge(run, ("README",)))
    answer = act(story, "commit", Idempotency_Key="k")
    assert (answer.status_code, answer.json()) == (
        200,
        {
            "run_id": story.run_id,
            "status": "merge_failed",
            "merge_result": f"conflict:{story.run.result.removeprefix('assembly_merge_failed: ')}",
            "conflicting_files": ["README"],
        },
    )
    assert (act(story, "commit").status_code, act(story, "review").status_code) == (409, 409)


def test_an_approval_of_what_the_branch_has_moved_under_is_409_and_lands_nothing(story: Any) -> None:
    made = story.to_gate()
    assert act(story, "commit", Idempotency_Key="k").json()["status"] == "merging"
    story.decide(lambda run: review.move_base(run, made, ("README",)))
    refused = act(story, "commit", Idempotency_Key="k")
    assert (refused.status_code, refused.json()["error"]) == (409, "base_moved")
    assert (refused.json()["run_status"], refused.json()["files"]) == ("in_progress", ["README"])
    other = Commit(commit=made.commit, tree="0" * 40)
    story.decide(lambda run: review.integrate(run, other, of_round=2, has_changes=True, conflicts=()))
    story.decide(review.pass_gates)
    # The key was for the tree that was seen then, and never approves another one.
    refused = act(story, "commit", Idempotency_Key="k")
    assert (refused.status_code, refused.json()["error"]) == (409, "head_moved_since_review")
    assert act(story, "commit").json()["status"] == "merging"


def test_a_merge_that_is_blocked_is_409_and_the_gate_is_open_again(services: Services, story: Any) -> None:
    story.to_gate()
    with patient(services) as url, ThreadPoolExecutor(1) as pool:
        asked = pool.submit(story.client.post, f"{url}/api/runs/{story.run_id}/review", json={"approved": True})
        while not story.run.merging:
            time.sleep(0.02)
        story.decide(lambda run: review.block_merge(run, "repository_dirty"))
        refused = asked.result()
    assert (refused.status_code, refused.json()["error"]) == (409, "repository_dirty")
    assert (refused.json()["reason"], refused.json()["run_status"]) == ("repository_dirty", "awaiting_review")
    assert act(story, "review").json()["status"] == "merging"


def approve(story: Any, action: str, key: str = "k", **more: Any) -> Any:
    """Approve under a key."""
    body = None if action == "commit" else {"approved": True} | more
    return story.client.post(f"/api/runs/{story.run_id}/{action}", json=body, headers={"Idempotency-Key": key})


def block(story: Any) -> None:
    """Let the merge that was approved find the checkout as somebody is at work in it."""
    story.decide(lambda run: review.block_merge(run, "repository_dirty"))


def approvals(story: Any) -> int:
    """How many approvals are on the log."""
    return [fact.event.TOPIC for fact in story.api.services.log.read_stream(story.run.stream)].count(
        "coordinator.assembly_review_approved"
    )


def reassemble(story: Any, made: Commit) -> None:
    """Take a run whose work was sent back to its gate again."""
    story.advance()
    story.work(1)
    story.advance()
    story.work(2)
    story.advance()
    round_ = story.run.assembly.round
    story.decide(lambda run: review.integrate(run, made, of_round=round_, has_changes=True, conflicts=()))
    story.decide(review.pass_gates)


@pytest.mark.parametrize("action", ["review", "commit", "assembly/review"])
def test_an_approval_whose_merge_was_blocked_is_tried_again_under_its_key(
    story: Any, repository: Path, action: str
) -> None:
    made = story.to_gate()
    assert approve(story, action).status_code == 200
    for again in range(2):
        block(story)
        (repository / "README").write_text("mine\n")
        refused = approve(story, action)
        assert (refused.status_code, refused.json()["error"], refused.json()["retryable"]) == (
            409, "repository_dirty", True
        )  # fmt: skip
        git(repository, "checkout", "-q", "README")
        response = approve(story, action)
        assert (response.status_code, "idempotent-replayed" in response.headers) == (200, False)
        assert (story.run.merging, approvals(story)) == (True, again + 2)
        # While it merges, whoever did not hear of it repeats it to no effect.
        assert approve(story, action).status_code == 200
        assert approvals(story) == again + 2
    story.merge(made)
    head = story.api.services.log.head()
    assert approve(story, action).headers["idempotent-replayed"] == "true"
    assert (story.run.status, story.api.services.log.head()) == ("completed", head)


@pytest.mark.parametrize("action", ["review", "assembly/review"])
def test_a_blocked_approvals_key_is_spent_for_another_body_all_the_same(story: Any, action: str) -> None:
    story.to_gate()
    approve(story, action).raise_for_status()
    block(story)
    for more in ({"approved": False}, {"feedback": "Other words."}):
        refused = approve(story, action, **more)
        assert (refused.status_code, refused.json()["error"]) == (422, "idempotency_key_spent")
    assert story.run.status == "awaiting_review"


@pytest.mark.parametrize("action", ["review", "commit", "assembly/review"])
def test_a_blocked_approval_that_is_repeated_approves_no_other_work_than_it_did(story: Any, action: str) -> None:
    story.to_gate()
    approve(story, action).raise_for_status()
    block(story)
    act(story, "request-changes", {"comment": "Something else."}).raise_for_status()
    other = Commit(commit="c" * 40, tree="d" * 40)
    reassemble(story, other)
    assert story.run.status == "awaiting_review"
    refused = approve(story, action)
    assert (refused.status_code, refused.json()["error"]) == (409, "head_moved_since_review")
    assert (refused.json()["actual"], refused.json()["retryable"]) == (other.tree, False)
    assert approvals(story) == 1


@pytest.mark.parametrize("action", ["review", "commit", "assembly/review"])
def test_twins_of_a_blocked_approval_make_one_more_of_it(story: Any, action: str) -> None:
    story.to_gate()
    approve(story, action).raise_for_status()
    block(story)
    with ThreadPoolExecutor(8) as pool:
        statuses = [response.status_code for response in pool.map(lambda _: approve(story, action), range(8))]
    assert 200 in statuses
    assert set(statuses) <= {200, 409}
    assert approvals(story) == 2


def test_a_dirty_checkout_is_409_and_the_run_still_awaits_its_review(story: Any, repository: Path) -> None:
    story.to_gate()
    (repository / "README").write_text("mine\n")
    for action in ("review", "commit"):
        refused = act(story, action)
        assert (refused.status_code, refused.json()["error"]) == (409, "repository_dirty")
        assert (refused.json()["run_status"], refused.json()["retryable"]) == ("awaiting_review", True)


def test_a_comment_sends_the_work_back_and_the_run_is_in_progress(story: Any) -> None:
    story.to_gate()
    response = act(story, "request-changes", {"comment": "Use the session store."})
    assert (response.status_code, response.json()["run_id"]) == (202, story.run_id)
    assert response.json()["status"] == "in_progress"
    (directive,) = story.run.directives.values()
    assert (str(directive.feedback), directive.source) == ("Use the session store.", "human-review")
    assert act(story, "request-changes", {"comment": "Again."}).status_code == 409


@pytest.mark.parametrize(
    "body", [{}, {"comment": ""}, {"comment": "x" * 8_001}, {"comment": 1}, {"comment": "x", "a": 1}]
)
def test_a_comment_has_1_to_8000_characters(story: Any, body: Any) -> None:
    story.to_gate()
    head = story.api.services.log.head()
    assert act(story, "request-changes", body).status_code == 400
    assert story.api.services.log.head() == head


@pytest.mark.parametrize("action", ["review", "commit", "request-changes", "cancel", "archive", "retry", "delete"])
def test_an_action_on_a_child_sends_its_caller_to_the_coordinator(story: Any, action: str) -> None:
    story.to_gate()
    bodies = {"review": {"approved": True}, "request-changes": {"comment": "x"}}
    path = f"/api/runs/{story.child(1)}"
    sent = (
        story.client.delete(path)
        if action == "delete"
        else story.client.post(f"{path}/{action}", json=bodies.get(action))
    )
    assert (sent.status_code, sent.json()["error"]) == (409, "use_coordinator")
    assert sent.json()["coordinator_run_id"] == story.run_id


@pytest.mark.parametrize("action", ["review", "commit", "request-changes", "cancel", "archive", "retry", "delete"])
def test_an_action_on_no_run_or_by_a_stranger_is_refused_and_stores_nothing(api: Any, story: Any, action: str) -> None:
    story.to_gate()
    bodies = {"review": {"approved": True}, "request-changes": {"comment": "x"}}
    head = api.services.log.head()

    def send(client: Any, run_id: str) -> int:
        path = f"/api/runs/{run_id}"
        if action == "delete":
            return client.delete(path).status_code
        return client.post(f"{path}/{action}", json=bodies.get(action)).status_code

    assert send(story.client, "nonsense") == 400
    assert send(story.client, "f36800fd-f2f8-418c-958e-aae3e4921ba6") == 404
    assert send(api.client("mallory"), story.run_id) == 403
    assert send(api.client("alice", "viewer"), story.run_id) == 403
    assert send(api.anonymous(), story.run_id) == 401
    assert api.services.log.head() == head
