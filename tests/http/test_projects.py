"""Projects and teams: shapes, refusals, and that a refusal stores nothing."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit
from uuid import uuid4

import pytest

from steersman.application.writer.caller import service
from steersman.domain.event import Draft
from steersman.domain.projects.project import MemberAdded, project_stream

from .conftest import git

#: Names of whom no request could reach.
UNADDRESSABLE = ("a\nb", "a\x7fb", "\x1b[31m", "a/b", "/", ".", "..", " .. ", "a\u2028b")

PROJECT = {
    "project_id", "name", "origin", "source_repository", "working_directory", "default_branch", "owner",
    "default_provider", "default_model_github_copilot", "default_model_microsoft_foundry",
    "blueprint_generation_model", "workflow_generation_model", "outcome_spec_generation_model", "available", "state",
    "source_blueprint_id", "source_blueprint_type", "created_at", "updated_at",
}  # fmt: skip


def test_a_project_is_answered_201_in_the_shape_in_which_it_is_read_again(api: Any, repository: Path) -> None:
    client = api.client()
    body = {
        "name": "my-project",
        "origin": "blank",
        "working_directory": str(repository),
        "default_provider": "github-copilot",
        "default_model_github_copilot": None,
        "default_model_microsoft_foundry": None,
        "blueprint_id": None,
        "blueprint": None,
        "generated_workflow_yaml": None,
    }
    created = client.post("/api/projects", json=body)
    assert created.status_code == 201
    assert set(created.json()) == PROJECT
    assert created.json()["default_branch"] == "main"
    assert created.json()["owner"] == api.name("alice")
    assert created.headers["location"] == f"/api/projects/{created.json()['project_id']}"
    settled = {"Steersman-Min-Position": created.headers["steersman-position"]}
    assert client.get(created.headers["location"], headers=settled).json() == created.json()
    assert client.get("/api/projects", headers=settled).json() == [created.json()]


def test_what_was_just_created_is_found_without_asking_for_its_position(api: Any, story: Any) -> None:
    story.start()
    assert story.client.get(f"/api/projects/{story.project_id}").status_code == 200
    assert story.client.get(f"/api/runs/{story.run_id}").status_code == 200
    assert story.client.get(f"/api/runs/{story.run_id}/work-plan").status_code == 200


def test_available_says_whether_the_directory_is_still_there(api: Any, story: Any, repository: Path) -> None:
    story.project()
    path = f"/api/projects/{story.project_id}"
    assert story.client.get(path).json()["available"] is True
    repository.rename(repository.with_name("elsewhere"))
    assert story.client.get(path).json()["available"] is False


def test_projects_are_listed_newest_first_by_cursor(api: Any, repository: Path) -> None:
    client = api.client()
    for name in ("one", "two", "three"):
        client.post("/api/projects", json={"name": name, "working_directory": str(repository)}).raise_for_status()
    page = client.get("/api/projects?limit=2", headers=api.settled())
    assert [p["name"] for p in page.json()] == ["three", "two"]
    following = client.get(page.links["next"]["url"])
    assert [p["name"] for p in following.json()] == ["one"]
    assert "next" not in following.links
    assert urlsplit(page.links["next"]["url"]).path == "/api/projects"


@pytest.fixture
def directories(tmp_path: Path, repository: Path) -> dict[str, str]:
    """Directories that cannot be a project's, by what is wrong with them."""
    (tmp_path / "plain").mkdir()
    for name, arguments in {"bare": ["--bare"], "unborn": []}.items():
        (tmp_path / name).mkdir()
        git(tmp_path / name, "init", "-q", *arguments)
    return {
        "workspace_missing": str(tmp_path / "nothing"),
        "not_a_repository": str(tmp_path / "plain"),
        "bare_repository": str(tmp_path / "bare"),
        "no_commit": str(tmp_path / "unborn"),
        "relative": os.path.relpath(repository, "/"),
        "traversal": "../" * 30 + "etc",
        "too_long": "/" + "x" * 300,
        "a_file": str(repository / "README"),
        "a_file_inside": str(repository / "README" / "x"),
        "surrogate": "/\N{REPLACEMENT CHARACTER}",
    }


@pytest.mark.parametrize(
    "wrong",
    [
        "workspace_missing", "not_a_repository", "bare_repository", "no_commit", "relative", "traversal", "too_long",
        "a_file", "a_file_inside", "surrogate",
    ],
)  # fmt: skip
def test_a_directory_that_cannot_be_worked_in_is_400_and_stores_nothing(
    api: Any, directories: dict[str, str], wrong: str
) -> None:
    head = api.services.log.head()
    response = api.client().post("/api/projects", json={"name": "x", "working_directory": directories[wrong]})
    assert (response.status_code, response.json()["error"]) == (400, "working_directory_unusable")
    assert response.json().get("reason") in (wrong, None, "workspace_missing", "not_a_repository")
    assert api.services.log.head() == head


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"name": "x"},
        {"name": "", "working_directory": "/"},
        {"name": " ", "working_directory": "REPOSITORY"},
        {"name": "x" * 201, "working_directory": "REPOSITORY"},
        {"name": "\N{SNOWMAN}" * 100, "working_directory": "REPOSITORY"},
        {"name": 3, "working_directory": "REPOSITORY"},
        {"name": "x\0", "working_directory": "REPOSITORY"},
        {"name": "x", "working_directory": "REPOSITORY\0"},
        {"name": "x", "working_directory": "REPOSITORY", "colour": "red"},
        {"name": "x", "working_directory": "REPOSITORY", "origin": "github"},
        {"name": "x", "working_directory": "REPOSITORY", "origin": "svn"},
        {"name": "x", "working_directory": "REPOSITORY", "default_provider": "nobody"},
        {"name": "x", "working_directory": "REPOSITORY", "blueprint_id": "b"},
        {"name": "x", "working_directory": "REPOSITORY", "blueprint": {}},
        {"name": "x", "working_directory": "REPOSITORY", "repository_selection_code": "c"},
        [],
        None,
        "x",
    ],
)
def test_a_project_that_is_not_valid_is_400_and_stores_nothing(api: Any, repository: Path, body: Any) -> None:
    if isinstance(body, dict) and "working_directory" in body:
        body = body | {"working_directory": body["working_directory"].replace("REPOSITORY", str(repository))}
    head = api.services.log.head()
    response = api.client().post("/api/projects", json=body)
    assert response.status_code == 400
    assert response.headers["content-type"] == "application/problem+json"
    assert len(response.json()["message"]) > 20
    assert api.services.log.head() == head


def test_an_unknown_project_is_404(api: Any) -> None:
    client = api.client()
    for project_id in ("f36800fd-f2f8-418c-958e-aae3e4921ba6", "nonsense"):
        for path in ("", "/runs", "/team"):
            response = client.get(f"/api/projects/{project_id}{path}")
            assert (response.status_code, response.json()["error"]) == (404, "project_not_found")
        response = client.post(f"/api/projects/{project_id}/team/members", json={"role_id": "tester"})
        assert (response.status_code, response.json()["error"]) == (404, "project_not_found")


def test_the_catalogue_lists_every_role_once(api: Any) -> None:
    roles = api.client().get("/api/catalog/roles").json()
    ids = [role["id"] for role in roles]
    assert len(set(ids)) == len(ids) == 22
    assert {"software-engineer", "tester", "product-manager", "technical-writer", "architect"} < set(ids)
    assert set(roles[0]) == {"id", "title", "summary", "default_model"}


def test_a_project_without_a_team_has_none_to_show(api: Any, repository: Path) -> None:
    client = api.client()
    created = client.post("/api/projects", json={"name": "x", "working_directory": str(repository)})
    response = client.get(f"{created.headers['location']}/team")
    assert (response.status_code, response.json()["error"]) == (404, "team_not_found")


def test_a_member_is_answered_200_as_the_team_shows_them(api: Any, story: Any) -> None:
    story.project()
    path = f"/api/projects/{story.project_id}/team"
    added = story.client.post(
        f"{path}/members", json={"role_id": "architect", "name": "Ada", "custom_role_title": "Chief", "model_id": None}
    )
    assert added.status_code == 200
    assert (added.json()["name"], added.json()["role_title"], added.json()["is_named"]) == ("Ada", "Chief", True)
    team = story.client.get(path).json()
    assert team["project_name"] == "Shop"
    assert [member["name"] for member in team["members"]] == ["software-engineer", "tester", "Ada"]
    assert team["members"][-1] == added.json()


@pytest.mark.parametrize(
    ("body", "status", "error"),
    [
        ({}, 400, "invalid_request"),
        ({"role_id": "king"}, 400, "invalid"),
        ({"role_id": "tester", "name": " "}, 400, "invalid"),
        *(({"role_id": "tester", "name": name}, 400, "invalid") for name in UNADDRESSABLE),
        ({"role_id": "tester", "name": "tester"}, 409, "member_exists"),
        ({"role_id": "tester", "model_id": "nobody/x"}, 400, "unknown_model"),
        ({"role_id": "tester", "rank": 1}, 400, "invalid_request"),
        ({"role_id": 1}, 400, "invalid_request"),
    ],
)
def test_a_member_that_cannot_join_is_refused_and_nothing_is_stored(
    api: Any, story: Any, body: Any, status: int, error: str
) -> None:
    story.project()
    head = api.services.log.head()
    response = story.client.post(f"/api/projects/{story.project_id}/team/members", json=body)
    assert (response.status_code, response.json()["error"]) == (status, error)
    assert api.services.log.head() == head


def test_every_member_that_is_taken_on_can_be_reached_by_name(story: Any) -> None:
    story.project()
    members = f"/api/projects/{story.project_id}/team/members"
    for name in ("a%2Fb", "a?b=c#d", "...", "ünï \U0001f600", "a\\b", "a;b", "a+b", "%"):
        story.client.post(members, json={"role_id": "tester", "name": name}).raise_for_status()
        path = f"{members}/{quote(name, safe='')}"
        assert story.client.get(f"{path}/charter").json()["member_name"] == name
        assert story.client.delete(path).status_code == 204


def test_a_member_who_was_taken_on_under_a_name_that_no_path_can_hold_stays_on_the_team(api: Any, story: Any) -> None:
    story.project()
    event = MemberAdded(project_id=story.project_id, name="a/b", role_id="tester", role_title="Tester", model_id=None)
    draft = Draft(stream=project_stream(story.project_id), event=event)
    version = len(api.services.log.read_stream(draft.stream))
    now = api.services.clock.now()
    api.services.log.append(service(str(uuid4())).append((draft,), {draft.stream: version}, now))
    team = story.client.get(f"/api/projects/{story.project_id}/team", headers=api.settled()).json()
    assert [member["name"] for member in team["members"]][-1] == "a/b"


def test_a_repository_is_registered_once_under_a_name_by_one_person(api: Any, repository: Path) -> None:
    client = api.client()
    body = {"name": "Shop", "origin": "blank", "working_directory": str(repository)}
    first = client.post("/api/projects", json=body).raise_for_status().json()["project_id"]
    again = client.post("/api/projects", json={**body, "working_directory": f"{repository}/."})
    assert (again.status_code, again.json()["error"]) == (409, "project_exists")
    assert again.json()["project_id"] == first
    assert client.post("/api/projects", json={**body, "name": "Shop 2"}).status_code == 201
    assert api.client("bob").post("/api/projects", json=body).status_code == 201
    client.delete(f"/api/projects/{first}?confirm=true").raise_for_status()
    assert client.post("/api/projects", json=body).status_code == 201


def test_of_many_registrations_at_once_one_is_taken(api: Any, repository: Path) -> None:
    client = api.client()
    body = {"name": "Shop", "origin": "blank", "working_directory": str(repository)}
    with ThreadPoolExecutor(6) as pool:
        statuses = list(pool.map(lambda _: client.post("/api/projects", json=body).status_code, range(6)))
    assert sorted(statuses) == [201] + [409] * 5
