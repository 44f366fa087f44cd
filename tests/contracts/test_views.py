"""What every view store keeps: rows and position together, for any number of folders, while it is being rebuilt."""

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from threading import Barrier, Event, Thread
from typing import ClassVar, Protocol

import msgspec
import psycopg
import pytest

from steersman.adapters.stores.memory import MemoryLog
from steersman.adapters.stores.memory_views import MemoryViews
from steersman.adapters.stores.postgres_views import PostgresViews
from steersman.adapters.stores.sqlite_views import SqliteViews
from steersman.application.ports.log import Append, LogUnavailable, Undecodable
from steersman.application.ports.outside import ViewRow
from steersman.application.views.check_views import CheckableStore, check
from steersman.application.views.project_views import (
    BATCH,
    QUARANTINE,
    Batches,
    Changes,
    GenerationRows,
    advance,
    catch_up,
    prepare,
    rebuild,
)
from steersman.domain import event
from steersman.domain.event import Draft, Fact
from steersman.domain.facts.run import deletion_stream
from steersman.domain.facts.run_records import RunDeleted
from steersman.domain.projects.project_facts import ProjectDeleted
from steersman.projections.view import Rows, View

AT = datetime(2026, 1, 1, tzinfo=UTC)


class Counted(event.Event, frozen=True, kw_only=True):
    """Something to fold."""

    TOPIC: ClassVar[str] = "test.counted"

    poison: bool = False


class Tally(msgspec.Struct, frozen=True):
    """How many facts a run has, and where its first one is."""

    run: str
    first: int
    count: int = 0


def tally(rows: Rows[Tally], fact: Fact) -> Mapping[str, Tally | None]:
    """Count one fact, or forget what it says is deleted."""
    if isinstance(fact.event, RunDeleted | ProjectDeleted):
        return {fact.run or "": None}
    assert isinstance(fact.event, Counted)
    if fact.event.poison:
        raise ZeroDivisionError("poison")
    run = fact.run or ""
    row = rows.get(run) or Tally(run, fact.position)
    return {run: msgspec.structs.replace(row, count=row.count + 1)}


def view(version: int = 1) -> View[Tally]:
    """Return the view, in some version."""
    return View("tally", version, Tally, apply=tally, place=lambda row: ("all", row.first))


VIEW = view()


class Log(MemoryLog):
    """A log in which some facts cannot be decoded."""

    def __init__(self) -> None:
        super().__init__({kind.TOPIC: kind for kind in (Counted, RunDeleted, ProjectDeleted)})
        self.undecodable: set[int] = set()

    def add(self, *runs: str, poison: bool = False) -> None:
        """Store one fact for each of these runs."""
        for run in runs:
            self.put(f"run/{run}", Counted(poison=poison), run, version=self.run_head(run))

    def put(self, stream: str, said: event.Event, run: str | None, *, version: int) -> None:
        """Store one fact."""
        draft = Draft(stream=stream, event=said, run=run, root=run)
        command = f"command {self.head() + 1}"
        append = Append(drafts=(draft,), expected={stream: version}, at=AT, principal="test", command_id=command)
        self.append(append)

    def read(self, after: int = 0, limit: int = 500) -> Sequence[Fact]:
        """Return facts up to the first that cannot be decoded."""
        facts = super().read(after, limit)
        bad = next((fact for fact in facts if fact.position in self.undecodable), None)
        if bad is None:
            return facts
        if bad is facts[0]:
            raise Undecodable(bad.position, bad.run, "garbled")
        return [fact for fact in facts if fact.position < bad.position]


class Store(CheckableStore, Protocol):
    """A store that can be closed."""

    def close(self) -> None:
        """Close it."""
        ...


Open = Callable[[], Store]


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Open]:
    """A function that opens the same store each time, as another process would."""
    opened: list[Store] = []
    memory = MemoryViews()

    def opening() -> Store:
        match request.param:
            case "sqlite":
                store: Store = SqliteViews(tmp_path / "views.db")
            case "postgres":
                store = PostgresViews(request.getfixturevalue("postgres_url"))
            case _:
                store = memory
        opened.append(store)
        return store

    yield opening
    for store in opened:
        store.close()


@pytest.fixture
def store(open_store: Open) -> Store:
    """An empty store."""
    return open_store()


@pytest.fixture
def log() -> Log:
    """An empty log."""
    return Log()


def placed(order: int, body: bytes = b"{}", group: str = "all") -> tuple[str, int, bytes]:
    """Return a row as a fold returns it."""
    return group, order, body


def put(store: Store, changes: Changes, *, after: int = 0, upto: int = 1) -> bool:
    """Store changes in the active generation."""
    store.begin("tally", 1, beside=None)
    (head,) = store.heads("tally")
    return store.extend("tally", head.generation, after=after, upto=upto, fold=lambda _: changes)


def count(store: Store, run: str, name: str = "tally") -> int:
    """Return how often the view has counted a run."""
    body = store.get(name, run)
    return 0 if body is None else VIEW.decode(body).count


# Rows and position


def test_a_view_that_was_never_folded_is_empty_and_at_position_0(store: Store) -> None:
    assert store.get("tally", "a") is None
    assert list(store.list("tally", "all")) == []
    assert store.position("tally") == 0
    assert list(store.heads("tally")) == []


def test_rows_and_position_are_stored_together_and_seen_by_others(store: Store, open_store: Open) -> None:
    assert put(store, {"a": placed(1, b"A")}, upto=7)
    for reader in (store, open_store()):
        assert reader.get("tally", "a") == b"A"
        assert reader.position("tally") == 7


def test_a_row_is_replaced_and_removed_by_its_key(store: Store) -> None:
    put(store, {"a": placed(1, b"A"), "b": placed(2, b"B")})
    put(store, {"a": placed(3, b"AA", "other"), "b": None, "never": None}, after=1, upto=2)
    assert list(store.list("tally", "all")) == []
    assert list(store.list("tally", "other")) == [ViewRow(key="a", group="other", order=3, body=b"AA")]
    assert store.get("tally", "b") is None


def test_an_error_in_the_middle_of_a_fold_stores_neither_rows_nor_position(store: Store) -> None:
    put(store, {"a": placed(1, b"A")}, upto=1)

    def fold(stored: GenerationRows) -> Changes:
        assert stored.row("a") == b"A"
        raise ZeroDivisionError

    (head,) = store.heads("tally")
    with pytest.raises(ZeroDivisionError):
        store.extend("tally", head.generation, after=1, upto=2, fold=fold)
    assert (store.get("tally", "a"), store.position("tally")) == (b"A", 1)
    assert put(store, {"a": placed(1, b"again")}, after=1, upto=2)


class TornChanges(dict[str, tuple[str, int, bytes] | None]):
    """Changes that can be walked once; the second walk, after the rows were written, does *then*."""

    then: Callable[[], None]
    walks = 0

    def items(self):
        """Walk."""
        self.walks += 1
        if self.walks == 2:
            self.then()
        return super().items()


def torn(then: Callable[[], None]) -> TornChanges:
    """Return changes that are written and never committed."""
    changes = TornChanges(a=placed(1, b"torn"), b=placed(2, b"torn"))
    changes.then = then
    return changes


# In memory nothing stands between the rows and the position.
@pytest.mark.parametrize("open_store", ["sqlite", "postgres"], indirect=True)
def test_an_error_between_the_rows_and_the_commit_stores_nothing(store: Store) -> None:
    put(store, {"a": placed(1, b"A")}, upto=1)

    def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        put(store, torn(fail), after=1, upto=2)
    assert (store.get("tally", "a"), store.get("tally", "b"), store.position("tally")) == (b"A", None, 1)


@pytest.mark.parametrize("open_store", ["sqlite", "postgres"], indirect=True)
def test_rows_whose_position_cannot_be_stored_are_not_stored_either(store: Store) -> None:
    put(store, {"a": placed(1, b"A")}, upto=1)
    with pytest.raises((OverflowError, psycopg.DataError)):
        put(store, {"a": placed(1, b"torn"), "b": placed(2)}, after=1, upto=2**70)
    assert (store.get("tally", "a"), store.get("tally", "b"), store.position("tally")) == (b"A", None, 1)


def test_a_position_that_somebody_else_has_moved_on_from_is_not_folded_again(store: Store) -> None:
    assert put(store, {"a": placed(1, b"A")}, upto=3)
    assert not put(store, {"a": placed(1, b"late")}, after=0, upto=4)
    assert (store.get("tally", "a"), store.position("tally")) == (b"A", 3)


def test_a_generation_that_is_gone_cannot_be_folded(store: Store) -> None:
    assert not store.extend("tally", 99, after=0, upto=1, fold=lambda _: {})
    store.drop("tally", 99)


# Lists


def test_a_list_shows_the_highest_first_and_pages_without_gap_or_repetition(store: Store) -> None:
    put(store, {str(n): placed(n) for n in range(-3, 8)} | {"x": placed(5, group="other")})
    found: list[int] = []
    before: int | None = None
    while page := store.list("tally", "all", before=before, limit=4):
        assert len(page) <= 4
        found += [row.order for row in page]
        before = page[-1].order
    assert found == list(range(7, -4, -1))


def test_a_limit_of_nothing_lists_nothing(store: Store) -> None:
    put(store, {"a": placed(1)})
    assert list(store.list("tally", "all", limit=0)) == []


# Waiting


def test_a_position_that_is_reached_is_not_waited_for(store: Store) -> None:
    put(store, {}, upto=5)
    assert store.wait("tally", 5, 0)
    assert not store.wait("tally", 6, 0)


@pytest.mark.parametrize("other", [False, True], ids=["this process", "another process"])
def test_a_waiter_is_told_when_its_position_is_reached(store: Store, open_store: Open, other: bool) -> None:
    put(store, {}, upto=1)
    folder = open_store() if other else store
    reached: list[bool] = []
    waiter = Thread(target=lambda: reached.append(store.wait("tally", 2, 60)))
    waiter.start()
    put(folder, {}, after=1, upto=2)
    waiter.join()
    assert reached == [True]


# Folding


def test_every_fact_is_folded_once_in_order_and_in_batches(store: Store, log: Log) -> None:
    log.add(*["a", "b", "a"] * 400)
    prepare(store, log, VIEW)
    assert advance(store, Batches(log), VIEW).facts == 500
    assert store.position("tally") == 500
    catch_up(store, log, [VIEW])
    assert (count(store, "a"), count(store, "b"), store.position("tally")) == (800, 400, 1200)


def test_two_folders_at_once_count_no_fact_twice(open_store: Open, log: Log) -> None:
    log.add(*["a", "b"] * 600)
    stores = [open_store() for _ in range(4)]
    barrier = Barrier(len(stores))

    def fold(store: Store) -> None:
        barrier.wait()
        catch_up(store, log, [VIEW])

    threads = [Thread(target=fold, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (count(stores[0], "a"), count(stores[0], "b")) == (600, 600)
    assert [head.active for head in stores[0].heads("tally")] == [True]


def test_folding_goes_on_where_it_stopped(open_store: Open, log: Log) -> None:
    log.add("a", "a")
    catch_up(open_store(), log, [VIEW])
    log.add("a")
    later = open_store()
    catch_up(later, log, [VIEW])
    assert count(later, "a") == 3


def test_a_view_that_is_ahead_of_a_log_put_back_to_a_backup_begins_anew(store: Store, log: Log) -> None:
    log.add("a", "a", "a")
    catch_up(store, log, [VIEW])
    restored = Log()
    restored.add("a", "b")
    catch_up(store, restored, [VIEW])
    assert (count(store, "a"), count(store, "b"), store.position("tally")) == (1, 1, 2)


# Quarantine


def _quarantined(store: Store) -> list[str]:
    return [row.key for row in store.list("tally", QUARANTINE)]


@pytest.mark.parametrize("undecodable", [False, True], ids=["cannot be folded", "cannot be decoded"])
def test_a_fact_that_stops_its_run_stops_no_other(store: Store, log: Log, undecodable: bool) -> None:
    log.add("a", "b")
    log.add("a", poison=not undecodable)
    if undecodable:
        log.undecodable.add(3)
    log.add("a", "b", "c")
    catch_up(store, log, [VIEW])
    log.add("a", "b")
    catch_up(store, log, [VIEW])
    assert (count(store, "a"), count(store, "b"), count(store, "c")) == (1, 3, 1)
    assert (store.position("tally"), _quarantined(store)) == (8, [f"{QUARANTINE}/a"])


def test_a_quarantine_is_part_of_what_a_rebuild_finds(store: Store, log: Log) -> None:
    log.add("a", "b")
    log.add("a", poison=True)
    log.undecodable.add(5)
    log.add("c", "c", "c")
    catch_up(store, log, [VIEW])
    assert check(store, log, [VIEW], MemoryViews())[0].sound
    rebuild(store, VIEW)
    catch_up(store, log, [VIEW])
    assert _quarantined(store) == [f"{QUARANTINE}/c", f"{QUARANTINE}/a"]
    assert count(store, "c") == 1


@pytest.mark.parametrize("undecodable", [False, True], ids=["cannot be folded", "cannot be decoded"])
@pytest.mark.parametrize("at_once", [False, True], ids=["known before", "of one batch"])
def test_what_is_deleted_is_forgotten_also_where_it_is_quarantined(
    store: Store, log: Log, undecodable: bool, at_once: bool
) -> None:
    log.add("a", "b")
    log.add("a", poison=not undecodable)
    if undecodable:
        log.undecodable.add(3)
    log.add("a", "b")
    if not at_once:
        catch_up(store, log, [VIEW])
        assert _quarantined(store) == [f"{QUARANTINE}/a"]
    log.put(deletion_stream("a"), RunDeleted(run_id="a", deleted_by="ada"), "a", version=0)
    catch_up(store, log, [VIEW])
    assert [row.key for row in store.list("tally", "all")] == ["b"]
    assert _quarantined(store) == [], "its reason may tell words of the run"
    assert check(store, log, [VIEW], MemoryViews())[0].sound


def test_what_is_deleted_is_in_no_file_when_the_views_are_caught_up(log: Log, tmp_path: Path) -> None:
    with closing(SqliteViews(tmp_path / "views.db")) as store:
        log.add("goose", "gander")
        catch_up(store, log, [VIEW])
        log.put(deletion_stream("goose"), RunDeleted(run_id="goose", deleted_by="ada"), "goose", version=0)
        catch_up(store, log, [VIEW])
        files = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert (b"gander" in files, b"goose" in files) == (True, False)


def test_a_project_that_is_deleted_is_forgotten_also_where_it_is_quarantined(store: Store, log: Log) -> None:
    log.put("project/p", Counted(), None, version=0)
    log.put("project/p", Counted(poison=True), None, version=1)
    log.add("b")
    catch_up(store, log, [VIEW])
    assert [row.key for row in store.list("tally", "all")] == ["b", ""]
    log.put("project/p", ProjectDeleted(project_id="p", users=()), None, version=2)
    catch_up(store, log, [VIEW])
    assert [row.key for row in store.list("tally", "all")] == ["b"]
    assert _quarantined(store) == []


def test_what_cannot_even_be_forgotten_stays_quarantined(store: Store, log: Log) -> None:
    def stubborn(rows: Rows[Tally], fact: Fact) -> Mapping[str, Tally | None]:
        if isinstance(fact.event, RunDeleted):
            raise ZeroDivisionError
        return tally(rows, fact)

    log.add("a")
    log.add("a", poison=True)
    log.put("run/a", RunDeleted(run_id="a", deleted_by="ada"), "a", version=2)
    log.add("a", "b")
    catch_up(store, log, [View("tally", 1, Tally, apply=stubborn, place=VIEW.place)])
    assert (count(store, "a"), count(store, "b")) == (1, 1)
    assert _quarantined(store) == [f"{QUARANTINE}/a"]


def test_a_fault_of_the_store_quarantines_nobody(store: Store, log: Log) -> None:
    log.add("a")

    class Broken(Rows[Tally]):
        def apply(self, fact: Fact) -> None:
            raise LogUnavailable("the disk is full")

    class BrokenView(View[Tally]):
        def open(self, stored: GenerationRows) -> Rows[Tally]:
            return Broken(self, stored)

    broken = BrokenView("tally", 1, Tally, apply=tally, place=VIEW.place)
    prepare(store, log, broken)
    with pytest.raises(LogUnavailable):
        advance(store, Batches(log), broken)
    assert (store.position("tally"), _quarantined(store)) == (0, [])
    catch_up(store, log, [VIEW])
    assert count(store, "a") == 1


# Rebuilding


def _everything(store: Store) -> tuple[int, list[ViewRow]]:
    with store.snapshot("tally") as snapshot:
        return store.position("tally"), list(snapshot.rows())


def test_a_rebuild_gives_the_same_bytes_and_leaves_one_generation(store: Store, log: Log) -> None:
    log.add(*"abcab" * 300)
    catch_up(store, log, [VIEW])
    before = _everything(store)
    (old,) = store.heads("tally")
    rebuild(store, VIEW)
    catch_up(store, log, [VIEW])
    (new,) = store.heads("tally")
    assert _everything(store) == before
    assert len(before[1]) == 3
    assert new.generation > old.generation


def test_a_rebuild_of_an_empty_log_ends(store: Store, log: Log) -> None:
    rebuild(store, VIEW)
    catch_up(store, log, [VIEW])
    rebuild(store, VIEW)
    catch_up(store, log, [VIEW])
    assert [(head.active, head.position) for head in store.heads("tally")] == [(True, 0)]


def test_the_active_generation_goes_on_while_another_is_built(store: Store, log: Log) -> None:
    log.add(*["a"] * 1200)
    catch_up(store, log, [VIEW])
    rebuild(store, VIEW)
    batches = Batches(log)
    log.add("a")
    advance(store, batches, VIEW)
    assert (count(store, "a"), [head.position for head in store.heads("tally")]) == (1201, [1201, 500])
    assert not store.swap("tally", store.heads("tally")[1].generation)
    catch_up(store, log, [VIEW])
    assert (count(store, "a"), len(store.heads("tally"))) == (1201, 1)


def test_readers_see_no_gap_and_no_step_back_while_generations_are_swapped(open_store: Open, log: Log) -> None:
    folder, reader = open_store(), open_store()
    log.add(*["a"] * 600)
    catch_up(folder, log, [VIEW])
    done, seen = Event(), list[tuple[int, int]]()

    def read() -> None:
        while not done.is_set():
            seen.append((count(reader, "a"), len(reader.list("tally", "all"))))

    thread = Thread(target=read)
    thread.start()
    for _ in range(30):
        log.add("a")
        rebuild(folder, VIEW)
        catch_up(folder, log, [VIEW])
    done.set()
    thread.join()
    counts = [counted for counted, _ in seen]
    assert counts == sorted(counts)
    assert all(counted >= 600 and listed == 1 for counted, listed in seen)


def test_a_new_version_is_built_beside_the_old_one_which_is_shown_until_then(store: Store, log: Log) -> None:
    log.add(*["a"] * 600)
    catch_up(store, log, [VIEW])
    newer = view(version=2)
    assert prepare(store, log, newer)
    advance(store, Batches(log), newer)
    assert [(h.version, h.position, h.active) for h in store.heads("tally")] == [(1, 600, True), (2, 500, False)]
    assert count(store, "a") == 600
    catch_up(store, log, [newer])
    assert [(h.version, h.position, h.active) for h in store.heads("tally")] == [(2, 600, True)]


def test_an_older_release_leaves_a_newer_version_alone(store: Store, log: Log) -> None:
    log.add("a")
    catch_up(store, log, [view(version=2)])
    before = list(store.heads("tally"))
    log.add("a")
    assert not prepare(store, log, VIEW)
    catch_up(store, log, [VIEW])
    assert (list(store.heads("tally")), count(store, "a")) == (before, 1)


def test_what_a_crash_left_half_built_is_finished_by_its_own_version(open_store: Open, log: Log) -> None:
    store = open_store()
    log.add(*["a"] * 1200)
    catch_up(store, log, [VIEW])
    rebuild(store, VIEW)
    advance(store, Batches(log), VIEW)
    half = store.heads("tally")[1]
    assert half.position == 500
    later = open_store()
    catch_up(later, log, [VIEW])
    assert [head.generation for head in later.heads("tally")] == [half.generation]
    assert check(later, log, [VIEW], MemoryViews())[0].sound


def test_what_a_crash_left_half_built_of_an_older_version_is_dropped(store: Store, log: Log) -> None:
    log.add(*["a"] * 600)
    catch_up(store, log, [VIEW])
    rebuild(store, VIEW)
    advance(store, Batches(log), VIEW)
    prepare(store, log, view(version=2))
    assert [(head.version, head.active) for head in store.heads("tally")] == [(1, True), (2, False)]


def test_two_who_ask_for_a_rebuild_at_once_get_one(store: Store, open_store: Open, log: Log) -> None:
    log.add("a")
    catch_up(store, log, [VIEW])
    rebuild(store, VIEW)
    rebuild(open_store(), VIEW)
    assert len(store.heads("tally")) == 2


# Checking


def test_a_check_finds_every_row_that_is_wrong_missing_or_too_many(store: Store, log: Log) -> None:
    log.add("a", "b", "c")
    catch_up(store, log, [VIEW])
    (head,) = store.heads("tally")
    wrong: Changes = {"a": placed(1, b"tampered"), "b": None, "d": placed(9)}
    store.extend("tally", head.generation, after=3, upto=3, fold=lambda _: wrong)
    found = check(store, log, [VIEW], MemoryViews())[0]
    assert [one.key for one in found.differences] == ["a", "b", "d"]
    assert [(one.stored is None, one.rebuilt is None) for one in found.differences] == [
        (False, False),
        (True, False),
        (False, True),
    ]
    assert not found.sound


def test_a_row_in_the_wrong_place_is_a_difference(store: Store, log: Log) -> None:
    log.add("a")
    catch_up(store, log, [VIEW])
    (head,) = store.heads("tally")
    body = store.get("tally", "a") or b""
    store.extend("tally", head.generation, after=1, upto=1, fold=lambda _: {"a": placed(2, body)})
    assert not check(store, log, [VIEW], MemoryViews())[0].sound


def test_a_check_compares_at_the_position_of_the_view_and_not_of_the_log(store: Store, log: Log) -> None:
    log.add("a", "a")
    catch_up(store, log, [VIEW])
    log.add("a", "b")
    found = check(store, log, [VIEW], MemoryViews())[0]
    assert found.sound
    assert found.position == 2


def test_views_that_are_checked_together_read_the_log_once_each_up_to_where_it_is(store: Store, log: Log) -> None:
    other = View("other", 1, Tally, apply=tally, place=lambda row: ("all", row.first))
    log.add(*("a", "b") * BATCH)
    catch_up(store, log, [VIEW])
    log.add("a")
    catch_up(store, log, [other])
    reads: list[int] = []
    read = log.read
    log.read = lambda after=0, limit=500: reads.append(after) or read(after, limit)
    seen: list[int] = []
    one, two = check(store, log, [VIEW, other], MemoryViews(), seen.append)
    assert (one.sound, one.position, two.sound, two.position) == (True, 2 * BATCH, True, 2 * BATCH + 1)
    assert reads == [0, BATCH, 2 * BATCH]
    assert seen == [BATCH, 2 * BATCH, 2 * BATCH + 1]


def test_a_view_of_another_version_cannot_be_checked(store: Store, log: Log) -> None:
    log.add("a")
    assert not check(store, log, [VIEW], MemoryViews())[0].sound
    catch_up(store, log, [VIEW])
    assert not check(store, log, [view(version=2)], MemoryViews())[0].sound


def test_a_snapshot_stays_as_it_was_while_the_view_goes_on(open_store: Open, log: Log) -> None:
    store = open_store()
    log.add("b", "a")
    catch_up(store, log, [VIEW])
    with store.snapshot("tally") as snapshot:
        log.add("a", "c")
        catch_up(open_store(), log, [VIEW])
        assert [VIEW.decode(row.body).count for row in snapshot.rows()] == [1, 1]
        assert snapshot.head is not None
        assert snapshot.head.position == 2
    assert (count(store, "a"), count(store, "c")) == (2, 1)


# Crashes

DIES = """
    import os, signal, sys
    from pathlib import Path
    from steersman.adapters.stores.postgres_views import PostgresViews
    from steersman.adapters.stores.sqlite_views import SqliteViews

    class Changes(dict):
        walks = 0
        def items(self):
            self.walks += 1
            if self.walks == 2:  # the rows are written, nothing is committed
                os.kill(os.getpid(), signal.SIGKILL)
            return super().items()

    where = sys.argv[1]
    store = PostgresViews(where) if "://" in where else SqliteViews(Path(where))
    (head,) = store.heads("tally")
    changes = Changes(a=("all", 1, b"torn"), b=("all", 2, b"torn"))
    store.extend("tally", head.generation, after=1, upto=2, fold=lambda _: changes)
"""


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_process_killed_before_the_commit_leaves_rows_and_position_as_they_were(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    where = str(tmp_path / "views.db") if kind == "sqlite" else str(request.getfixturevalue("postgres_url"))
    store: Store = SqliteViews(Path(where)) if kind == "sqlite" else PostgresViews(where)
    try:
        put(store, {"a": placed(1, b"A")}, upto=1)
        died = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(DIES), where], check=False, env=dict(os.environ), timeout=120
        )
        assert died.returncode == -signal.SIGKILL
        assert (store.get("tally", "a"), store.get("tally", "b"), store.position("tally")) == (b"A", None, 1)
        assert put(store, {"b": placed(2, b"B")}, after=1, upto=2)
    finally:
        store.close()
