"""Who gets in, and what they see of what is not theirs."""

import re
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from litestar.handlers import HTTPRouteHandler

from steersman.adapters.stores import token_store
from steersman.domain.projects.project import Project, ProjectRole
from steersman.domain.rejected import Forbidden, ProjectNotFound, RunNotFound
from steersman.http.app import ROUTES
from steersman.http.request.access import Access
from steersman.http.request.given import Principal, Services

NOBODY = "f36800fd-f2f8-418c-958e-aae3e4921ba6"
READS = [
    "/api/projects",
    f"/api/projects/{NOBODY}",
    f"/api/projects/{NOBODY}/runs",
    f"/api/projects/{NOBODY}/team",
    "/api/catalog/roles",
    f"/api/runs/{NOBODY}",
    f"/api/runs/{NOBODY}/work-plan",
    f"/api/runs/{NOBODY}/children",
    f"/api/runs/{NOBODY}/events",
    f"/api/runs/{NOBODY}/stream",
    f"/api/runs/{NOBODY}/assembly/files",
    f"/api/runs/{NOBODY}/assembly/files/a.txt",
    "/api/events",
    "/api/events/stream",
]
WRITES = [
    "/api/projects",
    f"/api/projects/{NOBODY}/team/members",
    f"/api/projects/{NOBODY}/orchestrations",
    f"/api/runs/{NOBODY}/assembly/review",
]
PUBLIC = ["/", "/health", "/api/health", "/api/server/info", "/schema", "/metrics"]


def is_problem(response: httpx.Response, status: int, error: str) -> bool:
    body = response.json()
    assert response.headers["content-type"] == "application/problem+json", response.text
    assert (response.status_code, body["error"]) == (status, error), response.text
    assert (body["status"], body["message"], body["detail"]) == (status, body["detail"], body["message"])
    assert body["type"] == f"urn:steersman:problem:{error}"
    return True


@pytest.mark.parametrize("path", READS)
def test_a_read_without_a_token_is_401(api: Any, path: str) -> None:
    response = api.anonymous().get(path)
    assert is_problem(response, 401, "unauthorized")
    assert response.headers["www-authenticate"].startswith("Bearer")


@pytest.mark.parametrize("path", WRITES)
def test_a_command_without_a_token_is_401_even_if_its_body_is_nonsense(api: Any, path: str) -> None:
    assert is_problem(api.anonymous().post(path, content=b"{"), 401, "unauthorized")


@pytest.mark.parametrize("path", PUBLIC)
def test_what_is_public_needs_no_token(api: Any, path: str) -> None:
    assert api.anonymous().get(path).status_code == 200


@pytest.mark.parametrize("value", ["", "Bearer", "Basic abc", "Bearer wrong", "Bearer " + "x" * 5000, "bearer \xff"])
def test_any_other_credential_is_401(api: Any, value: str) -> None:
    api.client()
    response = api.anonymous().get("/api/projects", headers={"Authorization": value.encode("latin-1")})
    assert is_problem(response, 401, "unauthorized")


def test_a_revoked_token_is_refused_within_a_second(api: Any) -> None:
    client = api.client()
    assert client.get("/api/projects").status_code == 200
    api.tokens.revoke(next(token.id for token in api.tokens.list() if token.user == api.name("alice")))
    until = time.monotonic() + 1.0
    while (refused := client.get("/api/projects")).status_code == 200:
        assert time.monotonic() < until
    assert is_problem(refused, 401, "unauthorized")


def test_a_token_of_before_its_name_was_reserved_is_refused(api: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_store, "is_reserved", lambda _: False)
    headers = {"Authorization": f"Bearer {api.tokens.issue('coordinator', 'operator')}"}
    assert is_problem(api.anonymous().get("/api/projects", headers=headers), 401, "unauthorized")


def test_a_viewers_token_changes_nothing(api: Any, story: Any) -> None:
    story.to_gate()
    head = api.services.log.head()
    viewer = api.client("alice", "viewer")
    member = {"role_id": "tester"}
    assert is_problem(viewer.post("/api/projects", json={"name": "x", "working_directory": "/"}), 403, "forbidden")
    assert is_problem(viewer.post(f"/api/projects/{story.project_id}/team/members", json=member), 403, "forbidden")
    start = {"goal": "x", "start_mode": "direct"}
    assert is_problem(viewer.post(f"/api/projects/{story.project_id}/orchestrations", json=start), 403, "forbidden")
    review = {"approved": True}
    assert is_problem(viewer.post(f"/api/runs/{story.run_id}/assembly/review", json=review), 403, "forbidden")
    assert viewer.get(f"/api/runs/{story.run_id}").status_code == 200
    assert api.services.log.head() == head


def test_somebody_elses_project_looks_absent(api: Any, story: Any) -> None:
    story.project()
    bob = api.client("bob")
    for path in ("", "/runs", "/team"):
        assert is_problem(bob.get(f"/api/projects/{story.project_id}{path}"), 404, "project_not_found")
    assert bob.get("/api/projects", headers=api.settled()).json() == []
    member = bob.post(f"/api/projects/{story.project_id}/team/members", json={"role_id": "tester"})
    assert is_problem(member, 404, "project_not_found")
    start = {"goal": "x", "start_mode": "direct"}
    started = bob.post(f"/api/projects/{story.project_id}/orchestrations", json=start)
    assert is_problem(started, 404, "project_not_found")


def test_somebody_elses_run_is_403_and_its_feed_and_files_look_absent(api: Any, story: Any) -> None:
    story.to_gate()
    bob = api.client("bob")
    for path in ("", "/work-plan", "/children", "/events"):
        assert is_problem(bob.get(f"/api/runs/{story.run_id}{path}"), 403, "forbidden")
    for path in ("/stream", "/assembly/files", "/assembly/files/README"):
        assert is_problem(bob.get(f"/api/runs/{story.run_id}{path}"), 404, "run_not_found")
    review = bob.post(f"/api/runs/{story.run_id}/assembly/review", json={"approved": False})
    assert is_problem(review, 403, "forbidden")
    assert bob.get("/api/events").json() == []


#: Where the seeds hide that a run exists: its feed, and what it made. On every other route somebody else's is 403.
HIDING = ("/stream", "/assembly")


def test_one_rule_says_what_somebody_elses_run_looks_like_on_every_route_that_shows_one(api: Any, story: Any) -> None:
    story.to_gate()
    bob, prefix = api.client("bob"), "/api/runs/{run_id:str}"
    paths = {
        path.removeprefix(prefix)
        for handler in ROUTES
        for path in handler.paths
        if isinstance(handler, HTTPRouteHandler) and "GET" in handler.http_methods and path.startswith(prefix)
    }
    assert len(paths) > 15
    for path in sorted(paths):
        filled = re.sub(r"\{[^}]*\}", "README", path)
        refused, hides = bob.get(f"/api/runs/{story.run_id}{filled}"), path.startswith(HIDING)
        assert is_problem(refused, 404, "run_not_found") if hides else is_problem(refused, 403, "forbidden"), path


class Granted(Access):
    """Access to projects in which bob has been given a role."""

    role: ProjectRole = "viewer"

    def known(self, project_id: str) -> Project:
        project = super().known(project_id)
        return Project(**{n: getattr(project, n) for n in Project.__struct_fields__} | {"roles": {"bob": self.role}})


@pytest.mark.parametrize("role", ["viewer", "contributor", "owner"])
def test_a_viewer_of_a_project_looks_and_a_contributor_changes(
    services: Services, story: Any, role: ProjectRole
) -> None:
    story.start()
    access = Granted(services.log)
    access.role = role
    bob = Principal(user="bob", scope="operator")
    assert access.project(bob, story.project_id).project_id == story.project_id
    assert access.run(bob, story.run_id).project_id == story.project_id
    if role == "viewer":
        with pytest.raises(Forbidden):
            access.run(bob, story.run_id, change=True)
        with pytest.raises(Forbidden):
            access.project(bob, story.project_id, change=True)
    else:
        assert access.run(bob, story.run_id, change=True).is_coordinator
        assert access.project(bob, story.project_id, change=True).name == access.known(story.project_id).name
    stranger = Principal(user="alice", scope="operator")
    with pytest.raises(ProjectNotFound):
        access.project(stranger, story.project_id)
    with pytest.raises(RunNotFound):
        access.run(stranger, story.run_id, hides=True)


def test_a_token_issued_by_another_process_works_at_once(api: Any, services: Services) -> None:
    from steersman.adapters.stores.token_store import open_tokens

    beside = open_tokens(Path(services.data_dir))
    raw = beside.issue("carol", "viewer")
    response = api.anonymous().get("/api/projects", headers={"Authorization": f"bearer {raw}"})
    assert response.status_code == 200
