"""The log in SQLite: what was erased is in no file, whatever SQLite did with its pages before and does with them after."""

import shutil
import sqlite3
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from time import monotonic

import pytest

from steersman.adapters.log.rows import DELETE_TEXTS, TEXT_COLUMNS
from steersman.adapters.stores import sqlite_log
from steersman.adapters.stores.schema_steps import read_steps
from steersman.adapters.stores.sqlite_backup import copy_database
from steersman.adapters.stores.sqlite_log import LOCK_TIMEOUT_SECONDS, SqliteLog, SqliteRecorder
from steersman.application.ports.log import Append
from steersman.domain.event import Draft, Event, Text

AT = datetime(2026, 1, 1, tzinfo=UTC)
RUNS = [f"run{n}" for n in range(6)]
#: Up to these many bytes: in a page with many others, alone in a page, in several pages.
LENGTHS = (0, 40, 300, 300, 900, 900, 900, 4_000, 4_100, 30_000)
APPENDS = 60
LONGEST_APPEND = 8
#: Half of all logs have something left that was deleted in them.
MANY_SEEDS = 40
#: Here SQLite counts changes.
FILE_HEADER = 100


class Said(Event, frozen=True, kw_only=True):
    """Words."""

    TOPIC = "test.said"

    words: tuple[Text, ...]


class Told:
    """A log of several runs among each other, what they said, and the salts of that."""

    def __init__(self, folder: Path, random: Random) -> None:
        self.folder = folder
        self._random = random
        self._said: dict[str, list[bytes]] = {run: [] for run in RUNS}
        self._versions = dict.fromkeys(RUNS, 0)
        self.log = SqliteLog(folder / "log.db", {Said.TOPIC: Said})

    def grow(self, runs: Sequence[str], appends: int = APPENDS) -> None:
        """Let these runs say more."""
        for _ in range(appends):
            said = self._random.choices(runs, k=self._random.randint(1, LONGEST_APPEND))
            drafts = tuple(self._draft(run) for run in said)
            expected = {run: self._versions[run] for run in said}
            command = str(self._random.random())
            self.log.append(Append(drafts=drafts, expected=expected, at=AT, principal="ada", command_id=command))
            for run in said:
                self._versions[run] += 1

    def _draft(self, run: str) -> Draft:
        words: list[Text] = []
        for _ in range(self._random.randint(0, 3)):
            mark = f"<{run} {self._random.getrandbits(64):016x}>"
            self._said[run].append(mark.encode())
            # The mark is everywhere in it: what is left of a text is found, whatever part that is.
            words.append(Text(mark * max(1, self._random.randint(0, self._random.choice(LENGTHS)) // len(mark))))
        return Draft(stream=run, event=Said(words=tuple(words)), run=run, root=run)

    def count_texts(self, run: str) -> int:
        """Return how many texts of a run there are; their salts belong to what it said from now on."""
        with closing(sqlite3.connect(self.folder / "log.db")) as connection:
            select = "SELECT salt FROM texts WHERE position IN (SELECT position FROM events WHERE run = ?)"
            salts = [salt for (salt,) in connection.execute(select, (run,)).fetchall()]
        self._said[run] += salts
        return len(salts)

    def left(self, run: str, folder: Path | None = None) -> int:
        """Return how much of what a run said is in the files."""
        files = b"\n".join(path.read_bytes() for path in (folder or self.folder).iterdir() if path.is_file())
        return sum(found in files for found in self._said[run])

    def check_read(self, erased: Sequence[str]) -> None:
        """Fail unless the log has all words but those."""
        after = 0
        while facts := self.log.read(after):
            for fact in facts:
                assert isinstance(fact.event, Said)
                assert all((text.value is None) == (fact.run in erased) for text in fact.event.words)
            after = facts[-1].position


@contextmanager
def told(folder: Path, seed: int) -> Iterator[Told]:
    """Give a log that has grown."""
    made = Told(folder, Random(seed))
    try:
        made.grow(RUNS)
        yield made
    finally:
        made.log.close()


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Hold the log as it is now."""
    with closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM events").fetchone()
        yield


@contextmanager
def second_release() -> Generator[None]:
    """Have, within this, the tables and statements of a release that deleted its texts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sqlite_log, "read_steps", lambda store: read_steps(store)[:2])
        patch.setattr(sqlite_log, "INSERT_TEXT", f"INSERT INTO texts ({TEXT_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?)")
        patch.setattr(SqliteRecorder, "ERASE_TEXTS", DELETE_TEXTS)
        yield


def erase_in_rounds(made: Told, seed: int, keep: int = 0) -> list[int]:
    """Erase all runs but these many, one after the other, while others say more; return how much of each was left."""
    left, runs = list[int](), list(RUNS)
    Random(seed).shuffle(runs)
    while len(runs) > keep:
        texts = made.count_texts(gone := runs.pop())
        assert made.log.erase_texts([gone]) == texts
        left.append(made.left(gone))
        assert made.log.erase_texts([gone]) == 0
        made.check_read([run for run in RUNS if run not in runs])
        if runs:
            made.grow(runs, 5)
    return left


def erased_in_second_release(folder: Path, seed: int, keep: int = 0) -> tuple[Told, int]:
    """Make a log with the tables of that release, and erase most of it; return it, closed, and how much was left."""
    folder.mkdir()
    with second_release(), told(folder, seed) as made:
        return made, sum(erase_in_rounds(made, seed, keep))


@pytest.mark.parametrize("seed", range(12))
def test_nothing_of_an_erased_run_is_in_any_file(seed: int, tmp_path: Path) -> None:
    with told(tmp_path, seed) as made:
        assert all(made.left(run) for run in RUNS)
        assert erase_in_rounds(made, seed) == [0] * len(RUNS)


def test_where_texts_are_deleted_copies_of_them_stay(tmp_path: Path) -> None:
    """Why they are not: the test above, on the tables of a release that did."""
    assert any(erased_in_second_release(tmp_path / f"{seed}", seed)[1] for seed in range(MANY_SEEDS))


def test_erasing_moves_no_row(tmp_path: Path) -> None:
    with told(tmp_path, 0) as made:
        made.log.erase_texts([])
        before = (tmp_path / "log.db").read_bytes()[FILE_HEADER:]
        made.log.erase_texts(RUNS)
        after = (tmp_path / "log.db").read_bytes()[FILE_HEADER:]
        assert len(after) == len(before)
        assert {new for old, new in zip(before, after, strict=True) if old != new} == {0}


def test_a_process_that_died_when_it_had_erased_leaves_the_rest_to_the_next_start(tmp_path: Path) -> None:
    with told(tmp_path, 0) as made:
        with reading(tmp_path / "log.db"):
            made.log.erase_texts(RUNS)
            died = tmp_path / "died"
            died.mkdir()
            for path in tmp_path.glob("log.db*"):
                shutil.copyfile(path, died / path.name)
        assert all(made.left(run, folder=died) for run in RUNS)
        with closing(SqliteLog(died / "log.db", {Said.TOPIC: Said})):
            assert [made.left(run, folder=died) for run in RUNS] == [0] * len(RUNS)


def test_who_reads_while_words_are_erased_keeps_them_only_until_something_is_stored_afterwards(tmp_path: Path) -> None:
    with told(tmp_path, 0) as made:
        with reading(tmp_path / "log.db"):
            began = monotonic()
            made.log.erase_texts(RUNS[1:])
            made.grow(RUNS[:1], 3)
            assert monotonic() - began < LOCK_TIMEOUT_SECONDS / 2, "nobody waits for a reader"
            assert all(made.left(run) for run in RUNS[1:])
        made.grow(RUNS[:1], 1)
        assert [made.left(run) for run in RUNS[1:]] == [0] * len(RUNS[1:])


def test_a_backup_has_nothing_of_an_erased_run(tmp_path: Path) -> None:
    with told(tmp_path, 0) as made:
        made.log.erase_texts(RUNS[1:])
        (tmp_path / "backup").mkdir()
        copy_database(tmp_path / "log.db", tmp_path / "backup" / "log.db")
        assert [made.left(run, folder=tmp_path / "backup") for run in RUNS[1:]] == [0] * len(RUNS[1:])
        assert made.left(RUNS[0], folder=tmp_path / "backup")


def test_words_whose_salt_somebody_took_away_are_not_taken_for_erased(tmp_path: Path) -> None:
    with told(tmp_path, 0) as made:
        with closing(sqlite3.connect(tmp_path / "log.db")) as connection, connection:
            connection.execute("UPDATE kept_texts SET salt = zeroblob(16)")
            found = connection.execute("SELECT count(*) FROM texts WHERE length(words) > 0").fetchone()
        assert made.log.erase_texts(RUNS) == found[0]
        assert [made.left(run) for run in RUNS] == [0] * len(RUNS)


def test_the_texts_of_an_earlier_release_are_taken_over_without_what_it_left(tmp_path: Path) -> None:
    for seed in range(MANY_SEEDS):
        made, left = erased_in_second_release(folder := tmp_path / f"{seed}", seed, keep=2)
        with closing(SqliteLog(folder / "log.db", {Said.TOPIC: Said})) as made.log:
            texts = {run: made.count_texts(run) for run in RUNS}
            kept = [run for run in RUNS if texts[run]]
            gone = [run for run in RUNS if run not in kept]
            assert len(kept) == 2
            assert [made.left(run) for run in gone] == [0] * len(gone)
            made.check_read(gone)
            assert made.log.erase_texts(kept) == sum(texts.values())
            assert [made.left(run) for run in RUNS] == [0] * len(RUNS)
        if left:
            return
    pytest.fail("there was never something to leave behind")
