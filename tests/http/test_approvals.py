"""Answers to agents over HTTP: by whoever may, through either id, once; and every way in which they are refused."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from steersman.domain.facts.asking import command_hash
from steersman.domain.runs import review
from steersman.domain.work import agent_requests, turns
from steersman.domain.work.agent_requests import ToolCall

STRANGER = "f36800fd-f2f8-418c-958e-aae3e4921ba6"
FETCH = ToolCall(tool_name="web_fetch", tool_input="{}", url="https://a")
COMMAND = "rm -rf build"
REMOVE = ToolCall(tool_name="shell", tool_input="{}", command=COMMAND)
HASH = command_hash(COMMAND)


def begin_turn(story: Any, subtask_id: int) -> None:
    """Take a child into a turn that its agent works on."""
    child, at, base = story.child(subtask_id), story.api.services.clock.now(), story.run.base
    story.decide(lambda run: turns.prepare_worktree(run, child, base, "/trees/x", at))
    story.decide(lambda run: turns.open_session(run, child, "session", ()))
    story.decide(lambda run: turns.open_turn(run, child))
    story.decide(lambda run: turns.start_turn(run, child))


@pytest.fixture
def asking(story: Any) -> Any:
    """A run whose first child is in a turn."""
    story.start()
    story.advance()
    begin_turn(story, 1)
    return story


def ask(story: Any, call: ToolCall | str, subtask_id: int = 1) -> str:
    """A child's agent asks; return the request's id."""
    asked: list[str] = []
    child = story.child(subtask_id)

    def decision(run: Any) -> Any:
        how: Any = agent_requests.ask_question if isinstance(call, str) else agent_requests.ask_tool
        request_id, drafts = how(run, child, call)
        asked[:] = [request_id]
        return drafts

    story.decide(decision)
    return asked[0]


def post(story: Any, what: str, body: Any, run_id: str | None = None, client: Any = None, **headers: str) -> Any:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return (client or story.client).post(f"/api/runs/{run_id or story.run_id}/{what}", json=body, headers=named)


def calls(story: Any) -> list[tuple[str, Any]]:
    """Every command about what this run's child asks, ready to be carried out."""
    tool, question = ask(story, FETCH), ask(story, "Which colour?")
    ask(story, REMOVE)
    return [
        ("tool-approvals", {"request_id": tool}),
        ("tool-denials", {"request_id": tool}),
        ("shell-approvals", {"command_hash": HASH}),
        ("shell-denials", {"command_hash": HASH}),
        (f"questions/{question}/answer", {"answer": "Blue."}),
        ("auto-approve", {"enabled": True}),
        ("autopilot", {"enabled": True}),
    ]


@pytest.mark.parametrize("door", ["child", "coordinator"])
@pytest.mark.parametrize(("word", "said"), [("approvals", "approved"), ("denials", "denied")])
def test_a_decision_names_the_run_that_asked_whichever_id_it_comes_by(
    api: Any, asking: Any, door: str, word: str, said: str
) -> None:
    child = asking.child(1)
    door_id = child if door == "child" else asking.run_id
    tool = ask(asking, FETCH)
    response = post(asking, f"tool-{word}", {"request_id": tool}, door_id)
    assert response.status_code == 200
    assert response.json() == {
        "run_id": child,
        "request_id": tool,
        said: True,
        "resolved": True,
        "expired": False,
        "state": said,
    }
    assert int(response.headers["steersman-position"]) == api.services.log.head()
    ask(asking, REMOVE)
    response = post(asking, f"shell-{word}", {"command_hash": HASH}, door_id)
    assert (response.status_code, response.json()) == (200, {"run_id": child, "command_hash": HASH, said: True})
    assert {r.state for r in asking.run.children[child].requests.values()} == {said}


@pytest.mark.parametrize("door", ["child", "coordinator"])
def test_an_answer_names_the_run_that_asked_whichever_id_it_comes_by(asking: Any, door: str) -> None:
    child, question = asking.child(1), ask(asking, "Which colour?")
    response = post(asking, f"questions/{question}/answer", {"answer": "Blue."}, child if door == "child" else None)
    assert (response.status_code, response.json()) == (
        200,
        {"run_id": child, "request_id": question, "answered": True},
    )
    assert str(asking.run.children[child].requests[question].answer) == "Blue."


@pytest.mark.parametrize("scope", ["once", "run", "always", "tool"])
def test_every_scope_is_taken(asking: Any, scope: str) -> None:
    assert post(asking, "tool-approvals", {"request_id": ask(asking, FETCH), "scope": scope}).status_code == 200


def test_who_decides_again_is_told_what_was_decided_and_stores_nothing(api: Any, asking: Any) -> None:
    tool = ask(asking, FETCH)
    ask(asking, REMOVE)
    post(asking, "tool-denials", {"request_id": tool})
    post(asking, "shell-approvals", {"command_hash": HASH})
    head = api.services.log.head()
    again = post(asking, "tool-approvals", {"request_id": tool, "scope": "always"})
    assert (again.status_code, again.json()["approved"], again.json()["state"]) == (200, False, "denied")
    again = post(asking, "shell-denials", {"command_hash": HASH})
    assert (again.status_code, again.json()["denied"]) == (200, False)
    assert api.services.log.head() == head


def test_a_question_is_answered_once(api: Any, asking: Any) -> None:
    question = ask(asking, "Which colour?")
    path = f"questions/{question}/answer"
    first = post(asking, path, {"answer": "Blue."}, Idempotency_Key="one")
    head = api.services.log.head()
    replayed = post(asking, path, {"answer": "Blue."}, Idempotency_Key="one")
    assert (replayed.json(), replayed.headers["idempotent-replayed"]) == (first.json(), "true")
    second = post(asking, path, {"answer": "Green."})
    assert (second.status_code, second.json()["error"]) == (409, "no_pending_question")
    assert api.services.log.head() == head


def test_of_many_answers_at_once_one_is_taken(asking: Any) -> None:
    path = f"questions/{ask(asking, 'Which colour?')}/answer"
    with ThreadPoolExecutor(8) as pool:
        statuses = list(pool.map(lambda n: post(asking, path, {"answer": str(n)}).status_code, range(8)))
    assert sorted(statuses) == [200] + [409] * 7


def test_what_has_expired_is_200_and_says_so(asking: Any) -> None:
    tool, question = ask(asking, FETCH), ask(asking, "Which colour?")
    asking.decide(lambda run: turns.end_turn(run, asking.child(1), "cancelled"))
    response = post(asking, "tool-approvals", {"request_id": tool})
    assert response.status_code == 200
    assert (response.json()["approved"], response.json()["expired"], response.json()["state"]) == (
        False,
        True,
        "expired",
    )
    late = post(asking, f"questions/{question}/answer", {"answer": "Blue."})
    assert (late.status_code, late.json()["error"]) == (409, "no_pending_question")


def test_an_unknown_request_is_404_and_an_unknown_question_409(asking: Any) -> None:
    ask(asking, FETCH)
    question = ask(asking, "Which colour?")
    for what, body in (
        ("tool-approvals", {"request_id": "unheard-of"}),
        ("tool-denials", {"request_id": question}),
        ("shell-approvals", {"command_hash": HASH}),
        ("shell-denials", {"command_hash": "sha256:0"}),
    ):
        response = post(asking, what, body)
        assert (response.status_code, response.json()["error"]) == (404, "request_unknown"), what
        assert response.json()["state"] == "unknown"
    response = post(asking, "questions/unheard-of/answer", {"answer": "Blue."})
    assert (response.status_code, response.json()["error"]) == (409, "no_pending_question")


def test_a_child_cannot_be_answered_through_another_one(api: Any, story: Any) -> None:
    story.start()
    story.advance()
    first = story.work(1)
    story.advance()
    begin_turn(story, 2)
    tool, question = ask(story, FETCH, 2), ask(story, "Which colour?", 2)
    head = api.services.log.head()
    response = post(story, "tool-approvals", {"request_id": tool}, first)
    assert (response.status_code, response.json()["error"]) == (404, "request_unknown")
    response = post(story, f"questions/{question}/answer", {"answer": "Blue."}, first)
    assert (response.status_code, response.json()["error"]) == (409, "no_pending_question")
    assert api.services.log.head() == head


def test_options_are_the_runs_and_are_shown_with_it(asking: Any) -> None:
    for option, name in (("auto-approve", "auto_approve_tools"), ("autopilot", "autopilot")):
        for enabled in (True, True, False):
            response = post(asking, option, {"enabled": enabled})
            assert (response.status_code, response.json()) == (200, {"run_id": asking.run_id, name: enabled})
            for run_id in (asking.run_id, asking.child(1)):
                shown = asking.client.get(f"/api/runs/{run_id}", headers=asking.api.settled()).json()
                assert shown[name] is enabled
        response = post(asking, option, {"enabled": True}, asking.child(1))
        assert (response.status_code, response.json()["error"]) == (409, "use_coordinator")


@pytest.mark.parametrize(
    ("what", "body"),
    [
        ("tool-approvals", {}),
        ("tool-approvals", {"request_id": ""}),
        ("tool-approvals", {"request_id": "x", "scope": "forever"}),
        ("tool-approvals", {"request_id": "x", "colour": "red"}),
        ("tool-denials", {}),
        ("tool-denials", {"request_id": 1}),
        ("shell-approvals", {}),
        ("shell-denials", {"command_hash": None}),
        ("questions/x/answer", {}),
        ("questions/x/answer", {"answer": ""}),
        ("questions/x/answer", {"answer": " \n"}),
        ("questions/x/answer", {"answer": "x" * 16_385}),
        ("auto-approve", {}),
        ("auto-approve", {"enabled": "yes"}),
        ("autopilot", {"enabled": None}),
    ],
)
def test_what_is_not_valid_is_400_and_stores_nothing(api: Any, asking: Any, what: str, body: Any) -> None:
    head = api.services.log.head()
    assert post(asking, what, body).status_code == 400
    assert api.services.log.head() == head


def test_whoever_may_not_answer_is_refused_and_everything_still_waits(api: Any, asking: Any) -> None:
    wanted = calls(asking)
    head = api.services.log.head()
    for client in (api.client(scope="viewer"), api.client("mallory")):
        for what, body in wanted:
            for run_id in (asking.run_id, asking.child(1)):
                response = post(asking, what, body, run_id, client)
                assert (response.status_code, response.json()["error"]) == (403, "forbidden"), what
    for what, body in wanted:
        assert post(asking, what, body, client=api.anonymous()).status_code == 401, what
    assert api.services.log.head() == head


def test_an_unknown_run_is_404_and_an_id_that_is_none_400(asking: Any) -> None:
    for what, body in calls(asking):
        unknown, nonsense = post(asking, what, body, STRANGER), post(asking, what, body, "nonsense")
        assert (unknown.status_code, unknown.json()["error"]) == (404, "run_not_found"), what
        assert (nonsense.status_code, nonsense.json()["error"]) == (400, "invalid_run_id"), what


def test_a_run_that_has_ended_takes_no_answer(api: Any, asking: Any) -> None:
    wanted = calls(asking)
    asking.decide(lambda run: review.fail_run(run, error_code="x", message="It broke.", retryable=False))
    head = api.services.log.head()
    for what, body in wanted:
        response = post(asking, what, body)
        error = "no_pending_question" if what.startswith("questions") else "run_not_active"
        assert (response.status_code, response.json()["error"]) == (409, error), what
    assert api.services.log.head() == head
