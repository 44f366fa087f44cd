"""What every event log promises: order, atomicity, bytes that stay, words that can go."""

from datetime import timedelta
from pathlib import Path

import pytest

from steersman.adapters.log.recorder import Recorder
from steersman.adapters.stores.postgres_log import PostgresLog
from steersman.adapters.stores.sqlite_log import SqliteLog
from steersman.application.ports.log import ConcurrencyConflict, LogUnavailable, Undecodable
from steersman.domain.event import Draft, Event, Text, Unknown

from .conftest import Store
from .facts import AT, CATALOGUE, Noted, Said, Uttered, append, note, whole, words_of


def raw(recorder: Recorder) -> list[bytes]:
    return [row.state for row in recorder.rows("position", "", 0, 10_000)]


def test_an_empty_log_has_no_facts_heads_or_answers(store: Store) -> None:
    log = store.open()
    assert (log.head(), log.run_head("r")) == (0, 0)
    assert [*log.read(), *log.read_stream("s"), *log.read_run("r"), *log.read_tree("r")] == []
    assert log.answered("ada", "POST", "/steer", "k") is None


def test_every_fact_is_numbered_in_its_log_stream_run_and_tree(store: Store) -> None:
    log = store.open()
    facts = log.append(
        append(
            "c1",
            note("c", run="c", root="c"),
            note("child", run="child", root="c"),
            note("c", run="c", root="c"),
            note("project"),
        )
    )
    more = log.append(append("c2", note("child", run="child", root="c"), expected={"child": 1}))
    numbers = [(f.position, f.version, f.run_sequence, f.root_sequence) for f in [*facts, *more]]
    assert numbers == [(1, 1, 1, 1), (2, 1, 1, 2), (3, 2, 2, 3), (4, 1, None, None), (5, 2, 2, 4)]


def test_what_append_returns_is_what_every_reader_gets(store: Store) -> None:
    log = store.open()
    said = Draft(stream="s", event=Said(words=Text("ünï \U0001f600, password=hunter22")), run="r", root="r")
    stored = log.append(append("c1", said, note("s", 7), traceparent="00-ab-cd-01", at=AT.astimezone()))
    assert stored[0].event == Said(words=Text("ünï \U0001f600, password=[redacted]"))
    assert (stored[0].traceparent, stored[0].at, stored[0].principal, stored[0].command_id) == (
        "00-ab-cd-01",
        AT,
        "ada",
        "c1",
    )
    assert list(stored) == list(log.read()) == list(log.read_stream("s")) == list(store.open().read())


def test_an_append_is_stored_as_a_whole_or_not_at_all(store: Store) -> None:
    log = store.open()
    log.append(append("c1", note("budget")))
    with pytest.raises(ConcurrencyConflict):
        log.append(append("c2", note("plan"), note("budget")))
    assert (log.head(), list(log.read_stream("plan"))) == (1, [])


def test_a_stream_that_was_only_read_must_not_have_moved_either(store: Store) -> None:
    log = store.open()
    log.append(append("c1", note("gate")))
    with pytest.raises(ConcurrencyConflict):
        log.append(append("c2", note("plan"), expected={"plan": 0, "gate": 0}))
    assert log.append(append("c3", note("plan"), expected={"plan": 0, "gate": 1}))[0].position == 2


def test_a_fact_cannot_be_written_to_a_stream_that_the_decision_did_not_read(store: Store) -> None:
    log = store.open()
    with pytest.raises(ValueError, match="does not name"):
        log.append(append("c1", note("plan"), expected={"other": 0}))
    assert log.head() == 0


def test_output_needs_no_version_and_is_in_the_run_but_in_no_fold(store: Store) -> None:
    log = store.open()
    words = Draft(stream="r/output", event=Uttered(words=Text("so")), run="r", root="r")
    log.append(append("c1", note("r", 1, run="r", root="r")))
    log.append(append("c2", words))
    log.append(append("c3", words, note("r", 2, run="r", root="r"), expected={"r": 1}))
    assert [fact.run_sequence for fact in log.read_run("r")] == [1, 2, 3, 4]
    assert [(fact.root_sequence, fact.event) for fact in log.read_tree("r")] == [
        (1, Noted(number=1)),
        (4, Noted(number=2)),
    ]
    assert log.run_head("r") == 4


def test_reading_resumes_after_any_number(store: Store) -> None:
    log = store.open()
    log.append(append("c1", *(note("s", n, run="r", root="r") for n in range(5)), note("other", 9)))
    assert [f.position for f in log.read(3, limit=2)] == [4, 5]
    assert [f.version for f in log.read_stream("s", 2)] == [3, 4, 5]
    assert [f.run_sequence for f in log.read_run("r", 4)] == [5]
    assert [f.root_sequence for f in log.read_tree("r", 0, limit=1)] == [1]
    assert list(log.read(6)) == list(log.read(0, limit=0)) == []


def test_an_append_of_thousands_is_read_back_page_by_page(store: Store) -> None:
    log = store.open()
    stored = log.append(append("c1", *(note("s", n, run="r", root="r") for n in range(2500))))
    assert [f.position for f in stored] == list(range(1, 2501))
    assert [f.event for f in whole(log)] == [Noted(number=n) for n in range(2500)]


def test_stored_bytes_never_change(store: Store) -> None:
    log = store.open()
    log.append(append("c1", Draft(stream="s", event=Said(words=Text("w")), run="r", root="r"), note("s", 1)))
    before = raw(store.recorder())
    log.append(append("c2", note("s", 2), expected={"s": 2}))
    log.erase_texts(["r"])
    log.close()
    assert raw(store.open()._recorder)[:2] == raw(store.recorder())[:2] == before
    assert before[1] == (
        b'{"at":"2026-03-01T12:30:00.000005Z","command_id":"c1","payload":{"number":1},"position":2,"principal":"ada",'
        b'"root":null,"root_sequence":null,"run":null,"run_sequence":null,"stream":"s","topic":"test.noted","v":1,"version":2}'
    )


def test_erased_words_are_gone_for_every_reader_and_the_facts_stay(store: Store) -> None:
    log = store.open()

    def said(run: str, words: str, kind: type[Said | Uttered]) -> Draft:
        return Draft(stream=f"{run}/output", event=kind(words=Text(words)), run=run, root=run)

    log.append(append("c1", said("a", "one", Said), said("a", "two", Uttered), said("b", "three", Said)))
    log.append(append("c2", said("a", "later", Uttered), at=AT + timedelta(days=1)))
    assert log.erase_texts(["a"], output_only=True, before=AT + timedelta(hours=1)) == 1
    assert words_of(log.read()) == ["one", None, "three", "later"]
    assert log.erase_texts(["a", "nobody"]) == 2
    assert words_of(store.open().read()) == [None, None, "three", None]
    assert (log.erase_texts(["a"]), log.erase_texts([])) == (0, 0)


def test_the_words_of_one_stream_are_erased_and_no_others(store: Store) -> None:
    log = store.open()

    def said(stream: str, words: str) -> Draft:
        return Draft(stream=stream, event=Said(words=Text(words)))

    log.append(append("c1", said("project/a", "one"), said("project/a", "two"), said("project/ab", "three")))
    assert log.erase_stream_texts("project/a") == 2
    assert words_of(store.open().read()) == [None, None, "three"]
    assert (log.erase_stream_texts("project/a"), log.erase_stream_texts("nowhere")) == (0, 0)


def test_the_words_of_one_tree_are_erased_and_no_others_though_its_facts_cannot_be_decoded(store: Store) -> None:
    def said(run: str, root: str) -> Draft:
        return Draft(stream=f"run/{run}", event=Said(words=Text(run)), run=run, root=root)

    store.open().append(append("c1", said("a", "a"), said("child", "a"), said("b", "b")))

    class Reshaped(Said, frozen=True, kw_only=True):
        TOPIC = Said.TOPIC

        needed: int

    log = store.open({Said.TOPIC: Reshaped})
    with pytest.raises(Undecodable):
        log.read_tree("a")
    assert (log.erase_tree_texts("a"), log.erase_tree_texts("a"), log.erase_tree_texts("nobody")) == (2, 0, 0)
    assert words_of(store.open().read()) == [None, None, "b"]


def test_a_fact_of_a_newer_release_is_shown_as_it_was_stored(store: Store) -> None:
    store.open().append(append("c1", note("s", 7, run="r", root="r")))
    older = store.open({Said.TOPIC: Said})
    (fact,) = older.read()
    assert (fact.topic, fact.run_sequence) == ("test.noted", 1)
    assert fact.event == Unknown(topic="test.noted", payload={"number": 7})


def test_an_undecodable_fact_stops_its_reader_at_its_place_and_no_earlier(store: Store) -> None:
    class Changed(Event, frozen=True, kw_only=True):
        TOPIC = "test.noted"

        number: str

    said = Draft(stream="t", event=Said(words=Text("w")), run="fine", root="fine")
    store.open().append(append("c1", said, note("s", 7, run="bad", root="bad"), said))
    log = store.open({**CATALOGUE, Changed.TOPIC: Changed})
    assert [f.position for f in log.read()] == [1]
    with pytest.raises(Undecodable) as caught:
        log.read(1)
    assert (caught.value.position, caught.value.run) == (2, "bad")
    assert [f.position for f in log.read(2)] == [3]
    assert [f.position for f in log.read_run("fine")] == [1, 3]


@pytest.mark.parametrize("name", ["a\0b", "\udcff"])
def test_names_that_a_store_cannot_hold_are_refused_before_anything_is_written(store: Store, name: str) -> None:
    log = store.open()
    for wrong in (append("c1", note(name)), append(name, note("s")), append("c1", note("s"), principal=name)):
        with pytest.raises(ValueError, match="cannot be stored"):
            log.append(wrong)
    assert log.head() == 0


def test_each_commit_is_announced_once_it_can_be_read(store: Store) -> None:
    heard: list[tuple[int, int]] = []
    log = store.open(announce=lambda position: heard.append((position, reader.head())))
    reader = store.open()
    log.append(append("c1", note("s"), note("s")))
    with pytest.raises(ConcurrencyConflict):
        log.append(append("c2", note("s")))
    log.close()
    assert heard == [(2, 2)]


def test_a_store_that_is_away_is_unavailable_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "garbage.db").write_bytes(b"no database" * 1000)
    for opened in (
        lambda: SqliteLog(tmp_path / "garbage.db", CATALOGUE),
        lambda: SqliteLog(tmp_path / "no" / "such" / "folder.db", CATALOGUE),
        lambda: PostgresLog("postgresql://postgres@127.0.0.1:1/none", CATALOGUE),
    ):
        with pytest.raises(LogUnavailable):
            opened()
