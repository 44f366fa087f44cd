"""SQLite keeps any type in any column: whatever somebody puts where, an auditor has a verdict on it, never a traceback."""

import io
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from steersman.adapters.audit.bundle import write_bundle
from steersman.adapters.audit.log import audit
from steersman.adapters.audit.store import RunFacts, WholeLog
from steersman.adapters.log_format.entry import Unreadable
from steersman.application.ports.verdict import AuditVerdict
from steersman.tests.audit.conftest import World
from steersman.tests.audit.facts import steered, unsteered
from steersman.tests.audit.test_tampering import found

#: One of each kind of value that SQLite knows, and text and bytes that look like what belongs there.
VALUES = ("x", "zz", "AAAA", "a" * 64, b"\xff", bytes(31), 5, -1, 2.5, None)
#: The columns that the log's own tables have, of a row that the audits below look at.
PLACES = {
    "events": (
        "WHERE position = 3",
        "stream version topic state run run_sequence root root_sequence is_output command_id at leaf_hash mac",
    ),
    "texts": ("WHERE position = 3", "digest salt words"),
    "nodes": ("WHERE level = 4 AND number = 1", "hash"),
    "head": ("", "position edge mac signer note"),
}


@pytest.fixture
def told(tmp_path: Path) -> Iterator[World]:
    """A log of 36 facts; run `r`, corrected from position 7 on, ends before the last node is complete."""
    with ExitStack() as stack:
        world = World("sqlite", tmp_path / "log.db", tmp_path, stack)
        log = world.open()
        steered(log)
        for run in ("one", "two", "three", "four"):
            unsteered(log, run)
        log.close()
        yield world


def put_value(world: World, table: str, column: str, value: object) -> object:
    """Put a value where another stands, and return that."""
    where = PLACES[table][0]
    with closing(sqlite3.connect(world.place)) as connection, connection:
        connection.execute("PRAGMA ignore_check_constraints = 1")
        table = "kept_texts" if table == "texts" else table
        before = connection.execute(f"SELECT {column} FROM {table} {where} LIMIT 1").fetchone()[0]
        connection.execute(f"UPDATE {table} SET {column} = ? {where}", (value,))
    return before


def verdicts(world: World) -> Iterator[AuditVerdict]:
    """Audit the store as a whole, and one run of it; write the bundle of each, or hear that it cannot be written."""
    recorder = world.recorder()
    for source in (WholeLog(recorder, world.checkpoints), RunFacts(recorder, "r")):
        yield audit(source, hmac_keys=world.hmac_keys)
        try:
            write_bundle(source, io.BytesIO())
        except Unreadable:
            continue
    recorder.close()


@pytest.mark.parametrize(("table", "column"), [(t, c) for t, (_, names) in PLACES.items() for c in names.split()])
def test_a_value_of_another_type_is_a_verdict_and_never_a_traceback(told: World, table: str, column: str) -> None:
    for value in VALUES:
        try:
            before = put_value(told, table, column, value)
        except sqlite3.IntegrityError:
            continue  # the table itself refuses it
        whole, one = verdicts(told)
        assert (whole.verdict, whole.finding is not None) == ("tampered", True), (value, whole.finding)
        assert one.verdict in ("tampered", "unchecked"), (value, one.finding)
        put_value(told, table, column, before)
    assert [verdict.verdict for verdict in verdicts(told)] == ["steered", "steered"]


@pytest.mark.parametrize(
    ("table", "column", "value", "position", "field"),
    [
        ("nodes", "hash", "x", 32, "nodes"),
        ("texts", "words", "abc", 3, "texts"),
        ("texts", "salt", 5, 3, "texts"),
        ("events", "is_output", "x", 3, "is_output"),
        ("head", "note", b"\xff", None, "head"),
        ("head", "position", "zz", None, "head"),
        ("head", "mac", 5, None, "head"),
        ("head", "edge", "x", None, "head"),
    ],
)
def test_a_value_of_another_type_is_named_with_its_place(
    told: World, table: str, column: str, value: object, position: int | None, field: str
) -> None:
    put_value(told, table, column, value)
    for verdict in verdicts(told):
        finding: Any = verdict.finding
        assert (verdict.verdict, finding.position, finding.field) == ("tampered", position, field)


def test_a_note_that_is_none_is_tampering_and_no_lack_of_one(told: World) -> None:
    put_value(told, "head", "note", 5)  # which SQLite keeps as the text
    for verdict in verdicts(told):
        assert found(verdict) == ("tampered", 20, None, "head")
