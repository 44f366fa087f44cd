"""Views that a check folds and throws away: on disk, so that a log of a million facts needs no more memory than a short one."""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from ...adapters.stores.sqlite_views import SqliteViews


@contextmanager
def scratch_views() -> Generator[SqliteViews]:
    """Give an empty store of views; afterwards nothing is left of it."""
    with TemporaryDirectory(prefix="steersman-check-") as folder:
        views = SqliteViews(Path(folder) / "views.db")
        try:
            yield views
        finally:
            views.close()
