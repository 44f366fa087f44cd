"""The whole service: receipts over HTTP verify offline with other people's programs, and real runs are sound."""

import json
import sqlite3
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path

import httpx
import proofbundle
import pytest

from steersman.adapters.log_format.merkle import proves_consistency
from steersman.adapters.log_format.signed_note import bytes_of, parse_checkpoint
from steersman.adapters.log_format.tree_heads import parse_tree_head
from steersman.tests.e2e.conftest import Repository
from steersman.tests.e2e.served import GATE, Api, Service, part, steersman, write


class Told:
    """A service that took one run through a correction to its merge, and what it answered on the way."""

    def __init__(self, service: Service, repository: Repository) -> None:
        self.service = service
        self.api = Api(service)
        self.run_id = self.api.orchestrate(
            self.api.project(repository.path),
            part("One", write("one.txt", "1\n")),
            part("Two", write("two.txt", "2\n")),
        )
        first = self.api.until(self.run_id, GATE)[-1].id
        self.steered = self.api.post(
            f"/api/runs/{self.run_id}/steer", {"kind": "amend", "instruction": "Say it in words."}, 201
        )
        self.pin = self.text("/api/log/checkpoint")
        feed = self.api.feed(self.run_id, first)
        feed.until(GATE)
        feed.close()
        service.kill()
        service.start()
        self.api = Api(service)
        self.api.review(self.run_id, approved=True)
        self.api.until(self.run_id, "coordinator.assembly_completed")

    def text(self, path: str) -> str:
        """Return an answer that is no JSON."""
        response: httpx.Response = self.service.client().get(path, headers={"Accept": "text/plain"})
        assert (response.status_code, response.headers["content-type"].split(";")[0]) == (200, "text/plain")
        return response.text


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Told]:
    """One service for all of these; each test only looks."""
    home = tmp_path_factory.mktemp("told")
    service = Service(home)
    try:
        service.start()
        yield Told(service, Repository(home / "repository"))
    finally:
        service.close()


def test_a_steering_answer_carries_its_receipt_and_both_forms_of_it_verify_offline(told: Told) -> None:
    receipt, directive = told.steered["receipt"], told.steered["directiveId"]
    detail = told.api.get(f"/api/receipts/{directive}")
    assert receipt == {name: detail[name] for name in ("position", "payloadHash", "receiptHash")} | {
        "leafIndex": detail["index"]
    }
    assert detail["index"] == receipt["position"] - 1
    key = told.api.get("/api/log/key")["verifier_key"]
    envelope = b64decode(detail["leaf"])
    assert json.loads(envelope)["topic"] == "coordinator.steering_received"
    hashes = [bytes_of(step) for step in detail["proof"]]
    assert proofbundle.verify_inclusion(envelope, detail["index"], detail["size"], hashes, bytes_of(detail["root"]))
    answer = proofbundle.verify_tlog_proof(told.text(f"/api/receipts/{directive}"), envelope, key)
    assert answer["ok"], answer


def test_a_receipt_is_shown_to_whoever_may_see_the_run_and_nobody_else(told: Told) -> None:
    path = f"/api/receipts/{told.steered['directiveId']}"
    mallory = told.service.client(told.service.issue("mallory"))
    assert mallory.get(path).status_code == 403
    assert httpx.get(told.service.url + path).status_code == 401
    assert told.api.get("/api/receipts/nobody", 404)["error"] == "directive_not_found"


def test_checkpoints_are_consistent_and_proofs_are_refused_where_there_is_no_tree(told: Told) -> None:
    older, newer = parse_checkpoint(told.pin), parse_checkpoint(told.text("/api/log/checkpoint"))
    proof = told.api.get(f"/api/log/proof/consistency?from={older.size}&to={newer.size}")
    hashes = [bytes_of(step) for step in proof["hashes"]]
    assert proves_consistency(older.size, newer.size, hashes, older.root, newer.root)
    inclusion = told.api.get(f"/api/log/proof/inclusion?index=0&size={newer.size}")
    assert inclusion["root"] == proof["new_root"]
    for query, status in (
        (f"consistency?from=1&to={newer.size + 1000}", 404),
        ("consistency?from=5&to=4", 400),
        (f"inclusion?index={newer.size}&size={newer.size}", 404),
        ("inclusion?index=-1&size=1", 400),
        ("inclusion?index=0&size=1&size=2", 400),
    ):
        told.api.get(f"/api/log/proof/{query}", status)


def test_the_audit_of_a_run_lists_its_corrections(told: Told) -> None:
    verdict = told.api.get(f"/api/runs/{told.run_id}/audit")
    assert (verdict["verdict"], verdict["finding"]) == ("steered", None)
    (step,) = verdict["steps"]
    assert (step["directive_id"], step["status"]) == (told.steered["directiveId"], "applied")
    assert step["receipt_hash"] == told.steered["receipt"]["receiptHash"]


def test_a_served_log_is_audited_beside_its_service_with_its_views(told: Told, tmp_path: Path) -> None:
    pin = tmp_path / "pin"
    pin.write_text(told.pin, encoding="utf-8")
    shown = steersman("audit", "verify", "--data", told.service.data, "--pin", pin, "--json", expect=10)
    verdict = json.loads(shown.splitlines()[0])
    assert (verdict["verdict"], verdict["finding"], verdict["pinned"]) == ("steered", None, True)
    assert verdict["views"] > 0


def test_a_view_that_somebody_wrote_is_found(told: Told, tmp_path: Path) -> None:
    """On a copy: the service that serves the original goes on."""
    copy = tmp_path / "data"
    copy.mkdir(mode=0o700)
    for name in ("log.db", "views.db"):
        with sqlite3.connect(told.service.data / name) as source, sqlite3.connect(copy / name) as target:
            source.backup(target)
        source.close()
        target.close()
    with sqlite3.connect(copy / "views.db") as views:
        (table,) = [
            name
            for (name,) in views.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            if {"key", "body"} <= {row[1] for row in views.execute(f"PRAGMA table_info({name})")}
        ]
        body = "replace(CAST(body AS TEXT), 'completed', 'declined')"
        changed = views.execute(f"UPDATE {table} SET body = CAST({body} AS BLOB) WHERE body != CAST({body} AS BLOB)")
        assert changed.rowcount
    views.close()
    shown = steersman("audit", "verify", "--data", copy, "--json", expect=20)
    assert json.loads(shown.splitlines()[0])["finding"]["reason"] == "a view is not what the facts fold into"


def test_a_witness_visits_a_service_over_http_and_its_pins_are_pins(told: Told, tmp_path: Path) -> None:
    folder, reached = (
        tmp_path / "witness",
        {"STEERSMAN_SERVER_URL": told.service.url, "STEERSMAN_TOKEN": told.service.token},
    )
    visit = ("audit", "watch", "--keep", folder, "--name", "example.org/witness", "--once")
    assert "first seen" in steersman(*visit, **reached)
    answer = json.loads(steersman(*visit, "--json", **reached))
    witness, size = answer["witness"], answer["visit"]["size"]
    assert size == parse_checkpoint(told.text("/api/log/checkpoint")).size
    pinned = ("--pin", folder / "pins.log", "--witness", witness)
    shown = steersman("audit", "verify", "--data", told.service.data, *pinned, "--json", expect=10)
    verdict = json.loads(shown.splitlines()[0])
    assert (verdict["rests_on"], verdict["finding"]) == ("a checkpoint that you kept", None)
    changed = json.loads((folder / "pins.log").read_text(encoding="utf-8").splitlines()[-1])
    (folder / "pins.log").write_text(json.dumps(changed.replace(f"\n{size}\n", f"\n{size + 9}\n")), encoding="utf-8")
    assert "the log was cut" in steersman(*visit, expect=20, **reached)
    assert (folder / "evidence.log").exists()
    assert "could not be looked at" in steersman(
        *visit, expect=30, **{**reached, "STEERSMAN_SERVER_URL": "http://127.0.0.1:9"}
    )


def test_the_audit_of_a_run_says_signed_where_it_ends(told: Told) -> None:
    verdict = told.api.get(f"/api/runs/{told.run_id}/audit")
    head = parse_tree_head(verdict["tree_head"])
    assert (head.run, head.length, head.size) == (told.run_id, verdict["complete_to"], verdict["size"])
    assert (verdict["chained"], verdict["not_checked"], verdict["open_at_end"]) == (verdict["facts"], [], False)
