"""The writer lives, and answers everybody, whatever fails around it."""

import itertools
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime
from threading import Event
from typing import Any

import pytest

from steersman.adapters.log.sequencer import UNOBSERVED, Observer, Sequencer, Waiting, ignore
from steersman.adapters.log.stored_log import Commit, StoredLog
from steersman.adapters.log_format.event_codec import EventCodec
from steersman.adapters.stores.memory import MemoryRecorder
from steersman.application.ports.log import LogUnavailable
from steersman.tests.contracts.facts import CATALOGUE, append, note
from steersman.tests.live_agents import PATIENCE_SECONDS, wait_until

#: Far more than an answer takes.
ANSWER_SECONDS = 30.0
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


class Clock:
    """Keeps the first who asks until it is let go, so that the others come together."""

    def __init__(self) -> None:
        self.asked = Event()
        self.go_on = Event()

    def now(self) -> datetime:
        self.asked.set()
        assert self.go_on.wait(PATIENCE_SECONDS)
        return NOW


class Failing:
    """An observer that fails."""

    def committed(self, facts: int, seconds: Sequence[float]) -> None:
        raise ValueError("the counter is full")


class House:
    """A log with a writer of its own, and callers."""

    def __init__(self, pool: ThreadPoolExecutor, observer: Observer = UNOBSERVED) -> None:
        self._pool = pool
        self._clock = Clock()
        recorder = MemoryRecorder()
        self._sequencer: Sequencer

        def sequenced(commit: Commit) -> Sequencer:
            self._sequencer = Sequencer(commit, ignore, observer=observer)
            return self._sequencer

        self.log = StoredLog(recorder, EventCodec(CATALOGUE), sequenced, self._clock)

    def append(self, name: str) -> Future[Any]:
        """Let somebody append a fact."""
        return self._pool.submit(self.log.append, append(name, note(name)))

    def together(self) -> list[Future[Any]]:
        """Append one fact, and three more while that is being written; return what they wait for."""
        waits = [self.append("0")]
        assert self._clock.asked.wait(PATIENCE_SECONDS)
        waits += [self.append(str(n)) for n in range(1, 4)]
        wait_until(lambda: self._sequencer.waiting == 3, "the others wait")
        self._clock.go_on.set()
        return waits


@pytest.fixture
def pool() -> Any:
    """Threads that hold up the end of no test."""
    pool = ThreadPoolExecutor(8)
    yield pool
    pool.shutdown(wait=False, cancel_futures=True)


def test_an_observer_that_fails_costs_nobody_the_answer(pool: ThreadPoolExecutor) -> None:
    house = House(pool, Failing())
    for wait in house.together():
        assert wait.result(ANSWER_SECONDS)
    assert house.append("later").result(ANSWER_SECONDS)
    assert house.log.head() == 5


@pytest.mark.parametrize("nth", [1, 2], ids=["of its caller", "of the writer"])
def test_a_batch_that_cannot_be_settled_is_answered_and_the_writer_goes_on(
    pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch, nth: int
) -> None:
    house = House(pool)
    settle, calls = Waiting.settle, itertools.count(1)

    def fail_once(waiting: Waiting, outcome: Any) -> None:
        if next(calls) == nth:
            raise RuntimeError("no memory")
        settle(waiting, outcome)

    monkeypatch.setattr(Waiting, "settle", fail_once)
    errors = [wait.exception(ANSWER_SECONDS) for wait in house.together()]
    assert any(isinstance(error, LogUnavailable) for error in errors)
    assert house.append("later").result(ANSWER_SECONDS)
