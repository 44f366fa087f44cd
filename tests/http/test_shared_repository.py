"""A directory that two projects have registered: each sees of the other's runs what has reached a person's branch."""

from pathlib import Path
from typing import Any

import pytest

from steersman.domain.git import child_branch, integration_branch

from .conftest import Story, git

GONE = "f36800fd-f2f8-418c-958e-aae3e4921ba6"


@pytest.fixture
def shared(api: Any, story: Story) -> tuple[Story, Story]:
    """Alice's run and bob's in one repository; a branch of each run is there."""
    other = Story(api, story.repository)
    other.client = api.client("bob")
    for one in (story, other):
        one.start()
        one.advance()
        for branch in branches(one):
            git(story.repository, "branch", branch)
    return story, other


def branches(story: Story) -> list[str]:
    """What the branches of a run are called."""
    child = story.child(1)
    places = (f"gate/{story.run_id}/rai", f"autopilot/{child}", f"plan/{story.run_id}")
    return [child_branch(child), integration_branch(story.run_id), *(f"steersman/{place}" for place in places)]


def refs(story: Story) -> set[str]:
    """The branches that the project is shown."""
    response = story.client.get(f"/api/projects/{story.project_id}/workspace/refs").raise_for_status()
    return {ref["name"] for ref in response.json()}


def test_the_branches_of_another_projects_runs_are_in_no_list(shared: tuple[Story, Story]) -> None:
    git(shared[0].repository, "branch", "steersman/of-a-person")
    git(shared[0].repository, "branch", child_branch(GONE))
    for one in shared:
        assert refs(one) == {"main", "steersman/of-a-person", *branches(one)}


def test_what_another_projects_agents_work_on_is_not_there_for_who_asks_for_it_by_name(
    shared: tuple[Story, Story],
) -> None:
    for one, other in (shared, shared[::-1]):
        path = f"/api/projects/{one.project_id}/workspace"
        for branch in (*branches(other), child_branch(GONE)):
            for place in (path, f"{path}/files/README"):
                response = one.client.get(place, params={"ref": branch})
                assert (response.status_code, response.json()["error"]) == (404, "ref_not_found")
        assert one.client.get(path, params={"ref": branches(one)[0]}).status_code == 200


def test_a_worktree_in_which_a_run_works_is_registered_as_no_project(
    api: Any, shared: tuple[Story, Story], tmp_path: Path
) -> None:
    worktree = tmp_path / "worktree"
    git(shared[0].repository, "worktree", "add", "-q", str(worktree), branches(shared[0])[0])
    head = api.services.log.head()
    body = {"name": "x", "working_directory": str(worktree)}
    response = shared[1].client.post("/api/projects", json=body)
    assert (response.status_code, response.json()["error"]) == (400, "working_directory_unusable")
    assert api.services.log.head() == head
