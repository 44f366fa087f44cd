"""A verifier that has nothing of ours, and ours, say the same of every sample that is kept: healthy, and changed in each way."""

import ast
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from steersman.adapters.audit.bundle import Bundle
from steersman.adapters.audit.log import audit
from steersman.adapters.audit.receipt import check_receipt
from steersman.adapters.audit.store import RunFacts, WholeLog
from steersman.adapters.postgres_log import LogDatastore, PostgresRecorder
from steersman.adapters.sqlite_log import SqliteRecorder, open_datastore
from steersman.application.verdict import Verdict
from steersman.tests.audit.outsider import verifier
from steersman.tests.audit.outsider.make_samples import SAMPLES
from steersman.tests.audit.outsider.tables import put, read

KINDS = ("sqlite", "postgres", "bundle", "run", "receipt")
KEY = (SAMPLES / "verifier.key").read_text(encoding="utf-8").strip()
#: What is not `tampered`, by the file's name: its verdict; of a receipt and of the rest.
SOUND = {"healthy": "steered", "sound-with-a-line-that-nobody-signed": "steered"}
SOUND |= {"open-at-its-end": "steered", "cut-and-open-at-its-end": "open"}


def samples(*kinds: str) -> Any:
    found = [path for kind in kinds for path in sorted((SAMPLES / kind).iterdir())]
    return pytest.mark.parametrize("sample", found, ids=[f"{path.parent.name}: {path.stem}" for path in found])


def assert_agreed(sample: Path, ours: Verdict, theirs: tuple[str, int | None]) -> None:
    """Both have the verdict that the sample is for; where both name a place, it is the same."""
    expected = SOUND.get(sample.stem, "tampered")
    assert (ours.verdict, theirs[0]) == (expected, expected), (ours.finding, theirs)
    place = ours.finding.position if ours.finding else None
    if theirs[1] is not None and place is not None:
        assert place == theirs[1], (ours.finding, theirs)


def test_there_are_ten_kinds_of_each() -> None:
    for kind in KINDS:
        changed = [path for path in (SAMPLES / kind).iterdir() if path.stem not in SOUND]
        assert len(changed) >= 10, kind
        assert any(path.stem == "healthy" for path in (SAMPLES / kind).iterdir())


def test_the_outsider_has_nothing_of_ours() -> None:
    tree = ast.parse(Path(verifier.__file__).read_text(encoding="utf-8"))
    names = {node.module if isinstance(node, ast.ImportFrom) else node.names[0].name for node in ast.walk(tree)
             if isinstance(node, ast.Import | ast.ImportFrom)}  # fmt: skip
    outside = {str(name).partition(".")[0] for name in names} - set(sys.stdlib_module_names)
    assert outside == {"cryptography"}


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
    assert_agreed(sample, ours, verifier.judged(verifier.verify_store, verifier.read_sqlite(path), lines))
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
    assert_agreed(sample, ours, verifier.judged(verifier.verify_store, tables, lines))
    assert one.verdict == ("steered" if sample.stem in SOUND else "tampered"), one.finding


@samples("bundle", "run")
def test_a_bundle(sample: Path) -> None:
    assert_agreed(sample, audit(Bundle(sample)), verifier.judged(verifier.verify_bundle, sample))


@samples("receipt")
def test_a_receipt(sample: Path) -> None:
    ours = check_receipt(sample.read_bytes(), KEY)
    assert_agreed(sample, ours, verifier.judged(verifier.verify_receipt, sample, KEY))


@pytest.mark.parametrize(("name", "code"), [("healthy", 10), ("flipped-byte", 20), ("cut-and-open-at-its-end", 30)])
def test_the_outsider_runs_alone(name: str, code: int, tmp_path: Path) -> None:
    sample = SAMPLES / "run" / f"{name}.bundle"
    alone = tmp_path / "verifier.py"
    alone.write_bytes(Path(verifier.__file__).read_bytes())
    done = subprocess.run([sys.executable, "-I", alone, "bundle", sample], capture_output=True, check=False)
    assert done.returncode == code, done.stderr
