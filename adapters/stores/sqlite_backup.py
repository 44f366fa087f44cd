"""Copies of SQLite files that others are writing: each is the file as it was at one moment, whole and synced."""

import os
import sqlite3
from contextlib import closing
from pathlib import Path

LOCK_TIMEOUT_SECONDS = 10.0


def copy_database(source: Path, target: Path) -> None:
    """
    On return *target* is what *source* held at one moment, in one file that needs none beside it, so that it can be read
    where nothing can be written. Whoever writes to *source* goes on. Raises sqlite3.Error.
    """
    with closing(sqlite3.connect(f"{source.as_uri()}?mode=ro", uri=True, timeout=LOCK_TIMEOUT_SECONDS)) as read:
        os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        with closing(sqlite3.connect(target)) as write:
            read.backup(write)  # all pages in one step: one moment
            # The copy says of itself what the source is: written ahead in another file, which even readers have to make.
            write.execute("PRAGMA journal_mode = DELETE")
    sync(target)


def sync(path: Path) -> None:
    """On return what is at *path*, a file or a directory's list of names, survives a power failure."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
