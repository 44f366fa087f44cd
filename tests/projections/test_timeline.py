"""Feeds show facts: one frame each, the payload as it was said, null where words were erased."""

from typing import TYPE_CHECKING

import msgspec

from steersman.domain.event import Fact, Unknown
from steersman.projections.feeds.timeline import frame, log_frame, may_end, timeline_entry

if TYPE_CHECKING:
    from .conftest import History


def _goal(history: "History") -> Fact:
    return next(fact for fact in history.facts if fact.topic == "coordinator.started")


def test_a_frame_carries_the_payload_with_its_words_in_camel_case(history: "History") -> None:
    history.start()
    shown = frame(_goal(history))
    assert (shown.id, shown.event) == (1, "coordinator.started")
    payload = msgspec.json.decode(shown.data)
    assert payload["goal"] == "Sell things"
    assert payload["submittingUser"] == "alice"
    assert payload["base"] == {"commit": "c0", "tree": "t0"}


def test_erased_words_are_null_and_the_rest_of_the_payload_stays(history: "History") -> None:
    history.start()
    before = msgspec.json.decode(frame(_goal(history)).data)
    history.log.erase_texts(["r"])
    after = msgspec.json.decode(frame(_goal(history)).data)
    assert after == {**before, "goal": None, "repositoryPath": None}


def test_a_fact_of_a_newer_release_is_shown_as_it_was_stored(history: "History") -> None:
    history.start()
    unknown = Unknown(topic="run.teleported", payload={"to": "mars", "why": {"digest": "00", "length": 3}})
    fact = msgspec.structs.replace(_goal(history), topic="run.teleported", event=unknown)
    shown = frame(fact)
    assert (shown.event, msgspec.json.decode(shown.data)) == ("run.teleported", unknown.payload)


def test_a_list_of_events_holds_sequence_type_time_and_payload(history: "History") -> None:
    history.start()
    entry = msgspec.json.decode(msgspec.json.encode(timeline_entry(_goal(history))))
    assert set(entry) == {"sequence", "type", "timestamp", "payload"}
    assert entry["timestamp"].startswith("2026-06-07T21:09:")
    assert entry["payload"]["originatingBranch"] == "main"


def test_the_feed_of_the_whole_log_counts_by_position(history: "History") -> None:
    history.start()
    shown = log_frame(_goal(history))
    assert shown.id == _goal(history).position == 4
    entry = msgspec.json.decode(shown.data)
    assert (entry["run"], entry["run_sequence"], entry["root_sequence"], entry["type"]) == (
        "r",
        1,
        1,
        "coordinator.started",
    )


def test_a_feed_ends_with_the_fact_that_ends_its_run_and_not_before(history: "History") -> None:
    history.to_gate()
    child = history.child(1).run_id
    history.decide(approved=True)
    assert not any(may_end(fact) for fact in history.log.read_run("r"))
    history.merge()
    for run_id in ("r", child):
        *before, last = (may_end(fact) for fact in history.log.read_run(run_id))
        assert not any(before)
        assert last
