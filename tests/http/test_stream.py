"""Feeds over real sockets: every frame once and in order, whoever comes when, and whatever happens in between."""

from concurrent.futures import ThreadPoolExecutor
from itertools import takewhile
from threading import Event, Thread
from typing import Any

import pytest

from steersman.adapters.feeds.feed_hub import FeedHub
from steersman.domain.runs import review

from .feeds import Frame, end, listening, shown, whole


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


def test_the_feed_of_a_run_that_is_being_taken_up_again_goes_on(story: Any) -> None:
    story.to_gate()
    actions = f"/api/runs/{story.run_id}"
    story.client.post(f"{actions}/commit", json={}).raise_for_status()
    story.decide(lambda run: review.fail_merge(run, ("README",)))
    story.client.post(f"{actions}/retry", json={}).raise_for_status()
    with listening(story.client, f"{actions}/stream") as feed:
        feed.until("coordinator.steering_received")
        # A keep-alive is sent once nothing more is there, so that the feed might as well have ended.
        assert "done" not in [frame.event for frame in takewhile(lambda frame: not frame.comment, feed)]
        story.advance()
        feed.until("coordinator.recovered")


@pytest.mark.parametrize("path", ["/api/runs/{run}/stream", "/api/events/stream"])
def test_a_feed_ends_without_done_soon_after_its_token_is_revoked_silent_or_not(story: Any, path: str) -> None:
    story.start()
    tokens = story.api.tokens
    for silent in (True, False):
        client = story.api.client()
        mine = tokens.list()[-1].id
        with listening(client, path.format(run=story.run_id)) as feed:
            frames = iter(feed)
            while next(frames).event != "run.workflow_graph":
                pass
            tokens.revoke(mine)
            for frame in frames:
                assert frame.event != "done"
                if not silent:
                    story.say(story.run_id, "And on it goes.")
        assert client.get("/api/projects").status_code == 401


def test_a_feed_ends_when_its_reader_is_on_the_project_no_more(story: Any) -> None:
    story.start()
    role = f"/api/projects/{story.project_id}/members/{story.api.name('carol')}"
    story.client.put(role, json={"role": "viewer"}).raise_for_status()
    with listening(story.api.client("carol"), f"/api/runs/{story.run_id}/stream") as feed:
        frames = iter(feed)
        while next(frames).event != "run.workflow_graph":
            pass
        story.client.delete(role).raise_for_status()
        assert "done" not in [frame.event for frame in frames]


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
        assert all(event.wait(60) for event in opened)
        story.advance()
        story.work(1)
        story.advance()
        story.work(2)
        story.advance()
        made = story.assembled()
        story.decide(
            lambda run: review.integrate(run, made, of_round=run.assembly.round, has_changes=True, conflicts=())
        )
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


def test_a_client_that_has_everything_of_a_run_that_cannot_go_on_is_told_not_to_come_again(story: Any) -> None:
    story.to_gate()
    end(story)
    path, last = f"/api/runs/{story.run_id}/stream", len(whole(story, story.run_id))
    story.decide(review.remove_worktrees)
    answers = [story.client.get(path, headers={"Last-Event-ID": str(last)}), story.client.get(f"{path}?after={last}")]
    assert [(one.status_code, one.content) for one in answers] == [(204, b"")] * 2
    child = f"/api/runs/{story.child(1)}/stream"
    newest = len(whole(story, story.child(1)))
    assert story.client.get(child, headers={"Last-Event-ID": str(newest)}).status_code == 204
    for behind in ({}, {"Last-Event-ID": str(last - 1)}):
        with listening(story.client, path, **{k.replace("-", "_"): v for k, v in behind.items()}) as feed:
            assert feed.rest()[-1].event == "done"


def test_a_run_that_failed_may_be_tried_again_so_its_feed_may_be_opened_again(story: Any) -> None:
    story.start()
    story.decide(lambda run: review.fail_run(run, error_code="x", message="", retryable=True))
    story.decide(review.remove_worktrees)
    last = len(whole(story, story.run_id))
    with listening(story.client, f"/api/runs/{story.run_id}/stream", Last_Event_ID=str(last)) as feed:
        assert feed.rest()[-1].event == "done"


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
    with listening(story.client, f"/api/runs/{story.run_id}/stream?after=3") as feed:
        comments = [frame.comment for frame, _ in zip(feed, range(4), strict=False)]
    assert comments == [": steersman", ": keep-alive", ": keep-alive", ": keep-alive"]


def test_a_silent_feed_finds_what_nobody_handed_to_it(story: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    story.to_gate()
    with listening(story.client, f"/api/runs/{story.run_id}/stream") as feed:
        feed.until("coordinator.assembly_review_requested")
        assert next(iter(feed)).comment == ": keep-alive"
        monkeypatch.setattr(FeedHub, "_hand_over", lambda *_: None)
        end(story)
        feed.until("coordinator.assembly_completed")


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
