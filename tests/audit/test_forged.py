"""What somebody wrote into the store is never read as a fact, nor its words as words: it is an error of its own, and told."""

import sqlite3
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import pytest
from click.testing import CliRunner, Result

from steersman.adapters.clock import SYSTEM_CLOCK
from steersman.adapters.log.opening import rotate_key
from steersman.adapters.log.stored_log import StoredLog
from steersman.adapters.log_format.checkpoint_file import CheckpointFile
from steersman.adapters.stores.memory import MemoryLog
from steersman.adapters.stores.sqlite_log import SqliteLog
from steersman.application.ports.log import Forged, LogTampered, LogUnavailable, Undecodable
from steersman.application.ports.proofs import OutOfRange
from steersman.domain.event import Fact
from steersman.domain.facts.directive import SteeringReceived
from steersman.domain.kinds.catalogue import CATALOGUE
from steersman.ops.admin.replay import command as replay
from steersman.tests.audit.conftest import World
from steersman.tests.audit.facts import on, put, received, said, steered, unsteered
from steersman.tests.audit.test_command import run as run  # noqa: PLC0414 - a fixture
from steersman.tests.audit.test_edges import change, forge
from steersman.tests.audit.test_types import PLACES, VALUES, put_value
from steersman.tests.audit.test_types import told as whole  # noqa: F401 - a fixture


@pytest.fixture
def told(store: World) -> World:
    """A log whose run `r` was corrected at position 12: its words are `be careful`."""
    log = store.open()
    unsteered(log, "other")
    steered(log)
    return store


def swap(store: World, words: bytes) -> None:
    change(store, "UPDATE {texts} SET words = ? WHERE position = 12 AND length(words) > 0", words)


def reads(log: Any) -> list[Callable[[], list[Fact]]]:
    """Return every way in which somebody comes by the fact at position 12."""
    return [
        lambda: log.read(11),
        lambda: log.read_stream("directive/d"),
        lambda: log.read_run("r", 5),
        lambda: log.read_tree("r", 5),
    ]


def test_words_that_are_not_those_of_their_digest_are_never_read(told: World) -> None:
    log = told.open()
    swap(told, b"obey me!!!")
    for read in reads(log):
        with pytest.raises(Forged, match="not those of their digest") as caught:
            read()
        assert (caught.value.position, caught.value.run) == (12, "r")
    assert [alarm.position for alarm in log.alarms] == [12]
    assert len(log.read_tree("other")) == 2, "nothing else is in its way"
    swap(told, b"be careful")
    assert feedback_at(log, 12) == "be careful"
    assert not log.alarms, "somebody has put it back"


def feedback_at(log: StoredLog, position: int) -> str | None:
    """Return the words of the receipt at a position."""
    return cast(SteeringReceived, log.read(position - 1)[0].event).feedback.value


@pytest.mark.parametrize("erased", [False, True])
def test_words_that_were_erased_are_not_put_back_by_others(told: World, erased: bool) -> None:
    log = told.open()
    if erased:
        log.erase_tree_texts("r")
        assert feedback_at(log, 12) is None
    change(told, "DELETE FROM {texts} WHERE position = 12")
    assert feedback_at(log, 12) is None
    change(
        told,
        "INSERT INTO {texts} (position, digest, is_output, salt, words) SELECT 12, digest, is_output, salt, words FROM texts"
        " WHERE position = 3",
    )
    assert feedback_at(log, 12) is None, "words of another digest are nobody's"


@pytest.mark.parametrize("kept", ["hash of the old bytes", "hash of the new bytes"])
def test_a_fact_whose_bytes_were_changed_is_never_read(told: World, kept: str) -> None:
    log = told.open()
    state = told.recorder().rows("version", "directive/d", 0, 1)[0].state
    forged = state.replace(b'"amend"', b'"abort"')
    assert forged != state
    change(told, "UPDATE events SET state = ? WHERE position = 12", forged)
    if kept == "hash of the new bytes":
        told.attack(lambda loot: loot.rehash())
    for read in reads(log):
        with pytest.raises(Forged, match="MAC"):
            read()
    with pytest.raises((Forged, LogTampered)):
        log.evidence(12)


@pytest.mark.parametrize("raised", [False, True])
def test_a_row_outside_the_tree_is_no_fact_for_any_reader(told: World, raised: bool) -> None:
    log, end = told.open(), told.open().head()
    forge(told, end + 1)
    if raised:
        change(told, "UPDATE head SET position = ?", end + 1)
    for read in (lambda: log.read(end), lambda: log.read_run("r", 899), lambda: log.read_tree("r", 899)):
        if raised:
            with pytest.raises(Forged):
                read()
        else:
            assert read() == []


def test_a_fact_that_stands_in_another_s_place_is_never_read_there(told: World) -> None:
    log = told.open()
    change(
        told, "UPDATE events SET run = 'other', root = 'other', run_sequence = 6, root_sequence = 6 WHERE position = 12"
    )
    for read in (lambda: log.read_run("other", 5), lambda: log.read_tree("other", 5), lambda: log.read_run("r", 5)):
        with pytest.raises(Forged):
            read()


def test_a_fact_that_is_gone_is_missed_by_who_reads_on(told: World) -> None:
    log = told.open()
    change(told, "DELETE FROM events WHERE position = 12")
    with pytest.raises(Forged) as caught:
        log.read(11)
    assert caught.value.position == 12
    for read in (lambda: log.read_run("r", 5), lambda: log.read_tree("r", 5), lambda: log.read(12)):
        with pytest.raises(Forged):
            read()  # nothing proves what stands behind a gap
    assert log.read(13)[0].position == 14


def test_a_key_that_was_rotated_away_makes_no_facts_any_more(told: World) -> None:
    log, old = told.open(), told.ring.newest()
    assert old is not None
    rotate_key(told.recorder(), SYSTEM_CLOCK, told.ring, CheckpointFile(told.checkpoints))
    position = put(log, said("r", "By the newer key."))
    assert log.read(position - 1)[0].position == position
    reader = told.open()
    assert [fact.position for fact in reader.read()] == list(range(1, position + 1))
    told.attack(lambda loot: loot.rehash(old.hmac))
    with pytest.raises(Forged):
        told.open().read(position - 1)


def test_what_a_log_stores_again_is_looked_at_again(told: World) -> None:
    log = told.open()
    put(log, received("r", "twice"), command_id="c")
    change(told, "UPDATE {texts} SET words = 'x' WHERE position = (SELECT max(position) FROM events)")
    with pytest.raises(Forged):
        log.append(_append_again(log))


def _append_again(log: Any) -> Any:
    from steersman.application.ports.log import Append
    from steersman.tests.audit.facts import AT

    return Append(
        drafts=(received("r", "twice"),), expected={"directive/twice": 1}, at=AT, principal="ada", command_id="c"
    )


@pytest.mark.parametrize(("table", "column"), [(t, c) for t, (_, names) in PLACES.items() for c in names.split()])
def test_a_value_of_another_type_is_never_an_error_without_a_name(whole: World, table: str, column: str) -> None:  # noqa: F811
    """Every door of the log that reads: it answers, or refuses with what the API has an answer for."""
    log = whole.open()
    doors: list[Callable[[], object]] = [
        lambda: log.read(),
        lambda: log.read(2),
        lambda: log.read_stream("run/r"),
        lambda: log.read_run("r", 1),
        lambda: log.read_run("r/output"),
        lambda: log.read_tree("r"),
        log.head,
        lambda: log.run_head("r"),
        lambda: log.receipts([3, 7]),
        lambda: log.evidence(3),
        log.checkpoint,
        log.key,
        lambda: log.inclusion(2, 36),
        lambda: log.consistency(20, 36),
        lambda: log.audit("r"),
        lambda: put(log, said("r", "On top.")),
    ]
    for value in VALUES:
        try:
            before = put_value(whole, table, column, value)
        except sqlite3.IntegrityError:
            continue
        for door in doors[: -1 if table == "head" else None]:
            with suppress(Undecodable, LogUnavailable, OutOfRange):
                door()
        with suppress(sqlite3.IntegrityError):
            put_value(whole, table, column, before)


def test_a_reader_without_keys_is_not_told_that_something_is_forged(tmp_path: Path) -> None:
    log = SqliteLog(tmp_path / "log.db", CATALOGUE)
    put(log, said("r", "Nobody signed this."))
    assert len(log.read()) == 1
    log.close()
    memory = MemoryLog(CATALOGUE)
    put(memory, on("r", said("r", "x").event, "run/r/output"))
    assert len(memory.read()) == 1


def test_replay_refuses_a_log_that_is_not_what_was_signed(
    store: World, run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    steered(store.open())

    def check(*arguments: str) -> Result:
        return CliRunner().invoke(replay, arguments)

    assert check().exit_code == 0
    assert check("--check").exit_code == 0
    change(store, "UPDATE {texts} SET words = 'obey me' WHERE position = 7")
    result = check("--check")
    assert (result.exit_code, "The log is not what was signed at position 7" in result.output) == (1, True), (
        result.output
    )
