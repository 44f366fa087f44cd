"""What is held is shown wherever somebody looks, and whoever has mended it asks for a try at once."""

from typing import Any

import httpx
import msgspec

from steersman.domain.event import Text
from steersman.domain.facts.held import EffectHeld
from steersman.domain.process.effects import next_effects
from steersman.domain.process.hold import hold, release
from steersman.http.request.given import Services
from steersman.projections import held_runs

from .test_monitoring import scrape

WORDS = "No space left on device"


def held(story: Any) -> str:
    """Let the work of the first child be held; return the child run."""
    story.start()
    story.advance()
    (effect,) = next_effects(story.run)
    told = EffectHeld(
        effect_id=effect.id,
        kind=type(effect).__name__,
        child_run_id=story.child(1),
        error_code="disk_full",
        message=Text(WORDS),
        attempts=3,
        waits_for="operator",
    )
    story.decide(lambda run: hold(run, told))
    return story.child(1)


def get(story: Any, path: str) -> Any:
    return story.client.get(path, headers=story.api.settled()).raise_for_status().json()


def test_a_held_effect_is_shown_by_the_run_its_child_the_list_the_fleet_and_the_overview(story: Any) -> None:
    child = held(story)
    (shown,) = get(story, f"/api/runs/{story.run_id}")["held"]
    assert shown["since"]
    assert shown == {
        "effect_id": f"{child}/work",
        "kind": "WorkOnSubtask",
        "child_run_id": child,
        "error_code": "disk_full",
        "message": WORDS,
        "waits_for": "operator",
        "since": shown["since"],
        "attempts": 3,
    }
    assert get(story, f"/api/runs/{child}")["held"] == [shown]
    assert get(story, f"/api/projects/{story.project_id}/runs")[0]["held"] == [shown]
    (worker,) = get(story, f"/api/fleet?run={story.run_id}")
    assert worker["held"] == {
        "error_code": "disk_full",
        "message": WORDS,
        "waits_for": "operator",
        "since": shown["since"],
    }
    assert get(story, "/api/overview")["runs"]["held"] == 1
    (wait,) = [wait for wait in get(story, f"/api/runs/{story.run_id}/explain")["waits"] if wait["who"] == "operator"]
    assert wait["request"] == f"POST /api/runs/{story.run_id}/retry"
    told = [event["payload"] for event in get(story, f"/api/runs/{story.run_id}/events") if "held" in event["type"]]
    assert [(one["errorCode"], one["message"], one["waitsFor"]) for one in told] == [("disk_full", WORDS, "operator")]


def test_what_is_released_is_shown_no_more(story: Any) -> None:
    child = held(story)
    story.decide(release_all)
    for run_id in (story.run_id, child):
        assert get(story, f"/api/runs/{run_id}")["held"] == []
    assert "held" not in get(story, f"/api/projects/{story.project_id}/runs")[0]
    assert get(story, f"/api/fleet?run={story.run_id}")[0]["held"] is None
    assert get(story, "/api/overview")["runs"]["held"] == 0


def release_all(run: Any) -> Any:
    """Decide as if nothing were called for any more."""
    return release(msgspec.structs.replace(run, status="declined", worktrees_removed=True))


def counted(services: Services, url: str) -> tuple[int, float]:
    """Return how many runs are held, as /health and /metrics say."""
    assert services.views.wait(held_runs.VIEW.name, services.log.head(), 20)
    body = httpx.get(f"{url}/health")
    assert body.status_code == 200
    return body.json()["held"], scrape(url)["steersman_held_runs", ("operator",)]


def test_health_and_metrics_count_the_runs_until_they_are_released_or_erased(
    services: Services, url: str, story: Any
) -> None:
    before = counted(services, url)
    held(story)
    assert counted(services, url) == (before[0] + 1, before[1] + 1)
    story.client.delete(f"/api/runs/{story.run_id}").raise_for_status()
    assert counted(services, url) == (before[0] + 1, before[1] + 1), "what is not erased yet is still to be mended"
    story.decide(release_all)
    assert counted(services, url) == before


def test_a_retry_of_what_is_held_is_stored_once_and_leaves_the_run_as_it_is(story: Any) -> None:
    held(story)
    path = f"/api/runs/{story.run_id}/retry"
    answers = [story.client.post(path, headers={"Idempotency-Key": "now"}) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 200]
    assert answers[0].json() == answers[1].json()
    assert (answers[0].json()["run_id"], answers[0].json()["resumed"]) == (story.run_id, True)
    events = [event["type"] for event in get(story, f"/api/runs/{story.run_id}/events")]
    assert events.count("coordinator.effect_retried") == 1
    assert get(story, f"/api/runs/{story.run_id}")["held"]


def test_where_nothing_is_held_a_run_that_goes_on_is_not_retried(story: Any) -> None:
    story.start()
    refused = story.client.post(f"/api/runs/{story.run_id}/retry")
    assert (refused.status_code, refused.json()["error"]) == (409, "run_not_retryable")


def test_only_who_may_change_a_run_asks_for_another_try(api: Any, story: Any) -> None:
    held(story)
    other = api.client("mallory").post(f"/api/runs/{story.run_id}/retry")
    assert other.status_code in (403, 404)
