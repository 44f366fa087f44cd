"""A store from which somebody took something: no route answers 500, and what answers 503 for it is in /health and /metrics."""

import re
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from steersman.tests.e2e.conftest import Repository
from steersman.tests.e2e.served import GATE, Api, Service, part, wait_until

#: What a route needs besides, and who or what is nowhere.
PARAMETERS = {"index": 5, "size": 20, "from": 5, "to": 20}
NOBODY = "f36800fd-f2f8-418c-958e-aae3e4921ba6"
#: How an answer says that the log is not whole, and where /health and /metrics have it then.
TOLD: dict[str, tuple[Callable[[Any], object], str]] = {
    "log_damaged": (lambda health: health["damages"], "steersman_log_damages"),
    "log_tampered": (lambda health: health["tampered"], "steersman_log_tampered"),
    "log_not_signed": (lambda health: health["log_rolled_back"], "steersman_log_rolled_back"),
    "run_quarantined": (lambda health: health["quarantined"], "steersman_quarantined_facts"),
}


class Kept(NamedTuple):
    """A store that is whole, what is in it, and the service that it is of."""

    service: Service
    data: Path
    names: dict[str, str]


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kept]:
    """A run at its gate, corrected once; its service is dead."""
    home = tmp_path_factory.mktemp("cut")
    service = Service(home)
    api = Api(service.start())
    project = api.project(Repository(home / "repository").path)
    run = api.orchestrate(project, part("One", {"write": {"path": "a.txt", "text": "hi\n"}}))
    api.until(run, GATE)
    directive = api.post(f"/api/runs/{run}/steer", {"kind": "send", "instruction": "Well done."}, 201)["directiveId"]
    (child,) = api.get(f"/api/runs/{run}/children")
    wait_until(lambda: not any(v["lag"] for v in api.get("/health")["views"].values()), "the views are at the head")
    service.stop()
    shutil.copytree(service.data, home / "kept")
    names = {"run_id": run, "child": child["childRunId"], "project_id": project, "directive_id": directive}
    names |= {"directive": directive, "path": "a.txt", "name": "software-engineer"}
    try:
        yield Kept(service, home / "kept", names)
    finally:
        service.close()


def sql(*statements: str) -> Callable[[Path], None]:
    """Return what runs these statements on a store."""

    def run(data: Path) -> None:
        with closing(sqlite3.connect(data / "log.db")) as store, store:
            for statement in statements:
                store.execute(statement)

    return run


def truncate(data: Path) -> None:
    """Cut the file off in its middle, with all that was in it."""
    sql("PRAGMA wal_checkpoint(TRUNCATE)")(data)
    for beside in data.glob("log.db-*"):
        beside.unlink()
    with (data / "log.db").open("r+b") as file:
        file.truncate((data / "log.db").stat().st_size // 2)


CUTS: dict[str, Callable[[Path], None]] = {
    "its newest facts": sql("DELETE FROM events WHERE position > 20"),
    "its newest facts, words and all": sql(
        "DELETE FROM events WHERE position > 20", "DELETE FROM kept_texts WHERE position > 20"
    ),
    "a fact in the middle": sql("DELETE FROM events WHERE position = 12"),
    "its first fact": sql("DELETE FROM events WHERE position = 1"),
    "every fact": sql("DELETE FROM events"),
    "the receipt of a correction": sql("DELETE FROM events WHERE topic = 'coordinator.steering_received'"),
    "the inner nodes of its tree": sql("DELETE FROM nodes"),
    "all words": sql("DELETE FROM kept_texts"),
    "its head": sql("DELETE FROM head"),
    "the table of its facts": sql("DROP TABLE events"),
}


#: Over these no service starts, and why.
REFUSED = {
    "its head": "the head of the log is gone or was changed",
    "the table of its facts": "no such table: events",
    "half of its file": "disk image is malformed",
}


def routes(schema: Any, names: dict[str, str]) -> Iterator[str]:
    """Give each GET route with what is there in the place of its parameters: a run, and once more its child."""
    for path, methods in sorted(schema["paths"].items()):
        if "get" not in methods:
            continue
        query = {
            parameter["name"]: PARAMETERS[parameter["name"]]
            for parameter in methods["get"].get("parameters", [])
            if parameter["in"] == "query" and parameter.get("required")
        }
        for run in dict.fromkeys((names["run_id"], names["child"])) if "{run_id}" in path else ("",):
            filled = re.sub(
                r"{(\w+)[^}]*}", lambda found, run=run: (names | {"run_id": run}).get(found[1], NOBODY), path
            )
            yield str(httpx.URL(filled, params=query) if query else filled)


def ask(http: httpx.Client, path: str) -> tuple[int, str]:
    """Return the status and the error word; of a feed no more than how it begins."""
    with http.stream("GET", path) as response:
        if "text/event-stream" in response.headers.get("content-type", ""):
            return response.status_code, ""
        response.read()
        problem = "problem+json" in response.headers.get("content-type", "")
        return response.status_code, response.json()["error"] if problem else ""


def gauges(http: httpx.Client) -> dict[str, float]:
    """Return what /metrics says, by name."""
    lines = [line.split() for line in http.get("/metrics").text.splitlines() if not line.startswith("#")]
    return {line[0]: float(line[1]) for line in lines if len(line) == 2}


def assert_told(http: httpx.Client, answers: dict[str, tuple[int, str]]) -> None:
    """No answer is a 500, and /health and /metrics have each kind of damage that is the reason of a 503."""
    assert {status for status, _ in answers.values()} <= {200, 400, 404, 409, 503}, answers
    words = {word for path, (status, word) in answers.items() if status == 503 and not path.endswith("/health")}
    health, metrics = http.get("/health").json(), gauges(http)
    if "log_unavailable" in words:
        assert (health["log"], metrics["steersman_log_up"]) == ("unavailable", 0.0)
    for word in words - {"log_unavailable"}:
        named, gauge = TOLD[word]
        assert named(health), (word, health)
        assert metrics[gauge] > 0, (word, metrics)
        assert health["status"] != "ok"


def put_back(kept: Kept) -> None:
    shutil.rmtree(kept.service.data)
    shutil.copytree(kept.data, kept.service.data)


@pytest.mark.parametrize("cut", CUTS)
def test_no_route_answers_500_and_health_and_metrics_know_what_a_route_knows(kept: Kept, cut: str) -> None:
    put_back(kept)
    http = Api(kept.service.start()).http
    paths = list(routes(http.get("/schema").json(), kept.names))
    try:
        before = {path: ask(http, path) for path in paths}
        assert_told(http, before)
        assert http.get("/health").json()["status"] == "ok"
        CUTS[cut](kept.service.data)
        assert_told(http, {path: ask(http, path) for path in paths})
    finally:
        kept.service.kill()


@pytest.mark.parametrize("cut", [*CUTS, "half of its file"])
def test_a_service_that_is_started_over_such_a_store_says_the_same_and_one_without_any_says_why(
    kept: Kept, cut: str
) -> None:
    put_back(kept)
    CUTS.get(cut, truncate)(kept.service.data)
    if cut in REFUSED:
        with pytest.raises(AssertionError, match=REFUSED[cut]):
            kept.service.start()
        return
    http = Api(kept.service.start()).http
    try:
        paths = list(routes(http.get("/schema").json(), kept.names))
        assert_told(http, {path: ask(http, path) for path in paths})
        assert (http.get("/health").json()["status"] == "ok") == (cut == "all words"), "words may be forgotten"
    finally:
        kept.service.kill()
