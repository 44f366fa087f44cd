"""What a goal means is agreed on before anything is planned: with real agents, over HTTP, through kills."""

import json
from typing import Any

import pytest

from steersman.tests.e2e.conftest import Repository
from steersman.tests.e2e.served import GATE, MANY_LIVES_SECONDS, Api, Frame, Service, part, wait_until, write

#: What is shown here rests on no store; `test_restart.py` and `test_orchestration.py` go the same way on both.
STORES = ("sqlite",)

DRAFTING = "coordinator.outcome_spec.drafting"
DRAFTED = "coordinator.outcome_spec"
CONFIRMED = "coordinator.outcome_spec.confirmed"
PLAN = {"plan": [part("one", write("one.txt", "1\n"))]}


def goal(*steps: dict[str, Any], words: str = "Sell things") -> str:
    """Return a goal that tells the rehearsal agent how to answer, as the writer and as the planner."""
    return f"{words}\n~~~~rehearsal\n{json.dumps(steps)}\n~~~~"


def outcome(desired: str, **more: Any) -> dict[str, Any]:
    """Return the writer's step."""
    return {"outcome": {"desiredOutcome": desired, "scope": "All of it", "assumptions": "None", **more}}


def define(api: Api, repository: Repository, *steps: dict[str, Any], **more: Any) -> str:
    """Start a run whose outcome is to be defined; return its id."""
    project = api.project(repository.path)
    body = {"goal": goal(*(steps or (outcome("Things are sold"), PLAN))), **more}
    run_id: str = api.post(f"/api/projects/{project}/orchestrations", body, 201)["runId"]
    return run_id


def spec(api: Api, run_id: str, expect: int = 200) -> Any:
    return api.get(f"/api/runs/{run_id}/outcome-spec", expect)


def topics(frames: list[Frame]) -> list[str]:
    """Return how far the run is: its start, its outcome spec, its plan and its subtasks."""
    steps = ("coordinator.started", DRAFTED, "coordinator.work_plan", "subtask.", "run.failed", "run.cancelled")
    return [f.event for f in frames if f.event.startswith(steps)]


def test_nothing_is_planned_before_the_spec_is_confirmed_and_then_the_run_goes_to_its_merge(
    api: Api, repository: Repository
) -> None:
    run_id = define(api, repository, outcome("Things are sold", clarifyingQuestions="Which?"), PLAN)
    frames = api.until(run_id, DRAFTED)
    assert topics(frames) == ["coordinator.started", DRAFTING, DRAFTED]
    found = spec(api, run_id)
    assert (found["desiredOutcome"], found["scope"], found["assumptions"]) == ("Things are sold", "All of it", "None")
    assert (found["clarifyingQuestions"], found["status"]) == ("Which?", "awaiting_confirmation")
    assert "confirmedBy" not in found
    assert api.get(f"/api/runs/{run_id}/work-plan", 404)["error"] == "work_plan_not_found"
    assert api.get(f"/api/runs/{run_id}")["status"] == "in_progress"
    refused = api.post(f"/api/runs/{run_id}/steer", {"kind": "redirect", "instruction": "Buy things"}, 409)
    assert refused["error"] == "nothing_to_steer"

    confirmed = api.post(f"/api/runs/{run_id}/outcome-spec/confirm", None)
    assert (confirmed["status"], confirmed["confirmedBy"]) == ("confirmed", "alice")
    said = topics(api.until(run_id, GATE))
    assert said[3:5] == [CONFIRMED, "coordinator.work_plan"]
    (drafted,) = [frame.data for frame in frames if frame.event == DRAFTED]
    assert api.get(f"/api/runs/{run_id}/work-plan")["outcomeSpecId"] == drafted["specId"]
    api.review(run_id, approved=True)
    api.until(run_id, "coordinator.assembly_completed")
    assert repository.files["one.txt"] == "1"
    assert spec(api, run_id)["status"] == "confirmed"
    assert repository.git("branch", "--list", "steersman/outcome/*", "steersman/plan/*") == ""


def test_a_revision_drafts_again_with_the_feedback_and_keeps_the_gate(api: Api, repository: Repository) -> None:
    run_id = define(api, repository)
    feed = api.feed(run_id)
    feed.until(DRAFTED)
    feedback = goal(outcome("Two things are sold"), words="Only two, please.")
    revised = api.post(f"/api/runs/{run_id}/outcome-spec/revise", {"feedback": feedback})
    assert (revised["status"], revised["desiredOutcome"]) == ("drafting", "Things are sold")
    (drafting,) = [f.data for f in feed.until(DRAFTED) if f.event == DRAFTING]
    feed.close()
    assert (drafting["revise"], drafting["feedback"]) == (True, feedback)
    found = spec(api, run_id)
    assert (found["status"], found["desiredOutcome"]) == ("awaiting_confirmation", "Two things are sold")
    api.post(f"/api/runs/{run_id}/outcome-spec/confirm", None)
    api.until(run_id, GATE)
    api.review(run_id, approved=False)


def test_a_launch_with_autopilot_confirms_in_the_name_of_whoever_started_it(api: Api, repository: Repository) -> None:
    run_id = define(api, repository, autopilot=True)
    frames = api.until(run_id, GATE)
    assert topics(frames)[:5] == ["coordinator.started", DRAFTING, DRAFTED, CONFIRMED, "coordinator.work_plan"]
    assert spec(api, run_id)["confirmedBy"] == "alice"
    api.review(run_id, approved=False)


def test_a_draft_that_cannot_be_understood_fails_the_run_and_says_so(api: Api, repository: Repository) -> None:
    run_id = define(api, repository, {"outcome": ["not", "a", "spec"]}, PLAN)
    (failed,) = [f.data for f in api.until(run_id, "run.failed") if f.event == "run.failed"]
    assert (failed["errorCode"], failed["retryable"]) == ("outcome_spec_unparseable", True)
    run = api.get(f"/api/runs/{run_id}")
    assert (run["status"], run["result"]) == ("failed", "outcome_spec_unparseable")
    assert spec(api, run_id)["status"] == "drafting"
    assert api.post(f"/api/runs/{run_id}/outcome-spec/confirm", None, 409)["error"] == "run_not_active"


@pytest.mark.parametrize("at", ["the writer", "the gate"])
def test_a_stop_ends_a_run_whose_outcome_is_not_agreed_on(api: Api, repository: Repository, at: str) -> None:
    steps = ({"hang": {}}, outcome("Never")) if at == "the writer" else (outcome("Things are sold"),)
    run_id = define(api, repository, *steps)
    api.until(run_id, DRAFTING if at == "the writer" else DRAFTED)
    api.post(f"/api/runs/{run_id}/steer", {"kind": "stop"}, 201)
    frames = api.until(run_id, "run.cancelled")
    assert frames[-1].data["reason"] == "steering_stop"
    assert api.get(f"/api/runs/{run_id}")["status"] == "failed"
    assert api.post(f"/api/runs/{run_id}/outcome-spec/confirm", None, 409)["error"] == "run_not_active"
    branches = ("branch", "--list", "steersman/outcome/*")
    wait_until(lambda: repository.git(*branches) == "", "nothing of the writer is left in the repository")


@pytest.mark.timeout(MANY_LIVES_SECONDS)
def test_a_spec_outlives_kills_at_each_step_and_is_confirmed_once(service: Service, repository: Repository) -> None:
    api = Api(service.start())
    run_id = define(api, repository, {"sleep_ms": 1500}, outcome("Things are sold"), PLAN)
    api.until(run_id, DRAFTING)
    service.kill()
    api = Api(service.start())
    api.until(run_id, DRAFTED)
    service.kill()
    api = Api(service.start())
    assert spec(api, run_id)["status"] == "awaiting_confirmation"
    api.post(f"/api/runs/{run_id}/outcome-spec/confirm", None)
    service.kill()
    api = Api(service.start())
    assert api.post(f"/api/runs/{run_id}/outcome-spec/confirm", None, 409)["error"] == "no_pending_gate"
    said = topics(api.until(run_id, GATE))
    assert [topic for topic in said if topic.startswith(DRAFTED)] == [DRAFTING, DRAFTED, CONFIRMED]
    api.review(run_id, approved=False)


def test_a_retry_of_a_run_that_was_stopped_before_the_confirmation_waits_for_it_too(
    api: Api, repository: Repository
) -> None:
    run_id = define(api, repository)
    api.until(run_id, DRAFTED)
    api.post(f"/api/runs/{run_id}/steer", {"kind": "stop"}, 201)
    api.until(run_id, "run.cancelled")
    again = wait_until(lambda: retried(api, run_id), "the run can be tried again")
    frames = api.until(again, DRAFTED)
    assert topics(frames) == ["coordinator.started", DRAFTING, DRAFTED]
    assert spec(api, again) == spec(api, run_id)
    assert api.get(f"/api/runs/{again}/work-plan", 404)["error"] == "work_plan_not_found"
    api.post(f"/api/runs/{again}/outcome-spec/confirm", None)
    api.until(again, GATE)


def retried(api: Api, run_id: str) -> Any:
    """Return the run that tries this one again, None while it cannot be tried."""
    response = api.http.post(f"/api/runs/{run_id}/retry", json={})
    return response.json()["run_id"] if response.status_code == 201 else None
