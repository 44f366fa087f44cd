"""PostgreSQL restarts, drops its connections, is locked, or comes back elsewhere: commands may be sent again, runs go on."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import psycopg
import pytest

from steersman.ops.chaos.outside import Postgres
from steersman.tests.e2e.conftest import LEASES, Repository
from steersman.tests.e2e.served import GATE, PATIENCE_SECONDS, Api, Frame, Service, part, wait_until, write

DONE = "coordinator.assembly_completed"


@pytest.fixture
def postgres() -> Iterator[Postgres]:
    """A server that belongs to this test alone, since it is hurt."""
    with Postgres() as server:
        yield server


@pytest.fixture
def served(postgres: Postgres, tmp_path: Path) -> Iterator[Callable[[str], Service]]:
    """A function that starts a service on a database."""
    started: list[Service] = []

    def start(url: str) -> Service:
        home = tmp_path / "service"
        home.mkdir()
        started.append(Service(home, STEERSMAN_DATABASE=url, **LEASES))
        return started[-1].start()

    yield start
    for service in started:
        service.close()


def insist(api: Api, path: str, body: object, key: str) -> list[int]:
    """Send a command again and again, as its refusals say, until it is taken; return every status on the way."""
    seen: list[int] = []
    until = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < until:
        answer = api.http.post(path, json=body, headers={"Idempotency-Key": key})
        seen.append(answer.status_code)
        if answer.status_code < 300:
            return seen
        assert answer.status_code == 503, answer.text
        assert answer.json()["retryable"], answer.text
        time.sleep(float(answer.headers["Retry-After"]))
    raise AssertionError(f"{path} was never taken: {seen}")


def follow(api: Api, run: str, topic: str) -> list[Frame]:
    """Return a run's frames up to a topic, as a client that comes again when it is told that the log is away."""

    def seen() -> list[Frame] | None:
        with suppress(AssertionError, httpx.TransportError):
            return api.until(run, topic)
        return None

    frames: list[Frame] = wait_until(seen, f"the feed shows {topic}")
    return frames


def test_a_run_goes_on_through_crashes_of_its_database_and_each_command_acts_once(
    postgres: Postgres, served: Callable[[str], Service], repository: Repository
) -> None:
    api = Api(served(postgres.new_database()))
    project = api.project(repository.path)
    slow = {"append": {"path": "a.txt", "text": "x\n", "times": 30, "every_ms": 100}}
    run = api.orchestrate(project, part("one", slow, write("b.txt", "end\n")))
    api.until(run, "subtask.running")
    hurting = [
        threading.Thread(target=lambda: [postgres.restart("immediate"), postgres.restart("fast")]),
        threading.Thread(target=postgres.terminate_backends),
    ]
    for n, thread in enumerate(hurting):
        thread.start()
        for command in range(5):
            body = {"kind": "send", "instruction": f"Well done {n} {command}."}
            insist(api, f"/api/runs/{run}/steer", body, f"send-{n}-{command}")
        thread.join(PATIENCE_SECONDS)
    follow(api, run, GATE)
    insist(api, f"/api/runs/{run}/assembly/review", {"approved": True}, "approval")
    frames = follow(api, run, DONE)
    assert repository.files["b.txt"] == "end"
    assert [frame.id for frame in frames if frame.id] == list(range(1, len(frames) + 1))
    said = [directive["instruction"] for directive in api.get(f"/api/runs/{run}/steering")]
    assert sorted(said) == sorted(f"Well done {n} {command}." for n in range(2) for command in range(5))


def test_a_command_that_finds_the_log_locked_is_told_to_come_again(
    postgres: Postgres, served: Callable[[str], Service], repository: Repository
) -> None:
    url = postgres.new_database()
    api = Api(served(url))
    project = api.project(repository.path)
    run = api.orchestrate(project, part("one", write("a.txt", "hi\n")))
    api.until(run, GATE)
    with psycopg.connect(url) as connection:
        connection.execute("SELECT * FROM head FOR UPDATE")
        answer = api.http.post(f"/api/runs/{run}/assembly/review", json={"approved": True})
        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
        assert answer.json()["error"] == "log_unavailable"
    insist(api, f"/api/runs/{run}/assembly/review", {"approved": True}, "approval")
    api.until(run, DONE)


def test_a_primary_that_comes_back_at_another_address_is_found(
    postgres: Postgres, served: Callable[[str], Service], repository: Repository
) -> None:
    here = postgres.new_database()
    api = Api(served(f"{here},{postgres.elsewhere}"))
    run = api.orchestrate(api.project(repository.path), part("one", write("a.txt", "hi\n")))
    api.until(run, GATE)
    postgres.move()
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(here)
    insist(api, f"/api/runs/{run}/assembly/review", {"approved": True}, "approval")
    api.until(run, DONE)
    assert httpx.get(f"{api.service.url}/health").json()["status"] == "ok"
