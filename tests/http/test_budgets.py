"""What agents use is shown, and what they may use is said: for a run, for a project, at the start and later."""

from datetime import timedelta
from typing import Any

import pytest

from steersman.domain.facts.run import CoordinatorRun
from steersman.domain.work import budget, turns
from steersman.domain.work.budget import Reported
from steersman.tests.http.conftest import PLAN

USED = Reported(input_tokens=80, output_tokens=20, total_tokens=100, session_cost_micros=1_250_000, currency="USD")


def begin(story: Any, **body: Any) -> None:
    """Start a run with these members in its request."""
    story.project()
    wanted = {"goal": "Sell things", "start_mode": "direct", "plan": PLAN, **body}
    response = story.client.post(f"/api/projects/{story.project_id}/orchestrations", json=wanted)
    story.run_id = response.raise_for_status().json()["runId"]


def work(story: Any, reported: Reported = USED) -> None:
    """Take the first child through a turn that uses something."""
    story.advance()
    child, clock, states = story.child(1), story.api.services.clock, story.api.services.runs.states
    base = story.run.base

    def project(run: CoordinatorRun) -> Any:
        return states.project(run.project_id)

    story.decide(lambda run: turns.prepare_worktree(run, child, base, "/w", clock.now()))
    story.decide(lambda run: turns.open_turn(run, child, project(run)))
    story.decide(lambda run: turns.start_turn(run, child))
    turn_id = story.run.children[child].turn.turn_id
    at = clock.now() + timedelta(minutes=6)
    story.decide(lambda run: budget.count_turn(run, child, turn_id, reported, at, ended=True))


def use_up(story: Any) -> None:
    """Have a turn begin that the budget does not allow."""
    base, states, child = story.run.base, story.api.services.runs.states, story.child(1)
    story.decide(lambda run: turns.end_turn(run, child, "end_turn"))
    story.decide(lambda run: turns.commit_tree(run, child, base))
    story.decide(lambda run: budget.may_begin(run, states.project(run.project_id)))


def waiting(story: Any) -> Any:
    return story.client.get("/api/waiting", params={"run_id": story.run_id}, headers=story.api.settled()).json()


def test_what_agents_have_used_stands_in_the_run_its_children_its_project_and_the_lists(story: Any) -> None:
    begin(story)
    work(story)
    settled = story.api.settled()
    run = story.client.get(f"/api/runs/{story.run_id}", headers=settled).json()
    usage = {
        "turns": 1,
        "minutes": "6.0",
        "input_tokens": 80,
        "output_tokens": 20,
        "cached_read_tokens": 0,
        "cached_write_tokens": 0,
        "thought_tokens": 0,
        "total_tokens": 100,
        "costs": [{"amount": "1.25", "currency": "USD"}],
        "turns_without_cost": 0,
    }
    assert run["usage"] == usage
    assert story.client.get(f"/api/runs/{story.child(1)}").json()["usage"] == usage
    children = story.client.get(f"/api/runs/{story.run_id}/children").json()
    assert [child.get("usage") for child in children] == [usage]
    (listed,) = story.client.get(f"/api/projects/{story.project_id}/runs").json()
    assert listed["usage"] == usage
    assert story.client.get(f"/api/projects/{story.project_id}").json()["usage"] == usage


@pytest.mark.parametrize(
    ("limits", "limit", "spent", "allowed"),
    [
        ({"tokens": 50}, "tokens", "100", "50"),
        ({"money": "1.25"}, "money", "1.25", "1.25"),
        ({"turns": 1}, "turns", "1", "1"),
        ({"minutes": 5}, "minutes", "6", "5"),
    ],
)
def test_a_run_whose_budget_is_used_up_waits_with_the_request_that_raises_it(
    story: Any, limits: dict[str, Any], limit: str, spent: str, allowed: str
) -> None:
    begin(story, budget=limits)
    work(story)
    use_up(story)
    (item,) = waiting(story)
    assert (item["kind"], item["for"]) == ("budget", "person")
    detail = item["detail"]
    assert (detail["limit"], detail["limit_of"], detail["reason"]) == (limit, "run", "reached")
    assert (detail["spent"], detail["allowed"]) == (spent, allowed)
    assert f"{spent} of {allowed}" in item["summary"]
    raising = item["requests"][0]
    assert raising["path"] == f"/api/runs/{story.run_id}/budget"
    answer = story.client.request(raising["method"], raising["path"], json=raising["body"]).raise_for_status().json()
    assert str(answer["budget"][limit]).rstrip("0.") == str(raising["body"][limit]).rstrip("0.")
    assert waiting(story) == []
    explained = story.client.get(f"/api/runs/{story.run_id}/explain").json()["waits"]
    assert not [wait for wait in explained if "budget" in wait["what"]]


def test_what_an_agent_does_not_report_is_named_where_it_is_limited(story: Any) -> None:
    begin(story, budget={"money": "5", "currency": "EUR"})
    work(story, Reported(total_tokens=5))
    use_up(story)
    (item,) = waiting(story)
    assert item["detail"]["reason"] == "not_reported"
    assert "rehearsal does not report what it costs" in item["summary"]
    (explained,) = [
        wait
        for wait in story.client.get(f"/api/runs/{story.run_id}/explain").json()["waits"]
        if "budget" in wait["what"]
    ]
    assert explained["request"] == f"POST /api/runs/{story.run_id}/budget"


def test_the_budget_of_a_project_is_raised_by_its_owners_and_lets_its_runs_go_on(api: Any, story: Any) -> None:
    begin(story)
    path = f"/api/projects/{story.project_id}/budget"
    assert story.client.post(path, json={"tokens": 60}).status_code == 204
    work(story)
    use_up(story)
    (item,) = waiting(story)
    assert item["detail"]["limit_of"] == "project"
    assert item["requests"][0] == {
        "method": "POST",
        "path": path,
        "body": {"tokens": 120},
        "means": "let them use more: say in `tokens` how much in all",
    }
    stranger = api.client("bob")
    assert stranger.post(path, json={"tokens": 120}).status_code in (403, 404)
    assert story.client.post(path, json={"tokens": 120}).status_code == 204
    assert waiting(story) == []
    shown = story.client.get(f"/api/projects/{story.project_id}", headers=api.settled()).json()
    assert shown["budget"]["tokens"] == 120


@pytest.mark.parametrize(
    "body",
    [
        {"tokens": 0},
        {"money": "1.2345678"},
        {"money": 5},
        {"money": "0"},
        {"currency": "euro"},
        {"turns": -1},
        {"sum": 1},
    ],
)
def test_a_budget_that_is_none_is_refused_and_changes_nothing(story: Any, body: dict[str, Any]) -> None:
    begin(story)
    before = story.api.services.log.head()
    response = story.client.post(f"/api/runs/{story.run_id}/budget", json=body)
    assert response.status_code == 400
    assert story.api.services.log.head() == before


def test_a_budget_is_a_command_like_any_other(story: Any) -> None:
    begin(story, budget={"tokens": 5, "turns": 3})
    path, key = f"/api/runs/{story.run_id}/budget", {"Idempotency-Key": "raise"}
    shown = story.client.get(f"/api/runs/{story.run_id}", headers=story.api.settled()).json()["budget"]
    assert (shown["tokens"], shown["turns"]) == (5, 3)
    first = story.client.post(path, json={"tokens": 10}, headers=key)
    again = story.client.post(path, json={"tokens": 10}, headers=key)
    assert first.json() == again.json()
    assert again.headers["Idempotent-Replayed"] == "true"
    assert first.headers["Steersman-Position"] == again.headers["Steersman-Position"]
    assert first.json()["budget"] == {"tokens": 10, "money": None, "currency": None, "turns": 3, "minutes": None}
    assert story.client.post(path, json={"turns": None}).json()["budget"]["turns"] is None
    viewer = story.api.client(scope="viewer")
    assert viewer.post(path, json={"tokens": 1}).status_code == 403


def test_a_project_can_be_registered_with_what_its_runs_may_use_and_where_their_work_goes(story: Any) -> None:
    body = {"name": "Shop", "origin": "blank", "working_directory": str(story.repository)}
    body |= {"budget": {"money": "10", "currency": "EUR"}, "deliver": {"mode": "branch"}}
    made = story.client.post("/api/projects", json=body).raise_for_status().json()
    read = story.client.get(f"/api/projects/{made['project_id']}", headers=story.api.settled()).json()
    for shown in (made, read):
        assert (shown["budget"]["money"], shown["budget"]["currency"]) == ("10.00", "EUR")
        assert shown["deliver"] == {"mode": "branch", "branch": None, "remote": None}
        assert "usage" not in shown
    refused = story.client.post("/api/projects", json=body | {"name": "Push", "deliver": {"mode": "push"}})
    assert (refused.status_code, refused.json()["error"]) == (400, "delivery_unsupported")
