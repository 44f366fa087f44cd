"""The thread that keeps views: it follows the log, outlives every fault, and stops when told to."""

from collections.abc import Sequence
from datetime import UTC, datetime

import pytest

from steersman.adapters.stores.memory import MemoryLog, MemoryWakeups
from steersman.adapters.stores.memory_views import MemoryViews
from steersman.application.ports.log import Append, LogUnavailable
from steersman.application.views.keep_views import (
    FIRST_REST_SECONDS,
    LONGEST_REST_SECONDS,
    TIDYING_RESTS,
    ViewKeeper,
    open_run_ids,
)
from steersman.application.views.project_views import BATCH, ViewHead, catch_up, rebuild
from steersman.domain.event import Draft, Fact, Text
from steersman.domain.facts.run import CoordinatorRun, CoordinatorStarted
from steersman.domain.git import Commit
from steersman.domain.kinds.catalogue import CATALOGUE
from steersman.projections.catalogue import VIEWS

BROKEN = "run_list"


class Views(MemoryViews):
    """A store of which one view cannot be reached while `broken` is set."""

    broken = False
    tries = 0

    def __init__(self) -> None:
        super().__init__()
        #: Where the views stood each time the store was to be tidied.
        self.tidied: list[set[int]] = []
        self.untidy = False
        self.takes = 0.0
        self.now = 0.0

    def tidy(self) -> None:
        """Take it down, or be in the way."""
        self.tidied.append({self.position(view.name) for view in VIEWS})
        self.now += self.takes
        if self.untidy:
            raise LogUnavailable("full")

    def heads(self, view: str) -> Sequence[ViewHead]:
        """Return the generations."""
        if view == BROKEN and self.broken:
            self.tries += 1
            raise LogUnavailable("away")
        return super().heads(view)


class World:
    """A log, its wake-ups and a clock that is set by hand."""

    def __init__(self) -> None:
        self.wakeups = MemoryWakeups()
        self.log = MemoryLog(CATALOGUE, announce=self.wakeups.announce)
        self.views = Views()
        self.keeper = ViewKeeper(self.views, self.log, self.wakeups, now=lambda: self.now)

    @property
    def now(self) -> float:
        """The time, which tidying takes some of."""
        return self.views.now

    @now.setter
    def now(self, now: float) -> None:
        self.views.now = now

    def start_run(self, run_id: str) -> None:
        """Store the first fact of a run."""
        started = CoordinatorStarted(
            goal=Text("Sell things"),
            project_id="p",
            submitting_user="alice",
            start_mode="direct",
            repository_path=Text("/srv/shop"),
            originating_branch="main",
            base=Commit(commit="c", tree="t"),
            model_id="rehearsal",
            auto_approve_tools=False,
            autopilot=False,
        )
        run = CoordinatorRun(run_id=run_id)
        draft: Draft = run.coordinator(started)
        append = Append(
            drafts=(draft,),
            expected={run.stream: 0},
            at=datetime(2026, 1, 1, tzinfo=UTC),
            principal="alice",
            command_id=run_id,
        )
        self.log.append(append)

    def settle(self) -> None:
        """Step until nothing moves."""
        while self.keeper.step():
            pass


class Counting:
    """A log that counts the pages that were read of it."""

    def __init__(self, log: MemoryLog) -> None:
        self._log = log
        self.pages = 0

    def head(self) -> int:
        """Return the last position."""
        return self._log.head()

    def read(self, after: int = 0, limit: int = 500) -> Sequence[Fact]:
        """Return facts of the log."""
        page = self._log.read(after, limit)
        self.pages += bool(page)
        return page


@pytest.fixture
def world() -> World:
    """An empty world."""
    return World()


def test_a_started_keeper_follows_the_log_until_it_is_stopped(world: World) -> None:
    world.start_run("a")
    world.keeper.start()
    assert world.views.wait("run_detail", 1, 60)
    world.start_run("b")
    assert world.views.wait("run_detail", 2, 60)
    assert world.keeper.alive
    world.keeper.stop()
    assert not world.keeper.alive
    world.start_run("c")
    assert world.views.position("run_detail") == 2


def test_a_view_that_fails_keeps_no_other_from_moving(world: World) -> None:
    world.start_run("a")
    world.views.broken = True
    world.settle()
    assert world.views.position("run_detail") == 1
    assert world.keeper.errors() == {BROKEN: "LogUnavailable: away"}


def test_a_view_that_fails_is_tried_less_and_less_often_but_for_ever(world: World) -> None:
    world.views.broken = True
    world.settle()
    assert world.views.tries == 1
    world.now += FIRST_REST_SECONDS
    world.settle()
    assert world.views.tries == 2
    world.now += FIRST_REST_SECONDS
    world.settle()
    assert world.views.tries == 2
    for tries in range(3, 40):
        world.now += LONGEST_REST_SECONDS
        world.settle()
        assert world.views.tries == tries


def test_a_view_that_works_again_catches_up_and_has_no_error_any_more(world: World) -> None:
    world.start_run("a")
    world.views.broken = True
    world.settle()
    world.views.broken = False
    world.now += LONGEST_REST_SECONDS
    world.settle()
    assert world.views.position(BROKEN) == 1
    assert world.keeper.errors() == {}


def test_a_running_keeper_outlives_a_fault_of_its_store(world: World) -> None:
    world.views.broken = True
    world.keeper.start()
    world.start_run("a")
    assert world.views.wait("open_runs", 1, 60)
    assert world.keeper.alive
    world.keeper.stop()


def test_the_store_is_tidied_once_a_round_when_all_views_took_their_step(world: World) -> None:
    world.start_run("a")
    assert world.keeper.step()
    assert world.views.tidied == [{1}]
    assert not world.keeper.step()
    assert world.views.tidied == [{1}, {1}]


def test_a_store_that_cannot_be_tidied_keeps_no_view_from_moving_and_is_tidied_later(world: World) -> None:
    world.views.untidy = True
    for runs in (1, 2):
        world.start_run(f"{runs}")
        world.keeper.step()
        assert world.views.position("run_detail") == runs
    assert len(world.views.tidied) == 1
    world.now += LONGEST_REST_SECONDS
    world.keeper.step()
    assert len(world.views.tidied) == 2


def test_a_tidying_that_takes_long_is_not_begun_again_at_once(world: World) -> None:
    world.views.takes = 3.0
    world.keeper.step()
    world.now += 3.0 * TIDYING_RESTS - 0.5
    world.keeper.step()
    assert len(world.views.tidied) == 1
    world.now += 0.5
    world.keeper.step()
    assert len(world.views.tidied) == 2


def test_every_open_run_is_found_however_many_there_are(world: World) -> None:
    runs = [f"run {n}" for n in range(250)]
    for run_id in runs:
        world.start_run(run_id)
    world.settle()
    assert list(open_run_ids(world.views, world.log)) == runs[::-1]


def test_a_sweep_sees_what_the_log_held_when_it_began(world: World) -> None:
    world.start_run("a")
    world.keeper.start()
    assert list(open_run_ids(world.views, world.log)) == ["a"]
    world.keeper.stop()


def test_views_that_are_built_together_read_each_page_of_the_log_once(world: World) -> None:
    for number in range(2 * BATCH + 1):
        world.start_run(f"{number}")
    log = Counting(world.log)
    catch_up(world.views, log, VIEWS)
    assert log.pages == 3
    for view in VIEWS:
        rebuild(world.views, view)
    catch_up(world.views, log, VIEWS)
    assert log.pages == 6
    assert {world.views.position(view.name) for view in VIEWS} == {2 * BATCH + 1}
