"""Starting a run: what is answered, and what is refused without leaving a trace."""

from pathlib import Path
from typing import Any

import pytest

from .conftest import PLAN, git

DIRECT = {"goal": "Sell things", "start_mode": "direct"}


def test_a_start_is_201_with_the_run_and_where_it_is(api: Any, story: Any) -> None:
    story.project()
    response = story.client.post(f"/api/projects/{story.project_id}/orchestrations", json=DIRECT | {"plan": PLAN})
    assert response.status_code == 201
    assert set(response.json()) == {"runId"}
    assert response.headers["location"] == f"/api/runs/{response.json()['runId']}"
    assert int(response.headers["steersman-position"]) == api.services.log.head()
    run = story.client.get(response.headers["location"]).json()
    assert (run["status"], run["coordinator_status"], run["task"]) == ("in_progress", "planned", "Sell things")


def test_both_spellings_of_a_member_mean_the_same_and_together_they_are_400(api: Any, story: Any) -> None:
    story.project()
    path = f"/api/projects/{story.project_id}/orchestrations"
    camel = {"goal": "x", "startMode": "direct", "modelId": "rehearsal/y", "autoApproveTools": True, "autopilot": True}
    snake = {"goal": "x", "start_mode": "direct", "model_id": "rehearsal/y", "auto_approve_tools": True}
    for body, autopilot in ((camel, True), (snake, False)):
        run = story.client.get(story.client.post(path, json=body).headers["location"]).json()
        assert (run["model_id"], run["auto_approve_tools"], run["autopilot"]) == ("rehearsal/y", True, autopilot)
    for one in ("startMode", "modelId", "autoApproveTools"):
        response = story.client.post(path, json=snake | {one: camel[one]})
        assert (response.status_code, response.json()["error"]) == (400, "invalid")


def test_a_plan_names_its_parts_from_one_and_their_dependencies(api: Any, story: Any) -> None:
    story.start()
    plan = story.client.get(f"/api/runs/{story.run_id}/work-plan").json()
    assert plan["coordinatorRunId"] == story.run_id
    assert [(s["subtaskId"], s["title"], s["childRunId"]) for s in plan["subtasks"]] == [
        (1, "Build", None),
        (2, "Test", None),
    ]
    assert plan["dependencies"] == [{"subtaskId": 2, "dependsOnSubtaskId": 1}]


def test_a_run_begins_from_the_branch_that_is_named_and_is_merged_into_it(story: Any, repository: Path) -> None:
    git(repository, "branch", "release/1.0")
    story.project()
    path = f"/api/projects/{story.project_id}/orchestrations"
    for body, branch in ((DIRECT | {"base_branch": "release/1.0"}, "release/1.0"), (DIRECT, "main")):
        run_id = story.client.post(path, json=body | {"plan": PLAN}).raise_for_status().json()["runId"]
        assert story.client.get(f"/api/runs/{run_id}").json()["originating_branch"] == branch
    story.run_id = run_id


@pytest.mark.parametrize(
    ("change", "status", "error"),
    [
        ({"base_branch": "nowhere"}, 400, "unknown_branch"),
        ({"base_branch": "../../HEAD"}, 400, "unknown_branch"),
        ({"base_branch": "steersman/integration/x"}, 400, "unknown_branch"),
        ({"base_branch": ""}, 400, "unknown_branch"),
        ({"goal": None}, 400, "invalid_request"),
        ({"goal": "  "}, 400, "invalid"),
        ({"goal": "x" * 65_537}, 400, "invalid"),
        ({"goal": "a\0b"}, 400, "invalid"),
        ({"goal": 1}, 400, "invalid_request"),
        ({"start_mode": "define_outcome", "plan": PLAN}, 400, "invalid"),
        ({"start_mode": None, "plan": PLAN}, 400, "invalid"),
        ({"start_mode": "later"}, 400, "invalid_request"),
        ({"modelId": "nobody"}, 400, "unknown_model"),
        ({"modelId": "x" * 201}, 400, "invalid_request"),
        ({"autopilot": "yes"}, 400, "invalid_request"),
        ({"colour": "red"}, 400, "invalid_request"),
        ({"plan": []}, 400, "invalid_request"),
        ({"plan": {"subtasks": []}}, 400, "invalid_plan"),
        ({"plan": {"subtasks": [{"scope": "untitled"}]}}, 400, "invalid_request"),
        ({"plan": {"subtasks": [{"title": ""}]}}, 400, "invalid_plan"),
        ({"plan": {"subtasks": [{"title": "x", "colour": "red"}]}}, 400, "invalid_request"),
        ({"plan": {"subtasks": [{"title": "x", "phase": "party"}]}}, 400, "invalid_request"),
        ({"plan": {"subtasks": [{"title": "x", "assignedAgent": "stranger"}]}}, 400, "invalid_plan"),
        ({"plan": {"subtasks": [{"title": "x", "dependsOn": [0]}]}}, 400, "invalid_plan"),
        ({"plan": {"subtasks": [{"title": "x", "dependsOn": [7]}]}}, 400, "invalid_plan"),
        ({"plan": {"subtasks": [{"title": "x", "dependsOn": [-1]}]}}, 400, "invalid_plan"),
        ({"plan": {"subtasks": [{"title": "x", "dependsOn": [2**63]}]}}, 400, "invalid_plan"),
        (
            {"plan": {"subtasks": [{"title": "x", "dependsOn": [1]}, {"title": "y", "dependsOn": [0]}]}},
            400,
            "invalid_plan",
        ),
        ({"plan": {"subtasks": [{"title": str(n)} for n in range(201)]}}, 400, "invalid_plan"),
    ],
)
def test_a_start_that_is_not_valid_is_refused_and_stores_nothing(
    api: Any, story: Any, change: dict[str, Any], status: int, error: str
) -> None:
    story.project()
    head = api.services.log.head()
    body = {name: value for name, value in (DIRECT | change).items() if value is not None}
    response = story.client.post(f"/api/projects/{story.project_id}/orchestrations", json=body)
    assert (response.status_code, response.json()["error"]) == (status, error)
    assert response.headers["content-type"] == "application/problem+json"
    assert api.services.log.head() == head


def test_a_project_without_a_team_is_409_no_team(api: Any, repository: Path) -> None:
    client = api.client()
    created = client.post("/api/projects", json={"name": "x", "working_directory": str(repository)})
    head = api.services.log.head()
    response = client.post(f"{created.headers['location']}/orchestrations", json=DIRECT)
    assert (response.status_code, response.json()["error"]) == (409, "no_team")
    assert api.services.log.head() == head


def test_a_project_id_that_is_none_is_400_and_an_unknown_one_404(api: Any) -> None:
    client = api.client()
    response = client.post("/api/projects/nonsense/orchestrations", json=DIRECT)
    assert (response.status_code, response.json()["error"]) == (400, "invalid_project_id")
    response = client.post("/api/projects/f36800fd-f2f8-418c-958e-aae3e4921ba6/orchestrations", json=DIRECT)
    assert (response.status_code, response.json()["error"]) == (404, "project_not_found")


def test_a_repository_that_is_gone_is_409_workspace_unavailable(api: Any, story: Any, repository: Path) -> None:
    story.project()
    repository.rename(repository.with_name("elsewhere"))
    response = story.client.post(f"/api/projects/{story.project_id}/orchestrations", json=DIRECT)
    assert (response.status_code, response.json()["error"]) == (409, "workspace_unavailable")
