"""What a service refuses, with the seed's words, and without storing anything."""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from steersman.tests.e2e.conftest import Repository
from steersman.tests.e2e.served import GATE, Api, Service, part, write

#: What is shown here rests on no store; `test_restart.py` and `test_orchestration.py` go the same way on both.
STORES = ("sqlite",)

Body = dict[str, Any]


def subtasks(*needs: list[int]) -> Body:
    return {"subtasks": [{"title": "x", "dependsOn": list(of)} for of in needs]}


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"goal": ""},
        {"goal": 7},
        {"goal": "x", "unknown": 1},
        {"goal": "x" * 70_000},
        {"goal": "x", "start_mode": "sideways"},
        {"goal": "x", "modelId": "nobody/knows"},
        {"goal": "x", "plan": {"subtasks": []}},
        {"goal": "x", "plan": subtasks([1], [0])},
        {"goal": "x", "plan": subtasks([0])},
        {"goal": "x", "plan": subtasks([5])},
        {"goal": "x", "plan": subtasks([-1])},
        {"goal": "x", "plan": subtasks(*([] for _ in range(201)))},
        {"goal": "x", "plan": {"subtasks": [{"title": "x", "assignedAgent": "a stranger"}]}},
        {"goal": "x", "plan": {"subtasks": [{"title": "x", "scope": "y" * 70_000}]}},
    ],
)
def test_an_orchestration_that_cannot_be_is_refused_and_not_stored(
    api: Api, repository: Repository, body: Body
) -> None:
    project = api.project(repository.path)
    refused = api.post(f"/api/projects/{project}/orchestrations", {"start_mode": "direct", **body}, 400)
    assert refused["error"]
    assert refused["message"]
    assert api.get(f"/api/projects/{project}/runs") == []


def test_a_project_without_a_team_starts_nothing(api: Api, repository: Repository) -> None:
    body = {"name": "p", "origin": "blank", "working_directory": str(repository.path)}
    project = api.post("/api/projects", body, 201)["project_id"]
    goal = {"goal": "x", "start_mode": "direct"}
    assert api.post(f"/api/projects/{project}/orchestrations", goal, 409)["error"] == "no_team"


def missing(tmp_path: Path, _: Repository) -> str:
    return str(tmp_path / "missing")


def plain_folder(tmp_path: Path, _: Repository) -> str:
    return str(tmp_path)


def relative(_: Path, repository: Repository) -> str:
    return repository.path.name


def bare(tmp_path: Path, repository: Repository) -> str:
    repository.git("clone", "--quiet", "--bare", str(repository.path), str(tmp_path / "bare.git"))
    return str(tmp_path / "bare.git")


def unborn(tmp_path: Path, repository: Repository) -> str:
    repository.git("init", "--quiet", str(tmp_path / "unborn"))
    return str(tmp_path / "unborn")


@pytest.mark.parametrize("directory", [missing, plain_folder, relative, bare, unborn])
def test_a_directory_that_is_no_usable_repository_is_refused(
    api: Api, repository: Repository, tmp_path: Path, directory: Callable[[Path, Repository], str]
) -> None:
    body = {"name": "p", "origin": "blank", "working_directory": directory(tmp_path, repository)}
    assert api.post("/api/projects", body, 400)["message"]


def test_no_path_leads_out_of_the_assembly(api: Api, repository: Repository) -> None:
    run_id = api.orchestrate(api.project(repository.path), part("only", write("a.txt", "a\n")))
    api.until(run_id, GATE)
    base = f"{api.service.url}/api/runs/{run_id}/assembly/files"
    for path in ("../README.md", "%2e%2e/README.md", "%2Fetc%2Fpasswd", "a.txt/../../x", "..%2f..%2fetc%2fpasswd"):
        response = api.http.get(f"{base}/{path}")
        assert 400 <= response.status_code < 500, f"{path}: {response.status_code}"
        assert "root:" not in response.text
    assert api.get(f"/api/runs/{run_id}/assembly/files/a.txt")["content"] == "a\n"


def test_nobody_without_a_token_gets_in_and_strangers_see_nothing(
    shared_service: Service, api: Api, repository: Repository
) -> None:
    project = api.project(repository.path)
    assert shared_service.client("nonsense").get(f"/api/projects/{project}").status_code == 401
    bob = shared_service.client(shared_service.issue("bob"))
    assert bob.get(f"/api/projects/{project}").status_code == 404
    assert bob.get("/api/projects").json() == []
    viewer = shared_service.client(shared_service.issue("alice", "viewer"))
    assert viewer.get(f"/api/projects/{project}").status_code == 200
    goal = {"goal": "x", "start_mode": "direct"}
    assert viewer.post(f"/api/projects/{project}/orchestrations", json=goal).status_code == 403
    assert api.get(f"/api/runs/{uuid4()}", 404)["error"] == "run_not_found"
