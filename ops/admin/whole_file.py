"""A file that a command was told to write: it is there as a whole, or what was there before still is."""

import os
import stat
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from ...adapters.stores.sqlite_backup import sync
from ..refused import Refused

STANDARD_OUTPUT = Path("-")


@contextmanager
def writing(path: Path) -> Generator[IO[bytes]]:
    """
    Give what is to be written to *path*, or to standard output for `-`; once the block ends, all of it is there, synced.

    If the block raises, the file is as it was. What is no file, such as a pipe, is written as it stands. Raises Refused
    when it cannot be written.
    """
    if path == STANDARD_OUTPUT:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    try:
        target = path.resolve()  # a link goes on leading where it led
        if target.exists() and not target.is_file():
            with target.open("wb") as file:
                yield file
        else:
            with _beside(target) as file:
                yield file
    except OSError as error:
        raise Refused(f"The file cannot be written: {error.strerror}. {path} is as it was.") from error


@contextmanager
def _beside(target: Path) -> Generator[IO[bytes]]:
    """Give a new file that takes the place of *target* at the end, and its mode; on an error it is gone again."""
    made = target.with_name(f".{target.name}.{os.getpid()}")
    with open(os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), "wb") as file:
        try:
            if target.exists():
                os.fchmod(file.fileno(), stat.S_IMODE(target.stat().st_mode))
            yield file
            file.flush()
            os.fsync(file.fileno())
            # If we die before this, the target is as it was, and the new file lies beside it.
            made.rename(target)
        except BaseException:
            made.unlink(missing_ok=True)
            with suppress(OSError):
                file.close()  # what could not be written before cannot be now
            raise
    sync(target.parent)
