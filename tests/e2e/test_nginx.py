"""Through nginx, set up as ops/deploy/nginx.conf says: feeds come frame by frame, and a replica that is gone is not missed."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from steersman.tests.e2e.conftest import Repository
from steersman.tests.e2e.proxy import nginx
from steersman.tests.e2e.served import GATE, Api, Service, part, write
from steersman.tests.ports import free_port


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    """A service on SQLite that is started."""
    home = tmp_path / "service"
    home.mkdir()
    service = Service(home)
    try:
        yield service.start()
    finally:
        service.close()


@pytest.fixture
def through(service: Service, tmp_path: Path) -> Iterator[Api]:
    """A client of nginx, before the service and a replica that is gone."""
    with nginx(tmp_path, service.url, f"http://127.0.0.1:{free_port()}") as url:
        direct, service.url = service.url, url
        yield Api(service)
        service.url = direct


def test_every_frame_of_a_feed_arrives_when_it_is_stored_and_a_feed_goes_on_by_its_id(
    through: Api, repository: Repository
) -> None:
    run_id = through.orchestrate(through.project(repository.path), part("only", write("a.txt", "a\n")))
    feed = through.feed(run_id)
    seen = feed.until(GATE)
    # Nothing more is stored by itself at the gate: a frame that waited for company would wait for ever.
    for number in range(5):
        through.post(f"/api/runs/{run_id}/steer", {"kind": "send", "instruction": f"Word {number}."}, 201)
        seen += feed.until("coordinator.steering_received")
    feed.close()
    later = through.feed(run_id, seen[4].id)
    again = [frame for _ in range(5) for frame in later.until("coordinator.steering_received")]
    later.close()
    assert again == seen[5:]


def test_a_feed_is_neither_compressed_nor_kept_by_anybody(through: Api, repository: Repository) -> None:
    run_id = through.orchestrate(through.project(repository.path), part("only", write("a.txt", "a\n")))
    headers = {"Accept-Encoding": "gzip"}
    for path in (f"/api/runs/{run_id}/stream", "/api/events/stream"):
        with through.http.stream("GET", path, headers=headers) as response:
            assert response.status_code == 200
            assert response.headers["content-type"].startswith("text/event-stream")
            assert "content-encoding" not in response.headers
            assert "no-store" in response.headers["cache-control"]


def test_a_replica_that_is_gone_costs_no_answer(through: Api, repository: Repository) -> None:
    project = through.project(repository.path)
    for number in range(20):  # each would meet it every other time
        through.post(f"/api/projects/{project}/team/members", {"role_id": "tester", "name": f"Tester {number}"})
        through.get(f"/api/projects/{project}")


def test_what_clients_and_the_service_say_to_each_other_goes_through(through: Api, repository: Repository) -> None:
    body = {"name": "x", "origin": "blank", "working_directory": str(repository.path)}
    first = through.http.post("/api/projects", json=body, headers={"Idempotency-Key": "k"})
    again = through.http.post("/api/projects", json=body, headers={"Idempotency-Key": "k"})
    assert (first.json(), again.headers["idempotent-replayed"]) == (again.json(), "true")
    assert int(first.headers["steersman-position"]) > 0
    large = through.http.post("/api/projects", content=b" " * (1024 * 1024 + 1))
    assert (large.status_code, large.headers["content-type"]) == (413, "application/problem+json")
    assert through.http.get("/metrics").status_code == 404
