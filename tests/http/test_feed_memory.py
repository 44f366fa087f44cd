"""What feeds cost: pages by bytes, a bound on each reader's memory, and an end to readers that do not read."""

import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from steersman.http.feeds.feed_sources import PAGE_BYTES, RunSource
from steersman.http.request.access import Access
from steersman.http.request.given import Services
from steersman.ops.serving.connections import ClientLimits
from steersman.tests.http.conftest import Api, served
from steersman.tests.http.feeds import listening
from steersman.tests.live_agents import wait_until

READERS = 4_096
#: What a reader may cost that does not read, and is in the midst of a long history of large facts.
MOST_KIB = 200
LARGE = "x" * 30_000


@pytest.fixture
def many_files() -> Iterator[None]:
    """Room for the sockets of both ends."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 3 * READERS), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def resident_kib() -> int:
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.split("VmRSS:")[1].split()[0])


def talkative(story: Any, words: int) -> str:
    """Let a run's agent have said much; return the run's id."""
    story.start()
    story.advance()
    child: str = story.child(1)
    for number in range(words):
        story.say(child, f"{number} {LARGE}")
    return child


def opened(url: str, path: str, token: str) -> socket.socket:
    """A client that asks for a feed, and reads its first bytes only."""
    host, port = url.removeprefix("http://").split(":")
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    connection.settimeout(120)
    connection.connect((host, int(port)))
    connection.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: {token}\r\n\r\n".encode())
    assert connection.recv(15).startswith(b"HTTP/1.1 200 ")
    return connection


def test_a_page_holds_so_many_bytes_and_all_pages_hold_everything_once(services: Services, story: Any) -> None:
    child = talkative(story, 20)
    story.say(child, *(str(number) for number in range(500)), "y" * 200_000, "the end")
    source, after, ids = RunSource(services, Access(services.log).place(child)), 0, []
    while (page := source.page(after)).sent:
        assert len(page.sent) == 1 or sum(len(one.data) for one in page.sent) <= PAGE_BYTES
        ids += [one.id for one in page.sent]
        after = ids[-1]
    assert ids == list(range(1, services.log.run_head(child) + 1))


@pytest.mark.timeout(900)
def test_4096_readers_that_do_not_read_take_a_bounded_memory_each(
    services: Services, story: Any, many_files: None
) -> None:
    child = talkative(story, 40)
    token = story.client.headers["authorization"]
    limits = ClientLimits(unread_seconds=900.0, strangers=READERS)
    with served(services, send_buffer=16_384, limits=limits) as url, ExitStack() as stack:
        path = f"/api/runs/{child}/stream"
        for _ in range(50):  # what everybody shares is there
            stack.enter_context(closing(opened(url, path, token)))
        before = resident_kib()
        for _ in range(READERS - 50):
            stack.enter_context(closing(opened(url, path, token)))
        each = (resident_kib() - before) / (READERS - 50)
        assert each <= MOST_KIB, f"{each:.0f} KiB for each reader"


def test_a_reader_of_a_feed_that_does_not_read_is_let_go_and_its_place_is_free(services: Services, story: Any) -> None:
    child = talkative(story, 40)
    quick = replace(services, settings=replace(services.settings, keepalive_seconds=600.0))
    token = story.client.headers["authorization"]
    with (
        served(quick, send_buffer=16_384, limits=ClientLimits(unread_seconds=0.5)) as url,
        closing(opened(url, f"/api/runs/{child}/stream", token)) as connection,
    ):
        wait_until(lambda: connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) != 0, "it is let go")


def test_a_burst_that_is_larger_than_a_queue_cuts_nobody_off_who_reads(api: Api, story: Any) -> None:
    child = talkative(story, 1)
    with listening(story.client, f"/api/runs/{child}/stream") as feed:
        shown = feed.events()
        begun = api.services.log.run_head(child)
        assert [next(shown).id for _ in range(begun)] == list(range(1, begun + 1))
        story.say(child, *("z" * 30_000 for _ in range(30)))
        assert [next(shown).id for _ in range(30)] == list(range(begun + 1, begun + 31))
