"""The tables change in numbered steps: each once, as a whole, in order, and never under a release that cannot bear it."""

import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from threading import Barrier
from typing import Any, Literal

import psycopg
import pytest

from steersman.adapters.stores import postgres_schema, schema_steps, sqlite_schema
from steersman.adapters.stores.memory import MemoryWakeups
from steersman.adapters.stores.postgres_log import PostgresLog
from steersman.adapters.stores.schema_steps import FILES, SchemaStep, SchemaUnfit, read_steps
from steersman.domain.kinds.catalogue import CATALOGUE

STORES: Sequence[Literal["postgres", "sqlite"]] = ("postgres", "sqlite")
FIRST = {store: read_steps(store)[0] for store in STORES}
A_FACT = "INSERT INTO events (position, stream, version, topic, state, leaf_hash) VALUES (1, 's', 1, 't', '', '')"


def step(number: int, phase: Literal["before", "after"], sql: str) -> SchemaStep:
    """Return a step."""
    return SchemaStep(number=number, phase=phase, name=f"name{number}", sql=sql)


ADD = step(2, "before", "CREATE TABLE added (n integer);\nINSERT INTO added VALUES (1);\n")
DROP = step(3, "after", "DROP TABLE added;")
AGAIN = step(4, "before", "CREATE TABLE again (n integer);")


class Store:
    """One store, the steps that this test has for it, and its plain SQL."""

    def __init__(self, kind: Literal["postgres", "sqlite"], where: Any) -> None:
        self.where = where
        self.first = FIRST[kind]
        self._schema: Any = postgres_schema if kind == "postgres" else sqlite_schema
        self._connect: Callable[[], Any] = partial((psycopg if kind == "postgres" else sqlite3).connect, where)

    def migrate(self, *steps: SchemaStep) -> list[int]:
        """Take all steps; return which were taken."""
        return [one.number for one in self._schema.migrate(self.where, steps=(self.first, *steps))]

    @property
    def applied(self) -> dict[int, str]:
        """What was taken so far."""
        return dict(self._schema.applied(self.where))

    def run(self, statement: Any) -> list[Any]:
        """Run a statement."""
        with closing(self._connect()) as connection:
            cursor = connection.execute(statement)
            rows = cursor.fetchall() if cursor.description else []
            connection.commit()
            return rows


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """An empty store."""
    if request.param == "postgres":
        return Store("postgres", request.getfixturevalue("postgres_url"))
    return Store("sqlite", tmp_path / "log.db")


def test_each_step_is_taken_once_and_kept_on_record(store: Store) -> None:
    assert store.migrate(ADD) == [1, 2]
    assert store.migrate(ADD) == []
    assert store.migrate(ADD, DROP) == [3]
    assert store.applied == {1: "before", 2: "before", 3: "after"}


def test_a_step_that_fails_leaves_nothing_of_itself_and_all_before_it(store: Store) -> None:
    broken = step(3, "before", "CREATE TABLE half (n integer);\nINSERT INTO nowhere VALUES (1);")
    with pytest.raises((psycopg.Error, sqlite3.Error)):
        store.migrate(ADD, broken)
    assert list(store.applied) == [1, 2]
    with pytest.raises((psycopg.Error, sqlite3.Error)):
        store.run("SELECT * FROM half")
    assert store.migrate(ADD, DROP) == [3]


def test_processes_that_start_together_take_each_step_once(store: Store) -> None:
    start = Barrier(6)

    def take(_: int) -> list[int]:
        start.wait(20)
        return store.migrate(ADD)

    with ThreadPoolExecutor(6) as pool:
        taken = [number for numbers in pool.map(take, range(6)) for number in numbers]
    assert sorted(taken) == [1, 2]
    assert store.run("SELECT count(*) FROM added") == [(1,)]


def test_a_store_that_a_newer_release_took_something_from_is_refused_and_one_that_it_added_to_is_not(
    store: Store, request: pytest.FixtureRequest
) -> None:
    old = (store.first, ADD)
    store.migrate(ADD, step(3, "before", "CREATE TABLE newer (n integer);"))
    store.run(A_FACT)
    serve: Any = postgres_schema.prepare if "postgres" in request.node.name else sqlite_schema.migrate
    serve(store.where, steps=old)
    store.migrate(ADD, step(3, "before", ""), step(4, "after", "DROP TABLE added;"))
    with pytest.raises(SchemaUnfit, match=r"newer release has taken away .* \(step 4"):
        serve(store.where, steps=old)


def test_an_empty_postgres_gets_every_step_and_one_with_facts_is_refused_until_it_has_them(postgres_url: str) -> None:
    first = FIRST["postgres"]
    postgres_schema.prepare(postgres_url, (first, ADD))
    store = Store("postgres", postgres_url)
    assert list(store.applied) == [1, 2]
    store.run(A_FACT)
    newer = (first, ADD, DROP, AGAIN)
    with pytest.raises(SchemaUnfit, match=r"lacks step 4 .* steersman migrate --before"):
        postgres_schema.prepare(postgres_url, newer)
    assert list(store.applied) == [1, 2]
    postgres_schema.migrate(postgres_url, None, newer)
    postgres_schema.prepare(postgres_url, newer)


def test_an_after_step_may_wait_but_nothing_overtakes_it(postgres_url: str) -> None:
    first = FIRST["postgres"]
    store = Store("postgres", postgres_url)
    assert [s.number for s in postgres_schema.migrate(postgres_url, "before", (first, ADD, DROP))] == [1, 2]
    store.run(A_FACT)
    postgres_schema.prepare(postgres_url, (first, ADD, DROP))
    with pytest.raises(SchemaUnfit, match=r"step 4 .* comes behind step 3"):
        postgres_schema.migrate(postgres_url, "before", (first, ADD, DROP, AGAIN))
    assert [s.number for s in postgres_schema.migrate(postgres_url, "after", (first, ADD, DROP, AGAIN))] == [3]
    assert [s.number for s in postgres_schema.migrate(postgres_url, "before", (first, ADD, DROP, AGAIN))] == [4]


def test_tables_that_were_made_before_anybody_counted_are_step_one(postgres_url: str) -> None:
    PostgresLog(postgres_url, CATALOGUE, announce=MemoryWakeups().announce).close()
    store = Store("postgres", postgres_url)
    store.run(A_FACT)
    assert store.applied == {1: "before"}
    postgres_schema.prepare(postgres_url, (store.first,))


def test_a_step_does_not_wait_long_for_a_table_that_somebody_holds(postgres_url: str) -> None:
    store = Store("postgres", postgres_url)
    store.migrate()
    alter = step(2, "before", "ALTER TABLE events ADD COLUMN more text;")
    with psycopg.connect(postgres_url) as holder:
        holder.execute("LOCK TABLE events IN ACCESS SHARE MODE")
        with pytest.raises(SchemaUnfit, match="nothing of it is done"):
            store.migrate(alter)
    assert store.migrate(alter) == [2]


def test_every_published_step_has_a_number_a_phase_and_both_stores_take_them(store: Store) -> None:
    numbered = {file.name for file in FILES.glob("*.sql") if any(letter.isdigit() for letter in file.name)}
    assert all(schema_steps.NAME.fullmatch(name) for name in numbered)
    kind: Literal["postgres", "sqlite"] = "postgres" if store.first is FIRST["postgres"] else "sqlite"
    steps = read_steps(kind)
    assert store.migrate(*steps[1:]) == [one.number for one in steps]


def test_a_gap_in_the_numbers_is_a_mistake(tmp_path: Path) -> None:
    (tmp_path / "sqlite_log.sql").write_text("")
    (tmp_path / "sqlite_0003_before_x.sql").write_text("")
    with pytest.raises(ValueError, match="not step 2"):
        read_steps("sqlite", tmp_path)
