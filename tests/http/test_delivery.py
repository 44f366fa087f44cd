"""Where work goes is said with the goal or for the project, and refused by name where it cannot go there."""

import subprocess
from typing import Any

import pytest

from steersman.tests.http.conftest import PLAN


def begin(story: Any, deliver: Any = None, **project: Any) -> Any:
    """Start a run with this delivery; return the answer."""
    if not story.project_id:
        story.project()
    if project:
        story.client.put(f"/api/projects/{story.project_id}/delivery", json=project).raise_for_status()
    wanted = {"goal": "Sell things", "start_mode": "direct", "plan": PLAN, "deliver": deliver}
    return story.client.post(f"/api/projects/{story.project_id}/orchestrations", json=wanted)


def shown(story: Any, answer: Any) -> Any:
    """Return where the run's work goes."""
    run_id = answer.raise_for_status().json()["runId"]
    return story.client.get(f"/api/runs/{run_id}", headers=story.api.settled()).json()["deliver"]


def test_a_run_shows_where_its_work_goes(story: Any) -> None:
    assert shown(story, begin(story)) == {"mode": "merge", "branch": None, "remote": None}
    named = shown(story, begin(story, {"mode": "branch", "branch": "feature/x"}))
    assert named == {"mode": "branch", "branch": "feature/x", "remote": None}
    answer = begin(story, {"mode": "branch"})
    assert shown(story, answer)["branch"] == f"delivered/{answer.json()['runId']}"


def test_what_a_project_says_holds_for_the_runs_that_do_not(story: Any) -> None:
    assert shown(story, begin(story, mode="branch"))["mode"] == "branch"
    assert shown(story, begin(story, {"mode": "merge"}))["mode"] == "merge"
    project = story.client.get(f"/api/projects/{story.project_id}", headers=story.api.settled()).json()
    assert project["deliver"] == {"mode": "branch", "branch": None, "remote": None}


@pytest.mark.parametrize(
    ("deliver", "status", "error"),
    [
        ({"mode": "push", "remote": "origin"}, 400, "delivery_unsupported"),
        ({"mode": "merge", "branch": "x"}, 400, "invalid"),
        ({"mode": "branch", "branch": "steersman/x"}, 400, "invalid"),
        ({"mode": "branch", "branch": "a..b"}, 400, "invalid"),
        ({"mode": "branch", "remote": "origin"}, 400, "invalid"),
        ({"mode": "branch", "branch": "main"}, 409, "branch_exists"),
    ],
)
def test_what_cannot_be_delivered_is_refused_by_name_and_nothing_begins(
    story: Any, deliver: Any, status: int, error: str
) -> None:
    story.project()
    before = story.api.services.log.head()
    answer = begin(story, deliver)
    assert (answer.status_code, answer.json()["error"]) == (status, error)
    assert story.api.services.log.head() == before
    default = story.client.put(f"/api/projects/{story.project_id}/delivery", json=deliver)
    assert default.status_code == (204 if status == 409 else 400)


def test_the_gate_says_where_approved_work_goes(story: Any) -> None:
    story.run_id = begin(story, {"mode": "branch", "branch": "feature/y"}).raise_for_status().json()["runId"]
    story.take_to_gate()
    items = story.client.get("/api/waiting", params={"run_id": story.run_id}, headers=story.api.settled()).json()
    assert "put it onto feature/y" in items[0]["requests"][0]["means"]
    branches = subprocess.check_output(["git", "branch", "--format=%(refname:short)"], cwd=story.repository, text=True)
    assert "feature/y" not in branches.split()
