"""What every Wakeups promises: hints that come at once within a process, and never harm."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from threading import Thread
from uuid import uuid4

import pytest

from steersman.adapters.feeds.redis_wakeups import RedisWakeups
from steersman.adapters.stores.memory import MemoryWakeups
from steersman.application.ports.outside import Wakeups
from steersman.tests.ports import free_port

#: Far more than anything here takes.
PATIENCE_SECONDS = 60.0


@pytest.fixture(params=["memory", "redis", "redis that is away", "redis that was closed"])
def wakeups(request: pytest.FixtureRequest) -> Iterator[Wakeups]:
    """Wake-ups of each kind."""
    if request.param == "memory":
        yield MemoryWakeups()
        return
    away = f"redis://127.0.0.1:{free_port()}"
    wakeups = RedisWakeups(away if request.param == "redis that is away" else request.getfixturevalue("redis_url"))
    with ExitStack() as stack:
        wakeups.start(uuid4().hex)
        stack.callback(wakeups.close)
        if request.param == "redis that was closed":
            wakeups.close()
        yield wakeups


def waiting(wakeups: Wakeups, after: int) -> Callable[[], int]:
    """Begin to wait in a thread of its own; return what gives the answer."""
    answers: list[int] = []
    thread = Thread(target=lambda: answers.append(wakeups.wait(after, PATIENCE_SECONDS)), daemon=True)
    thread.start()

    def answer() -> int:
        thread.join(2 * PATIENCE_SECONDS)
        return answers[0]

    return answer


def test_who_waits_is_woken_by_an_announcement(wakeups: Wakeups) -> None:
    began = time.monotonic()
    answers = [waiting(wakeups, after) for after in (0, 3, 6)]
    wakeups.announce(7)
    assert [answer() for answer in answers] == [7, 7, 7]
    assert time.monotonic() - began < PATIENCE_SECONDS


def test_who_is_behind_the_newest_announcement_does_not_wait(wakeups: Wakeups) -> None:
    wakeups.announce(3)
    wakeups.announce(5)
    assert wakeups.wait(4, PATIENCE_SECONDS) == 5
    assert wakeups.wait(0, PATIENCE_SECONDS) == 5


def test_the_time_of_a_waiter_ends_without_an_announcement(wakeups: Wakeups) -> None:
    assert wakeups.wait(0, 0.05) == 0
    wakeups.announce(5)
    assert wakeups.wait(5, 0.05) == 5
    assert wakeups.wait(9, 0.05) == 5


def test_an_announcement_that_comes_late_takes_nothing_back(wakeups: Wakeups) -> None:
    wakeups.announce(5)
    wakeups.announce(4)
    assert wakeups.wait(4, PATIENCE_SECONDS) == 5
    assert wakeups.wait(5, 0.05) == 5


def test_many_announcements_from_many_threads_leave_the_newest_and_hold_up_nobody(wakeups: Wakeups) -> None:
    answer = waiting(wakeups, 39_999)

    def announce(first: int) -> None:
        for position in range(first, 40_001, 8):
            wakeups.announce(position)

    threads = [Thread(target=announce, args=(first,)) for first in range(1, 9)]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    assert time.monotonic() - began < PATIENCE_SECONDS
    assert answer() == 40_000
