"""HTTP's own promises: HEAD, OPTIONS, 304, and a query in which nothing is passed over in silence."""

from typing import Any

import pytest


@pytest.mark.parametrize("path", ["/health", "/api/health", "/", "/metrics", "/schema", "/api/server/info"])
def test_whoever_looks_whether_the_service_is_there_gets_the_head_of_the_answer(api: Any, path: str) -> None:
    client = api.anonymous()
    whole, head = client.get(path), client.head(path)
    assert (head.status_code, head.content) == (whole.status_code, b"")
    assert head.headers["content-type"] == whole.headers["content-type"]


def test_the_head_of_a_feed_ends_at_once(story: Any) -> None:
    story.start()
    head = story.client.head(f"/api/runs/{story.run_id}/stream")
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-type"].startswith("text/event-stream")


def test_the_head_of_what_is_refused_is_refused(api: Any) -> None:
    assert api.anonymous().head("/api/projects").status_code == 401
    assert api.client().head("/nope").status_code == 404


@pytest.mark.parametrize(
    ("path", "methods"),
    [
        ("/api/projects", "GET, HEAD, OPTIONS, POST"),
        ("/api/runs/f36800fd-f2f8-418c-958e-aae3e4921ba6", "DELETE, GET, HEAD, OPTIONS"),
        ("/api/fleet/steer", "OPTIONS, POST"),
        ("/health", "GET, HEAD, OPTIONS"),
    ],
)
def test_options_name_every_method_of_a_path(api: Any, path: str, methods: str) -> None:
    told = api.anonymous().options(path)
    assert (told.status_code, told.headers["allow"], told.content) == (204, methods, b"")


def test_whoever_has_the_run_already_is_told_so_until_it_moves(story: Any) -> None:
    story.start()
    path = f"/api/runs/{story.run_id}"
    tag = story.client.get(path, headers=story.api.settled()).headers["etag"]
    for known in (tag, f"W/{tag}", f'"x", {tag}', "*"):
        same = story.client.get(path, headers={"If-None-Match": known})
        assert (same.status_code, same.content, same.headers["etag"]) == (304, b"", tag)
    assert story.client.get(path, headers={"If-None-Match": '"x"'}).status_code == 200
    story.advance()
    moved = story.client.get(path, headers=story.api.settled() | {"If-None-Match": tag})
    assert moved.status_code == 200
    assert moved.json()["run_id"] == story.run_id


def test_a_query_parameter_that_means_nothing_is_refused_with_those_that_do(story: Any) -> None:
    story.start()
    refused = story.client.get(f"/api/projects/{story.project_id}/runs", params={"limti": 2})
    assert (refused.status_code, refused.json()["error"]) == (400, "unknown_parameter")
    assert "'limti'" in refused.json()["message"]
    assert "before, limit" in refused.json()["message"]
    assert story.client.get(f"/api/runs/{story.run_id}", params={"x": "1"}).status_code == 400
    assert story.client.get(f"/api/runs/{story.run_id}/events", params={"type": "run.started"}).status_code == 200
    head = story.api.services.log.head()
    assert story.client.post(f"/api/runs/{story.run_id}/cancel", params={"force": "1"}).status_code == 400
    assert story.api.services.log.head() == head


def test_probes_may_ask_with_whatever_they_like(api: Any) -> None:
    assert api.anonymous().get("/health", params={"cache": "buster"}).status_code == 200


def test_the_metrics_name_their_character_set_once(api: Any) -> None:
    assert api.anonymous().get("/metrics").headers["content-type"].count("charset") == 1
