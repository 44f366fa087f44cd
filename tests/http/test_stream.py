"""Feeds over real sockets: every frame once and in order, whoever comes when, and whatever happens in between."""

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from http.client import HTTPConnection
from threading import Event, Thread
from typing import Any, NamedTuple

import pytest

from steersman.http.access import RunPlace
from steersman.http.given import Services
from steersman.http.stream import RunSource

from .conftest import Story, own_feed, served


class Frame(NamedTuple):
    """One server-sent event as the bytes between two blank lines say it."""

    id: int | None
    event: str
    data: str
    comment: str = ""


class Feed:
    """A client on a feed."""

    def __init__(self, response: Any) -> None:
        self.status = response.status
        self.headers = response.headers
        self.raw = b""
        self._response = response

    def __iter__(self) -> Iterator[Frame]:
        block: list[bytes] = []
        while line := self._response.readline():
            self.raw += line
            if line != b"\n":
                block.append(line)
                continue
            yield _frame(b"".join(block).decode())
            block = []

    def events(self) -> Iterator[Frame]:
        """The frames that are no comments."""
        return (frame for frame in self if not frame.comment)

    def rest(self) -> list[Frame]:
        """Every event until the feed ends."""
        return list(self.events())

    def until(self, event: str) -> list[Frame]:
        """The events up to the first of a kind, with it."""
        found: list[Frame] = []
        for frame in self.events():
            found.append(frame)
            if frame.event == event:
                return found
        raise AssertionError(f"the feed ended before {event}: {found}")


def _frame(block: str) -> Frame:
    fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
    comment = next((line for line in block.splitlines() if line.startswith(":")), "")
    return Frame(
        id=int(fields["id"]) if "id" in fields else None,
        event=fields.get("event", ""),
        data=fields.get("data", ""),
        comment=comment,
    )


@contextmanager
def listening(client: Any, path: str, url: str | None = None, **headers: str) -> Iterator[Feed]:
    """Open a feed; leave it when the block ends."""
    host, port = (url or str(client.base_url)).removeprefix("http://").rstrip("/").split(":")
    sent = {"Authorization": client.headers["authorization"]} | {k.replace("_", "-"): v for k, v in headers.items()}
    with closing(HTTPConnection(host, int(port), timeout=30)) as connection:
        connection.request("GET", path, headers=sent)
        with connection.getresponse() as response:
            yield Feed(response)


def end(story: Story) -> None:
    """Take a run from its gate to its end."""
    story.client.post(f"/api/runs/{story.run_id}/assembly/review", json={"approved": True}).raise_for_status()
    made = story.run.assembly
    assert made is not None
    assert made.head is not None
    story.merge(made.head)


def whole(story: Story, run_id: str) -> list[tuple[int, str]]:
    """What the log says that a feed must show."""
    return [(f.run_sequence or 0, f.topic) for f in story.api.services.log.read_run(run_id, limit=10_000)]


def shown(frames: list[Frame]) -> list[tuple[int | None, str]]:
    return [(frame.id, frame.event) for frame in frames if frame.event != "done"]


def test_a_feed_says_what_it_is_and_ends_with_done(story: Any) -> None:
    story.to_gate()
    end(story)
    with listening(story.client, f"/api/runs/{story.run_id}/stream") as feed:
        assert feed.status == 200
        assert feed.headers["content-type"].startswith("text/event-stream")
        assert feed.headers["cache-control"] == "no-store, no-transform"
        assert feed.headers["x-accel-buffering"] == "no"
        assert feed.headers["content-encoding"] is None
        frames = feed.rest()
    assert feed.raw.startswith(b": steersman\nretry: ")
    assert feed.raw.endswith(b"\n\nevent: done\ndata: {}\n\n")
    assert frames[-1] == Frame(None, "done", "{}")
    assert shown(frames) == whole(story, story.run_id)
    assert frames[0].data.startswith('{"goal":"Sell things","projectId":')


def test_a_feed_is_never_compressed(story: Any) -> None:
    story.to_gate()
    end(story)
    with listening(story.client, f"/api/runs/{story.run_id}/stream", Accept_Encoding="gzip, br") as feed:
        assert feed.rest()[-1].event == "done"
        assert feed.headers["content-encoding"] is None


def test_two_clients_see_identical_frames_and_a_late_third_sees_them_all(story: Any) -> None:
    story.start()
    path = f"/api/runs/{story.run_id}/stream"

    def watch(opened: Event) -> bytes:
        with listening(story.client, path) as feed:
            opened.set()
            feed.rest()
            return feed.raw

    opened = [Event(), Event()]
    with ThreadPoolExecutor(2) as pool:
        live = [pool.submit(watch, event) for event in opened]
        assert all(event.wait(20) for event in opened)
        story.advance()
        story.work(1)
        story.advance()
        story.work(2)
        story.advance()
        made = story.assembled()
        from steersman.domain import review

        story.decide(lambda run: review.integrate(run, made, has_changes=True, conflicts=()))
        story.decide(review.pass_gates)
        end(story)
        seen = [future.result(30) for future in live]
    late = watch(Event())
    frames = [b"".join(part for part in raw.split(b": keep-alive\n\n")) for raw in (*seen, late)]
    assert frames[0] == frames[1] == frames[2]
    assert frames[0].endswith(b"event: done\ndata: {}\n\n")


@pytest.mark.parametrize("how", ["header", "query"])
def test_a_client_goes_on_from_every_id_without_gap_or_repetition(story: Any, how: str) -> None:
    story.to_gate()
    end(story)
    everything = whole(story, story.run_id)
    for last in range(len(everything) + 1):
        path = f"/api/runs/{story.run_id}/stream"
        asked = (path, {"Last_Event_ID": str(last)}) if how == "header" else (f"{path}?after={last}", {})
        with listening(story.client, asked[0], **asked[1]) as feed:
            frames = feed.rest()
        assert shown(frames) == everything[last:]
        assert frames[-1].event == "done"


def test_the_header_wins_over_the_parameter(story: Any) -> None:
    story.to_gate()
    end(story)
    with listening(story.client, f"/api/runs/{story.run_id}/stream?after=1", Last_Event_ID="3") as feed:
        assert next(feed.events()).id == 4


@pytest.mark.parametrize("wrong", ["x", "-1", "1.5", "+1", "0x1", "1 2", "99999", "9" * 400, "%D9%A1", "1e0"])
def test_an_id_that_the_feed_never_gave_out_is_400(api: Any, story: Any, wrong: str) -> None:
    story.start()
    for path in (f"/api/runs/{story.run_id}/stream", "/api/events/stream"):
        for response in (
            story.client.get(f"{path}?after={wrong}"),
            story.client.get(path, headers={"Last-Event-ID": wrong}),
        ):
            assert response.status_code == 400
            assert response.headers["content-type"] == "application/problem+json"
    assert story.client.get(f"/api/runs/{story.run_id}/stream?after=1&after=1").status_code == 400


def test_live_frames_follow_the_stored_ones_while_the_run_talks(story: Any) -> None:
    story.start()
    story.advance()
    child = story.child(1)
    stop = Event()

    def talk() -> None:
        n = 0
        while not stop.is_set():
            story.say(child, f"word {n}")
            n += 1

    talker = Thread(target=talk)
    talker.start()
    try:
        for start in (0, 1, 0):
            ids: list[int | None] = []
            with listening(story.client, f"/api/runs/{child}/stream?after={start}") as feed:
                for frame in feed.events():
                    ids.append(frame.id)
                    if len(ids) == 300:
                        break
            assert ids == list(range(start + 1, start + 301))
    finally:
        stop.set()
        talker.join()


def test_many_clients_joining_while_a_run_talks_all_see_every_frame_once(story: Any) -> None:
    story.start()
    story.advance()
    child = story.child(1)

    def watch(_: int) -> list[tuple[int | None, str]]:
        with listening(story.client, f"/api/runs/{child}/stream") as feed:
            return shown(feed.rest())

    with ThreadPoolExecutor(12) as pool:
        live = []
        for n in range(12):
            live.append(pool.submit(watch, n))
            story.say(child, *(f"{n}/{m}" for m in range(40)))
        story.work(1)
        expected = whole(story, child)
        assert all(future.result(30) == expected for future in live)


def test_a_silent_feed_is_kept_alive_by_comments(story: Any) -> None:
    story.start()
    with listening(story.client, f"/api/runs/{story.run_id}/stream?after=2") as feed:
        comments = [frame.comment for frame, _ in zip(feed, range(4), strict=False)]
    assert comments == [": steersman", ": keep-alive", ": keep-alive", ": keep-alive"]


def test_a_client_that_leaves_takes_nobody_with_it(story: Any) -> None:
    story.to_gate()
    path = f"/api/runs/{story.run_id}/stream"
    with listening(story.client, path) as stays:
        with listening(story.client, path) as leaves:
            assert next(leaves.events()).id == 1
        end(story)
        assert shown(stays.rest()) == whole(story, story.run_id)


def test_a_child_run_has_a_feed_of_its_own_with_its_output(story: Any) -> None:
    story.to_gate()
    child = story.child(1)
    with listening(story.client, f"/api/runs/{child}/stream") as feed:
        frames = feed.rest()
    assert shown(frames) == whole(story, child)
    assert '{"delta":"Looking.","messageId":"m"}' in [frame.data for frame in frames]
    assert frames[-1].event == "done"


def test_a_feed_at_the_gate_stays_open_until_the_run_ends(story: Any) -> None:
    story.to_gate()
    with listening(story.client, f"/api/runs/{story.run_id}/stream") as feed:
        feed.until("coordinator.assembly_review_requested")
        assert next(iter(feed)).comment == ": keep-alive"
        end(story)
        assert [frame.event for frame in feed.rest()][-2:] == ["coordinator.assembly_completed", "done"]


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
        with socket.socket() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, slim)
            connection.settimeout(30)
            connection.connect((host, int(port)))
            token = story.client.headers["authorization"]
            connection.sendall(f"GET /api/runs/{child}/stream HTTP/1.0\r\nAuthorization: {token}\r\n\r\n".encode())
            reader = connection.makefile("rb")
            while reader.readline() != b": keep-alive\n":
                pass
            # It is live now, and reads no more: what the sockets do not hold piles up in the queue until it is full.
            words = "x" * 4_000
            for n in range(50):
                story.say(child, *(f"{n}/{m} {words}" for m in range(10)))
            seen = [line for line in reader if line.startswith((b"id: ", b"event: done"))]
        ids = [1, *(int(line.split()[1]) for line in seen)]
        assert ids == list(range(1, len(ids) + 1)), "cut off, but never skipped"
        assert len(ids) < services.log.run_head(child)
        with listening(story.client, f"/api/runs/{child}/stream", url, Last_Event_ID=str(ids[-1])) as feed:
            rest = [next(feed.events()).id for _ in range(services.log.run_head(child) - ids[-1])]
        assert ids + rest == list(range(1, services.log.run_head(child) + 1))


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
