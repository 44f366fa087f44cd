"""Runs, their plans and children, and the gate over what they made."""

from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from steersman.domain.event import Text
from steersman.domain.facts.assembly import ConflictAutoResolved

UNKNOWN = "f36800fd-f2f8-418c-958e-aae3e4921ba6"


def test_a_run_at_its_gate_shows_what_it_changed(api: Any, story: Any) -> None:
    made = story.to_gate()
    run = story.client.get(f"/api/runs/{story.run_id}", headers=api.settled()).json()
    assert run["run_id"] == story.run_id
    assert (run["status"], run["coordinator_status"]) == ("awaiting_review", "in_review")
    assert (run["coordinator_steerable"], run["auto_approve_tools"], run["autopilot"]) == (True, False, False)
    assert run["tree_hash"] == made.tree
    assert "+changed" in run["diff"]
    assert "+made" in run["diff"]
    assert {"model_source", "started_at", "ended_at", "step_count", "coordinator_status_reason"} <= set(run)
    assert "internal" not in run


def test_what_was_changed_in_two_places_is_marked_in_the_run_its_files_and_its_explanation(
    api: Any, story: Any
) -> None:
    ref = "refs/steersman/conflicts/r/1"
    conflict = ConflictAutoResolved(
        work_plan_id="w",
        conflicting_branch="steersman/x",
        conflicting_files=(Text("README"), Text("as before.txt")),
        strategy="accept_child",
        ref=ref,
        subtask_id=2,
        other_subtask_ids=(1,),
        replaced="0" * 40,
    )
    story.to_gate(conflict)
    path, standing = f"/api/runs/{story.run_id}", {"branch": "steersman/x", "ref": ref}
    run = story.client.get(path, headers=api.settled()).json()
    shown = standing | {"subtask_id": 2, "paths": ["README", "as before.txt"], "replaced": "0" * 40}
    assert (run["conflicts"], run["left_out"], run["moved_files"]) == ([shown], [], [])
    files = {file["path"]: file for file in story.client.get(f"{path}/assembly/files").json()}
    assert {name: file["conflicts"] for name, file in files.items()} == {
        "README": [standing],
        "as before.txt": [standing],
        "new folder/ä file.txt": [],
    }
    assert [file["status"] for file in files.values()] == ["modified", "unchanged", "added"]
    assert story.client.get(f"{path}/assembly/files/README").json()["conflicts"] == [standing]
    explained = story.client.get(f"{path}/explain").json()
    [found] = explained["conflicts"]
    assert found == standing | {"subtaskId": 2, "paths": ["README", "as before.txt"]}
    assert "README, as before.txt was changed in two places" in explained["waits"][-1]["what"]
    [asked] = [e for e in story.client.get(f"{path}/events").json() if e["type"].endswith("review_requested")]
    assert asked["payload"]["conflicts"] == [found | {"replaced": "0" * 40}]


def test_a_run_is_shown_though_its_repository_is_gone(api: Any, story: Any, repository: Path) -> None:
    story.to_gate()
    repository.rename(repository.with_name("elsewhere"))
    response = story.client.get(f"/api/runs/{story.run_id}", headers=api.settled())
    assert response.status_code == 200
    files = story.client.get(f"/api/runs/{story.run_id}/assembly/files")
    assert (files.status_code, files.json()["error"]) == (409, "workspace_unavailable")


def test_the_etag_moves_with_every_fact_but_output(api: Any, story: Any) -> None:
    story.start()
    path = f"/api/runs/{story.run_id}"
    tags = [story.client.get(path, headers=api.settled()).headers["etag"]]
    story.advance()
    tags.append(story.client.get(path, headers=api.settled()).headers["etag"])
    story.say(story.child(1), "Just looking.")
    tags.append(story.client.get(path, headers=api.settled()).headers["etag"])
    assert tags[0] != tags[1]
    assert tags[1] == tags[2]
    assert tags[1].startswith('"')


def test_a_run_without_a_plan_has_none_yet(api: Any, story: Any) -> None:
    story.project()
    body = {"goal": "x", "start_mode": "direct"}
    started = story.client.post(f"/api/projects/{story.project_id}/orchestrations", json=body)
    response = story.client.get(f"{started.headers['location']}/work-plan")
    assert (response.status_code, response.json()["error"]) == (404, "work_plan_not_found")
    assert response.json()["retryable"] is True
    assert story.client.get(f"{started.headers['location']}/children").json() == []
    assert story.client.get(f"{started.headers['location']}/assembly/files").json() == []


def test_children_stand_beside_their_subtasks(api: Any, story: Any) -> None:
    story.to_gate()
    children = story.client.get(f"/api/runs/{story.run_id}/children", headers=api.settled()).json()
    assert [child["subtaskId"] for child in children] == [1, 2]
    assert set(children[0]) == {
        "subtaskId", "childRunId", "subtaskStatus", "assignedAgent", "selectedModelId", "childRunStatus",
        "worktreeBranch", "treeHash", "stepCount",
    }  # fmt: skip
    child = story.client.get(f"/api/runs/{children[0]['childRunId']}").json()
    assert (child["parent_run_id"], child["subtask_id"], child["status"]) == (story.run_id, 1, "completed")


def test_a_run_is_listed_in_its_project(api: Any, story: Any) -> None:
    story.to_gate()
    (row,) = story.client.get(f"/api/projects/{story.project_id}/runs", headers=api.settled()).json()
    assert (row["execution_id"], row["workflow_run_id"]) == (story.run_id, story.run_id)
    assert (row["task"], row["agent_name"], row["coordinator_status"]) == ("Sell things", "Coordinator", "in_review")


@pytest.mark.parametrize(
    "path", ["", "/work-plan", "/children", "/events", "/stream", "/assembly/files", "/assembly/files/a"]
)
def test_an_unknown_run_is_404_and_a_malformed_id_400(api: Any, path: str) -> None:
    client = api.client()
    response = client.get(f"/api/runs/{UNKNOWN}{path}")
    assert (response.status_code, response.json()["error"]) == (404, "run_not_found")
    for wrong in (
        "nonsense",
        UNKNOWN + "0",
        "%7B" + UNKNOWN + "%7D",
        "%00",
        "%FF",
        "..%2f..",
        UNKNOWN.replace("-", ""),
    ):
        response = client.get(f"/api/runs/{wrong}{path}")
        assert (response.status_code, response.headers["content-type"]) in (
            (400, "application/problem+json"),
            (404, "application/problem+json"),
        )
    response = client.get(f"/api/runs/nonsense{path}")
    assert (response.status_code, response.json()["error"]) == (400, "invalid_run_id")
    assert client.get(f"/api/runs/{UNKNOWN.upper()}{path}").status_code == 404


def test_the_files_of_an_assembly_are_listed_and_shown(api: Any, story: Any) -> None:
    story.to_gate()
    path = f"/api/runs/{story.run_id}/assembly/files"
    files = story.client.get(path, headers=api.settled()).json()
    assert [(f["path"], f["status"]) for f in files] == [("README", "modified"), ("new folder/ä file.txt", "added")]
    shown = story.client.get(f"{path}/new folder/ä file.txt").json()
    assert (shown["path"], shown["status"], shown["content"]) == ("new folder/ä file.txt", "added", "made\n")
    assert shown["is_binary"] is False
    assert "+made" in shown["diff"]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("../../../etc/passwd", 400),
        ("..%2f..%2f..%2fetc%2fpasswd", 400),
        ("%2e%2e/%2e%2e/etc/passwd", 400),
        ("%2e%2e%2fREADME", 400),
        ("a/../README", 400),
        ("a/%2e%2e/README", 400),
        ("/etc/passwd", 404),
        ("%2fetc%2fpasswd", 404),
        ("./README", 400),
        (".git/config", 400),
        (".GIT/config", 400),
        ("a/.git/config", 400),
        ("README%00", 400),
        ("x" * 5000, 400),
        ("..\\..\\etc", 404),
        ("%ff", 404),
        ("README/x", 404),
        ("new%20folder", 404),
    ],
)
def test_a_path_never_leaves_the_assembled_tree(api: Any, story: Any, path: str, expected: int) -> None:
    story.to_gate()
    story.client.get(f"/api/runs/{story.run_id}", headers=api.settled()).raise_for_status()
    status, kind, body = raw_get(story.client, f"/api/runs/{story.run_id}/assembly/files/{path}")
    assert (status, kind) == (expected, "application/problem+json"), body


def test_a_link_out_of_the_tree_shows_itself_and_not_what_it_points_at(api: Any, story: Any) -> None:
    story.link_out = True
    made = story.to_gate()
    assert made
    response = story.client.get(f"/api/runs/{story.run_id}/assembly/files/link", headers=api.settled())
    assert response.status_code == 200
    assert response.json()["content"] == "/etc/passwd"


def test_a_file_that_nobody_has_is_404(api: Any, story: Any) -> None:
    story.to_gate()
    response = story.client.get(f"/api/runs/{story.run_id}/assembly/files/nothing", headers=api.settled())
    assert (response.status_code, response.json()["error"]) == (404, "file_not_found")


def raw_get(client: Any, path: str) -> tuple[int, str, str]:
    """Send a path as it is written: httpx would take the dots out of it."""
    connection = HTTPConnection(client.base_url.host, client.base_url.port, timeout=60)
    with closing(connection):
        connection.request("GET", path, headers={"Authorization": client.headers["authorization"]})
        response = connection.getresponse()
        return response.status, response.headers["content-type"], response.read().decode()
