"""What agents ask is answered over HTTP, by people or by autopilot, and through every kill: each thing once."""

import json
from typing import Any

import pytest

from steersman.adapters.stores.crash_points import VARIABLE
from steersman.tests.e2e.conftest import Repository
from steersman.tests.e2e.served import GATE, MANY_LIVES_SECONDS, Api, Service, part, wait_until, write

#: Agents ask alike on each store; what a kill costs on PostgreSQL, `test_restart.py` and the campaign of chaos show.
STORES = ("sqlite",)

FETCH = {"tool": {"name": "web_fetch", "input": {"url": "https://example.org/a"}}}
REMOVE = {"tool": {"name": "shell", "input": {"command": "rm -rf build"}}}
ASKED = ("tool.approval_required", "shell.approval_required", "agent.question_asked")
STORED_ANSWER = "stored agent.answer_delivered"


def begin(api: Api, repository: Repository, *steps: dict[str, Any], **more: Any) -> tuple[str, str]:
    """Start a run with one part; return its id and that of its child run."""
    run_id = api.orchestrate(api.project(repository.path), part("curious", *steps), **more)
    dispatched = api.until(run_id, "subtask.running")[-1]
    return run_id, dispatched.data["childRunId"]


def events(api: Api, run_id: str, *types: str) -> list[dict[str, Any]]:
    """Return what a run's feed says of some types, in order."""
    found: list[dict[str, Any]] = api.get(f"/api/runs/{run_id}/events?limit=1000")
    return [event["payload"] | {"type": event["type"]} for event in found if event["type"] in types]


def request(api: Api, child: str, number: int) -> dict[str, Any]:
    """Wait for a child's n-th request, from 1; return it."""
    found: list[dict[str, Any]] = wait_until(
        lambda: (asked := events(api, child, *ASKED)) and len(asked) >= number and asked, f"request {number} is there"
    )
    assert len(found) == number
    return found[-1]


def decide(api: Api, run_id: str, asked: dict[str, Any], answer: str = "Blue.", *, deny: bool = False) -> Any:
    """Answer a request through the given run's id, whatever kind it is of."""
    word = "denials" if deny else "approvals"
    match asked["type"]:
        case "agent.question_asked":
            return api.post(f"/api/runs/{run_id}/questions/{asked['requestId']}/answer", {"answer": answer})
        case "shell.approval_required":
            return api.post(f"/api/runs/{run_id}/shell-{word}", {"command_hash": asked["command_hash"]})
        case _:
            return api.post(f"/api/runs/{run_id}/tool-{word}", {"request_id": asked["request_id"]})


def said(api: Api, child: str) -> str:
    """Return everything that a child's agent has said and was told of its tools."""
    told = events(api, child, "agent.message.delta", "tool.result", "tool.error")
    # What the agent says comes in pieces, cut wherever it paused.
    return "".join(e.get("delta") or f"\n{e.get('content') or e.get('errorMessage')}\n" for e in told)


def finish(api: Api, run_id: str) -> None:
    """Take a run from its gate to its merge."""
    api.until(run_id, GATE)
    api.review(run_id, approved=True)
    api.until(run_id, "coordinator.assembly_completed")


@pytest.mark.timeout(MANY_LIVES_SECONDS)
@pytest.mark.parametrize("door", ["child", "coordinator"])
def test_an_agent_that_asks_four_times_is_answered_once_each_though_the_service_dies_every_time(
    service: Service, repository: Repository, door: str
) -> None:
    api = Api(service.start())
    asking = ({"ask": "Which colour?"}, FETCH, {"ask": "Which size?"}, REMOVE, write("done.txt", "done\n"))
    run_id, child = begin(api, repository, *asking)
    answers = iter(("Blue.", "Large."))
    for number in range(1, 5):
        lost = request(api, child, 2 * number - 1)
        service.kill()
        api = Api(service.start())
        # Who asked is gone, so that question is closed; whoever goes on in its place asks it anew.
        asked = request(api, child, 2 * number)
        assert asked["type"] == lost["type"]
        assert asked.get("requestId") or asked["request_id"] != lost.get("request_id")
        words = next(answers) if asked["type"] == "agent.question_asked" else ""
        told = decide(api, child if door == "child" else run_id, asked, words)
        assert told["run_id"] == child
    finish(api, run_id)
    assert repository.files["done.txt"] == "done"

    resolved = events(api, child, "tool.approval_resolved", "agent.question_answered")
    told = [e["answer"] if "answer" in e else (e["approved"], e["expired"], e["resolvedBy"]) for e in resolved]
    unheard, approved = (False, True, None), (True, False, "alice")
    assert told == [None, "Blue.", unheard, approved, None, "Large.", unheard, approved]
    bubbled = (
        "coordinator.child_question",
        "coordinator.child_approval_required",
        "coordinator.child_approval_resolved",
    )
    kinds = [e["type"].removeprefix("coordinator.child_") for e in events(api, run_id, *bubbled)]
    approval = ["approval_required", "approval_resolved"] * 2
    assert kinds == ["question", "question", *approval, "question", "question", *approval]
    words = said(api, child)
    assert [words.count(w) for w in ("is: Blue.", "is: Large.", "web_fetch was allowed", "shell was allowed")] == [
        1
    ] * 4


def test_an_answer_that_was_given_before_a_crash_reaches_the_agent_and_nobody_is_asked_again(
    service: Service, repository: Repository
) -> None:
    service.variables[VARIABLE] = STORED_ANSWER
    api = Api(service.start())
    run_id, child = begin(api, repository, {"ask": "Which colour?"}, write("done.txt", "done\n"))
    asked = request(api, child, 1)
    with service.dying():
        decide(api, child, asked)
    del service.variables[VARIABLE]
    api = Api(service.start())
    finish(api, run_id)
    assert len(events(api, child, *ASKED)) == 1
    assert said(api, child).count("is: Blue.") == 1


def test_a_denial_is_told_to_the_agent_and_an_abort_denies_nothing(api: Api, repository: Repository) -> None:
    run_id, child = begin(api, repository, FETCH, REMOVE, {"ask": "Still there?"}, write("done.txt", "done\n"))
    assert decide(api, run_id, request(api, child, 1), deny=True)["denied"] is True
    pending = request(api, child, 2)
    assert "web_fetch was denied" in said(api, child)
    api.post(f"/tasks/{child}/steer", {"kind": "abort", "reason": "enough"}, 201)
    frames = api.until(child, "done")
    expired = [f.data for f in frames if f.event == "tool.approval_resolved"][-1]
    assert (expired["requestId"], expired["approved"], expired["expired"]) == (pending["request_id"], False, True)
    assert expired["resolvedBy"] is None
    assert decide(api, run_id, pending)["approved"] is False
    api.post(f"/api/runs/{run_id}/steer", {"kind": "stop"}, 201)


def test_turning_auto_approval_on_grants_what_waits_but_nothing_destructive(api: Api, repository: Repository) -> None:
    run_id, child = begin(api, repository, FETCH, REMOVE, write("done.txt", "done\n"))
    waiting = request(api, child, 1)
    assert api.post(f"/api/runs/{run_id}/auto-approve", {"enabled": True}) == {
        "run_id": run_id,
        "auto_approve_tools": True,
    }
    shell = request(api, child, 2)
    assert shell["type"] == "shell.approval_required"
    (granted,) = events(api, child, "tool.auto_approved")
    assert (granted["requestId"], granted["approvalSource"]) == (waiting["request_id"], "auto_approve_tools")
    assert [api.get(f"/api/runs/{run}")["auto_approve_tools"] for run in (run_id, child)] == [True, True]
    decide(api, run_id, shell)
    finish(api, run_id)


def ask_autopilot(*steps: dict[str, Any]) -> dict[str, Any]:
    """Return the step that asks a question whose words tell the rehearsal agent how the coordinator answers it."""
    return {"ask": f"Which colour?\n~~~rehearsal\n{json.dumps(steps)}\n~~~"}


def test_autopilot_answers_questions_even_with_one_place_for_agents(service: Service, repository: Repository) -> None:
    service.variables["STEERSMAN_MAX_AGENTS"] = "1"
    api = Api(service.start())
    question = ask_autopilot({"answer": "Green, as the goal says."})
    run_id, child = begin(api, repository, question, FETCH, write("done.txt", "done\n"), autopilot=True)
    (answered,) = wait_until(lambda: events(api, run_id, "coordinator.autopilot_answered"), "autopilot has answered")
    assert (answered["childRunId"], answered["question"], answered["answer"]) == (
        child,
        question["ask"],
        "Green, as the goal says.",
    )
    # Autopilot answers questions and grants nothing.
    decide(api, run_id, request(api, child, 2))
    (told,) = events(api, child, "agent.question_answered")
    assert (told["answer"], told["answeredBy"], told["timedOut"]) == ("Green, as the goal says.", "autopilot", False)
    finish(api, run_id)
    assert repository.git("for-each-ref", "refs/heads/steersman/autopilot") == ""


def test_autopilot_that_fails_again_and_again_leaves_the_question_to_a_person(api: Api, repository: Repository) -> None:
    question = ask_autopilot({"answer": " "})
    run_id, child = begin(api, repository, question, write("done.txt", "done\n"), autopilot=True)
    failures = wait_until(
        lambda: len(found := events(api, run_id, "coordinator.autopilot_failed")) == 3 and found, "it has given up"
    )
    assert [(f["attempt"], f["state"]) for f in failures][-1] == (3, "needs_attention")
    assert "empty" in failures[-1]["message"]
    decide(api, run_id, request(api, child, 1))
    finish(api, run_id)
    assert len(events(api, run_id, "coordinator.autopilot_failed")) == 3


def test_a_person_who_is_faster_than_autopilot_wins(api: Api, repository: Repository) -> None:
    slow = ask_autopilot({"hang": {}}, {"answer": "Green."})
    run_id, child = begin(api, repository, slow, write("done.txt", "done\n"), autopilot=True)
    decide(api, child, request(api, child, 1))
    finish(api, run_id)
    assert said(api, child).count("is: Blue.") == 1
    assert events(api, run_id, "coordinator.autopilot_answered") == []
    wait_until(lambda: repository.git("for-each-ref", "refs/heads/steersman/autopilot") == "", "autopilot has gone")


def test_autopilot_that_is_turned_on_answers_what_waits(api: Api, repository: Repository) -> None:
    run_id, child = begin(api, repository, ask_autopilot({"answer": "Green."}), write("done.txt", "done\n"))
    request(api, child, 1)
    assert api.post(f"/api/runs/{run_id}/autopilot", {"enabled": True}) == {"run_id": run_id, "autopilot": True}
    finish(api, run_id)
    assert said(api, child).count("is: Green.") == 1
