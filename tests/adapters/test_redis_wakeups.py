"""Wake-ups between processes: whatever happens to Redis, and whatever it says, the only price is latency."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any
from uuid import uuid4

import pytest

from steersman.adapters.feeds.redis_wakeups import AddressInvalid, RedisWakeups
from steersman.tests.redis_server import Proxy, RedisServer

#: Far more than anything here takes.
PATIENCE_SECONDS = 60.0
#: What blocks nobody takes less: one call to a server that is away takes ANSWER_SECONDS.
AT_ONCE_SECONDS = 2.9
ANSWER_SECONDS = 3.0


class World:
    """Several processes' wake-ups on one log, as they reach each other by way of one address."""

    def __init__(self, stack: ExitStack) -> None:
        self.stack = stack
        self.server = RedisServer()
        self.log_name = uuid4().hex
        stack.callback(self.server.kill)

    def process(self, url: str | None = None, log_name: str | None = None) -> RedisWakeups:
        """Return the wake-ups of one process, quick to notice that nobody answers."""
        wakeups = RedisWakeups(
            url or self.server.url, answer_seconds=ANSWER_SECONDS, silence_seconds=0.3, longest_rest_seconds=0.2
        )
        wakeups.start(log_name or self.log_name)
        self.stack.callback(wakeups.close)
        return wakeups

    def proxy(self) -> Proxy:
        """Return a way to the server."""
        proxy = Proxy(self.server.port)
        self.stack.callback(proxy.close)
        return proxy


@pytest.fixture
def world() -> Iterator[World]:
    """Nobody yet."""
    with ExitStack() as stack:
        yield World(stack)


def wait_until(condition: Callable[[], Any]) -> None:
    """Return as soon as it holds."""
    until = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


def until(state: str, *processes: RedisWakeups) -> None:
    """Wait until all of them say so."""
    wait_until(lambda: {process.state.state for process in processes} == {state})


def announce(process: RedisWakeups, position: int) -> None:
    """Announce, and see that it takes no time and wakes this process."""
    began = time.monotonic()
    process.announce(position)
    assert time.monotonic() - began < AT_ONCE_SECONDS
    assert process.wait(position - 1, 0) == position


def test_an_announcement_reaches_every_process_on_the_log_and_none_on_another(world: World) -> None:
    world.server.start()
    one, other, third = world.process(), world.process(), world.process()
    stranger = world.process(log_name="another log")
    until("ok", one, other, third, stranger)
    for position, process in enumerate((one, other, third), 1):
        announce(process, position)
        assert all(each.wait(position - 1, PATIENCE_SECONDS) == position for each in (one, other, third))
    assert stranger.wait(0, 0.1) == 0


@pytest.mark.parametrize("protocol", [2, 3])
def test_silence_of_a_server_that_answers_is_no_fault(world: World, protocol: int) -> None:
    world.server.start()
    process = world.process(f"{world.server.url}?protocol={protocol}")
    until("ok", process)
    since = process.state.since
    time.sleep(1.5)
    assert (process.state.since, process.state.last_error) == (since, None)


def test_a_server_that_comes_only_later_is_found(world: World) -> None:
    one, other = world.process(), world.process()
    announce(one, 5)
    wait_until(lambda: "ConnectionError" in (one.state.last_error or ""))
    assert one.state.state == "unavailable"
    world.server.start()
    until("ok", one, other)
    # What was announced meanwhile may have come before the other was there again: it polls.
    announce(one, 6)
    assert other.wait(5, PATIENCE_SECONDS) == 6


def test_a_server_that_was_killed_and_comes_back_empty_is_used_again(world: World) -> None:
    world.server.start()
    one, other = world.process(), world.process()
    until("ok", one, other)
    before = one.state.since
    world.server.kill()
    until("unavailable", one, other)
    assert one.state.since > before
    announce(one, 7)
    assert other.wait(6, 0.1) == 0
    world.server.start()
    until("ok", one, other)
    announce(other, 8)
    assert one.wait(7, PATIENCE_SECONDS) == 8
    assert one.state.last_error is not None


def test_a_server_that_forgets_everything_forgets_nothing_of_ours(world: World) -> None:
    world.server.start()
    one, other = world.process(), world.process()
    until("ok", one, other)
    with world.server.client() as client:
        client.flushall()
        assert client.keys("*") == []
        announce(one, 1)
        assert other.wait(0, PATIENCE_SECONDS) == 1
        client.client_kill_filter(_type="pubsub")
        client.client_kill_filter(_type="normal", skipme=True)
        # What is published while the other does not listen is lost for it; neither may have noticed yet.
        channel = f"steersman:{world.log_name}:wakeups"
        wait_until(lambda: client.pubsub_numsub(channel)[0][1] == 2)
    announce(one, 2)
    assert other.wait(1, PATIENCE_SECONDS) == 2


def test_a_server_that_stands_still_holds_up_nobody(world: World) -> None:
    world.server.start()
    one, other = world.process(), world.process()
    until("ok", one, other)
    world.server.pause()
    try:
        for position in range(1, 10_001):
            one.announce(position)
        announce(one, 10_001)
        until("unavailable", one, other)
        assert other.wait(0, 0) == 0
    finally:
        world.server.resume()
    until("ok", one, other)
    announce(one, 10_002)
    assert other.wait(10_001, PATIENCE_SECONDS) == 10_002


def test_a_partition_is_noticed_also_when_nobody_announces_and_ends_by_itself(world: World) -> None:
    world.server.start()
    proxy = world.proxy()
    here, there = world.process(), world.process(proxy.url)
    until("ok", here, there)
    proxy.swallows = True
    until("unavailable", there)
    announce(here, 3)
    announce(there, 4)
    assert (here.wait(4, 0.1), there.wait(4, 0.1)) == (3, 4)
    assert here.state.state == "ok"
    proxy.swallows = False
    until("ok", there)
    assert here.wait(3, PATIENCE_SECONDS) == 4
    announce(here, 5)
    assert there.wait(4, PATIENCE_SECONDS) == 5


@pytest.mark.parametrize(
    "nonsense",
    [
        b"",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"-NOAUTH Authentication required.\r\n" * 50,
        b"+OK\r\n" * 50,
        b"*3\r\n$7\r\nmessage\r\n*0\r\n_\r\n" * 50,
        b"*99999999\r\n$-5\r\n",
        bytes(range(256)) * 20,
    ],
)
def test_a_server_that_speaks_nonsense_is_tried_again_and_again_but_not_without_a_rest(
    world: World, nonsense: bytes
) -> None:
    world.server.start()
    proxy = world.proxy()
    proxy.nonsense = nonsense
    here, there = world.process(), world.process(proxy.url)
    until("ok", here)
    announce(there, 3)
    # Each of the two connections ends after 0.2 seconds at least, and is made once more by the driver when it fails.
    began, seen = time.monotonic(), proxy.connections
    time.sleep(1)
    assert there.state.state == "unavailable"
    assert proxy.connections - seen <= 24 * (time.monotonic() - began)
    proxy.nonsense = None
    until("ok", there)
    assert here.wait(0, PATIENCE_SECONDS) == 3


def test_what_is_no_position_is_passed_over(world: World) -> None:
    world.server.start()
    process = world.process()
    until("ok", process)
    with world.server.client() as client:
        for nonsense in ("", "x", "-1", "1.5", "9" * 17, "9" * 100_000, "\N{ARABIC-INDIC DIGIT THREE}", b"\xff\x00"):
            assert client.publish(f"steersman:{world.log_name}:wakeups", nonsense) == 1
        assert client.publish(f"steersman:{world.log_name}:wakeups", 3) == 1
    assert process.wait(0, PATIENCE_SECONDS) == 3
    assert (process.state.state, process.state.last_error) == ("ok", None)


def test_a_burst_is_published_as_few_messages_with_the_newest_at_the_end(world: World) -> None:
    world.server.start()
    process = world.process()
    until("ok", process)
    with world.server.client() as client, client.pubsub(ignore_subscribe_messages=True) as seen:
        seen.subscribe(f"steersman:{world.log_name}:wakeups")
        wait_until(lambda: client.pubsub_numsub(f"steersman:{world.log_name}:wakeups")[0][1] == 2)
        for position in range(1, 20_001):
            process.announce(position)
        heard: list[int] = []
        while 20_000 not in heard:
            message = seen.get_message(timeout=1)
            heard += [int(message["data"])] if message else []
    assert heard == sorted(set(heard))
    assert len(heard) < 5_000


def test_closing_leaves_no_thread_and_no_connection_behind(world: World) -> None:
    world.server.start()
    proxy = world.proxy()
    process = world.process(proxy.url)
    until("ok", process)
    process.close()
    process.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("redis-")]
    with world.server.client() as client:
        wait_until(lambda: len(client.client_list()) == 1)
    proxy.swallows = True
    swallowed = world.process(proxy.url)
    wait_until(lambda: proxy.connections >= 3)
    began = time.monotonic()
    swallowed.close()
    assert time.monotonic() - began < PATIENCE_SECONDS
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("redis-")]


@pytest.mark.parametrize(
    "address",
    [
        "redis://user:hunter2@host:port",
        "redis://user:hunter2@host:99999",
        "redis://user:hunter2@[::1",
        "redis://user:hunter2@host/database",
        "redis://user:hunter2@host?db=x",
        "redis://user:hunter2@host?hunter2=1",
        "redis://user:hunter2@host?protocol=9",
        "unix://",
        "http://user:hunter2@host",
    ],
)
def test_an_address_that_is_none_is_refused_without_repeating_it(address: str) -> None:
    with pytest.raises(AddressInvalid, match="redis://") as refused:
        RedisWakeups(address)
    assert "hunter2" not in str(refused.value)
