"""Stored facts as lists: parameters, pages, and who sees what."""

from typing import Any

import pytest

WRONG = [
    "after=-1", "after=x", "after=", "after=1.5", "after=1&after=2", "after=99999999999999999999", "limit=0", "limit=1001",
    "limit=x", "limit=-1", "limit=1&limit=1",
]  # fmt: skip


def test_a_runs_events_are_numbered_from_one_without_a_gap(api: Any, story: Any) -> None:
    story.to_gate()
    events = story.client.get(f"/api/runs/{story.run_id}/events").json()
    assert [event["sequence"] for event in events] == list(range(1, len(events) + 1))
    assert set(events[0]) == {"sequence", "type", "timestamp", "payload"}
    assert (events[0]["type"], events[0]["payload"]["goal"]) == ("coordinator.started", "Sell things")
    assert api.services.log.run_head(story.run_id) == len(events)


def test_events_are_paged_and_filtered(api: Any, story: Any) -> None:
    story.to_gate()
    path = f"/api/runs/{story.run_id}/events"
    everything = story.client.get(path).json()
    assert story.client.get(f"{path}?after=2&limit=3").json() == everything[2:5]
    assert story.client.get(f"{path}?after={len(everything)}").json() == []
    assert story.client.get(f"{path}?after=9007199254740992").json() == []
    running = story.client.get(f"{path}?type=subtask.running").json()
    assert running == [event for event in everything if event["type"] == "subtask.running"]
    assert len(running) == 2
    assert story.client.get(f"{path}?type=subtask.running&limit=1").json() == running[:1]
    assert story.client.get(f"{path}?type=nobody.knows").json() == []


def test_output_is_part_of_a_childs_events(api: Any, story: Any) -> None:
    story.to_gate()
    events = story.client.get(f"/api/runs/{story.child(1)}/events").json()
    assert [e["payload"]["delta"] for e in events if e["type"] == "agent.message.delta"] == ["Looking.", "Done."]
    assert [event["sequence"] for event in events] == list(range(1, len(events) + 1))


def test_a_filter_finds_what_stands_far_behind(api: Any, story: Any) -> None:
    story.start()
    story.advance()
    child = story.child(1)
    for n in range(12):
        story.say(child, *(f"{n}/{m}" for m in range(100)))
    story.work(1)
    found = story.client.get(f"/api/runs/{child}/events?type=run.completed&limit=1").json()
    assert [event["type"] for event in found] == ["run.completed"]
    assert found[0]["sequence"] > 1_200


@pytest.mark.parametrize("query", [*WRONG, "type=", "type=" + "x" * 129, "type=a&type=b"])
def test_a_parameter_that_is_wrong_or_given_twice_is_400(api: Any, story: Any, query: str) -> None:
    story.start()
    response = story.client.get(f"/api/runs/{story.run_id}/events?{query}")
    assert response.status_code == 400
    assert response.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize("query", WRONG)
def test_a_parameter_of_the_logs_events_that_is_wrong_or_given_twice_is_400(api: Any, query: str) -> None:
    assert api.client().get(f"/api/events?{query}").status_code == 400


def test_the_logs_events_are_those_of_the_callers_projects(api: Any, story: Any, repository: Any) -> None:
    story.to_gate()
    bob = api.client("bob")
    body = {"name": "Bob's", "working_directory": str(repository)}
    theirs = bob.post("/api/projects", json=body).raise_for_status().json()["project_id"]
    mine = story.client.get("/api/events?limit=1000").json()
    assert {event["root"] for event in mine} == {None, story.run_id}
    assert {event["stream"] for event in mine if event["root"] is None} == {f"project/{story.project_id}"}
    assert [event["position"] for event in mine] == sorted(event["position"] for event in mine)
    assert [event["stream"] for event in bob.get("/api/events?limit=1000").json()] == [f"project/{theirs}"]
    assert set(mine[0]) == {
        "position", "stream", "version", "type", "run", "run_sequence", "root", "root_sequence", "at", "principal",
        "payload",
    }  # fmt: skip


def test_the_log_is_read_page_by_page_through_what_is_hidden(api: Any, story: Any) -> None:
    story.to_gate()
    everything = story.client.get("/api/events?limit=1000").json()
    after, found = 0, []
    while page := story.client.get(f"/api/events?after={after}&limit=7"):
        found += page.json()
        if after == int(page.headers["steersman-position"]):
            break
        after = int(page.headers["steersman-position"])
    assert found == everything
    assert after == api.services.log.head()
    stranger = api.client("stranger").get("/api/events")
    assert (stranger.json(), int(stranger.headers["steersman-position"])) == ([], api.services.log.head())


def test_an_erased_text_is_null(api: Any, story: Any) -> None:
    story.to_gate()
    api.services.log.erase_texts([story.run_id])
    events = story.client.get(f"/api/runs/{story.run_id}/events").json()
    assert events[0]["payload"]["goal"] is None
    assert events[0]["payload"]["projectId"] == story.project_id
    assert [event["sequence"] for event in events] == list(range(1, len(events) + 1))
