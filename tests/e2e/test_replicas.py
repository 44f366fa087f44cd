"""Several processes on one PostgreSQL: each run is driven by one of them, whatever happens to it."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from steersman.tests.e2e.conftest import LEASES, Repository
from steersman.tests.e2e.proxy import nginx
from steersman.tests.e2e.served import GATE, Api, Service, part, steersman, wait_until, write
from steersman.tests.live_agents import family_of, is_alive

DONE = "coordinator.assembly_completed"


class Replicas:
    """Services on one database and one data directory."""

    def __init__(self, home: Path, database: str) -> None:
        self.home = home
        self.data = home / "data"
        self.database = database
        self.services: list[Service] = []
        self.leases = LEASES

    def start(self, role: str = "all") -> Service:
        """Start one more; the token of the first is good for all."""
        home = self.home / f"replica-{len(self.services)}"
        home.mkdir()
        service = Service(home, self.data, role=role, STEERSMAN_DATABASE=self.database, **self.leases)
        if self.services:
            service.token = self.services[0].token
        self.services.append(service)
        return service.start()

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        """Ask the database."""
        with psycopg.connect(self.database) as connection:
            return connection.execute(statement.encode()).fetchall()

    def epochs(self) -> dict[str, int]:
        """The epoch of every run."""
        return dict(self.rows("SELECT root, epoch FROM leases"))

    def close(self) -> None:
        """End them all."""
        for service in self.services:
            service.close()


@pytest.fixture
def replicas(new_database: Callable[[], str], tmp_path: Path) -> Iterator[Replicas]:
    """No replica yet."""
    found = Replicas(tmp_path, new_database())
    try:
        yield found
    finally:
        found.close()


def slowly(path: str, times: int) -> dict[str, Any]:
    """Return the step that appends a line a hundred milliseconds."""
    return {"append": {"path": path, "text": "x\n", "times": times, "every_ms": 100}}


def at_work(api: Api, run: str) -> None:
    """Return when the run's one child has begun its turn."""
    api.until(run, "subtask.running")
    api.until(api.get(f"/api/runs/{run}/children")[0]["childRunId"], "agent.turn.start")


def test_runs_are_driven_by_workers_and_steered_through_a_process_that_drives_nothing(
    replicas: Replicas, repository: Repository
) -> None:
    api = Api(replicas.start("api"))
    replicas.start("worker")
    project = api.project(repository.path)
    run = api.orchestrate(project, part("one", write("a.txt", "hi\n")))
    api.until(run, GATE)
    sent = api.http.post(f"/api/runs/{run}/steer", json={"kind": "send", "instruction": "Well done."})
    assert sent.status_code == 202
    reviewed = api.http.post(f"/api/runs/{run}/assembly/review", json={"approved": True})
    assert (reviewed.status_code, reviewed.json()["deferred"]) == (202, True)
    api.until(run, DONE)
    assert repository.files["a.txt"] == "hi"
    again = api.http.post(f"/api/runs/{run}/assembly/review", json={"approved": True})
    assert again.status_code == 409


def test_a_run_whose_driver_is_killed_goes_on_elsewhere_and_does_nothing_twice(
    replicas: Replicas, repository: Repository
) -> None:
    first, second = replicas.start(), replicas.start("api")
    api = Api(second)
    run = api.orchestrate(api.project(repository.path), part("one", slowly("a.txt", 40), write("b.txt", "end\n")))
    at_work(api, run)
    first.kill()
    replicas.start("worker")
    api.until(run, GATE)
    api.review(run, approved=True)
    frames = api.until(run, DONE)
    assert repository.files["b.txt"] == "end"
    assert [frame.id for frame in frames if frame.id] == list(range(1, len(frames) + 1))
    assert replicas.epochs()[run] == 2


def test_an_owner_that_was_stopped_for_too_long_does_nothing_more(replicas: Replicas, repository: Repository) -> None:
    replicas.leases = {"STEERSMAN_LEASE_STALE_SECONDS": "6"}
    first = replicas.start()
    api = Api(replicas.start("api"))
    run = api.orchestrate(api.project(repository.path), part("one", slowly("a.txt", 60), write("b.txt", "end\n")))
    at_work(api, run)
    pid = first.process.pid if first.process else 0
    os.kill(pid, signal.SIGSTOP)
    replicas.start("worker")
    wait_until(lambda: replicas.epochs().get(run) == 2, "another replica has taken the run over")
    os.kill(pid, signal.SIGCONT)
    api.until(run, GATE)
    api.review(run, approved=True)
    api.until(run, DONE)
    wait_until(lambda: "the leases lapsed" in first.log, "the first has noticed")
    # Everything of an epoch stands behind its first fact: nothing of the first one came after the second began.
    taken = [
        (row[0], row[1])
        for row in replicas.rows("SELECT position, state FROM events WHERE topic = 'run.lease_taken' ORDER BY position")
    ]
    assert len(taken) == 2
    assert repository.files["b.txt"] == "end"
    steersman("audit", "verify", "--data", replicas.data, STEERSMAN_DATABASE=replicas.database, expect=0)


def test_a_replica_that_is_told_to_end_hands_its_runs_over_at_once(replicas: Replicas, repository: Repository) -> None:
    first = replicas.start()
    api = Api(first)
    run = api.orchestrate(api.project(repository.path), part("one", write("a.txt", "hi\n")))
    api.until(run, GATE)
    second = replicas.start()
    assert first.stop() == 0
    wait_until(lambda: replicas.epochs()[run] == 2, "the other has the run")
    api = Api(second)
    api.review(run, approved=True)
    api.until(run, DONE)


def test_runs_are_spread_over_the_replicas(replicas: Replicas, repository: Repository) -> None:
    api = Api(replicas.start())
    replicas.start()
    project = api.project(repository.path)
    runs = [api.orchestrate(project, part("one", write(f"{n}.txt", "hi\n"))) for n in range(6)]
    for run in runs:
        api.until(run, GATE)

    def loads() -> list[int]:
        return sorted(count for _, count in replicas.rows("SELECT replica, count(*) FROM leases GROUP BY replica"))

    wait_until(lambda: loads() == [3, 3], f"each drives three: {loads()}")


def test_a_replica_on_another_data_directory_is_refused(replicas: Replicas, tmp_path: Path) -> None:
    replicas.start()
    words = steersman(
        *("serve", "--port", "0", "--data", tmp_path / "elsewhere"), expect=1, STEERSMAN_DATABASE=replicas.database
    )
    assert "is not the data directory" in words


def test_a_revision_whose_owner_is_killed_is_confirmed_elsewhere_and_its_feed_through_nginx_has_no_gap(
    replicas: Replicas, repository: Repository, tmp_path: Path
) -> None:
    owner, other = replicas.start("worker"), [replicas.start("api") for _ in range(2)]
    with nginx(tmp_path, *(service.url for service in other)) as url:
        direct, other[0].url = other[0].url, url
        api = Api(other[0])
        scope = part(
            "one", write("a.txt", "one\n"), {"append": {"path": "b.txt", "text": "x\n", "times": 40, "every_ms": 100}}
        )
        run = api.orchestrate(api.project(repository.path), scope)
        feed = api.feed(run)
        seen = feed.until(GATE)
        api.review(run, approved=False, request_changes=True, feedback="Say more.", target_files=["a.txt"])
        seen += feed.until("coordinator.revision_execution")
        assert owner.process is not None
        family = family_of(owner.process.pid)
        owner.kill()
        replicas.start("worker")
        wait_until(lambda: not any(map(is_alive, family)), "nothing of the first worker is alive")
        # The stream goes through the other replica from here on.
        feed.close()
        feed = api.feed(run, seen[-1].id)
        seen += feed.until(GATE)
        feed.close()
        (directive,) = api.get(f"/api/runs/{run}/steering")
        assert (directive["status"], directive["attempt"]) == ("applied", 1)
        states = [frame.data["state"] for frame in seen if frame.event == "coordinator.revision_execution"]
        assert states == ["initiated", "effect_confirmed"]
        assert [frame.id for frame in seen] == list(range(1, len(seen) + 1))
        api.review(run, approved=True)
        api.until(run, DONE)
        other[0].url = direct
