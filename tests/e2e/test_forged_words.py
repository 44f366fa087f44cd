"""Somebody who can write the store puts their words in the place of a person's: no agent hears them, and the service says so."""

import sqlite3
import subprocess
from contextlib import closing
from typing import Any

import psycopg

from steersman.tests.e2e.conftest import Repository
from steersman.tests.e2e.served import GATE, Api, Service, part, wait_until


def swap(service: Service, old: bytes, new: bytes) -> int:
    """Put other words in the place of some, wherever those are; return the first position of a fact that had them."""
    database = service.variables.get("STEERSMAN_DATABASE")
    mark, table = ("%s", "texts") if database else ("?", "kept_texts")
    connection: Any = psycopg.connect(database) if database else sqlite3.connect(service.data / "log.db")
    with closing(connection), connection:
        cursor = connection.cursor()
        rows = cursor.execute("SELECT position, digest, words FROM texts ORDER BY position").fetchall()
        found = [(words.replace(old, new), position, digest) for position, digest, words in rows if old in words]
        for changed in found:
            cursor.execute(f"UPDATE {table} SET words = {mark} WHERE position = {mark} AND digest = {mark}", changed)
    assert found
    return found[0][1]


def test_forged_words_are_never_a_prompt_and_the_service_raises_an_alarm(
    service: Service, repository: Repository
) -> None:
    api = Api(service.start())
    run_id = api.orchestrate(
        api.project(repository.path),
        part("First", {"run": ["sh", "-c", 'until test -e "$HOME/go on"; do sleep 0.1; done']}),
        part("Second, in honest words", {"echo_prompt": {"path": "heard.txt"}}, dependsOn=[0]),
    )
    api.until(run_id, "subtask.running")
    wait_until(lambda: any((service.data / "homes").glob("*")), "the first agent has its home")
    service.kill()
    position = swap(service, b"in honest words", b"and in MALLORY'S")
    api = Api(service.start())
    for home in (service.data / "homes").iterdir():
        (home / "go on").touch()
    health = wait_until(lambda: (found := api.get("/health"))["tampered"] and found, "the service has noticed")
    assert health["status"] == "degraded"
    assert position in [found["position"] for found in health["tampered"]]
    assert run_id in [found["name"] for found in health["quarantined"]]
    metrics = service.client().get("/metrics").text
    assert "\nsteersman_log_tampered 0.0" not in metrics
    answer = service.client().get(f"/api/runs/{run_id}/steering")
    assert "MALLORY" not in answer.text
    assert service.client().get("/api/events").text.count("MALLORY") == 0
    assert api.post(f"/api/runs/{run_id}/steer", {"kind": "stop", "instruction": "Stop."}, 503)["error"] == (
        "run_quarantined"
    )
    service.kill()
    swap(service, b"and in MALLORY'S", b"in honest words")
    api = Api(service.start())
    api.until(run_id, GATE)
    assert api.get("/health")["status"] == "ok"
    heard = subprocess.run(
        ["git", "-C", str(repository.path), "show", f"steersman/integration/{run_id}:heard.txt"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "in honest words" in heard
    assert "MALLORY" not in heard
