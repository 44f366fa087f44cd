"""Views in SQLite: what was forgotten is in none of the store's files any more."""

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from random import Random

import pytest

from steersman.adapters.stores.sqlite_views import SqliteViews
from steersman.application.views.project_views import Changes

RUNS = 8
ROWS = 60
BATCH = 10
LONGEST = 2_500


@pytest.fixture
def views(tmp_path: Path) -> Iterator[SqliteViews]:
    """A store with an empty view."""
    with closing(SqliteViews(tmp_path / "views.db")) as views:
        views.begin("v", 1, beside=None)
        yield views


def words(run: int) -> bytes:
    """What a run's rows are made of."""
    return f"the goose of run {run} flies at midnight. ".encode()


def held(folder: Path, *runs: int) -> list[int]:
    """Return the runs of which some file holds words."""
    files = b"".join(path.read_bytes() for path in folder.iterdir())
    return [run for run in runs or range(RUNS) if words(run) in files]


def put(views: SqliteViews, changes: Changes, *, generation: int = 1, forgets: bool = False) -> None:
    """Take the generation one position further."""
    after = next(head.position for head in views.heads("v") if head.generation == generation)
    stored = views.extend("v", generation, after=after, upto=after + 1, fold=lambda _: changes, forgets=forgets)
    assert stored


def fill(views: SqliteViews, random: Random, *, generation: int = 1) -> None:
    """Store rows of every run among each other, and change some of them, so that pages are split at every place."""
    keys = [(run, row) for run in range(RUNS) for row in range(ROWS)] * 2
    random.shuffle(keys)
    for start in range(0, len(keys), BATCH):
        changes = {
            f"{row}/{run}": (f"run {run}", row, words(run) * random.randint(1, LONGEST // len(words(run))))
            for run, row in keys[start : start + BATCH]
        }
        put(views, changes, generation=generation)


def forget(views: SqliteViews, run: int) -> None:
    """Remove a run's rows for good."""
    put(views, {f"{row}/{run}": None for row in range(ROWS)}, forgets=True)


@pytest.mark.parametrize("seed", range(3))
def test_what_was_forgotten_is_in_no_file_however_pages_were_split_before(
    seed: int, views: SqliteViews, tmp_path: Path
) -> None:
    random = Random(seed)
    fill(views, random)
    left = list(range(RUNS))
    random.shuffle(left)
    while left:
        forget(views, gone := left.pop())
        views.tidy()
        assert held(tmp_path) == sorted(left), gone


def test_a_row_that_is_only_removed_has_no_file_written_anew(views: SqliteViews, tmp_path: Path) -> None:
    fill(views, Random(0))
    views.tidy()
    size = (tmp_path / "views.db").stat().st_size
    put(views, {f"{row}/{run}": None for row in range(ROWS) for run in range(RUNS)})
    views.tidy()
    assert (tmp_path / "views.db").stat().st_size == size


@pytest.mark.parametrize("way", ["swapped", "dropped"])
def test_a_generation_that_is_gone_is_in_no_file(way: str, views: SqliteViews, tmp_path: Path) -> None:
    fill(views, Random(0))
    if way == "swapped":
        views.begin("v", 2, beside=1)
        for _ in range(views.position("v")):
            put(views, {}, generation=2)
        assert views.swap("v", 2)
    else:
        views.drop("v", 1)
    views.tidy()
    assert held(tmp_path) == []


def test_a_process_that_died_before_it_tidied_leaves_that_to_the_next_one(views: SqliteViews, tmp_path: Path) -> None:
    fill(views, Random(0))
    views.tidy()
    forget(views, 3)
    left = tmp_path / "left"
    left.mkdir()
    for path in tmp_path.glob("views.db*"):
        shutil.copyfile(path, left / path.name)
    assert held(left, 3) == [3]
    with closing(SqliteViews(left / "views.db")) as later:
        later.tidy()
        assert held(left, 3) == []


def test_a_reader_in_the_way_puts_the_forgetting_off_to_the_next_call_of_any_process(
    views: SqliteViews, tmp_path: Path
) -> None:
    fill(views, Random(0))
    with views.snapshot("v") as snapshot:
        assert list(snapshot.rows())
        forget(views, 3)
        views.tidy()
        assert held(tmp_path, 3) == [3]
    with closing(SqliteViews(tmp_path / "views.db")) as later:
        later.tidy()
        assert held(tmp_path, 3) == []


def test_what_is_forgotten_while_a_reader_is_in_the_way_goes_with_what_was_before(
    views: SqliteViews, tmp_path: Path
) -> None:
    fill(views, Random(0))
    with views.snapshot("v") as snapshot:
        assert list(snapshot.rows())
        for run in (3, 4):
            forget(views, run)
            views.tidy()
    views.tidy()
    assert held(tmp_path, 3, 4) == []


def test_the_file_of_an_earlier_release_is_tidied_once(views: SqliteViews, tmp_path: Path) -> None:
    fill(views, Random(0))
    views.close()
    with closing(sqlite3.connect(tmp_path / "views.db")) as connection:
        connection.execute("DROP TABLE view_forgotten")
        # More than it left behind, for it let SQLite zero what it removed.
        connection.execute("PRAGMA secure_delete = OFF")
        connection.execute("DELETE FROM view_rows WHERE key LIKE '%/3'")
        connection.commit()
    assert held(tmp_path, 3) == [3]
    with closing(SqliteViews(tmp_path / "views.db")) as later:
        later.tidy()
        assert held(tmp_path, 3) == []
