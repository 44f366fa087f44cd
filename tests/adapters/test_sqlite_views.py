"""Views in SQLite: a row that is removed is in none of the store's files any more."""

from pathlib import Path

from steersman.adapters.sqlite_views import SqliteViews

SECRET = b"the goose flies at midnight"


def held(folder: Path) -> list[str]:
    """Return the files that hold the secret."""
    return [path.name for path in folder.iterdir() if SECRET in path.read_bytes()]


def store_a_row(views: SqliteViews) -> None:
    """Store one row of a view, at position 1."""
    views.begin("v", 1, beside=None)
    assert views.extend("v", 1, after=0, upto=1, fold=lambda _: {"r": ("g", 1, SECRET)})


def test_a_removed_row_is_in_no_file_of_the_store(tmp_path: Path) -> None:
    views = SqliteViews(tmp_path / "views.db")
    store_a_row(views)
    assert held(tmp_path)
    assert views.extend("v", 1, after=1, upto=2, fold=lambda _: {"r": None})
    assert held(tmp_path) == []
    views.close()


def test_a_reader_in_the_way_puts_the_forgetting_off_to_the_next_batch(tmp_path: Path) -> None:
    views = SqliteViews(tmp_path / "views.db")
    store_a_row(views)
    with views.snapshot("v") as snapshot:
        assert list(snapshot.rows())
        assert views.extend("v", 1, after=1, upto=2, fold=lambda _: {"r": None})
        assert held(tmp_path)
    assert views.extend("v", 1, after=2, upto=3, fold=lambda _: {})
    assert held(tmp_path) == []
    views.close()
