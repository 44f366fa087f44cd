"""A batch is decided on what the log holds at that moment; what fails in it, or of it, costs nobody else anything."""

import itertools
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steersman.adapters.clock import SYSTEM_CLOCK
from steersman.adapters.log.recorder import Order
from steersman.adapters.log.sequencer import Sequencer, ignore
from steersman.adapters.log.stored_log import StoredLog
from steersman.adapters.log_format.event_codec import EventCodec, StoredRow
from steersman.adapters.stores.memory import MemoryLog, MemoryRecorder
from steersman.adapters.stores.postgres_log import PostgresLog
from steersman.adapters.stores.sqlite_log import SqliteLog
from steersman.application.ports.log import (
    AlreadyAnswered,
    Append,
    ConcurrencyConflict,
    Fence,
    Fenced,
    LogUnavailable,
    Stored,
)
from steersman.application.writer import states
from steersman.application.writer.caller import Answer, Caller, IdempotencyKey, service
from steersman.application.writer.run_log import Deciding, RunLog, written_versions
from steersman.domain.event import Draft, Fact, Text
from steersman.domain.facts.agent_output import MessageDelta
from steersman.domain.facts.assembly import WorkflowStep
from steersman.domain.facts.child_run import output_stream
from steersman.domain.facts.fold import replay
from steersman.domain.facts.run import CoordinatorRun, deletion_stream
from steersman.domain.facts.run_records import RunErased
from steersman.domain.kinds.catalogue import CATALOGUE
from steersman.domain.process.dispatch import advance
from steersman.domain.rejected import RunNotActive
from steersman.domain.steering.steering import SteerWorker, steer_worker
from steersman.tests.domain.fleet import Fleet, part

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
Decide = Callable[[CoordinatorRun], Sequence[Draft]]


def said(word: str) -> Decide:
    """Return a decision to say something."""
    return lambda run: (run.coordinator(WorkflowStep(step=word, status="done", label="")),)


def refused(run: CoordinatorRun) -> Sequence[Draft]:
    raise RunNotActive


def broken(run: CoordinatorRun) -> Sequence[Draft]:
    raise ZeroDivisionError


class Faulty(MemoryRecorder):
    """Tables whose next commits are lost, or done without anybody being told."""

    lost = 0
    unacknowledged = 0

    @contextmanager
    def transaction(self) -> Generator[Any]:
        with super().transaction() as transaction:
            yield transaction
            if self.lost:
                self.lost -= 1
                raise LogUnavailable("the connection died before the commit")
        if self.unacknowledged:
            self.unacknowledged -= 1
            raise LogUnavailable("the connection died after the commit")


class Watched(Faulty):
    """Tables at which something else happens, now and then, between two looks of whoever uses them."""

    def __init__(self) -> None:
        super().__init__()
        self.between: Iterator[Callable[[bool], None]] = iter(())
        self._is_busy = False

    @contextmanager
    def transaction(self) -> Generator[Any]:
        with super().transaction() as transaction:
            yield transaction
            self._let(is_locked=True)
        self._let()

    def rows(self, order: Order, name: str, after: int, limit: int) -> list[StoredRow]:
        found = super().rows(order, name, after, limit)
        self._let(is_locked=self._lock.locked())
        return found

    def head(self) -> int:
        found = super().head()
        self._let(is_locked=self._lock.locked())
        return found

    def _let(self, *, is_locked: bool = False) -> None:
        if not self._is_busy:
            self._is_busy = True
            try:
                next(self.between, lambda _: None)(is_locked)
            finally:
                self._is_busy = False


class House:
    """A log with one run, and commands that are decided together."""

    def __init__(self, recorder: Faulty | None = None) -> None:
        self.recorder = recorder or Faulty()
        self.log = MemoryLog(CATALOGUE, recorder=self.recorder)
        self.runs = RunLog(self.log, SYSTEM_CLOCK)
        fleet = Fleet(part("One"))
        drafts = [Draft(stream=f.stream, event=f.event, run=f.run, root=f.root) for f in fleet.facts]
        expected = {draft.stream: 0 for draft in drafts}
        self.root = fleet.run.run_id
        self.log.append(service("start").append(drafts, expected, NOW))

    def command(self, decision: Decide, command_id: str | None = None, **more: Any) -> Deciding:
        """Return a command that waits."""
        by = Caller(principal="alice", command_id=command_id or str(uuid4()), **more)
        answer = None if by.key is None else lambda *_: Answer(status=201, body=b"{}")
        return Deciding(self.root, decision, by, self.runs.states, SYSTEM_CLOCK, answer)

    def together(self, *commands: Deciding | Append) -> list[Any]:
        """Decide the commands in one batch; return their outcomes."""
        return self.log._writing.commit(commands)

    def words(self) -> list[str]:
        """Return what was said, by the log."""
        return [fact.event.step for fact in self.log.read(limit=10_000) if isinstance(fact.event, WorkflowStep)]

    def check(self) -> None:
        """Check that what is kept is what the log folds to, as far as it goes, and that nobody is shown less."""
        kept = self.runs.states.kept(self.root)
        if kept is not None:
            assert kept == folded(self.log, self.root, kept.root_sequence)
        assert self.runs.run(self.root) == folded(self.log, self.root)


def folded(log: Any, root: str, upto: int = 1_000_000) -> CoordinatorRun:
    """Return the run as a fresh process would have it."""
    return replay(fact for fact in log.read_tree(root, limit=100_000) if fact.root_sequence <= upto)


@pytest.fixture
def house() -> House:
    return House()


def test_a_refusal_and_a_bug_in_one_command_take_nothing_from_the_others_of_its_batch(house: House) -> None:
    head = house.log.head()
    outcomes = house.together(*map(house.command, (said("a"), refused, said("b"), broken, said("c"))))
    assert [type(outcome) for outcome in outcomes] == [Stored, RunNotActive, Stored, ZeroDivisionError, Stored]
    assert house.words() == ["a", "b", "c"]
    assert [outcomes[n].facts[0].position for n in (0, 2, 4)] == [head + 1, head + 2, head + 3]
    assert list(outcomes[4].facts) == list(house.log.read(head + 2))
    assert outcomes[0].receipts[0] == house.log.receipts([head + 1])[head + 1]
    house.check()


def test_a_fact_that_cannot_be_folded_is_its_own_commands_fault(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    def evolve(run: CoordinatorRun, fact: Fact) -> CoordinatorRun:
        if isinstance(fact.event, WorkflowStep) and fact.event.step == "poison":
            raise OverflowError
        return replay([fact], run)

    monkeypatch.setattr(states, "evolve", evolve)
    outcomes = house.together(*map(house.command, (said("a"), said("poison"), said("b"))))
    assert [type(outcome) for outcome in outcomes] == [Stored, OverflowError, Stored]
    assert house.words() == ["a", "b"]
    house.check()


def test_each_command_sees_what_those_before_it_in_the_batch_decided(house: House) -> None:
    seen: list[int] = []

    def counting(run: CoordinatorRun) -> Sequence[Draft]:
        seen.append(run.root_sequence)
        return said(str(len(seen)))(run)

    house.together(*(house.command(counting) for _ in range(3)))
    assert seen == [seen[0], seen[0] + 1, seen[0] + 2]


def test_a_batch_whose_commit_is_lost_stores_nothing_and_is_decided_anew(house: House) -> None:
    first, second = house.command(said("a")), house.command(said("b"))
    house.together(house.command(said("before")))
    house.recorder.lost = 1
    with pytest.raises(LogUnavailable):
        house.together(first, second)
    assert house.words() == ["before"]
    house.check()
    outcomes = house.together(first, second)
    assert [outcome.is_repeat for outcome in outcomes] == [False, False]
    assert house.words() == ["before", "a", "b"]
    house.check()


def test_a_batch_whose_commit_was_not_acknowledged_is_found_and_not_decided_again(house: House) -> None:
    decided: list[str] = []

    def once(run: CoordinatorRun) -> Sequence[Draft]:
        decided.append("a")
        return said("a")(run)

    command = house.command(once)
    house.together(house.command(said("before")))
    house.recorder.unacknowledged = 1
    with pytest.raises(LogUnavailable):
        house.together(command)
    later = house.command(said("later"))
    found, new = house.together(command, later)
    assert (found.is_repeat, decided, house.words()) == (True, ["a"], ["before", "a", "later"])
    assert found.receipts[0].position == new.facts[0].position - 1
    house.check()


def test_a_command_that_is_sent_twice_in_one_batch_is_decided_once(house: House) -> None:
    key = IdempotencyKey(method="POST", path="/x", key="k", body_digest="d")
    one, other = house.command(said("a"), "one", key=key), house.command(said("b"), "two", key=key)
    outcomes = house.together(one, other, one)
    assert isinstance(outcomes[1], AlreadyAnswered)
    assert outcomes[2].facts == outcomes[0].facts
    assert house.words() == ["a"]


def test_a_driver_that_lost_its_lease_stores_nothing_and_takes_nothing_from_the_others(house: House) -> None:
    fence = Fence(root=house.root, epoch=1)
    outcomes = house.together(house.command(said("late"), fence=fence), house.command(said("a")))
    assert [type(outcome) for outcome in outcomes] == [Fenced, Stored]
    assert house.words() == ["a"]


class Follows:
    """Decides what follows, under a lease of which the store may not know."""

    def __init__(self, fence: Fence | None = None) -> None:
        self.fence = fence

    def drives(self, root: str) -> bool:
        return True

    def next(self, run: CoordinatorRun, now: datetime) -> Append | None:
        drafts = advance(run, now)
        by = service(str(uuid4()), self.fence)
        return by.append(drafts, written_versions(run, drafts), now) if drafts else None


class Handed:
    """Whoever is handed the facts of each commit."""

    def __init__(self) -> None:
        self.commits: list[list[str]] = []

    def take(self, facts: Sequence[Fact]) -> None:
        self.commits.append([fact.topic for fact in facts])


def guided(run: CoordinatorRun) -> Sequence[Draft]:
    """Decide to tell the only child something."""
    command = SteerWorker(
        directive_id=str(uuid4()),
        child_run_id=next(iter(run.children)),
        kind="guidance",
        payload_hash="sha256:0",
        principal="alice",
        text="Mind the gap.",
    )
    return steer_worker(run, command)


def test_what_follows_is_in_the_commit_behind_what_it_follows_from(house: House) -> None:
    house.runs.states.following = Follows()
    handed = Handed()
    house.log.hand_on(handed.take)
    house.together(house.command(guided), house.command(said("a")), house.command(guided))
    received = ["coordinator.steering_received", "coordinator.steering"]
    decided = ["coordinator.steering_decision"]
    assert handed.commits == [[*received, WorkflowStep.TOPIC, *received, *decided, *decided]]
    assert not advance(house.runs.run(house.root), NOW)
    house.check()


def test_a_stale_lease_drops_what_follows_and_never_the_receipt(house: House) -> None:
    house.runs.states.following = Follows(Fence(root=house.root, epoch=7))
    (outcome,) = house.together(house.command(guided))
    assert isinstance(outcome, Stored)
    assert house.log.read(outcome.facts[-1].position) == []
    assert advance(house.runs.run(house.root), NOW)
    house.check()


@given(
    st.lists(
        st.tuples(st.integers(0, 1), st.sampled_from(["say", "refuse", "break", "lose", "deny", "output"])), max_size=40
    )
)
@settings(max_examples=40)
def test_what_is_kept_is_what_the_store_folds_to_whoever_writes_and_whatever_fails(
    steps: list[tuple[int, str]],
) -> None:
    house = House()
    other_log = MemoryLog(CATALOGUE, recorder=house.recorder)
    other = RunLog(other_log, SYSTEM_CLOCK)
    numbers = itertools.count()
    for whose, what in steps:
        log, runs = ((house.log, house.runs), (other_log, other))[whose]
        by = Caller(principal="alice", command_id=str(uuid4()))
        decision: Decide = {"refuse": refused, "break": broken}.get(what, said(f"{next(numbers)}"))
        house.recorder.lost = what == "lose"
        house.recorder.unacknowledged = what == "deny"
        command = Deciding(house.root, decision, by, runs.states, SYSTEM_CLOCK, None)
        with suppress(LogUnavailable):
            log._writing.commit([command, output(house.root)] if what == "output" else [command])
        house.recorder.lost = house.recorder.unacknowledged = 0
        house.check()
        assert other.run(house.root) == folded(house.log, house.root)


def output(root: str) -> Append:
    """Return what an agent says, which no state takes up."""
    said = MessageDelta(delta=Text("x"), message_id="m")
    draft = Draft(stream=output_stream(root), event=said, run=root, root=root)
    return service(str(uuid4())).append((draft,), {deletion_stream(root): 0}, NOW)


@settings(max_examples=1_000)
@given(
    st.lists(st.sampled_from(["read", "read", "forget", "other", "nothing"]), max_size=40),
    st.lists(st.sampled_from(["decide", "append", "forget", "read"]), min_size=2, max_size=8),
)
def test_whoever_reads_while_others_write_keeps_nothing_that_lacks_a_fact(happens: list[str], steps: list[str]) -> None:
    recorder = Watched()
    house = House(recorder)
    other = RunLog(MemoryLog(CATALOGUE, recorder=recorder), SYSTEM_CLOCK)

    def write(runs: RunLog) -> None:
        """Store a fact of the run without deciding on it."""
        run = folded(runs.log, house.root)
        drafts = said("x")(run)
        runs.log.append(service(str(uuid4())).append(drafts, written_versions(run, drafts), NOW))

    def happen(what: str, is_locked: bool) -> None:
        # In this thread and yet as another one would: the states are not locked while they use the store.
        match what:
            case "read" if not house.runs.states._lock.locked():
                house.runs.run(house.root)
            case "forget" if not house.runs.states._lock.locked():
                house.runs.forget(house.root)
            case "other" if not is_locked:
                write(other)
            case _:
                pass

    recorder.between = (lambda is_locked, what=what: happen(what, is_locked) for what in happens)
    for step in steps:
        match step:
            case "decide":
                house.together(house.command(said("y")))
            case "append":
                with suppress(ConcurrencyConflict):
                    write(house.runs)
            case "forget":
                house.runs.forget(house.root)
            case _:
                house.runs.run(house.root)
        # What is stored while somebody looks is nothing that they have to see.
        between, recorder.between = recorder.between, iter(())
        house.check()
        recorder.between = between


@pytest.fixture(params=["sqlite", "postgres"])
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], StoredLog]]:
    """A function that opens a log on one store, as a process would."""
    logs: list[StoredLog] = []
    place: Any = tmp_path / "log.db" if request.param == "sqlite" else request.getfixturevalue("postgres_url")

    def opened() -> StoredLog:
        logs.append(SqliteLog(place, CATALOGUE) if request.param == "sqlite" else PostgresLog(place, CATALOGUE))
        return logs[-1]

    yield opened
    for log in logs:
        log.close()


def test_replicas_that_write_in_turn_decide_on_each_others_facts(stored: Callable[[], StoredLog]) -> None:
    house = House()
    replicas = [RunLog(stored(), SYSTEM_CLOCK) for _ in range(2)]
    facts = house.log.read(limit=1_000)
    drafts = [Draft(stream=f.stream, event=f.event, run=f.run, root=f.root) for f in facts]
    replicas[0].log.append(service("start").append(drafts, {d.stream: 0 for d in drafts}, NOW))
    seen: list[int] = []

    def counting(run: CoordinatorRun) -> Sequence[Draft]:
        seen.append(run.root_sequence)
        return said(str(len(seen)))(run)

    for n in range(12):
        replicas[(n // 2) % 2].decide(house.root, counting, service(str(uuid4())))
    assert seen == list(range(seen[0], seen[0] + 12))
    for replica in replicas:
        assert replica.run(house.root) == folded(replica.log, house.root)


def test_callers_who_come_together_are_decided_in_one_transaction_and_each_is_told_once(house: House) -> None:
    transactions = 0
    gate = threading.Event()
    commit = house.log._writing.commit

    def counted(batch: Any) -> Any:
        nonlocal transactions
        transactions += 1
        gate.wait(30)
        return commit(batch)

    log = StoredLog(house.recorder, EventCodec(CATALOGUE), lambda _: Sequencer(counted, ignore), SYSTEM_CLOCK)
    told: list[Any] = []
    all_told = threading.Event()

    def tell(outcome: Any) -> None:
        told.append(outcome)
        if len(told) == 65:
            all_told.set()

    for n in range(65):
        log.submit(house.command(said(str(n))), tell)
    gate.set()
    assert all_told.wait(30)
    assert transactions <= 3
    assert house.words() == [str(n) for n in range(65)]
    log._sequencing.close()


def test_words_that_another_process_erased_are_not_read_from_memory(house: House) -> None:
    step = WorkflowStep(step="told", status="done", label="", message=Text("a secret"))
    house.together(house.command(lambda run: (run.coordinator(step),)))
    other, stream = MemoryLog(CATALOGUE, recorder=house.recorder), deletion_stream(house.root)
    other.erase_texts([house.root])
    erased = Draft(stream=stream, event=RunErased(run_id=house.root, texts=1), run=house.root, root=house.root)
    other.append(service("erase").append([erased], {stream: 0}, NOW))
    # Whoever follows the log comes to that.
    assert [fact.topic for fact in house.log.read(other.head() - 1)] == [RunErased.TOPIC]
    told = [fact.event for fact in house.log.read(limit=10_000) if isinstance(fact.event, WorkflowStep)]
    assert [event.message.value for event in told if event.message is not None] == [None]
