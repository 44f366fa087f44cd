"""A repository that is gone while a run is at work: the run says whom it waits for, and goes on when it is back."""

from steersman.tests.e2e.conftest import Repository
from steersman.tests.e2e.served import GATE, Api, part, steersman, wait_until, write


def test_a_run_whose_repository_was_moved_away_names_the_operator_and_goes_on_when_it_is_back(
    api: Api, repository: Repository
) -> None:
    asks = {"tool": {"name": "web_fetch", "input": {"url": "about:blank"}}}
    run_id = api.orchestrate(api.project(repository.path), part("only", asks, write("a.txt", "a\n")))
    request_id = api.until(run_id, "coordinator.child_approval_required")[-1].data["requestId"]
    before = api.get("/health")["held"]
    elsewhere = repository.path.with_name("elsewhere")
    repository.path.rename(elsewhere)
    api.post(f"/api/runs/{run_id}/tool-approvals", {"request_id": request_id})
    held = api.until(run_id, "coordinator.effect_held")[-1].data
    assert (held["errorCode"], held["waitsFor"]) == ("workspace_missing", "operator")
    (wait,) = api.get(f"/api/runs/{run_id}/explain")["waits"]
    assert (wait["who"], wait["request"]) == ("operator", f"POST /api/runs/{run_id}/retry")
    token = api.http.headers["Authorization"].removeprefix("Bearer ")
    url = str(api.http.base_url)
    told = steersman("runs", "explain", run_id, STEERSMAN_SERVER_URL=url, STEERSMAN_TOKEN=token)
    assert "operator: " in told
    assert "driver: " not in told
    assert [one["error_code"] for one in api.get(f"/api/runs/{run_id}")["held"]] == ["workspace_missing"]
    wait_until(lambda: api.get("/health")["held"] == before + 1, "/health counts it")
    elsewhere.rename(repository.path)
    api.post(f"/api/runs/{run_id}/retry", {})
    topics = [frame.event for frame in api.until(run_id, GATE)]
    assert "coordinator.effect_retried" in topics
    wait_until(lambda: not api.get(f"/api/runs/{run_id}")["held"], "it is released")
    assert api.get(f"/api/runs/{run_id}/assembly/files")[0]["path"] == "a.txt"
