"""Feeds over two replicas: a client may change from one to the other at any moment, whatever becomes of Redis."""

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from steersman.tests.e2e.conftest import Repository
from steersman.tests.e2e.pair import Pair
from steersman.tests.e2e.served import GATE, Api, Frame, part, wait_until, write

#: A client takes so many frames from one replica, then goes to the other.
TAKEN = 4
SLOW = [step for n in range(12) for step in ({"say": f"{n}, "}, {"sleep_ms": 150})]


@pytest.fixture(scope="module")
def pair(new_database: Callable[[], str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Two replicas; each test leaves them and their Redis well."""
    with ExitStack() as stack:
        yield Pair(tmp_path_factory.mktemp("pair"), new_database(), stack)


class Fault:
    """Something that happens to Redis, and what makes it well again."""

    def __init__(self, name: str, hurt: Callable[[Any], None], heal: Callable[[Any], None], shows: bool) -> None:
        self.name = name
        self.hurt = hurt
        self.heal = heal
        #: Whether the replicas are to notice.
        self.shows = shows


def _nothing(redis: Any) -> None:
    pass


def _flush(redis: Any) -> None:
    with redis.client() as client:
        client.flushall()


def _restart(redis: Any) -> None:
    redis.kill()
    redis.start()


FAULTS = [
    Fault("nothing", _nothing, _nothing, shows=False),
    Fault("flushed", _flush, _nothing, shows=False),
    Fault("restarted", _restart, _nothing, shows=False),
    Fault("killed", lambda redis: redis.kill(), lambda redis: redis.start(), shows=True),
    Fault("stopped", lambda redis: redis.pause(), lambda redis: redis.resume(), shows=True),
]


def hopping(apis: list[Api], run_id: str) -> Iterator[Frame]:
    """Give a run's frames, from its first to its `done`, always a few from one replica and then a few from the other."""
    last: int | None = None
    for api in itertools.cycle(apis):
        feed = api.feed(run_id, last)
        try:
            for _ in range(TAKEN):
                frame = feed.take()
                yield frame
                if frame.event == "done":
                    return
                last = frame.id
        finally:
            feed.close()


def until(event: str, frames: Iterator[Frame]) -> list[Frame]:
    """Return the frames up to and with the first of a kind."""
    found: list[Frame] = []
    for frame in frames:
        found.append(frame)
        if frame.event == event:
            return found
    raise AssertionError(f"there was no {event}: {found}")


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_client_that_changes_replicas_misses_and_repeats_nothing(
    pair: Pair, repository: Repository, fault: Fault
) -> None:
    here, there = pair.apis
    run_id = here.orchestrate(here.project(repository.path), part("slow", *SLOW, write("a.txt", "a\n")))
    here.until(run_id, "subtask.running")
    (child,) = here.get(f"/api/runs/{run_id}/children")
    of_child, of_run = hopping(pair.apis, child["childRunId"]), hopping(pair.apis, run_id)
    seen = list(itertools.islice(of_child, 2 * TAKEN))
    fault.hurt(pair.redis)
    try:
        # The agent goes on, the run comes to its gate, and what is decided there at one replica is done by whichever
        # drives the run: all of it with Redis as it is now.
        frames = until(GATE, of_run)
        there.review(run_id, approved=True)
        frames += of_run
        seen += of_child
        if fault.shows:
            pair.until_redis_is("unavailable")
    finally:
        fault.heal(pair.redis)
    pair.until_redis_is("ok")
    assert repository.files["a.txt"] == "a"
    for found, path in ((frames, run_id), (seen, child["childRunId"])):
        assert found[-1] == (None, "done", {})
        stored = here.get(f"/api/runs/{path}/events")
        assert [(e["sequence"], e["type"], e["payload"]) for e in stored] == [tuple(frame) for frame in found[:-1]]
        assert [frame.id for frame in found[:-1]] == list(range(1, len(found)))
    words = "".join(frame.data["delta"] for frame in seen if frame.event == "agent.message.delta")
    # Each step says a message of its own, and messages are kept apart.
    assert words == "\n".join(str(step["say"]) for step in SLOW if "say" in step)


def test_replicas_wake_each_other_over_the_channel_of_their_log_and_keep_nothing_in_redis(
    pair: Pair, repository: Repository
) -> None:
    origin = pair.apis[0].get("/api/log/key")["origin"]
    channel = f"steersman:{origin}:wakeups"
    with pair.redis.client() as client, client.pubsub(ignore_subscribe_messages=True) as seen:
        assert client.pubsub_channels() == [channel.encode()]
        assert client.pubsub_numsub(channel) == [(channel.encode(), 2)]
        seen.subscribe(channel)
        wait_until(lambda: client.pubsub_numsub(channel)[0][1] == 3, "we listen, too")
        position = 0
        for api, name in zip(pair.apis, ("one", "two"), strict=True):
            api.project(repository.path, name=name)
            position = api.http.get("/health").json()["position"]
            wait_until(
                lambda position=position: (m := seen.get_message(timeout=1)) and int(m["data"]) >= position,
                "the other would be woken",
            )
        assert client.keys("*") == []
