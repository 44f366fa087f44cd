"""
Measure feeds: frames delivered to many subscribers, against a bare litestar SSE endpoint in the same run.

Each contestant serves in a process of its own; all subscribers are in this one, so there are two busy processes.
Ours reads every frame from a signed log on SQLite, where each was durable before it was sent; the bare endpoint hands
strings to one queue a client, keeps nothing, and cannot be resumed. Two measures, in alternating rounds:

- burst: frames are made as fast as they can be, and counted until every subscriber has all of them;
- paced: ten times fewer; the time from making a frame (for ours: before it is stored) to its arrival, each time.

    python ops/bench/feed.py [--subscribers 100 500 2000] [--rounds 3]
"""

import argparse
import asyncio
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import uvloop

sys.path.insert(0, str(Path(__file__).parent))
from feed_contestants import GROUP

CONTESTANTS = ("ours", "bare")
#: Deliveries, over all subscribers, in one burst, and in a second of the paced measure.
BURST_DELIVERIES = 60_000
PACED_DELIVERIES = 6_000
PACED_SECONDS = 3.0
#: Connections that are opened at once.
OPENING = 50
WARMING_FRAMES = 200
PATIENCE_SECONDS = 120.0
#: The moment in nanoseconds that each frame names.
MADE = re.compile(rb"at=(\d{19})")


class FeedRound(NamedTuple):
    """What one contestant did with so many subscribers."""

    deliveries_per_second: float
    p50_milliseconds: float
    p99_milliseconds: float
    #: What a delivery takes of the server's processor, in microseconds, when frames come one by one, and in a burst.
    #: On a machine that is busy with other things these are the figures to go by.
    paced_cpu: float
    burst_cpu: float
    kib_per_subscriber: float


class CountingSubscriber(asyncio.Protocol):
    """One connection: it counts frames, and on demand how long each was on its way."""

    def __init__(self, crowd: "Crowd", request: bytes) -> None:
        self._crowd = crowd
        self._request = request
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask for the feed."""
        self._transport: Any = transport
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        """Count what came."""
        data = self._rest + data
        found = MADE.findall(data)
        # A frame that is cut in two by the network is looked at whole; no frame is counted twice.
        self._rest = data[data.rfind(b"\n") + 1 :][-4_096:] if not data.endswith(b"\n") else b""
        again = len(MADE.findall(self._rest))
        self._crowd.arrived(found[: len(found) - again])
        if not found:
            self._crowd.greeted(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell: nobody is to be cut off here."""
        self._crowd.lost += 1

    def close(self) -> None:
        """Hang up."""
        self._transport.close()


class Crowd:
    """Every subscriber of one contestant."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._orders, self._said = process.stdin, process.stdout
        self.here: set[CountingSubscriber] = set()
        self.count = 0
        self.lost = 0
        self.delays: list[int] = []

    def greeted(self, subscriber: CountingSubscriber) -> None:
        """Take note of who has an answer."""
        self.here.add(subscriber)

    def arrived(self, moments: list[bytes]) -> None:
        """Take note of frames."""
        self.count += len(moments)
        now = time.time_ns()
        self.delays += [now - int(moment) for moment in moments]

    async def gather(self, size: int) -> None:
        """On return so many subscribers listen to what comes next."""
        about = json.loads(await asyncio.to_thread(self._said.readline))
        url = httpx.URL(about["url"])
        request = (
            f"GET {url.raw_path.decode()} HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer {about['token']}\r\n\r\n"
        ).encode()
        loop = asyncio.get_running_loop()
        for start in range(0, size, OPENING):
            upto = min(size, start + OPENING)
            connecting = (
                loop.create_connection(lambda: CountingSubscriber(self, request), url.host, url.port or 0)
                for _ in range(start, upto)
            )
            await asyncio.gather(*connecting)
            await self._until(lambda upto=upto: len(self.here) >= upto)
        await asyncio.sleep(1)  # the last ones have an answer, and may still be reading what is stored

    async def watch(self, frames: int, rate: int) -> float:
        """Let so many frames be made, *rate* a second or at once (0); return how long it took until everybody had all."""
        self.count, self.delays = 0, []
        began = time.perf_counter()
        print(json.dumps({"frames": frames, "rate": rate}), file=self._orders, flush=True)
        await self._until(lambda: self.count >= frames * len(self.here))
        return time.perf_counter() - began

    async def leave(self) -> None:
        """Hang up, all of them."""
        for subscriber in self.here:
            subscriber.close()
        await self._until(lambda: self.lost == len(self.here), may_lose=True)
        self.here, self.lost = set(), 0

    async def _until(self, condition: Callable[[], bool], *, may_lose: bool = False) -> None:
        until = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            if time.monotonic() > until or (self.lost and not may_lose):
                raise SystemExit(f"{self.count} frames arrived, {len(self.here)} subscribers, {self.lost} lost")
            await asyncio.sleep(0.002)


async def measure(contestant: str, size: int) -> FeedRound:
    """Return what a contestant does for so many subscribers, in a process that is started for it."""
    command = [sys.executable, "-P", str(Path(__file__).with_name("feed_contestants.py")), contestant]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:  # noqa: ASYNC220 - nothing else runs yet
        crowd = Crowd(process)
        await crowd.gather(1)
        await crowd.watch(WARMING_FRAMES, 0)  # everything is imported, and has run once
        await crowd.leave()
        before = resident_kib(process.pid)
        await crowd.gather(size)
        memory = (resident_kib(process.pid) - before) / size
        rate = max(1, PACED_DELIVERIES // size)
        used = [processor_seconds(process.pid)]
        await crowd.watch(int(rate * PACED_SECONDS), rate)
        used.append(processor_seconds(process.pid))
        delays = sorted(delay / 1e6 for delay in crowd.delays)
        frames = max(GROUP, BURST_DELIVERIES // size // GROUP * GROUP)
        took = await crowd.watch(frames, 0)
        used.append(processor_seconds(process.pid))
        await crowd.leave()
        process.communicate()
    return FeedRound(
        deliveries_per_second=frames * size / took,
        p50_milliseconds=delays[len(delays) // 2],
        p99_milliseconds=delays[int(len(delays) * 0.99)],
        paced_cpu=(used[1] - used[0]) / len(delays) * 1e6,
        burst_cpu=(used[2] - used[1]) / (frames * size) * 1e6,
        kib_per_subscriber=memory,
    )


def processor_seconds(pid: int) -> float:
    """Return how long a process has had a processor."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_kib(pid: int) -> int:
    """Return how much memory a process has."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return int(status.split("VmRSS:")[1].split()[0])


def open_files() -> None:
    """Allow as many connections as the system lets us."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Measure feeds against a bare litestar SSE endpoint.")
    parser.add_argument("--subscribers", type=int, nargs="+", default=[100, 500, 2_000])
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    open_files()
    columns = ("deliveries/s", "frames/s", "p50 ms", "p99 ms", "µs paced", "µs burst", "KiB each")
    print(f"{'subscribers':>11}{'':>7}" + "".join(f"{column:>13}" for column in columns))
    for size in given.subscribers:
        rounds: dict[str, list[FeedRound]] = {name: [] for name in CONTESTANTS}
        for _ in range(given.rounds):
            for name in CONTESTANTS:
                rounds[name].append(uvloop.run(measure(name, size)))
        medians = {name: FeedRound(*(statistics.median(v) for v in zip(*r, strict=True))) for name, r in rounds.items()}
        for name, found in medians.items():
            print_row(size, name, found)
        print_row(size, "ratio", FeedRound(*(ours / bare for ours, bare in zip(*medians.values(), strict=True))))
    return 0


def print_row(size: int, name: str, found: FeedRound) -> None:
    """Print one line of the table."""
    rate, *rest = found
    figures = (rate, rate if name == "ratio" else rate / size, *rest)
    print(f"{size:>11}{name:>7}" + "".join(f"{figure:>13.2f}" for figure in figures), flush=True)


if __name__ == "__main__":
    sys.exit(main())
