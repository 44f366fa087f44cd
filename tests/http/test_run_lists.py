"""One list of runs over all of a caller's projects: newest first, filtered, paged, and nobody else's."""

from typing import Any
from uuid import uuid4

import pytest

LIST = "/api/runs"


def listed(story: Any, client: Any = None, **query: Any) -> list[str]:
    """Return the ids of the listed runs, as the log has them now."""
    response = (client or story.client).get(LIST, params=query, headers=story.api.settled()).raise_for_status()
    return [run["execution_id"] for run in response.json()]


@pytest.fixture
def three(story: Any) -> list[str]:
    """Three runs in three projects, the oldest first: the last one is at its gate."""
    return [story.start(), story.start(), [story.to_gate(), story.run_id][1]]


def test_runs_of_all_projects_are_listed_newest_first(story: Any, three: list[str]) -> None:
    assert listed(story) == three[::-1]
    assert listed(story, project_id=story.project_id) == three[2:]


def test_runs_are_listed_by_status_and_by_what_waits_in_them(story: Any, three: list[str]) -> None:
    assert listed(story, status="awaiting_review") == listed(story, waiting="true") == three[2:]
    assert listed(story, status="in_progress") == listed(story, waiting="false") == three[1::-1]
    assert listed(story, status="failed") == []
    (run,) = story.client.get(LIST, params={"waiting": "true"}, headers=story.api.settled()).json()
    assert run["waiting"] == ["gate"]


def test_pages_of_runs_follow_each_other_without_a_gap(story: Any, three: list[str]) -> None:
    found: list[str] = []
    path: str | None = f"{LIST}?limit=1&status=in_progress"
    while path is not None:
        response = story.client.get(path, headers=story.api.settled()).raise_for_status()
        found += [run["execution_id"] for run in response.json()]
        path = response.links["next"]["url"] if response.links else None
    assert found == three[1::-1]


def test_nobody_elses_runs_are_listed(api: Any, story: Any, three: list[str]) -> None:
    assert len(three) == 3
    stranger = api.client("mallory")
    assert listed(story, stranger) == []
    assert stranger.get(LIST, params={"project_id": story.project_id}).status_code == 404
    assert stranger.get(LIST, params={"project_id": str(uuid4())}).status_code == 404
    assert stranger.get(LIST, params={"project_id": "x"}).status_code == 400
    assert stranger.get(LIST, params={"status": "nonsense"}).status_code == 400
