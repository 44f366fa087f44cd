"""A verifier that has nothing of ours, and ours, say the same of every sample that is kept: healthy, and changed in each way."""

import ast
import json
import shutil
import sqlite3
import subprocess
import sys
from base64 import b64decode, b64encode
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from steersman.adapters.audit.bundle import Bundle
from steersman.adapters.audit.log import audit
from steersman.adapters.audit.store import RunFacts, WholeLog
from steersman.adapters.log.receipt import check_receipt
from steersman.adapters.log_format.keys import new_keys
from steersman.adapters.log_format.merkle import leaf_hash
from steersman.adapters.log_format.signed_note import Checkpoint, public_bytes, sign
from steersman.adapters.log_format.signed_note import verifier_key as public_key
from steersman.adapters.stores.postgres_log import LogDatastore, PostgresRecorder
from steersman.adapters.stores.sqlite_log import SqliteRecorder, open_datastore
from steersman.application.ports.verdict import AuditVerdict
from steersman.tests.audit.outsider.make_samples import SAMPLES
from steersman.tests.audit.outsider.tables import put, read
from steersman.tests.audit.outsider.verifier.bundles import verify_bundle
from steersman.tests.audit.outsider.verifier.notes import verifier_key
from steersman.tests.audit.outsider.verifier.receipts import verify_receipt
from steersman.tests.audit.outsider.verifier.stores import verify_folder, verify_tables
from steersman.tests.audit.outsider.verifier.trust import Trust, read_topics
from steersman.tests.audit.outsider.verifier.trust import Verdict as Theirs
from steersman.tests.audit.outsider.verifier.verify import judged

KINDS = ("sqlite", "postgres", "bundle", "run", "receipt")
KEY = (SAMPLES / "verifier.key").read_text(encoding="utf-8").strip()
VERIFIER = Path(__file__).parent / "verifier"
TRUST = Trust(topics=read_topics((Path(__file__).parents[3] / "docs/topics.txt").read_text(encoding="utf-8")))
#: What is not `tampered`, by the file's name: its verdict; of a receipt and of the rest.
SOUND = {"healthy": "steered", "sound-with-a-line-that-nobody-signed": "steered"}
SOUND |= {"open-at-its-end": "steered", "cut-and-open-at-its-end": "open"}


def samples(*kinds: str) -> Any:
    found = [path for kind in kinds for path in sorted((SAMPLES / kind).iterdir())]
    return pytest.mark.parametrize("sample", found, ids=[f"{path.parent.name}: {path.stem}" for path in found])


def assert_agreed(sample: Path, ours: AuditVerdict, theirs: Theirs) -> None:
    """Both have the verdict that the sample is for, and name the same place."""
    expected = SOUND.get(sample.stem, "tampered")
    assert (ours.verdict, theirs.verdict) == (expected, expected), (ours.finding, theirs)
    assert (ours.finding.position if ours.finding else None) == theirs.position, (ours.finding, theirs)


def test_there_are_ten_kinds_of_each() -> None:
    for kind in KINDS:
        changed = [path for path in (SAMPLES / kind).iterdir() if path.stem not in SOUND]
        assert len(changed) >= 10, kind
        assert any(path.stem == "healthy" for path in (SAMPLES / kind).iterdir())


def test_the_outsider_has_nothing_of_ours() -> None:
    names = set[str]()
    for path in VERIFIER.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                assert node.level in (0, 1), "nothing above the folder"
                names |= {str(node.module)} if node.level == 0 else set()
    assert {name.partition(".")[0] for name in names} - set(sys.stdlib_module_names) == {"cryptography"}


@samples("sqlite")
def test_a_store_in_sqlite(sample: Path, tmp_path: Path) -> None:
    tables, lines = read(sample)
    path, checkpoints = tmp_path / "log.db", tmp_path / "checkpoints.log"
    checkpoints.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    recorder = SqliteRecorder(open_datastore(path))
    recorder.create_table()
    with closing(sqlite3.connect(path)) as connection, connection:
        put(connection.cursor(), "?", tables)
    ours = audit(WholeLog(recorder, checkpoints))
    one = audit(RunFacts(recorder, "r"))
    recorder.close()
    assert_agreed(sample, ours, judged(verify_folder, tmp_path, TRUST))
    assert one.verdict == ("steered" if sample.stem in SOUND else "tampered"), one.finding


@samples("postgres")
def test_a_store_in_postgresql(sample: Path, tmp_path: Path, postgres_url: str) -> None:
    tables, lines = read(sample)
    checkpoints = tmp_path / "checkpoints.log"
    checkpoints.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    recorder = PostgresRecorder(LogDatastore(postgres_url))
    recorder.create_table()
    with psycopg.connect(postgres_url) as connection:
        put(connection.cursor(), "%s", tables)
    ours = audit(WholeLog(recorder, checkpoints))
    one = audit(RunFacts(recorder, "r"))
    recorder.close()
    assert_agreed(sample, ours, judged(verify_tables, tables, lines, TRUST))
    assert one.verdict == ("steered" if sample.stem in SOUND else "tampered"), one.finding


@samples("bundle", "run")
def test_a_bundle(sample: Path) -> None:
    assert_agreed(sample, audit(Bundle(sample)), judged(verify_bundle, sample, TRUST))


@samples("receipt")
def test_a_receipt(sample: Path) -> None:
    ours = check_receipt(sample.read_bytes(), KEY)
    assert_agreed(sample, ours, judged(verify_receipt, sample, verifier_key(KEY)))


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        ({}, "steered"),
        ({"topic": "run.paused"}, "tampered"),
        ({"position": 2}, "tampered"),
        ({"v": "1"}, "tampered"),
    ],
)
def test_a_receipt_of_what_a_log_did_sign_and_is_no_receipt(
    change: dict[str, Any], verdict: str, tmp_path: Path
) -> None:
    kept = json.loads((SAMPLES / "receipt" / "healthy.json").read_bytes())
    envelope = json.dumps(json.loads(b64decode(kept["leaf"])) | {"position": 1} | change).encode()
    key, leaf = new_keys().signing, leaf_hash(envelope)
    signed = Checkpoint(origin="log", size=1, root=leaf)
    made = {"leaf": b64encode(envelope).decode(), "leafHash": leaf.hex(), "position": 1, "index": 0, "proof": []}
    made |= {"size": 1, "root": b64encode(leaf).decode(), "checkpoint": sign(signed, key)}
    document = tmp_path / "receipt.json"
    document.write_text(json.dumps(kept | made), encoding="utf-8")
    trusted = public_key("log", public_bytes(key.public_key()))
    ours = check_receipt(document.read_bytes(), trusted)
    theirs = judged(verify_receipt, document, verifier_key(trusted))
    assert (ours.verdict, theirs.verdict) == (verdict, verdict), (ours.finding, theirs)


@pytest.mark.parametrize(("name", "code"), [("healthy", 10), ("flipped-byte", 20), ("cut-and-open-at-its-end", 30)])
def test_the_outsider_runs_alone(name: str, code: int, tmp_path: Path) -> None:
    sample = SAMPLES / "run" / f"{name}.bundle"
    shutil.copytree(VERIFIER, tmp_path / "verifier")
    command = [sys.executable, "-E", "-s", "-m", "verifier", "bundle", str(sample), "--key", KEY]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False)
    assert done.returncode == code, done.stderr
