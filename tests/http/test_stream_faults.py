"""Feeds when something goes wrong: restarts, lost hints, slow readers, a log that is away."""

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from threading import Event, Thread
from typing import Any

from steersman.application.ports.log import LogUnavailable
from steersman.http.feeds.feed_sources import PAGE, RunSource
from steersman.http.request.access import RunPlace
from steersman.http.request.given import Services

from .conftest import own_feed, served
from .feeds import Feed, Frame, end, listening, shown, whole


def test_a_run_is_over_only_behind_everything_that_is_stored(services: Services, story: Any) -> None:
    story.to_gate()
    source = RunSource(services, RunPlace(run_id=story.run_id, root=story.run_id, project_id=story.project_id))
    assert not source.is_over(source.head()), "it waits at its gate"
    end(story)
    # Whoever looks between two reads of the log may know of the end before the frames that lead to it.
    assert [after for after in range(source.head() + 1) if source.is_over(after)] == [source.head()]
    child = RunSource(services, RunPlace(run_id=story.child(1), root=story.run_id, project_id=story.project_id))
    assert [after for after in range(child.head() + 1) if child.is_over(after)] == [child.head()]


def test_a_feed_is_the_same_after_a_restart(services: Services, story: Any) -> None:
    story.to_gate()
    path = f"/api/runs/{story.run_id}/stream"
    with listening(story.client, f"{path}?after=0") as feed:
        before = [next(feed.events()) for _ in range(5)]
    with (
        own_feed(services) as hub,
        served(replace(services, feed=hub)) as url,
        listening(story.client, path, url, Last_Event_ID="5") as feed,
    ):
        after = [next(feed.events())]
        end(story)
        after += feed.rest()
    assert shown([*before, *after]) == whole(story, story.run_id)


def test_a_lost_wake_up_costs_time_and_no_frame(services: Services, story: Any) -> None:
    story.to_gate()
    with (
        own_feed(services) as deaf,
        served(replace(services, feed=deaf)) as url,
        listening(story.client, f"/api/runs/{story.run_id}/stream", url) as feed,
    ):
        feed.until("coordinator.assembly_review_requested")
        end(story)
        assert [frame.event for frame in feed.rest()][-2:] == ["coordinator.assembly_completed", "done"]


def test_a_reader_that_is_too_slow_is_cut_off_and_goes_on_by_its_id(services: Services, story: Any) -> None:
    story.start()
    story.advance()
    child = story.child(1)
    slim = 64 * 1024
    with own_feed(services, max_frames=50) as narrow, served(replace(services, feed=narrow), send_buffer=slim) as url:
        host, port = url.removeprefix("http://").split(":")
        with socket.socket() as connection, connection.makefile("rb") as reader:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, slim)
            connection.settimeout(60)
            connection.connect((host, int(port)))
            token = story.client.headers["authorization"]
            connection.sendall(f"GET /api/runs/{child}/stream HTTP/1.0\r\nAuthorization: {token}\r\n\r\n".encode())
            shown: list[bytes] = []
            while (line := reader.readline()) != b": keep-alive\n":
                shown.append(line)
            # It is live now, and reads no more: what the sockets do not hold piles up in the queue until it is full.
            words = "x" * 4_000
            for n in range(50):
                story.say(child, *(f"{n}/{m} {words}" for m in range(10)))
            seen = [line for line in (*shown, *reader) if line.startswith((b"id: ", b"event: done"))]
        ids = [int(line.split()[1]) for line in seen]
        assert ids == list(range(1, len(ids) + 1)), "cut off, but never skipped"
        assert len(ids) < services.log.run_head(child)
        with listening(story.client, f"/api/runs/{child}/stream", url, Last_Event_ID=str(ids[-1])) as feed:
            rest = [next(feed.events()).id for _ in range(services.log.run_head(child) - ids[-1])]
        assert ids + rest == list(range(1, services.log.run_head(child) + 1))


class Away:
    """A log that is away as soon as somebody says so."""

    def __init__(self, log: Any) -> None:
        self._log = log
        self.is_away = False

    def __getattr__(self, name: str) -> Any:
        if self.is_away:
            raise LogUnavailable("away")
        return getattr(self._log, name)


def test_a_feed_that_loses_its_log_ends_without_done_and_its_client_goes_on_by_its_id(
    services: Services, story: Any
) -> None:
    story.to_gate()
    path = f"/api/runs/{story.run_id}/stream"
    log = Away(services.log)
    with (
        own_feed(services) as hub,
        served(replace(services, log=log, feed=hub)) as url,
        listening(story.client, path, url) as feed,
    ):
        last = feed.until("coordinator.assembly_review_requested")[-1].id
        log.is_away = True
        end(story)
        assert "done" not in [frame.event for frame in feed.rest()]
        log.is_away = False
        with listening(story.client, path, url, Last_Event_ID=str(last)) as again:
            assert shown(again.rest()) == whole(story, story.run_id)[last:]


def test_an_erased_text_is_null_in_the_feed(services: Services, story: Any) -> None:
    story.to_gate()
    end(story)
    services.log.erase_texts([story.run_id])
    with listening(story.client, f"/api/runs/{story.run_id}/stream") as feed:
        assert '"goal":null' in next(feed.events()).data


def test_the_feed_of_the_log_shows_what_the_caller_may_see_under_the_logs_positions(api: Any, story: Any) -> None:
    story.to_gate()
    stored = story.client.get("/api/events?limit=1000").json()
    bob = api.client("bob")
    with (
        listening(story.client, "/api/events/stream") as mine,
        listening(bob, f"/api/events/stream?after={api.services.log.head()}") as theirs,
    ):
        frames = [next(mine.events()) for _ in stored]
        assert [frame.id for frame in frames] == [event["position"] for event in stored]
        assert '"position":%d' % stored[0]["position"] in frames[0].data  # noqa: UP031
        story.client.post(f"/api/runs/{story.run_id}/assembly/review", json={"approved": False}).raise_for_status()
        assert next(mine.events()).event == "coordinator.assembly_declined"
        created = bob.post("/api/projects", json={"name": "x", "working_directory": str(story.repository)})
        frame = next(theirs.events())
        assert (frame.id, frame.event) == (int(created.headers["steersman-position"]), "project.created")


def test_closing_the_hub_ends_every_feed_so_that_the_service_can_end(services: Services, story: Any) -> None:
    story.start()
    with (
        own_feed(services) as hub,
        served(replace(services, feed=hub)) as url,
        listening(story.client, "/api/events/stream", url) as feed,
    ):
        assert next(iter(feed)).comment == ": steersman"
        next(feed.events())
        hub.close()
        assert "done" not in [frame.event for frame in feed.rest()]


def test_a_process_that_has_no_room_for_another_feed_says_503_and_when_to_come_back(
    services: Services, story: Any
) -> None:
    story.start()
    path = f"/api/runs/{story.run_id}/stream"
    with own_feed(services, max_clients=3) as hub, served(replace(services, feed=hub)) as url, ExitStack() as stack:
        for where in (path, path, "/api/events/stream"):
            next(stack.enter_context(listening(story.client, where, url)).events())
        for where in (path, "/api/events/stream"):
            response = story.client.get(f"{url}{where}")
            assert (response.status_code, response.json()["error"]) == (503, "too_many_feeds")
            assert (response.json()["retryable"], response.headers["retry-after"]) == (True, "1")
        assert story.client.get(f"{url}/api/runs/{story.run_id}/events").status_code == 200
        # A feed that is refused takes no place, and one that was left gives its place up.
        stack.close()
        for _ in range(20):
            assert story.client.get(f"{url}{path}?after=1000000").status_code == 400
            with listening_soon(story.client, path, url) as feed:
                next(feed.events())


def test_clients_that_leave_before_they_are_answered_take_no_place(services: Services, story: Any) -> None:
    story.start()
    path = f"/api/runs/{story.run_id}/stream"
    with own_feed(services, max_clients=3) as hub, served(replace(services, feed=hub)) as url:
        host, port = url.removeprefix("http://").split(":")
        token = story.client.headers["authorization"]
        for _ in range(50):
            with socket.create_connection((host, int(port))) as connection:
                connection.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: {token}\r\n\r\n".encode())
        with listening_soon(story.client, path, url) as feed:
            next(feed.events())


@contextmanager
def listening_soon(client: Any, path: str, url: str) -> Iterator[Feed]:
    """Open a feed as soon as there is room: that a client has left is noticed a moment later."""
    for _ in range(500):
        with listening(client, path, url) as feed:
            if feed.status == 200:
                yield feed
                return
            assert feed.status == 503
        time.sleep(0.02)
    raise AssertionError("there is no room any more")


def test_a_feed_on_which_only_others_talk_is_kept_alive_all_the_same(api: Any, story: Any) -> None:
    story.start()
    stop = Event()

    def talk() -> None:
        # Ten times as often as a comment is due, and long enough for several of them.
        for n in range(100):
            story.say(story.run_id, f"word {n}")
            if stop.wait(api.services.settings.keepalive_seconds / 10):
                return

    talker = Thread(target=talk)
    with listening(api.client("bob"), f"/api/events/stream?after={api.services.log.head()}") as feed:
        assert next(iter(feed)).comment == ": steersman"
        talker.start()
        try:
            for _ in range(3):
                assert next(iter(feed)) == Frame(None, "", "", ": keep-alive")
            assert talker.is_alive(), "the comments came while the others talked, and not after it"
        finally:
            stop.set()
            talker.join()


class Slow:
    """A log that takes its time for each page of it."""

    def __init__(self, log: Any, seconds: float) -> None:
        self._log = log
        self._seconds = seconds

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    def read(self, *arguments: Any) -> Any:
        time.sleep(self._seconds)
        return self._log.read(*arguments)


def test_a_feed_that_steps_over_a_long_history_of_others_is_kept_alive_meanwhile(
    services: Services, story: Any, repository: Path
) -> None:
    story.start()
    start = services.log.head()
    story.say(story.run_id, *(f"word {n}" for n in range(6 * PAGE)))
    bob = story.api.client("bob")
    body = {"name": "Bob's", "working_directory": str(repository)}
    bob.post("/api/projects", json=body).raise_for_status()
    slow = Slow(services.log, services.settings.keepalive_seconds / 2)
    with (
        own_feed(services) as hub,
        served(replace(services, log=slow, feed=hub)) as url,
        listening(bob, f"/api/events/stream?after={start}", url) as feed,
    ):
        heard = [frame.comment for frame in takewhile(lambda frame: frame.comment, feed)]
    assert heard[0] == ": steersman"
    assert heard[1:].count(": keep-alive") >= 2, "before the project of their own, which is the first they may see"
