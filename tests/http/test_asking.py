"""What agents ask over HTTP: each approval, denial, answer and option, and everything that they are refused for."""

from typing import Any

import pytest

from steersman.domain import answers, review, turns
from steersman.domain.answers import ToolCall

NOBODY = "f36800fd-f2f8-418c-958e-aae3e4921ba6"
BODIES = {
    "tool-approvals": {"request_id": "r", "scope": "once"},
    "tool-denials": {"request_id": "r"},
    "shell-approvals": {"command_hash": "sha256:0"},
    "shell-denials": {"command_hash": "sha256:0"},
    "questions/r/answer": {"answer": "Yes."},
    "auto-approve": {"enabled": True},
    "autopilot": {"enabled": True},
}


def send(client: Any, run_id: str, action: str, body: Any = None) -> Any:
    """Post an action of a run, with a body that is in order unless another is given."""
    return client.post(f"/api/runs/{run_id}/{action}", json=BODIES[action] if body is None else body)


@pytest.fixture
def asking(story: Any) -> Any:
    """A run whose first child is in the middle of a turn."""
    story.start()
    story.advance()
    child, at = story.child(1), story.api.services.clock.now()
    story.decide(lambda run: turns.prepare_worktree(run, child, run.base, "/trees/x", at))
    story.decide(lambda run: turns.open_session(run, child, "session", ()))
    story.decide(lambda run: turns.open_turn(run, child))
    story.decide(lambda run: turns.start_turn(run, child))
    return story


@pytest.mark.parametrize("action", BODIES)
def test_whoever_may_not_answer_is_refused_and_nothing_is_stored(api: Any, asking: Any, action: str) -> None:
    head = api.services.log.head()
    assert send(asking.client, "nonsense", action).status_code == 400
    assert send(asking.client, asking.run_id, action, {}).status_code == 400
    assert send(asking.client, NOBODY, action).status_code == 404
    assert send(api.client("mallory"), asking.run_id, action).status_code == 403
    assert send(api.client("alice", "viewer"), asking.run_id, action).status_code == 403
    assert send(api.anonymous(), asking.run_id, action).status_code == 401
    assert api.services.log.head() == head


@pytest.mark.parametrize("action", ["tool-approvals", "tool-denials", "shell-approvals", "shell-denials"])
def test_a_request_that_nobody_made_is_404(asking: Any, action: str) -> None:
    refused = send(asking.client, asking.run_id, action)
    assert (refused.status_code, refused.json()["error"]) == (404, "request_unknown")


def test_a_question_that_does_not_wait_is_409(asking: Any) -> None:
    refused = send(asking.client, asking.run_id, "questions/r/answer")
    assert (refused.status_code, refused.json()["error"]) == (409, "no_pending_question")


@pytest.mark.parametrize("action", ["auto-approve", "autopilot"])
def test_an_option_is_set_while_its_run_is_active_and_is_409_afterwards(asking: Any, action: str) -> None:
    answer = send(asking.client, asking.run_id, action)
    assert (answer.status_code, answer.json()[action.replace("auto-approve", "auto_approve_tools")]) == (200, True)
    asking.decide(lambda run: review.fail_run(run, error_code="x", message="", retryable=True))
    refused = send(asking.client, asking.run_id, action)
    assert (refused.status_code, refused.json()["error"]) == (409, "run_not_active")


@pytest.mark.parametrize("action", ["tool-approvals", "tool-denials"])
def test_a_request_of_a_run_that_has_ended_is_409(asking: Any, action: str) -> None:
    call = ToolCall(tool_name="web_fetch", tool_input="{}")
    asking.decide(lambda run: answers.ask_tool(run, asking.child(1), call)[1])
    (request_id,) = asking.run.children[asking.child(1)].requests
    asking.decide(lambda run: review.fail_run(run, error_code="x", message="", retryable=True))
    refused = send(asking.client, asking.run_id, action, {"request_id": request_id})
    assert (refused.status_code, refused.json()["error"]) == (409, "run_not_active")


@pytest.mark.parametrize(("action", "state"), [("tool-approvals", "approved"), ("tool-denials", "denied")])
@pytest.mark.parametrize("through", ["coordinator", "child"])
def test_a_tool_is_decided_about_once_through_either_id(asking: Any, action: str, state: str, through: str) -> None:
    child = asking.child(1)
    call = ToolCall(tool_name="web_fetch", tool_input="{}")
    asking.decide(lambda run: answers.ask_tool(run, child, call)[1])
    (request_id,) = asking.run.children[child].requests
    run_id = child if through == "child" else asking.run_id
    for _ in range(2):
        answer = send(asking.client, run_id, action, {"request_id": request_id})
        assert (answer.status_code, answer.json()["run_id"]) == (200, child)
    assert asking.run.children[child].requests[request_id].state == state


@pytest.mark.parametrize(("action", "word"), [("shell-approvals", "approved"), ("shell-denials", "denied")])
def test_a_destructive_command_is_decided_about_by_its_digest(asking: Any, action: str, word: str) -> None:
    child = asking.child(1)
    call = ToolCall(tool_name="shell", tool_input="{}", command="rm -rf /")
    asking.decide(lambda run: answers.ask_tool(run, child, call)[1])
    (request,) = asking.run.children[child].requests.values()
    answer = send(asking.client, asking.run_id, action, {"command_hash": request.command_hash})
    assert (answer.status_code, answer.json()[word]) == (200, True)


def test_a_question_is_answered_once(asking: Any) -> None:
    child = asking.child(1)
    asking.decide(lambda run: answers.ask_question(run, child, "Which one?")[1])
    (request_id,) = asking.run.children[child].requests
    action = f"questions/{request_id}/answer"
    sent = asking.client.post(f"/api/runs/{child}/{action}", json={"answer": "The first."})
    assert (sent.status_code, sent.json()) == (200, {"run_id": child, "request_id": request_id, "answered": True})
    assert asking.client.post(f"/api/runs/{child}/{action}", json={"answer": "No."}).status_code == 409
