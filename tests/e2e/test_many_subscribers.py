"""Five hundred clients on two replicas see the same bytes, although Redis is restarted in the middle; their memory is flat."""

import asyncio
import hashlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from steersman.tests.e2e.conftest import Repository
from steersman.tests.e2e.pair import Pair
from steersman.tests.e2e.served import GATE, PATIENCE_SECONDS, Api, Service, part, write

SUBSCRIBERS = 500
#: Connections that are opened at once.
OPENING = 50
#: What one subscriber may cost, and what it may cost more after it got so many frames more.
MOST_KIB = 160
MOST_GROWTH_KIB = 24
FRAMES_BETWEEN = 30
TALKING = [
    *(step for n in range(120) for step in ({"say": f"Word {n}. "}, {"sleep_ms": 120})),
    write("talk.txt", "Said.\n"),
]
KEEPALIVE = b": keep-alive\n\n"


@pytest.fixture
def pair(new_database: Callable[[], str], tmp_path: Path) -> Iterator[Pair]:
    """Two replicas, this test's own."""
    # Nobody dies here, and five hundred clients can keep the machine from anything else for longer than three seconds.
    with ExitStack() as stack:
        yield Pair(tmp_path, new_database(), stack, STEERSMAN_LEASE_STALE_SECONDS="60")


class Subscriber:
    """A client on a plain socket, that keeps no more of its feed than a digest."""

    def __init__(self) -> None:
        self.frames = 0
        self.digest = hashlib.sha256()
        self.last = b""

    async def listen(self, service: Service, path: str, is_open: asyncio.Event) -> None:
        """Read the feed to its end."""
        url = httpx.URL(service.url)
        reader, writer = await asyncio.open_connection(url.host, url.port)
        try:
            head = f"GET {path} HTTP/1.1\r\nHost: {url.host}\r\nAuthorization: Bearer {service.token}\r\n\r\n"
            writer.write(head.encode())
            assert b" 200 " in await reader.readline()
            while await reader.readline() != b"\r\n":
                pass
            is_open.set()
            # How many frames share a chunk depends on how busy everybody is; what they are together does not.
            while size := int(await reader.readline(), 16):
                chunk = (await reader.readexactly(size + 2))[:-2]
                if chunk != KEEPALIVE:
                    self.digest.update(chunk)
                    self.frames += chunk.count(b"\n\n")
                    self.last = chunk
        finally:
            writer.close()


class Crowd:
    """Subscribers, evenly on both replicas."""

    def __init__(self, pair: Pair, path: str) -> None:
        self._pair = pair
        self._path = path
        self.subscribers: list[Subscriber] = []
        self.tasks: list[asyncio.Task[None]] = []

    async def grow(self, upto: int) -> None:
        """On return so many listen."""
        while len(self.subscribers) < upto:
            opened = [asyncio.Event() for _ in range(OPENING)]
            for number, is_open in enumerate(opened):
                subscriber = Subscriber()
                self.subscribers.append(subscriber)
                service = self._pair.services[number % 2]
                self.tasks.append(asyncio.create_task(subscriber.listen(service, self._path, is_open)))
            for is_open in opened:
                await asyncio.wait_for(is_open.wait(), PATIENCE_SECONDS)

    async def until_all_have(self, frames: int) -> None:
        """Wait until each has so many frames."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while min(subscriber.frames for subscriber in self.subscribers) < frames:
                await asyncio.sleep(0.02)


def resident_kib(service: Service) -> int:
    """Return how much memory a service has."""
    assert service.process is not None
    status = Path(f"/proc/{service.process.pid}/status").read_text(encoding="ascii")
    return int(status.split("VmRSS:")[1].split()[0])


async def watched(pair: Pair, api: Api, run_id: str, child: str) -> tuple[Crowd, list[int], list[int], list[int]]:
    """Let everybody watch a child run from its first frame to its end; return what memory it took, before and during."""

    def memory() -> list[int]:
        return [resident_kib(service) for service in pair.services]

    crowd = Crowd(pair, f"/api/runs/{child}/stream")
    await crowd.grow(OPENING)
    await crowd.until_all_have(3)
    before = memory()
    await crowd.grow(SUBSCRIBERS)
    await crowd.until_all_have(3)
    early, had = memory(), max(subscriber.frames for subscriber in crowd.subscribers)
    await asyncio.to_thread(_restart, pair)
    async with asyncio.timeout(PATIENCE_SECONDS):
        await asyncio.to_thread(api.until, run_id, GATE)
    stored = await asyncio.to_thread(api.get, f"/api/runs/{child}/events?limit=1000")
    await crowd.until_all_have(len(stored) + 1)
    late = memory()
    assert len(stored) - had >= FRAMES_BETWEEN, "most was said before everybody listened: make the agent say more"
    await asyncio.to_thread(lambda: api.review(run_id, approved=True))
    async with asyncio.timeout(PATIENCE_SECONDS):
        await asyncio.gather(*crowd.tasks)
    return crowd, before, early, late


def _restart(pair: Pair) -> None:
    pair.redis.kill()
    pair.redis.start()


def test_five_hundred_subscribers_of_two_replicas_see_identical_frames(
    pair: Pair, repository: Repository, record_property: Any
) -> None:
    api = pair.apis[0]
    run_id = api.orchestrate(api.project(repository.path), part("talk", *TALKING))
    api.until(run_id, "subtask.running")
    (child,) = (row["childRunId"] for row in api.get(f"/api/runs/{run_id}/children"))
    crowd, before, early, late = asyncio.run(watched(pair, api, run_id, child))
    stored = api.get(f"/api/runs/{child}/events?limit=1000")
    for subscriber in crowd.subscribers:
        assert subscriber.last == b"event: done\ndata: {}\n\n"
        # The opening comment and `done` are frames, too, and stand in no log.
        assert subscriber.frames == len(stored) + 2
    assert len({subscriber.digest.hexdigest() for subscriber in crowd.subscribers}) == 1
    added = (SUBSCRIBERS - OPENING) / 2
    costs = [(after - first) / added for first, after in zip(before, early, strict=True)]
    growth = [(after - first) / (SUBSCRIBERS / 2) for first, after in zip(early, late, strict=True)]
    record_property("kib_per_subscriber", costs)
    record_property("growth_kib_per_subscriber", growth)
    print(f"KiB for each subscriber: {costs}; growth from then to the end: {growth}")
    assert max(costs) < MOST_KIB
    assert max(growth) < MOST_GROWTH_KIB
    pair.until_redis_is("ok")
