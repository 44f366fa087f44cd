"""Numbers about runs and projects, each counted from the log, and the files of a project's branches."""

from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from steersman.application.writer.caller import service
from steersman.domain.event import Draft
from steersman.domain.facts.agent_output import TurnUsage
from steersman.domain.facts.child_run import output_stream
from steersman.tests.http.conftest import git

UNKNOWN = "f36800fd-f2f8-418c-958e-aae3e4921ba6"


def get(story: Any, path: str, expect: int = 200) -> Any:
    """What is answered now."""
    response = story.client.get(path, headers=story.api.settled())
    assert response.status_code == expect, response.text
    return response.json()


def use(story: Any, run_id: str, turn_id: str, used: int, made: int) -> None:
    """Report what a turn has used so far."""
    event = TurnUsage(
        turn_id=turn_id, input_tokens=used, output_tokens=made, total_tokens=used + made, model_id="rehearsal"
    )
    draft = Draft(stream=output_stream(run_id), event=event, run=run_id, root=story.run_id)
    services = story.api.services
    services.log.append(service(str(uuid4())).append((draft,), {}, services.clock.now()))


def test_tokens_are_told_by_agent_and_the_last_report_of_a_turn_counts(story: Any) -> None:
    story.start()
    story.advance()
    child = story.child(1)
    for used, made in ((10, 1), (20, 2)):
        use(story, child, "t1", used, made)
    use(story, child, "t2", 100, 10)
    use(story, story.run_id, "rai", 1000, 100)
    told = get(story, f"/api/runs/{story.run_id}/token-breakdown")
    assert (told["input_tokens"], told["output_tokens"], told["total_tokens"]) == (1120, 112, 1232)
    assert [(a["agent_name"], a["turns"], a["total_tokens"], a["ai_credits"]) for a in told["agents"]] == [
        ("Coordinator", 1, 1100, None),
        (story.run.children[child].agent_name, 2, 132, None),
    ]
    own = get(story, f"/api/runs/{child}/token-breakdown")
    assert [agent["run_id"] for agent in own["agents"]] == [child]
    assert own["total_tokens"] == 132


def test_a_run_that_used_nothing_says_so(story: Any) -> None:
    story.start()
    told = get(story, f"/api/runs/{story.run_id}/token-breakdown")
    assert (told["total_tokens"], [agent["turns"] for agent in told["agents"]]) == (0, [0])


def test_the_overview_counts_the_callers_runs_and_nobody_elses(api: Any, story: Any) -> None:
    story.to_gate()
    told = get(story, "/api/overview")
    assert told["projects"] == 1
    assert told["runs"] == {
        "total": 1,
        "active": 1,
        "awaiting_review": 1,
        "waiting": 1,
        "held": 0,
        "by_status": {"awaiting_review": 1},
    }
    assert [run["execution_id"] for run in told["newest_runs"]] == [story.run_id]
    assert "internal" not in told["newest_runs"][0]
    stranger = api.client("mallory").get("/api/overview", headers=api.settled()).json()
    assert (stranger["projects"], stranger["runs"]["total"], stranger["newest_runs"]) == (0, 0, [])


def test_a_dashboard_tells_what_ended_and_who_used_what(story: Any) -> None:
    made = story.to_gate()
    use(story, story.child(1), "t", 10, 5)
    path = f"/api/projects/{story.project_id}/dashboard"
    before = get(story, path)
    assert (before["name"], before["throughput"]) == ("Shop", [])
    leaders = {leader["agent_name"]: leader for leader in before["leaderboard"]}
    assert leaders[story.run.children[story.child(1)].agent_name]["total_tokens"] == 15
    story.client.post(f"/api/runs/{story.run_id}/assembly/review", json={"approved": True}).raise_for_status()
    story.merge(made)
    story.advance()
    ended = get(story, f"/api/runs/{story.run_id}")
    assert get(story, path)["throughput"] == [{"date": ended["ended_at"][:10], "completed": 1, "ended": 1}]
    assert get(story, path)["runs"]["total"] == 1


def test_diagnostics_tell_how_the_service_is(story: Any) -> None:
    story.start()
    told = get(story, "/api/diagnostics")
    assert told["health"]["status"] == "ok"
    assert "token_usage" in told["health"]["views"]
    assert 0 < told["disk"]["free_bytes"] <= told["disk"]["total_bytes"]
    assert told["open_runs"] >= 1
    beat = get(story, "/api/diagnostics/heartbeat")
    assert (beat["tick_records"], beat["position"] > 0) == ([], True)


def test_a_projects_diagnostics_tell_what_is_wrong_with_its_repository(story: Any, repository: Path) -> None:
    story.project()
    path = f"/api/projects/{story.project_id}/diagnostics"
    told = get(story, path)
    assert (told["problem"], told["merge_obstacle"]) == (None, None)
    assert told["branch_commit"] == git(repository, "rev-parse", "HEAD")
    (repository / "README").write_text("touched\n")
    assert get(story, path)["merge_obstacle"] == "repository_dirty"
    repository.rename(repository.with_name("elsewhere"))
    assert get(story, path)["problem"] == "workspace_missing"


def test_a_projects_branches_and_their_files_are_shown_as_committed(story: Any, repository: Path) -> None:
    story.project()
    git(repository, "checkout", "-q", "-b", "side")
    (repository / "folder").mkdir()
    (repository / "folder" / "new.txt").write_text("new\n")
    git(repository, "add", "-A")
    git(repository, "commit", "-q", "-m", "Side")
    (repository / "folder" / "new.txt").write_text("not committed\n")
    path = f"/api/projects/{story.project_id}/workspace"
    refs = get(story, f"{path}/refs")
    assert [(ref["name"], ref["is_default"]) for ref in refs] == [("main", True), ("side", False)]
    assert [entry["path"] for entry in get(story, path)] == ["README"]
    assert [(e["path"], e["is_folder"], e["status"]) for e in get(story, f"{path}?ref=side")] == [
        ("README", False, None), ("folder", True, None), ("folder/new.txt", False, None)
    ]  # fmt: skip
    shown = get(story, f"{path}/files/folder/new.txt?ref=side")
    assert (shown["content"], shown["status"], shown["diff"]) == ("new\n", "unchanged", "")
    assert get(story, f"{path}/files/folder/new.txt", 404)["error"] == "file_not_found"


@pytest.mark.parametrize("ref", ["none", "..%2f..%2fconfig", "refs%2fheads%2fmain", "%FF"])
def test_a_branch_that_there_is_not_is_404(story: Any, ref: str) -> None:
    story.project()
    path = f"/api/projects/{story.project_id}/workspace"
    assert get(story, f"{path}?ref={ref}", 404)["error"] == "ref_not_found"
    assert get(story, f"{path}/files/README?ref={ref}", 404)["error"] == "ref_not_found"
    get(story, f"{path}?ref=main&ref=main", 400)


@pytest.mark.parametrize("path", ["..%2f..%2fsecret", "%2e%2e/secret", ".git/config", "README%00", "a/%2e%2e%2fREADME"])
def test_no_path_leads_out_of_the_branch(story: Any, path: str) -> None:
    story.project()
    assert get(story, f"/api/projects/{story.project_id}/workspace/files/{path}", 400)["error"] == "invalid_path"


def test_the_files_of_a_repository_that_is_gone_are_409(story: Any, repository: Path) -> None:
    story.project()
    repository.rename(repository.with_name("elsewhere"))
    for path in ("workspace", "workspace/refs", "workspace/files/README"):
        assert get(story, f"/api/projects/{story.project_id}/{path}", 409)["error"] == "workspace_unavailable"


@pytest.mark.parametrize("path", ["dashboard", "diagnostics", "workspace", "workspace/refs", "workspace/files/README"])
def test_a_strangers_project_is_404_and_nobody_gets_in_without_a_token(api: Any, story: Any, path: str) -> None:
    story.project()
    url = f"/api/projects/{story.project_id}/{path}"
    assert api.client("mallory").get(url).json()["error"] == "project_not_found"
    assert api.client("alice").get(f"/api/projects/{UNKNOWN}/{path}").status_code == 404
    assert api.anonymous().get(url).status_code == 401


@pytest.mark.parametrize("path", ["overview", "diagnostics", "diagnostics/heartbeat"])
def test_numbers_are_for_those_with_a_token(api: Any, path: str) -> None:
    assert api.anonymous().get(f"/api/{path}").status_code == 401


def test_the_tokens_of_a_run_are_for_those_who_may_see_it(api: Any, story: Any) -> None:
    story.start()
    stranger = api.client("mallory")
    assert stranger.get(f"/api/runs/{story.run_id}/token-breakdown").status_code == 403
    assert stranger.get(f"/api/runs/{UNKNOWN}/token-breakdown").status_code == 404
    assert stranger.get("/api/runs/nonsense/token-breakdown").status_code == 400
