"""The hub: one reader, every fact above its position to whoever listens, and nobody waits for the slow."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from threading import Event
from typing import Any
from uuid import uuid4

import pytest
from eventsourcing.persistence import DataError, ProgrammingError

from steersman.adapters.feeds.feed_hub import FeedHub, LiveFrame, Queue
from steersman.adapters.stores.memory import MemoryLog, MemoryWakeups
from steersman.application.ports.log import LogUnavailable, Undecodable
from steersman.application.writer.caller import service
from steersman.domain.event import Draft, Text
from steersman.domain.facts.agent_output import MessageDelta
from steersman.domain.kinds.catalogue import CATALOGUE
from steersman.tests.live_agents import wait_until


class Log:
    """A log that can be made to fail, and that counts how often it is read."""

    def __init__(self, wakeups: MemoryWakeups) -> None:
        self._log = MemoryLog(CATALOGUE, announce=wakeups.announce)
        self.failures: dict[int, list[Exception]] = {}
        self.reads = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    def read(self, after: int = 0, limit: int = 500) -> Any:
        self.reads += 1
        if self.failures.get(after):
            raise self.failures[after].pop()
        # Up to a fact that will fail, as a log reads up to one that it cannot decode.
        stops = [position - after for position, left in self.failures.items() if position > after and left]
        return self._log.read(after, min([limit, *stops]))

    def say(self, run: str, *words: str) -> None:
        """Let a run's agent say something."""
        drafts = tuple(
            Draft(stream=f"run/{run}/output", event=MessageDelta(delta=Text(w), message_id="m"), run=run, root=run)
            for w in words
        )
        self._log.append(service(str(uuid4())).append(drafts, {}, datetime.now(UTC)))


class Listener:
    """A subscriber that waits for what it wants."""

    def __init__(self, hub: FeedHub, run: str | None) -> None:
        self._woken = Event()
        self.queue: Queue = hub.subscribe(run, self._woken.set)
        self.frames: list[LiveFrame] = []

    def until(self, count: int) -> list[int | None]:
        """Take until there are so many frames; return their positions."""
        while len(self.frames) < count:
            assert self._woken.wait(60)
            self._woken.clear()
            self.frames += self.queue.take()
        return [frame.fact.position for frame in self.frames]

    def until_cut(self) -> None:
        """Take nothing until the hub gives up."""
        while not self.queue.is_cut:
            assert self._woken.wait(60)
            self._woken.clear()


@pytest.fixture
def wakeups() -> MemoryWakeups:
    """Hints."""
    return MemoryWakeups()


@pytest.fixture
def log(wakeups: MemoryWakeups) -> Log:
    """A log."""
    return Log(wakeups)


@pytest.fixture
def hub(log: Log, wakeups: MemoryWakeups) -> Iterator[FeedHub]:
    """A hub over it."""
    hub = FeedHub(log, wakeups, poll_seconds=0.05, max_frames=20, max_bytes=10_000)
    yield hub
    hub.close()


def test_a_listener_gets_everything_above_the_position_at_which_it_came(log: Log, hub: FeedHub) -> None:
    log.say("a", "before")
    everything, of_b = Listener(hub, None), Listener(hub, "b")
    assert hub.position == 1
    log.say("a", "1")
    log.say("b", "2", "3")
    log.say("a", "4")
    assert everything.until(4) == [2, 3, 4, 5]
    assert of_b.until(2) == [3, 4]


def test_a_frame_is_encoded_once_for_all_who_get_it(log: Log, hub: FeedHub) -> None:
    one, other = Listener(hub, "a"), Listener(hub, "a")
    log.say("a", "x")
    one.until(1)
    other.until(1)
    assert one.frames[0].of_run is other.frames[0].of_run
    assert one.frames[0].of_run == b'id: 1\nevent: agent.message.delta\ndata: {"delta":"x","messageId":"m"}\n\n'
    assert one.frames[0].of_log.startswith(b"id: 1\nevent: agent.message.delta\ndata: {")


@pytest.mark.parametrize("words", [["x"] * 21, ["x" * 6_000, "x" * 6_000]])
def test_who_takes_nothing_is_cut_off_and_the_others_are_not(log: Log, hub: FeedHub, words: list[str]) -> None:
    slow, quick, idle = Listener(hub, "a"), Listener(hub, "b"), Listener(hub, "c")
    for number, word in enumerate(words, start=1):
        log.say("a", word)
        # What comes at once is given at once: it is what is left untaken that counts.
        wait_until(lambda upto=number: hub.position >= upto, "the hub has read it")
    slow.until_cut()
    assert slow.queue.take() == []
    log.say("b", "still here")
    assert quick.until(1) == [len(words) + 1]
    assert not idle.queue.is_cut


def test_who_has_left_gets_nothing_more(log: Log, hub: FeedHub) -> None:
    leaves, stays = Listener(hub, None), Listener(hub, None)
    leaves.queue.close()
    leaves.queue.close()
    log.say("a", "1")
    stays.until(1)
    assert leaves.queue.take() == []


@pytest.mark.parametrize("failure", [LogUnavailable("away"), ProgrammingError("no table"), DataError("no such type")])
def test_a_log_that_cannot_be_read_for_a_while_costs_no_frame(log: Log, hub: FeedHub, failure: Exception) -> None:
    listener = Listener(hub, None)
    log.failures[0] = [failure for _ in range(3)]
    log.say("a", "1", "2")
    assert listener.until(2) == [1, 2]


def test_wakeups_that_fail_for_a_while_cost_no_frame(log: Log, hub: FeedHub, wakeups: MemoryWakeups) -> None:
    failures, wait = [RuntimeError("away") for _ in range(3)], wakeups.wait

    def fail_first(position: int, timeout_seconds: float) -> int:
        if failures:
            raise failures.pop()
        return wait(position, timeout_seconds)

    vars(wakeups)["wait"] = fail_first
    listener = Listener(hub, None)
    log.say("a", "1", "2")
    assert listener.until(2) == [1, 2]


def test_a_client_that_cannot_be_woken_is_cut_off_and_the_others_get_everything_once(log: Log, hub: FeedHub) -> None:
    def fail() -> None:
        raise RuntimeError("its event loop is closed")

    before, gone, behind = Listener(hub, None), hub.subscribe(None, fail), Listener(hub, None)
    log.say("a", "1")
    log.say("a", "2")
    assert before.until(2) == behind.until(2) == [1, 2]
    wait_until(lambda: hub.subscribers == 2, "the client is let go")
    assert gone.is_cut


def test_a_fact_that_cannot_be_decoded_is_named_and_stepped_over(log: Log, hub: FeedHub) -> None:
    listener = Listener(hub, None)
    log.failures[1] = [Undecodable(2, "a", "reasons")]
    log.say("a", "1", "2", "3")
    assert listener.until(2) == [1, 3]
    assert [(fact.position, fact.run, fact.reason) for fact in hub.quarantined] == [(2, "a", "reasons")]


def test_an_announcement_that_runs_ahead_of_the_log_does_not_make_the_hub_spin(
    log: Log, hub: FeedHub, wakeups: MemoryWakeups
) -> None:
    listener = Listener(hub, None)
    wakeups.announce(1_000_000)
    before = log.reads
    time.sleep(0.5)
    assert log.reads - before <= 20
    log.say("a", "x")
    assert listener.until(1) == [1]


def test_closing_cuts_everybody_off_and_who_comes_later_too(hub: FeedHub) -> None:
    before = Listener(hub, None)
    hub.close()
    assert before.queue.is_cut
    assert Listener(hub, None).queue.is_cut
