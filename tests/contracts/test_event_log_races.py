"""What every event log promises when writers race, connections die and acknowledgements are lost."""

import itertools
import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from steersman.adapters.log.numbering import BatchNeeds, Numbered, Numbering, encode_facts
from steersman.adapters.log.recorder import Recorder
from steersman.adapters.log.sequencer import Sequencer, ignore
from steersman.adapters.log.stored_log import StoredLog
from steersman.adapters.log_format.event_codec import EventCodec
from steersman.adapters.stores.postgres_log import PostgresLog
from steersman.application.ports.log import AlreadyAnswered, Answered, Append, ConcurrencyConflict, LogUnavailable
from steersman.domain.event import Fact

from .conftest import Store
from .facts import AT, CATALOGUE, append, note, request, whole

WRITERS = 8
EACH = 25


class Faulty:
    """A recorder that passes everything on, loses what it is told to lose, and can be stopped in a transaction."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self.lost_before_commit = 0
        self.lost_acknowledgements = 0
        self.transactions = 0
        self.threads: list[str] = []
        self.spoiled_by = ""
        self.interrupted = False
        self.entered = threading.Event()
        self.may_go_on = threading.Event()
        self.may_go_on.set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._recorder, name)

    @contextmanager
    def transaction(self) -> Generator[Any]:
        with self._recorder.transaction() as inner:
            self.transactions += 1
            self.threads.append(threading.current_thread().name)
            self.entered.set()
            self.may_go_on.wait()
            yield Spoilable(inner, self.spoiled_by)
            if self.interrupted:
                self.interrupted = False
                raise KeyboardInterrupt
            if self.lost_before_commit:
                self.lost_before_commit -= 1
                raise LogUnavailable("the connection died before the commit")
        if self.lost_acknowledgements:
            self.lost_acknowledgements -= 1
            raise LogUnavailable("the connection died after the commit")


class Spoilable:
    """A transaction that fails, as the store's own error would, when a certain command is in it."""

    def __init__(self, inner: Any, spoiled_by: str) -> None:
        self.known = inner.known
        self._inner = inner
        self._spoiled_by = spoiled_by

    def write(self, numbered: Numbered, now: str, answers_since: str) -> None:
        if self._spoiled_by in {fact.command_id for fact in numbered.facts}:
            raise OverflowError("the store cannot take this")
        self._inner.write(numbered, now, answers_since)


@pytest.fixture
def faulty(store: Store) -> Faulty:
    return Faulty(store.recorder())


@pytest.fixture
def log(store: Store, faulty: Faulty) -> Generator[StoredLog]:
    log = StoredLog(faulty, EventCodec(CATALOGUE), lambda commit: Sequencer(commit, ignore), store.clock)
    yield log
    faulty.may_go_on.set()
    log._sequencing.close()


@pytest.fixture
def sequencer(log: StoredLog) -> Sequencer:
    assert isinstance(log._sequencing, Sequencer)
    return log._sequencing


def in_one_batch(
    log: StoredLog, faulty: Faulty, sequencer: Sequencer, *appends: Append, then: Callable[[], object] = int
) -> list[Future[Any]]:
    """Start the appends so that all of them wait while another is being stored, begin *then*, and let them go."""
    faulty.entered.clear()
    faulty.may_go_on.clear()
    with ThreadPoolExecutor(len(appends) + 2) as threads:
        try:
            threads.submit(log.append, append("first", note("first")))
            faulty.entered.wait()
            started: list[Future[Any]] = []
            for each in appends:  # one after the other, for their order
                started.append(threads.submit(log.append, each))
                while sequencer.waiting < len(started):
                    pass
            threads.submit(then)
        finally:
            faulty.may_go_on.set()
    return started


def test_concurrent_writers_leave_no_gap_and_no_reader_skips_a_fact(store: Store) -> None:
    logs = [store.open(), store.open()]
    done = threading.Event()
    read: list[Fact] = []

    def write(writer: int) -> None:
        for n in range(EACH):
            run = f"run-{writer}"
            logs[writer % 2].append(append(f"{run}-{n}", note(run, n, run=run, root="root"), expected={run: n}))

    def follow() -> None:
        while True:
            is_last = done.is_set()  # asked first: what is read after it is all that there is
            page = logs[0].read(read[-1].position if read else 0)
            read.extend(page)
            if is_last and not page:
                return

    with ThreadPoolExecutor(WRITERS + 1) as threads:
        reader = threads.submit(follow)
        writers = [threads.submit(write, writer) for writer in range(WRITERS)]
        wait(writers)
        done.set()
        for future in [*writers, reader]:
            future.result()
    every = list(range(1, WRITERS * EACH + 1))
    assert [f.position for f in read] == [f.root_sequence for f in read] == every
    assert read == whole(store.open())
    for writer in range(WRITERS):
        run = logs[1].read_run(f"run-{writer}")
        assert [(f.version, f.run_sequence) for f in run] == [(n, n) for n in range(1, EACH + 1)]


def test_of_those_who_saw_the_same_version_exactly_one_wins(store: Store) -> None:
    logs = [store.open(), store.open()]

    def attempt(writer: int, version: int) -> bool:
        try:
            logs[writer % 2].append(append(f"{writer}-{version}", note("gate"), expected={"gate": version}))
        except ConcurrencyConflict:
            return False
        return True

    with ThreadPoolExecutor(WRITERS) as threads:
        for version in range(5):
            assert sum(threads.map(attempt, range(WRITERS), itertools.repeat(version))) == 1
    assert [f.version for f in logs[0].read_stream("gate")] == [1, 2, 3, 4, 5]


def test_a_transaction_that_failed_leaves_no_gap(log: StoredLog, faulty: Faulty) -> None:
    log.append(append("c1", note("s")))
    faulty.lost_before_commit = 2
    with pytest.raises(LogUnavailable):
        log.append(append("c2", note("t"), note("u")))
    assert log.append(append("c3", note("v")))[0].position == 2
    assert [f.stream for f in log.read()] == ["s", "v"]


@pytest.mark.parametrize("fault", ["lost_before_commit", "lost_acknowledgements"])
@pytest.mark.parametrize("times", [1, 2])
def test_a_lost_acknowledgement_is_answered_with_the_facts_that_are_stored(
    log: StoredLog, faulty: Faulty, fault: str, times: int
) -> None:
    wish = append("c1", note("s", 1, run="r", root="r"), note("t"), idempotency=request("k"))
    setattr(faulty, fault, times)
    try:
        stored = log.append(wish)
    except LogUnavailable:
        assert times == 2, "a single fault is mended by the second attempt"
        stored = log.append(wish)
    assert list(stored) == list(log.append(wish)) == list(log.read())
    assert (len(stored), log.head()) == (2, 2)


def test_one_losing_append_takes_nothing_from_the_others_of_its_batch(
    log: StoredLog, faulty: Faulty, sequencer: Sequencer
) -> None:
    good, lost, repeat, after = in_one_batch(
        log,
        faulty,
        sequencer,
        append("good", note("s")),
        append("lost", note("s")),
        append("good", note("s")),
        append("after", note("s"), expected={"s": 1}),
    )
    assert isinstance(lost.exception(), ConcurrencyConflict)
    assert [f.position for future in (good, repeat, after) for f in future.result()] == [2, 2, 3]
    assert (faulty.transactions, log.head()) == (2, 3)


def test_an_append_that_the_store_cannot_take_fails_alone(log: StoredLog, faulty: Faulty, sequencer: Sequencer) -> None:
    faulty.spoiled_by = "poison"
    before, poison, after = in_one_batch(
        log, faulty, sequencer, *(append(name, note(name)) for name in ("before", "poison", "after"))
    )
    assert isinstance(poison.exception(), OverflowError)
    assert [f.position for future in (before, after) for f in future.result()] == [2, 3]
    assert [f.command_id for f in log.read()] == ["first", "before", "after"]


def test_whoever_comes_alone_writes_itself_and_those_who_come_together_are_written_for(
    log: StoredLog, faulty: Faulty, sequencer: Sequencer
) -> None:
    here = threading.current_thread().name
    log.append(append("alone", note("alone")))
    assert faulty.threads == [here]
    for future in in_one_batch(log, faulty, sequencer, *(append(f"c{n}", note(f"s{n}")) for n in range(3))):
        future.result()
    assert faulty.threads[2:] == ["sequencer"]


def test_a_writer_that_is_interrupted_leaves_the_log_to_the_next(log: StoredLog, faulty: Faulty) -> None:
    faulty.interrupted = True
    with pytest.raises(KeyboardInterrupt):
        log.append(append("c1", note("s")))
    assert log.append(append("c2", note("s")))[0].position == 1


def test_closing_answers_everybody_who_waits_and_nobody_after(
    log: StoredLog, faulty: Faulty, sequencer: Sequencer
) -> None:
    appends = (append(f"c{n}", note(f"s{n}")) for n in range(3))
    started = in_one_batch(log, faulty, sequencer, *appends, then=sequencer.close)
    assert [future.result()[0].position for future in started] == [2, 3, 4]
    with pytest.raises(LogUnavailable):
        log.append(append("late", note("late")))


def test_closing_a_log_ends_its_readers_and_not_the_process(store: Store) -> None:
    log = store.open()
    log.append(append("c1", *(note("s", n) for n in range(500))))
    reading = threading.Barrier(5)

    def read() -> None:
        reading.wait()
        for _ in range(50):
            try:
                assert len(log.read()) == 500
            except LogUnavailable:
                return

    with ThreadPoolExecutor(4) as threads:
        readers = [threads.submit(read) for _ in range(4)]
        reading.wait()
        log.close()
        for future in readers:
            future.result()


def test_a_request_takes_effect_once_however_often_and_wherever_it_is_sent(store: Store) -> None:
    logs = [store.open(), store.open()]

    def send(n: int) -> Answered | int:
        wish = append(f"c{n}", note(f"s{n}"), idempotency=request("one", body=f"body {n}", answer=b"%d" % n))
        try:
            return logs[n % 2].append(wish)[0].position
        except AlreadyAnswered as repeated:
            return repeated.answered

    with ThreadPoolExecutor(50) as threads:
        results = list(threads.map(send, range(50)))
    (winner,) = [n for n, result in enumerate(results) if isinstance(result, int)]
    answer = Answered(body_digest=f"body {winner}", status=201, answer=b"%d" % winner, position=1)
    assert [result for result in results if not isinstance(result, int)] == [answer] * 49
    assert logs[1].answered("ada", "POST", "/steer", "one") == answer
    assert logs[0].head() == 1


def test_two_requests_with_one_key_in_one_batch_have_one_effect(store: Store) -> None:
    log = store.open()
    batch = [append(name, note(name), idempotency=request("k")) for name in ("a", "b")]
    _, second = log._writing.commit(batch)
    assert isinstance(second, AlreadyAnswered)
    assert second.answered.position == log.head() == 1


def test_an_answer_is_stored_also_without_a_fact(store: Store) -> None:
    log, other = store.open(), store.open()
    log.append(append("c1", note("s")))
    kept = append("c2", expected={}, idempotency=request("k", answer=b"found"))
    assert list(log.append(kept)) == []
    answer = Answered(body_digest="b0d1", status=201, answer=b"found", position=1)
    assert other.answered("ada", "POST", "/steer", "k") == answer
    # The second is the first one again after a lost acknowledgement: without facts, its own answer is what it finds.
    for late in (append("c3", note("t"), idempotency=request("k")), kept):
        with pytest.raises(AlreadyAnswered) as refused:
            other.append(late)
        assert refused.value.answered == answer
    assert [fact.position for fact in log.read()] == [1]
    assert other.append(append("c4", note("t")))[0].position == 2


def test_a_refused_append_leaves_no_answer(store: Store) -> None:
    log = store.open()
    log.append(append("c1", note("s")))
    with pytest.raises(ConcurrencyConflict):
        log.append(append("c2", note("s"), idempotency=request("k")))
    assert log.answered("ada", "POST", "/steer", "k") is None
    log.append(append("c3", note("s"), expected={"s": 1}, idempotency=request("k")))
    assert log.answered("ada", "POST", "/other", "k") is None


def test_an_answer_is_kept_for_24_hours(store: Store) -> None:
    log = store.open()
    log.append(append("c1", note("s"), idempotency=request("k", answer=b"old")))
    store.clock.advance(timedelta(hours=23, minutes=59))
    with pytest.raises(AlreadyAnswered):
        log.append(append("c2", note("t"), idempotency=request("k")))
    store.clock.advance(timedelta(minutes=1))
    assert log.answered("ada", "POST", "/steer", "k") is None
    log.append(append("c3", note("t"), idempotency=request("k", answer=b"new")))
    found = log.answered("ada", "POST", "/steer", "k")
    assert found is not None
    assert (found.answer, found.position) == (b"new", 2)


def test_nobody_reads_past_a_transaction_that_is_still_open(postgres_url: str) -> None:
    log, other = PostgresLog(postgres_url, CATALOGUE), PostgresLog(postgres_url, CATALOGUE)
    wish = append("slow", note("slow"))
    with (
        psycopg.connect(postgres_url, autocommit=True) as observer,
        ThreadPoolExecutor(1) as threads,
        other._recorder.transaction() as slow,
    ):
        numbering = Numbering(slow.known(BatchNeeds(), ""), lambda wanted: slow.known(wanted, ""))
        numbering.add(wish, numbering.place(wish, encode_facts(wish, EventCodec(CATALOGUE))))
        slow.write(numbering.finish(), "", "")
        quick = threads.submit(log.append, append("quick", note("quick")))
        blocked = (
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
        while observer.execute(blocked).fetchall() != [(1,)]:
            assert not quick.done(), "the quick one overtook an open transaction"
        assert list(log.read()) == []
    assert [f.command_id for f in log.read()] == ["slow", "quick"]
    assert quick.result()[0].position == 2
    log.close()
    other.close()


def test_connections_that_the_server_closed_cost_nobody_a_command(postgres_url: str) -> None:
    log = PostgresLog(postgres_url, CATALOGUE)
    with ThreadPoolExecutor(8) as threads, psycopg.connect(postgres_url, autocommit=True) as admin:
        for turn in range(3):
            list(threads.map(lambda _: log.read(), range(8)))
            admin.execute(
                "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            assert log.append(append(f"c{turn}", note(f"s{turn}"), at=AT))[0].position == turn + 1
            assert log.head() == turn + 1
    log.close()


def test_replicas_that_start_together_make_the_tables_once(postgres_url: str) -> None:
    with ThreadPoolExecutor(6) as threads:
        for log in threads.map(lambda _: PostgresLog(postgres_url, CATALOGUE), range(6)):
            log.close()
