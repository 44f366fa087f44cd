"""Somebody who can write the store puts their words in the place of a person's: no agent hears them, and the service says so."""

import hashlib
import sqlite3
from contextlib import closing
from pathlib import Path

from steersman.tests.e2e.conftest import Repository
from steersman.tests.e2e.served import GATE, Api, Service, part, wait_until


def swap(service: Service, old: bytes, new: bytes) -> int:
    """Put other words in the place of some, wherever those are; return the first position of a fact that had them."""
    with closing(sqlite3.connect(service.data / "log.db")) as connection, connection:
        rows = connection.execute("SELECT position, digest, words FROM texts").fetchall()
        found = [(position, digest, words) for position, digest, words in rows if old in words]
        for position, digest, words in found:
            changed = words.replace(old, new)
            assert hashlib.sha256(changed).hexdigest() != digest
            connection.execute(
                "UPDATE texts SET words = ? WHERE position = ? AND digest = ?", (changed, position, digest)
            )
    assert found
    return found[0][0]


def test_forged_words_are_never_a_prompt_and_the_service_raises_an_alarm(
    service: Service, repository: Repository, tmp_path: Path
) -> None:
    api, go_on = Api(service.start()), tmp_path / "go on"
    run_id = api.orchestrate(
        api.project(repository.path),
        part("First", {"run": ["sh", "-c", f"until test -e '{go_on}'; do sleep 0.1; done"]}),
        part("Second, in honest words", {"echo_prompt": {"path": "heard.txt"}}, dependsOn=[0]),
    )
    api.until(run_id, "subtask.running")
    service.kill()
    position = swap(service, b"in honest words", b"and in MALLORY'S")
    api = Api(service.start())
    go_on.touch()
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
    heard = [words for (words,) in _commits(repository.path, run_id)]
    assert any("in honest words" in words for words in heard)
    assert not any("MALLORY" in words for words in heard)


def _commits(path: Path, run_id: str) -> list[tuple[str]]:
    import subprocess

    shown = subprocess.run(
        ["git", "-C", str(path), "show", f"steersman/integration/{run_id}:heard.txt"],
        capture_output=True,
        text=True,
        check=True,
    )
    return [(shown.stdout,)]
