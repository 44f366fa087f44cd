"""The data directory: nobody else may look into it, and only one serving process works in it."""

import fcntl
import os
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TextIO

from ..refused import Refused

#: What a data directory holds; one with other things in it may be anybody's.
OURS = (
    "agents.toml",
    "tokens.db",
    "log.db",
    "views.db",
    "checkpoints.log",
    "serve.lock",
    "home-id",
    "processes",
    "worktrees",
    "homes",
    "rehearsal",
    "scratch",
    "signals",
)
OTHERS = 0o077


def prepare_data_dir(path: Path) -> Path:
    """On return the directory exists, is ours alone (0700), and can be written. Raises Refused."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if path.stat().st_mode & OTHERS:
            _close_to_others(path)
        if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
            raise Refused(f"The data directory {path} cannot be written.")
    except OSError as error:
        raise Refused(f"The data directory {path} cannot be used: {error.strerror}.") from error
    return path


def _close_to_others(path: Path) -> None:
    strangers = sorted(found.name for found in path.iterdir() if not found.name.startswith(OURS))
    if strangers:
        # It may well be somebody's home, or /tmp: its mode is not ours to change.
        raise Refused(
            f"The data directory {path} is open to other users and holds other things ({strangers[0]}). "
            "Name a new or empty directory, or close this one with: chmod 700"
        )
    path.chmod(0o700)


@contextmanager
def alone_in(data: Path, *, shared: bool = False) -> Generator[None]:
    """
    Hold the data directory's `serve.lock`, alone or with others that share it. Raises Refused when a live process has it.

    The lock is the kernel's: it is gone with the process, however that ends, and no agent inherits it.
    """
    with ExitStack() as stack:
        try:
            file = stack.enter_context((data / "serve.lock").open("a+", encoding="utf-8"))
            _lock(file, data, shared)
        except OSError as error:
            raise Refused(f"{data / 'serve.lock'} cannot be used: {error.strerror}.") from error
        yield


def _lock(file: TextIO, data: Path, shared: bool) -> None:
    """On return the lock is ours, and the file says so. Raises Refused, OSError."""
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.seek(0)
        holder = file.read(20).strip() or "unknown"
        raise Refused(f"Another process (pid {holder}) serves {data} already: {data / 'serve.lock'}") from error
    file.truncate(0)
    file.write(f"{os.getpid()}\n")
    file.flush()


def is_served(data: Path) -> bool:
    """Whether a live process serves the data directory. Raises Refused when that cannot be known."""
    try:
        with (data / "serve.lock").open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    except OSError as error:
        raise Refused(f"{data / 'serve.lock'} cannot be used: {error.strerror}.") from error
    return False
