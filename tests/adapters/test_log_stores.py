"""What is particular to a store: its files forget what was erased, and every statement stays cheap in a long log."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import msgspec
import psycopg
import pytest

from steersman.adapters.log.rows import SELECT_ROWS
from steersman.adapters.stores import postgres_log, postgres_schema, sqlite_log, sqlite_schema
from steersman.adapters.stores.postgres_log import LogDatastore, PostgresLog, PostgresRecorder
from steersman.adapters.stores.postgres_statements import native
from steersman.adapters.stores.schema_steps import read_steps
from steersman.adapters.stores.sqlite_log import SqliteLog, SqliteRecorder, open_datastore
from steersman.application.ports.log import Append
from steersman.domain.event import Draft, Event, Text


class Said(Event, frozen=True, kw_only=True):
    TOPIC = "test.said"

    words: Text


class Uttered(Said, frozen=True, kw_only=True):
    TOPIC = "test.uttered"
    OUTPUT = True


def said(words: str) -> Append:
    draft = Draft(stream="s", event=Said(words=Text(words)), run="r", root="r")
    return Append(drafts=(draft,), expected={"s": 0}, at=datetime.now(UTC), principal="ada", command_id="c1")


def test_erased_words_are_in_no_file_of_the_sqlite_log(tmp_path: Path) -> None:
    log = SqliteLog(tmp_path / "log.db", {Said.TOPIC: Said})
    log.append(said("the words to be forgotten"))
    assert any(b"to be forgotten" in file.read_bytes() for file in tmp_path.iterdir())
    assert log.erase_texts(["r"]) == 1
    assert not any(b"to be forgotten" in file.read_bytes() for file in tmp_path.iterdir())
    log.close()


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_an_erasure_goes_by_the_facts_and_not_by_what_a_text_says_of_itself(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    place: Any = tmp_path / "log.db" if kind == "sqlite" else request.getfixturevalue("postgres_url")
    log: Any = (SqliteLog if kind == "sqlite" else PostgresLog)(place, {e.TOPIC: e for e in (Said, Uttered)})
    drafts = [
        Draft(stream=f"{run}/s", event=e(words=Text(run)), run=run, root=run) for run in "rq" for e in (Said, Uttered)
    ]
    expected = {"r/s": 0, "q/s": 0}
    log.append(Append(drafts=tuple(drafts), expected=expected, at=datetime.now(UTC), principal="ada", command_id="c1"))
    connect: Callable[[Any], Any] = sqlite3.connect if kind == "sqlite" else psycopg.connect
    with closing(connect(place)) as connection:
        table = "kept_texts" if kind == "sqlite" else "texts"
        connection.execute(
            f"UPDATE {table} SET run = CASE run WHEN 'r' THEN 'q' ELSE 'r' END, is_output = NOT is_output"
        )
        connection.commit()

    def words() -> list[str | None]:
        return [fact.event.words.value for fact in log.read()]

    assert (log.erase_texts(["r"], output_only=True), words()) == (1, ["r", None, "q", "q"])
    assert (log.erase_texts(["r"]), words()) == (1, [None, None, "q", "q"])
    log.close()


def test_an_erasure_on_sqlite_is_index_look_ups(tmp_path: Path) -> None:
    recorder = SqliteRecorder(open_datastore(tmp_path / "log.db"))
    recorder.create_table()
    for statement, values in (
        recorder._erasing(["r", "q"], output_only=True, before="now"),
        recorder._erasing_stream("s"),
    ):
        plan = [row["detail"] for row in recorder._select(f"EXPLAIN QUERY PLAN {statement}", values)]
        assert any(step.startswith("SEARCH kept_texts USING INDEX kept_texts_digest") for step in plan)
        assert not any("SCAN events" in step or "SCAN kept_texts" in step for step in plan)
    recorder.close()


def test_an_erasure_on_postgres_is_index_look_ups(postgres_url: str) -> None:
    recorder = PostgresRecorder(LogDatastore(postgres_url))
    recorder.create_table()
    with psycopg.connect(postgres_url) as connection:
        connection.execute(postgres_log.SETTINGS)
        for (statement, values), index in (
            (recorder._erasing(["r", "q"], output_only=True, before="now"), "events_run"),
            (recorder._erasing_stream("s"), "events_stream"),
        ):
            plan = "\n".join(row[0] for row in connection.execute(native(f"EXPLAIN {statement}"), values).fetchall())
            assert "texts_pkey" in plan
            assert index in plan
            assert "Seq Scan" not in plan
    recorder.close()


def test_sqlite_syncs_every_commit(tmp_path: Path) -> None:
    recorder = SqliteRecorder(open_datastore(tmp_path / "log.db"))
    recorder.create_table()
    assert [recorder._select(f"PRAGMA {name}", ())[0][0] for name in ("synchronous", "journal_mode")] == [2, "wal"]
    recorder.close()


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT max(version) FROM events WHERE stream = ?",
        "SELECT max(run_sequence) FROM events WHERE run = ?",
        "SELECT max(root_sequence) FROM events WHERE root = ?",
        "SELECT position, run, state FROM events WHERE command_id = ? ORDER BY position",
    ],
)
def test_numbering_on_sqlite_is_an_index_look_up(tmp_path: Path, statement: str) -> None:
    assert statement in Path(sqlite_log.__file__).read_text(encoding="utf-8")
    recorder = SqliteRecorder(open_datastore(tmp_path / "log.db"))
    recorder.create_table()
    plan = [row["detail"] for row in recorder._select(f"EXPLAIN QUERY PLAN {statement}", ("x",))]
    assert plan
    assert all(step.startswith("SEARCH events USING") for step in plan)
    recorder.close()


def test_numbering_on_postgres_is_index_look_ups(postgres_url: str) -> None:
    recorder = PostgresRecorder(LogDatastore(postgres_url))
    recorder.create_table()
    names = {name: ["x"] for name in ("streams", "runs", "roots", "commands", "leases")}
    with psycopg.connect(postgres_url) as connection:
        connection.execute(postgres_log.SETTINGS)
        plan = "\n".join(row[0] for row in connection.execute(f"EXPLAIN {postgres_log.KNOWN}", names).fetchall())
    assert "Seq Scan" not in plan
    for index in ("events_stream", "events_run", "events_root", "events_command"):
        assert index in plan
    recorder.close()


TREE = f"SELECT position, run, state FROM events WHERE {SELECT_ROWS['root_sequence']} LIMIT ?"


def test_a_tree_is_read_past_its_output_on_sqlite(tmp_path: Path) -> None:
    recorder = SqliteRecorder(open_datastore(tmp_path / "log.db"))
    recorder.create_table()
    (plan,) = (row["detail"] for row in recorder._select(f"EXPLAIN QUERY PLAN {TREE}", ("r", 1, 500)))
    assert plan == "SEARCH events USING INDEX events_decided (root=? AND root_sequence>?)"
    recorder.close()


@pytest.mark.parametrize("is_long", [False, True])
def test_a_tree_is_read_past_its_output_on_postgres(postgres_url: str, is_long: bool) -> None:
    recorder = PostgresRecorder(LogDatastore(postgres_url))
    recorder.create_table()
    with psycopg.connect(postgres_url) as connection:
        connection.execute(postgres_log.SETTINGS)
        if is_long:
            connection.execute(
                "INSERT INTO events (position, stream, version, topic, state, run, run_sequence, root, root_sequence,"
                " is_output, leaf_hash) SELECT n, 'r/output', n, 't', '', 'r', n, 'r', n, n % 100 > 0, ''"
                " FROM generate_series(1, 5000) AS n"
            )
            connection.execute("ANALYZE events")
        prepared = native(f"PREPARE tree (text, bigint, bigint) AS {TREE}".replace("?", "{}").format("$1", "$2", "$3"))
        connection.execute(prepared)
        plan = "\n".join(row[0] for row in connection.execute("EXPLAIN EXECUTE tree ('r', 4000, 500)").fetchall())
    assert "events_decided" in plan
    assert "Filter" not in plan
    recorder.close()


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_log_of_the_first_release_gets_the_index_before_a_newer_one_serves(
    kind: Literal["sqlite", "postgres"], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    place: Any = tmp_path / "log.db" if kind == "sqlite" else request.getfixturevalue("postgres_url")
    schema: Any = sqlite_schema if kind == "sqlite" else postgres_schema
    connect: Callable[[Any], Any] = sqlite3.connect if kind == "sqlite" else psycopg.connect
    first, *later = read_steps(kind)
    schema.migrate(place, steps=[first])
    with closing(connect(place)) as connection:
        connection.execute("DROP INDEX events_decided")
        connection.commit()
    # Without what makes the tables of an empty store: that would make the index, too.
    taken = schema.migrate(place, steps=[msgspec.structs.replace(first, sql=""), *later])
    assert [step.number for step in taken] == [step.number for step in later]
    with closing(connect(place)) as connection:
        connection.execute("DROP INDEX events_decided")


def test_facts_of_one_batch_may_stand_inside_and_outside_runs_on_postgres(postgres_url: str) -> None:
    log = PostgresLog(postgres_url, {Said.TOPIC: Said})
    outside = Draft(stream="p", event=Said(words=Text("w")))
    first = said("x")
    mixed = Append(
        drafts=(outside, *first.drafts), expected={"p": 0, "s": 0}, at=first.at, principal="a", command_id="c"
    )
    assert [(f.run, f.run_sequence) for f in log.append(mixed)] == [(None, None), ("r", 1)]
    alone = Append(drafts=(outside,), expected={"p": 1}, at=first.at, principal="a", command_id="d")
    assert [(f.position, f.run, f.root_sequence) for f in log.append(alone)] == [(3, None, None)]
    log.close()
