"""
What the first release left on disk when it was killed, and how to have it there again.

`sample.tar.xz` holds its data directory, its keys and a project's repository; `answers.jsonl` what it said over HTTP of
the runs that nothing more happens to. `make.py` tells what runs there are. None of it is ever made anew: later releases
have to understand it as it is.
"""

import fcntl
import os
import shutil
import tarfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

#: Where it lies while it is used: facts name the repository and the worktrees by their whole paths.
PLACE = Path("/var/tmp/steersman-first-release")
SAMPLE = Path(__file__).with_name("sample.tar.xz")
ANSWERS = Path(__file__).with_name("answers.jsonl")
#: Others may have it before us, each for as long as one test takes.
PATIENCE_SECONDS = 240.0


@contextmanager
def unpacked() -> Iterator[Path]:
    """Give the sample in its place, to nobody else at the same time; afterwards it is gone."""
    with alone():
        # One that was killed could not take its own away.
        shutil.rmtree(PLACE, ignore_errors=True)
        PLACE.mkdir(mode=0o700)
        try:
            with tarfile.open(SAMPLE) as tar:
                # The modes as they were: a data directory that others can read is refused.
                tar.extractall(PLACE, filter="tar")
            yield PLACE
        finally:
            shutil.rmtree(PLACE)


@contextmanager
def alone() -> Iterator[None]:
    """Hold the kernel's lock on the directory around the place: it is gone with this process, and leaves no file."""
    around = os.open(PLACE.parent, os.O_RDONLY)
    try:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not _locked(around):
            assert time.monotonic() < deadline, f"somebody else has {PLACE}"
            time.sleep(0.05)
        yield
    finally:
        os.close(around)


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """A coordinator run of the sample."""

    #: What `make.py` calls it.
    name: str
    run_id: str
    #: What the first release answered of it and its children, by path; of one that goes on nothing.
    answers: dict[str, Any]


def runs() -> dict[str, Kept]:
    """Return the coordinator runs, by their names."""
    kept = [msgspec.json.decode(line, type=Kept) for line in ANSWERS.read_bytes().splitlines()]
    return {run.name: run for run in kept}


def store(kept: Sequence[Kept]) -> None:
    """Store what `runs` returns from now on."""
    ANSWERS.write_bytes(b"".join(msgspec.json.encode(run) + b"\n" for run in kept))
