"""What waits for somebody is listed once, oldest first, with the requests that end it, for as long as it waits."""

from typing import Any
from uuid import uuid4

import pytest

from steersman.domain.event import Text
from steersman.domain.facts.held import EffectHeld
from steersman.domain.work import answers, child_ends
from steersman.domain.work.agent_requests import ToolCall
from steersman.tests.http import test_outcome_spec as outcome
from steersman.tests.http.test_approvals import COMMAND, FETCH, HASH, REMOVE, ask, begin_turn

LIST = "/api/waiting"


@pytest.fixture
def asking(story: Any) -> Any:
    """A run whose first child is in a turn."""
    story.start()
    story.advance()
    begin_turn(story, 1)
    return story


def waiting(story: Any, client: Any = None, **query: Any) -> list[Any]:
    """Return what waits in this story's run, as the log has it now."""
    asked = {"project_id": story.project_id, **query}
    response = (client or story.client).get(LIST, params=asked, headers=story.api.settled())
    found: list[Any] = response.raise_for_status().json()
    return found


def send(story: Any, request: Any, **words: str) -> Any:
    """Send a request as it was listed, with these words filled in."""
    body = None if request["body"] is None else {**request["body"], **words}
    return story.client.request(request["method"], request["path"], json=body).raise_for_status()


def test_what_an_agent_asks_is_listed_with_what_it_is_about_oldest_first(asking: Any) -> None:
    tool, question = ask(asking, FETCH), ask(asking, "Which colour?")
    ask(asking, REMOVE)
    found = waiting(asking)
    assert [item["kind"] for item in found] == ["tool", "question", "shell"]
    assert [item["id"] for item in found][:2] == [tool, question]
    assert {(i["run_id"], i["child_run_id"], i["for"]) for i in found} == {(asking.run_id, asking.child(1), "person")}
    assert found[0]["detail"] == {"tool_name": "web_fetch", "arguments": "{}", "url": "https://a"}
    assert found[1]["detail"] == {"question": "Which colour?"}
    assert COMMAND in found[2]["detail"]["command"]
    assert found[2]["detail"]["command_hash"] == HASH
    assert all(item["since"] and item["summary"] for item in found)


def test_each_request_that_is_listed_ends_what_it_is_listed_with(asking: Any) -> None:
    for number, call in enumerate((FETCH, REMOVE, "Which colour?")):
        ask(asking, call)
        (item,) = waiting(asking)
        assert len(item["requests"]) == (3, 2, 1)[number]
        send(asking, item["requests"][0], **({"answer": "Blue."} if call == "Which colour?" else {}))
        assert waiting(asking) == []
    ask(asking, ToolCall(tool_name="another", tool_input="{}"))
    (item,) = waiting(asking)
    send(asking, item["requests"][-1])
    assert waiting(asking) == []


def test_what_an_agent_asked_waits_no_more_once_its_run_has_ended(asking: Any) -> None:
    ask(asking, "Which colour?")
    at = asking.api.services.clock.now()
    child = asking.child(1)
    asking.decide(
        lambda run: child_ends.fail_child(run, child, at, error_code="agent_exited", message="It died.", retryable=True)
    )
    assert [item["kind"] for item in waiting(asking)] == []


def test_a_question_waits_for_a_person_only_once_autopilot_has_given_up(asking: Any) -> None:
    asking.client.post(f"/api/runs/{asking.run_id}/autopilot", json={"enabled": True}).raise_for_status()
    question = ask(asking, "Which colour?")
    for _ in range(3):
        assert waiting(asking) == []
        asking.decide(lambda run: answers.fail_autopilot(run, question, "agent_exited", "It died."))
    (item,) = waiting(asking)
    assert item["kind"] == "question"
    asking.client.post(f"/api/runs/{asking.run_id}/autopilot", json={"enabled": False}).raise_for_status()
    asking.client.post(f"/api/runs/{asking.run_id}/autopilot", json={"enabled": True}).raise_for_status()
    assert waiting(asking) == []


def test_a_gate_names_the_tree_that_its_requests_approve(story: Any) -> None:
    made = story.to_gate()
    (item,) = waiting(story)
    assert (item["kind"], item["detail"]["tree_hash"], item["child_run_id"]) == ("gate", made.tree, None)
    approve, changes, decline = item["requests"]
    assert approve["body"] == {"approved": True, "tree_hash": made.tree}
    assert "main" in approve["means"]
    assert changes["body"]["request_changes"] is True
    assert decline["body"]["approved"] is False
    send(story, decline)
    assert waiting(story) == []


def test_an_outcome_spec_waits_from_its_draft_to_its_confirmation(story: Any) -> None:
    outcome.to_gate(story)
    (item,) = waiting(story)
    assert item["kind"] == "outcome_spec"
    assert item["detail"]["desired_outcome"]
    send(story, item["requests"][0])
    assert waiting(story) == []


def test_a_blocked_plan_names_each_lost_part_with_its_agents_last_words(asking: Any) -> None:
    at, child = asking.api.services.clock.now(), asking.child(1)
    words = "session/new: Authentication required"
    asking.decide(
        lambda run: child_ends.fail_child(run, child, at, error_code="agent_refused", message=words, retryable=False)
    )
    asking.advance()
    (item,) = waiting(asking)
    assert item["kind"] == "blocked"
    lost = item["detail"]["parts"][0]
    assert (lost["subtask_id"], lost["error_code"], lost["message"]) == (1, "agent_refused", words)
    assert words in item["summary"]
    send(asking, item["requests"][1])
    assert waiting(asking) == []


def test_what_fails_time_and_again_waits_for_whoever_looks_after_the_machine(asking: Any) -> None:
    held = EffectHeld(
        effect_id="work",
        kind="WorkOnSubtask",
        error_code="disk_full",
        message=Text("No space."),
        attempts=3,
        waits_for="operator",
    )
    asking.decide(lambda run: (run.coordinator(held),))
    (item,) = waiting(asking)
    assert (item["kind"], item["for"], item["detail"]["reason"]) == ("blocked", "operator", "disk_full")
    assert item["requests"][0]["path"] == f"/api/runs/{asking.run_id}/retry"


def test_who_may_not_answer_sees_what_waits_without_the_requests(api: Any, asking: Any) -> None:
    ask(asking, FETCH)
    asking.client.put(
        f"/api/projects/{asking.project_id}/members/{api.name('carol')}", json={"role": "viewer"}
    ).raise_for_status()
    (mine,) = waiting(asking)
    for looks in (api.client("carol"), api.client("alice", "viewer")):
        (item,) = waiting(asking, looks)
        assert item == {name: value for name, value in mine.items() if name != "requests"}


def test_strangers_see_nothing_and_a_strangers_project_is_absent(api: Any, asking: Any) -> None:
    ask(asking, FETCH)
    stranger = api.client("mallory")
    assert stranger.get(LIST, headers=api.settled()).json() == []
    refused = stranger.get(LIST, params={"project_id": asking.project_id})
    assert (refused.status_code, refused.json()["error"]) == (404, "project_not_found")
    assert stranger.get(LIST, params={"run_id": asking.run_id}).status_code == 403
    assert stranger.get(LIST, params={"project_id": "x"}).status_code == 400
    assert stranger.get(LIST, params={"project_id": str(uuid4())}).status_code == 404


def test_filters_narrow_the_list(api: Any, asking: Any) -> None:
    ask(asking, FETCH)
    ask(asking, "Which colour?")
    asking.client.put(
        f"/api/projects/{asking.project_id}/members/{api.name('bob')}", json={"role": "contributor"}
    ).raise_for_status()
    bob = api.client("bob")
    assert [item["kind"] for item in waiting(asking, kind="question")] == ["question"]
    assert len(waiting(asking, mine="true")) == len(waiting(asking, bob)) == 2
    assert waiting(asking, bob, mine="true") == []
    assert len(waiting(asking, run_id=asking.child(1))) == 2
    assert asking.client.get(LIST, params={"kind": "nonsense"}).status_code == 400


def test_pages_follow_each_other_without_a_gap(asking: Any) -> None:
    asked = [ask(asking, f"Question {number}?") for number in range(5)]
    found: list[str] = []
    path: str | None = f"{LIST}?project_id={asking.project_id}&limit=2"
    while path is not None:
        response = asking.client.get(path, headers=asking.api.settled()).raise_for_status()
        assert len(response.json()) <= 2
        found += [item["id"] for item in response.json()]
        path = response.links["next"]["url"] if response.links else None
    assert found == asked


def test_lists_say_of_each_run_what_waits_in_it(asking: Any) -> None:
    def listed() -> Any:
        (run,) = asking.client.get(f"/api/projects/{asking.project_id}/runs", headers=asking.api.settled()).json()
        return run.get("waiting")

    def counted() -> Any:
        path = f"/api/projects/{asking.project_id}/dashboard"
        return asking.client.get(path, headers=asking.api.settled()).json()["runs"]["waiting"]

    def shown(run_id: str) -> Any:
        return asking.client.get(f"/api/runs/{run_id}", headers=asking.api.settled()).json().get("waiting")

    assert (listed(), counted(), shown(asking.run_id)) == (None, 0, None)
    ask(asking, "Which colour?")
    ask(asking, FETCH)
    kinds = ["question", "tool"]
    assert (listed(), counted(), shown(asking.run_id), shown(asking.child(1))) == (kinds, 1, kinds, kinds)
    (worker,) = asking.client.get("/api/fleet", params={"run": asking.run_id}).json()
    assert worker["waiting"] == kinds


def test_metrics_count_what_waits_by_kind(api: Any, asking: Any) -> None:
    def counted() -> float:
        api.client().get(LIST, headers=api.settled()).raise_for_status()
        lines = api.anonymous().get("/metrics").text.splitlines()
        return float(next(line.split()[1] for line in lines if line.startswith('steersman_waiting{kind="question"}')))

    before = counted()
    ask(asking, "Which colour?")
    assert counted() == before + 1


def test_nothing_of_a_deleted_run_waits(asking: Any) -> None:
    ask(asking, "Which colour?")
    asking.client.delete(f"/api/runs/{asking.run_id}").raise_for_status()
    assert waiting(asking) == []
