"""The file of checkpoints stays short, and what it is there for is found in it all the same."""

import os
import subprocess
import sys
import textwrap
from itertools import pairwise
from pathlib import Path

import pytest

from steersman.adapters.log_format import checkpoint_file
from steersman.adapters.log_format.checkpoint_file import KEPT_NEWEST, CheckpointFile, read_notes, thin
from steersman.adapters.log_format.head import Head
from steersman.adapters.log_format.merkle import Edge
from steersman.adapters.log_format.signed_note import Checkpoint, parse_checkpoint, sign
from steersman.tests.audit.conftest import World
from steersman.tests.audit.facts import put, said, steered

LINES = 3 * KEPT_NEWEST


def head(size: int, origin: str = "log.example/one") -> Head:
    """Return a head whose note says that size; signatures are looked at elsewhere."""
    note = sign(Checkpoint(origin=origin, size=size, root=bytes(32))) + "\u2014 somebody AAAAAAAA\n"
    return Head(edge=Edge(size), note=note)


def sizes(path: Path) -> list[int]:
    """Return the sizes in the file, in its order."""
    return [parse_checkpoint(note).size for note in read_notes(path)]


@pytest.fixture
def long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with many checkpoints, those of a log that was given up first."""
    path = tmp_path / "checkpoints.log"
    file = CheckpointFile(path)
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", int)  # nobody pulls the plug while it is made
        for size in range(1, 11):
            file.publish(head(size, "log.example/given-up"))
        for size in range(11, LINES + 1):
            file.publish(head(size))
    return path


def test_of_a_long_file_the_newest_and_the_last_of_each_log_stay(long: Path) -> None:
    limit = long.stat().st_size - 1
    assert thin(long, limit) == long.stat().st_size < 0.8 * limit
    kept = sizes(long)
    assert kept[-KEPT_NEWEST:] == list(range(LINES - KEPT_NEWEST + 1, LINES + 1))
    assert 10 in kept, "the largest of the log that was given up"
    assert kept == sorted(kept)
    assert max(later - earlier for earlier, later in pairwise(kept)) <= 3
    assert thin(long, limit) == long.stat().st_size
    assert sizes(long) == kept, "what is short enough is left alone"


def test_an_append_that_makes_the_file_too_long_thins_it(long: Path) -> None:
    limit = long.stat().st_size
    file = CheckpointFile(long, limit)
    file.publish(head(LINES + 1))
    assert long.stat().st_size < 0.8 * limit
    file.publish(head(LINES + 2))
    assert sizes(long)[-2:] == [LINES + 1, LINES + 2]


@pytest.mark.parametrize("step", ["write", "fsync", "rename"])
def test_a_file_that_cannot_be_thinned_stays_as_it_is_and_costs_nobody_an_append(
    long: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*given: object) -> None:
        raise OSError(28, "No space left on device")

    class FullOs:
        calls = 0

        def __getattr__(self, name: str) -> object:
            return getattr(os, name)

        def fsync(self, file: int) -> None:
            self.calls += 1
            if step == "fsync" and self.calls > 1:  # the first is the line's own
                full()

    if step == "write":
        monkeypatch.setattr(checkpoint_file, "_thinned", full)
    elif step == "rename":
        monkeypatch.setattr(Path, "rename", full)
    monkeypatch.setattr(checkpoint_file, "os", FullOs())
    before = long.read_bytes()
    CheckpointFile(long, len(before)).publish(head(LINES + 1))
    assert long.read_bytes().startswith(before)
    assert sizes(long)[-1] == LINES + 1
    assert [path.name for path in long.parent.iterdir()] == [long.name]


APPENDS = """
    import sys
    from pathlib import Path
    from steersman.adapters.log_format.checkpoint_file import CheckpointFile
    from steersman.tests.audit.test_checkpoint_file import head

    file = CheckpointFile(Path(sys.argv[1]), int(sys.argv[2]))
    for size in range(1, 401):
        file.publish(head(size, sys.argv[3]))
"""


def test_processes_that_append_while_others_thin_lose_no_line_that_has_to_be_there(tmp_path: Path) -> None:
    path, origins = tmp_path / "checkpoints.log", ("log.example/a", "log.example/b")
    limit = 40_000  # below what is never left out, so that every line makes it too long
    writers = [
        subprocess.Popen([sys.executable, "-P", "-c", textwrap.dedent(APPENDS), path, str(limit), origin])
        for origin in origins
    ]
    assert [writer.wait() for writer in writers] == [0, 0]
    found = [parse_checkpoint(note) for note in read_notes(path)]
    for origin in origins:
        assert [one.size for one in found if one.origin == origin] == list(range(1, 401))


def test_a_log_whose_older_checkpoints_were_left_out_is_healthy(store: World) -> None:
    log = store.open()
    steered(log)
    for n in range(20):
        put(log, said("r", f"Word {n}."))
    # As if there had been so many that these were the older ones.
    lines = store.checkpoints.read_bytes().splitlines(keepends=True)
    store.checkpoints.write_bytes(b"".join(lines[::7]))
    assert store.audit().verdict == "steered"
    put(log, said("r", "The last one."))
    assert (store.audit().verdict, sizes(store.checkpoints)[-1]) == ("steered", log.head())
