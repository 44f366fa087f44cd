"""Whatever is wrong with a request, or with us, is answered as a problem that says what to do, and tells no secrets."""

import socket
from dataclasses import replace
from typing import Any

import httpx
import pytest

from steersman.application.ports.log import LogUnavailable, Undecodable
from steersman.http.request.findings import Findings
from steersman.http.request.given import Services

from .conftest import Api, served


def test_an_unknown_route_is_404(api: Any) -> None:
    for path in ("/nope", "/api", "/api/nope", "/api/projects/x/y/z", "/%00", "/%ff"):
        response = api.client().get(path)
        assert (response.status_code, response.json()["error"]) == (404, "not_found")
        assert response.headers["content-type"] == "application/problem+json"


def test_a_method_that_a_route_does_not_take_is_405_and_names_those_it_takes(api: Any) -> None:
    for method, path in (("PUT", "/api/projects"), ("DELETE", "/health"), ("POST", "/api/events"), ("PATCH", "/")):
        response = api.client().request(method, path)
        assert (response.status_code, response.json()["error"]) == (405, "method_not_allowed")
        assert {"GET", "HEAD", "OPTIONS"} <= set(response.headers["allow"].split(", "))


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"null", b"[]", b'"x"', b"1", b'{"name":"\xff","working_directory":"/"}', b"\x00",
        b'{"name":"x\x00","working_directory":"/"}', b'{"name":"\\ud800","working_directory":"/"}',
        b'{"name":"x\\u0000","working_directory":"/"}', b'{"name":' + b"[" * 50_000, b"[" * 100_000, b'{"name":1e999}',
        b'{"name":"x","working_directory":"/","blueprint":' + b'{"a":' * 20_000 + b"1" + b"}" * 20_000 + b"}",
    ],
)  # fmt: skip
def test_a_body_that_is_no_request_is_400_and_stores_nothing(api: Any, body: bytes) -> None:
    head = api.services.log.head()
    response = api.client().post("/api/projects", content=body, headers={"Content-Type": "application/json"})
    assert response.status_code == 400, response.text
    assert response.headers["content-type"] == "application/problem+json"
    assert response.json()["message"]
    assert api.services.log.head() == head


def test_a_bad_parameter_is_named_as_it_was_sent(story: Any) -> None:
    story.start()
    refused = story.client.get(f"/api/runs/{story.run_id}/files?filter=bogus")
    assert refused.status_code == 400
    assert refused.json()["message"].startswith("The request is not valid: query filter: ")


def test_a_body_over_one_mebibyte_is_413_and_stores_nothing(api: Any, repository: Any) -> None:
    head = api.services.log.head()
    client = api.client()
    body = b'{"name":"x","working_directory":"/' + b"x" * 1_048_576 + b'"}'
    assert client.post("/api/projects", content=body).status_code == 413

    def chunks() -> Any:
        for start in range(0, len(body), 65_536):
            yield body[start : start + 65_536]

    response = client.post("/api/projects", content=chunks())
    assert (response.status_code, response.json()["error"]) == (413, "body_too_large")
    assert api.services.log.head() == head


def test_an_escaped_backslash_before_u0000_is_no_nul(api: Any, repository: Any) -> None:
    body = '{"name":"a\\\\u0000","working_directory":"%s"}' % repository  # noqa: UP031
    response = api.client().post("/api/projects", content=body)
    assert (response.status_code, response.json()["name"]) == (201, "a\\u0000")


def test_a_read_that_asks_for_a_position_that_no_fact_has_is_503(api: Any, story: Any) -> None:
    story.start()
    beyond = {"Steersman-Min-Position": str(api.services.log.head() + 1)}
    for path in (
        f"/api/runs/{story.run_id}", "/api/projects", f"/api/runs/{story.run_id}/events", "/api/events",
        f"/api/projects/{story.project_id}/team",
    ):  # fmt: skip
        response = story.client.get(path, headers=beyond)
        assert (response.status_code, response.json()["error"]) == (503, "position_not_reached")
        assert (response.json()["retryable"], response.headers["retry-after"]) == (True, "1")
    for wrong in ("x", "-1", "1.5", "", "9" * 17):
        response = story.client.get("/api/projects", headers={"Steersman-Min-Position": wrong})
        assert response.status_code == 400


class Stuck:
    """Views that never move."""

    def __init__(self, views: Any) -> None:
        self._views = views

    def __getattr__(self, name: str) -> Any:
        return getattr(self._views, name)

    def wait(self, view: str, position: int, timeout_seconds: float) -> bool:
        return False


def test_a_view_that_does_not_come_as_far_in_time_is_503(services: Services, story: Any) -> None:
    story.start()
    with served(replace(services, views=Stuck(services.views))) as url:
        headers = {"Steersman-Min-Position": str(services.log.head())}
        response = story.client.get(f"{url}/api/runs/{story.run_id}", headers=headers)
        assert (response.status_code, response.json()["error"]) == (503, "position_not_reached")
        assert response.json()["expected"] == services.log.head()
        assert response.headers["retry-after"] == "1"


class Broken:
    """A log on which every call fails."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def __getattr__(self, name: str) -> Any:
        def fail(*_: Any, **__: Any) -> Any:
            raise self._error

        return fail


def broken(services: Services, error: Exception) -> Any:
    """Serve over a log that fails."""
    return served(replace(services, log=Broken(error)))


def test_without_its_log_the_service_answers_503_and_when_to_come_back(services: Services, api: Api) -> None:
    with broken(services, LogUnavailable("could not connect to host db.internal user secret")) as url:
        client = api.client()
        for response in (
            client.get(f"{url}/api/events"),
            client.get(f"{url}/api/projects/f36800fd-f2f8-418c-958e-aae3e4921ba6"),
            client.get(f"{url}/api/runs/f36800fd-f2f8-418c-958e-aae3e4921ba6/stream"),
            client.post(
                f"{url}/api/projects", json={"name": "x", "working_directory": "/"}, headers={"Idempotency-Key": "a"}
            ),
        ):
            assert (response.status_code, response.json()["error"]) == (503, "log_unavailable")
            assert response.json()["retryable"] is True
            assert response.headers["retry-after"] == "1"
            assert "db.internal" not in response.text
        health = client.get(f"{url}/health")
        assert (health.status_code, health.json()["status"], health.json()["log"]) == (
            503,
            "unavailable",
            "unavailable",
        )


def test_a_fault_of_ours_is_500_without_what_went_wrong(services: Services, api: Api) -> None:
    with broken(services, ZeroDivisionError("the secret is 42")) as url:
        response = api.client().get(f"{url}/api/projects/f36800fd-f2f8-418c-958e-aae3e4921ba6")
        assert (response.status_code, response.json()["error"]) == (500, "internal_error")
        assert response.headers["content-type"] == "application/problem+json"
        assert "42" not in response.text
        assert "Traceback" not in response.text


def test_a_run_with_a_fact_that_cannot_be_read_is_503_and_names_it(services: Services, api: Api) -> None:
    with broken(replace(services, findings=Findings()), Undecodable(7, "a run", "reasons")) as url:
        response = api.client().get(f"{url}/api/runs/f36800fd-f2f8-418c-958e-aae3e4921ba6")
        assert (response.status_code, response.json()["error"]) == (503, "run_quarantined")
        assert (response.json()["position"], response.json()["run"]) == (7, "a run")


def test_a_request_that_is_no_http_ends_without_harm(api: Any) -> None:
    host, port = api.url.removeprefix("http://").split(":")
    for junk in (b"\x00\x01\x02\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"GET \xff\xfe HTTP/1.1\r\nHost: x\r\n\r\n"):
        with socket.create_connection((host, int(port)), timeout=60) as connection:
            connection.sendall(junk)
            connection.shutdown(socket.SHUT_WR)
            connection.recv(65_536)
    assert api.anonymous().get("/health").status_code == 200


def test_health_says_how_far_everything_is(api: Any, story: Any) -> None:
    story.start()
    for path in ("/health", "/api/health"):
        body = api.anonymous().get(path).json()
        assert (body["status"], body["log"], body["position"]) == ("ok", "ok", api.services.log.head())
        assert set(body["views"]) >= {"run_detail", "run_list", "work_plan", "children", "project"}
        assert all(view["lag"] >= 0 for view in body["views"].values())
        assert body["quarantined"] == []
    info = api.client().get("/api/server/info").json()
    assert info["data_directory"] == str(api.services.data_dir)
    for stranger in (api.anonymous(), api.client("mallory")):
        if "authorization" in stranger.headers:
            stranger.headers["Authorization"] = "Bearer nonsense"
        told = stranger.get("/api/server/info")
        assert (told.status_code, told.json()) == (200, info | {"data_directory": None})
    assert api.anonymous().get("/").text == "Steersman API"


@pytest.mark.parametrize("state", ["ok", "unavailable", None])
def test_health_says_whether_redis_can_be_reached_and_is_well_without_it(services: Services, state: Any) -> None:
    with served(replace(services, redis=lambda: state)) as url:
        body = httpx.get(f"{url}/health").raise_for_status().json()
        assert (body["status"], body["redis"]) == ("ok", state)
        assert f"steersman_redis_up {float(state != 'unavailable')}" in httpx.get(f"{url}/metrics").text


def test_metrics_count_requests_by_route_and_not_by_id(api: Any, story: Any) -> None:
    story.start()
    story.client.get(f"/api/runs/{story.run_id}")
    story.client.get("/api/runs/nonsense")
    text = api.anonymous().get("/metrics").text
    assert 'steersman_http_requests_total{method="GET",route="/api/runs/{run_id}",status="200"}' in text
    assert 'steersman_http_requests_total{method="GET",route="/api/runs/{run_id}",status="400"}' in text
    assert story.run_id not in text
    assert f"steersman_log_position {float(api.services.log.head())}" in text
    assert "steersman_command_seconds_count" in text
    assert 'steersman_view_lag_facts{view="run_detail"}' in text


@pytest.mark.parametrize(
    ("method", "path", "body", "words"),
    [
        ("PUT", "/api/projects/{p}/members/bob", {"role": "operator"}, "(it is one of: contributor, owner, viewer)"),
        ("POST", "/api/runs/{r}/steer", {"verb": "send"}, "(it has: kind, instruction"),
        (
            "POST",
            "/api/projects",
            {"name": "x", "working_directory": "/x", "build_test": {"cmd": ["x"], "command": ["x"]}},
            "(it has: command, timeout_seconds)",
        ),
        (
            "POST",
            "/api/projects",
            {"name": "x", "working_directory": "/x", "reviewers": {"scribe": "x"}},
            "(it is one of: rai, rubberduck)",
        ),
        ("POST", "/api/projects/{p}/webhooks", {"url": "https://x/", "kinds": ["x"]}, "run.ended"),
        (
            "POST",
            "/api/projects/{p}/orchestrations",
            {"goal": "x", "plan": {"subtasks": [{"title": "t", "phase": "zzz"}]}},
            "(it is one of: ",
        ),
        ("GET", "/api/waiting?kind=x", None, "(it is one of: blocked, "),
    ],
)
def test_whoever_sends_what_a_field_does_not_take_is_told_what_it_takes(
    story: Any, method: str, path: str, body: Any, words: str
) -> None:
    story.start()
    refused = story.client.request(method, path.format(p=story.project_id, r=story.run_id), json=body)
    assert refused.status_code == 400
    assert words in refused.json()["message"]
