"""Who holds the leases of a process: what it takes, what it gives away, and what it does when it was silent for too long."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import psycopg
import pytest

from steersman.adapters.clock import SYSTEM_CLOCK
from steersman.adapters.processes.lock import ProcessLock
from steersman.adapters.stores.postgres_leases import PostgresLeases
from steersman.adapters.stores.postgres_log import PostgresLog
from steersman.application.driving.keep_leases import LeaseKeeper
from steersman.application.ports.effect_state import EffectState
from steersman.application.ports.log import Undecodable
from steersman.application.ports.tenure import LeaseLost
from steersman.application.writer.caller import Caller
from steersman.application.writer.run_log import Answering, Decision, RunLog
from steersman.domain.event import Draft, Fact
from steersman.domain.facts.leases import LeaseTaken
from steersman.domain.git import Commit
from steersman.domain.kinds.catalogue import CATALOGUE
from steersman.domain.projects.project import AddMember, CreateProject, add_member, create_project, replay
from steersman.domain.rejected import Busy
from steersman.domain.runs.orchestration import StartRun, start_run
from steersman.domain.runs.planning import ProposedSubtask

#: So long that nothing lapses by itself, however long a disk keeps a beat waiting. What is to happen soon is nudged.
STALE_SECONDS = 3_600.0
PATIENCE_SECONDS = 60.0


class Driven:
    """Who drives, in the test's hands."""

    def __init__(self) -> None:
        self.woken: list[str] = []
        self.at_work: frozenset[str] = frozenset()
        self.forgotten: set[str] = set()
        self.left = threading.Event()
        self.may_leave = threading.Event()
        self.may_leave.set()

    def wake(self, root: str) -> None:
        self.woken.append(root)

    def busy(self) -> frozenset[str]:
        return self.at_work

    def forget(self, roots: Iterable[str]) -> None:
        self.forgotten.update(roots)

    def leave_all(self) -> None:
        self.left.set()
        assert self.may_leave.wait(PATIENCE_SECONDS)
        self.at_work = frozenset()

    def states(self) -> Mapping[str, Sequence[EffectState]]:
        return {}


class Hindered(RunLog):
    """Run logs that refuse the next decision about some runs."""

    def __init__(self, log: PostgresLog) -> None:
        super().__init__(log, SYSTEM_CLOCK)
        self.refusals: dict[str, Exception] = {}

    def decide(
        self,
        root: str,
        decision: Decision,
        by: Caller,
        answer: Answering | None = None,
        look: Callable[[], object] | None = None,
    ) -> Sequence[Fact]:
        if refusal := self.refusals.pop(root, None):
            raise refusal
        return super().decide(root, decision, by, answer, look)


class Process:
    """One process: its keeper, and what it drives."""

    def __init__(self, url: str, log: PostgresLog, name: str, directory: Path) -> None:
        self.ids = (f"{name}{n}" for n in range(100))
        self.lock = ProcessLock(directory)
        self.leases = PostgresLeases(url, STALE_SECONDS, self.lock)
        self.driven = Driven()
        self.renewed: list[float] = []
        self.runs = Hindered(log)
        self.keeper = LeaseKeeper(self.leases, self.runs, lambda: next(self.ids), self.renewed.append)

    def start(self) -> "Process":
        """Begin to hold leases."""
        self.keeper.start(self.driven)
        return self

    def nudge(self) -> None:
        """Make the keeper look now, and not with its next heartbeat."""
        self.keeper.close("no run of this process")

    def close(self) -> None:
        """End."""
        self.driven.may_leave.set()
        self.keeper.stop()
        self.leases.close()
        self.lock.close()


class Place:
    """A database with runs in it, and processes over it."""

    def __init__(self, url: str, directory: Path) -> None:
        self.url = url
        self.directory = directory
        self.log = PostgresLog(url, CATALOGUE)
        self.processes: list[Process] = []

    def process(self, name: str) -> Process:
        """Start a process."""
        self.processes.append(Process(self.url, self.log, name, self.directory))
        return self.processes[-1].start()

    def start_run(self, run_id: str) -> str:
        """Put a run on the log."""
        made = CreateProject(
            project_id=run_id,
            name=run_id,
            origin="blank",
            working_directory="/srv",
            default_branch="main",
            owner="alice",
        )
        self._append(f"project of {run_id}", [create_project(made)])
        project = replay(self.log.read_stream(f"project/{run_id}"))
        assert project is not None
        self._append(f"team of {run_id}", [add_member(project, AddMember(role_id="software-engineer"))], 1)
        project = replay(self.log.read_stream(f"project/{run_id}"))
        assert project is not None
        goal = StartRun(
            run_id=run_id,
            work_plan_id=f"plan of {run_id}",
            goal="Sell things",
            user="alice",
            model_id="m",
            plan=(ProposedSubtask(title="one", scope="", depends_on=()),),
        )
        models = {member.name: "m" for member in project.team}
        self._append(run_id, start_run(goal, project, Commit(commit="c", tree="t"), "/srv", models))
        return run_id

    def _append(self, command_id: str, drafts: Sequence[Draft], version: int = 0) -> None:
        by = Caller(principal="alice", command_id=command_id)
        self.log.append(by.append(drafts, {draft.stream: version for draft in drafts}, SYSTEM_CLOCK.now()))

    def taken(self) -> list[tuple[str, int]]:
        """Who took which epoch, in the order of the log."""
        events = [fact.event for fact in self.log.read(limit=5000)]
        return [(event.replica, event.epoch) for event in events if isinstance(event, LeaseTaken)]

    def holders(self) -> dict[str, str | None]:
        """Who holds which open run."""
        with psycopg.connect(self.url) as connection:
            return dict(connection.execute("SELECT root, replica FROM leases WHERE is_open").fetchall())

    def silence(self, replica: str) -> None:
        """Let a replica have been silent for too long."""
        with psycopg.connect(self.url) as connection:
            connection.execute(
                "UPDATE replicas SET renewed = renewed - interval '1 day' WHERE replica = %s", (replica,)
            )


@pytest.fixture
def place(new_database: Callable[[], str], tmp_path: Path) -> Iterator[Place]:
    """An empty database."""
    place = Place(new_database(), tmp_path)
    try:
        yield place
    finally:
        for process in place.processes:
            process.close()
        place.log.close()


def wait_until(condition: Callable[[], object], what: str) -> None:
    until = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < until, f"waited in vain until {what}"
        time.sleep(0.01)


def test_an_offered_run_is_taken_and_its_fact_stands_before_anything_is_driven(place: Place) -> None:
    process = place.process("a")
    root = place.start_run("r")
    assert not process.keeper.holds(root)
    with pytest.raises(LeaseLost):
        process.keeper.fence(root)
    process.keeper.offer(root)
    wait_until(lambda: process.driven.woken == [root], "the run is to be driven")
    assert place.taken() == [("a0", 1)]
    fence = process.keeper.fence(root)
    assert fence is not None
    assert (fence.root, fence.epoch) == (root, 1)
    assert process.renewed
    assert process.renewed[-1] > time.monotonic()


def test_who_was_silent_for_too_long_ends_everything_before_it_comes_back_under_another_name(place: Place) -> None:
    process = place.process("a")
    root = place.start_run("r")
    process.keeper.offer(root)
    wait_until(lambda: process.keeper.holds(root), "the run is held")
    process.driven.at_work = frozenset({root})
    process.driven.may_leave.clear()
    place.silence("a0")
    process.nudge()
    assert process.driven.left.wait(PATIENCE_SECONDS)
    # It waits for the end of what is under way, and takes nothing meanwhile, not even what nobody else wants.
    assert not process.keeper.holds(root)
    with pytest.raises(LeaseLost):
        process.keeper.check()
    assert place.taken() == [("a0", 1)]
    process.driven.may_leave.set()
    wait_until(lambda: process.keeper.holds(root), "the run is held again")
    assert place.taken() == [("a0", 1), ("a1", 2)]
    assert root in process.driven.forgotten


def test_a_run_is_taken_over_from_the_silent_and_given_to_who_has_less(place: Place) -> None:
    first = place.process("a")
    roots = [place.start_run(f"r{n}") for n in range(4)]
    for root in roots:
        first.keeper.offer(root)
    wait_until(lambda: len(first.keeper.held) == 4, "the first holds all")
    first.driven.at_work = frozenset(roots[:1])
    second = place.process("b")

    def both_live() -> bool:
        standing = first.leases.renew("a0", draining=False)
        return standing is not None and "b0" in standing.loads

    wait_until(both_live, "both live")
    first.nudge()
    wait_until(lambda: len(first.keeper.held) == 2, "the first has given two away")
    assert roots[0] in first.keeper.held, "what is under way is not given away"
    second.nudge()
    wait_until(lambda: len(second.keeper.held) == 2, "the second has two")
    assert not first.keeper.held.keys() & second.keeper.held.keys()


def test_a_draining_process_keeps_only_what_is_under_way(place: Place) -> None:
    process = place.process("a")
    roots = [place.start_run(f"r{n}") for n in range(2)]
    for root in roots:
        process.keeper.offer(root)
    wait_until(lambda: len(process.keeper.held) == 2, "both are held")
    process.driven.at_work = frozenset(roots[:1])
    process.keeper.drain()
    wait_until(lambda: process.keeper.held.keys() == {roots[0]}, "the idle one is let go of")
    process.keeper.stop()
    assert process.leases.holder(roots[0]) is None
    assert process.leases.counts() == {"held": 0, "free": 2}


def test_a_closed_run_is_let_go_of_for_good_and_a_declined_one_for_others(place: Place) -> None:
    process = place.process("a")
    closed, declined = (place.start_run(f"r{n}") for n in range(2))
    for root in (closed, declined):
        process.keeper.offer(root)
    wait_until(lambda: len(process.keeper.held) == 2, "both are held")
    process.keeper.close(closed)
    process.keeper.decline(declined)
    wait_until(lambda: not process.keeper.held, "both are let go of")
    process.keeper.offer(declined)
    other = place.process("b")
    wait_until(lambda: other.keeper.held.keys() == {declined}, "the other has what was declined")
    assert process.leases.counts() == {"held": 1, "free": 0}


def test_a_run_that_is_offered_and_does_not_exist_is_taken_by_nobody(place: Place) -> None:
    process = place.process("a")
    root = place.start_run("r")
    process.keeper.offer("no such run")
    process.keeper.offer(root)
    wait_until(lambda: process.keeper.held.keys() == {root}, "the one that exists is held")
    assert process.leases.holder("no such run") is None


def test_a_run_that_cannot_be_read_is_left_to_others_and_holds_up_none(place: Place) -> None:
    process = place.process("a")
    unreadable, readable = (place.start_run(f"r{n}") for n in range(2))
    process.runs.refusals[unreadable] = Undecodable(7, unreadable, "of a newer release")
    process.keeper.offer(unreadable)
    wait_until(lambda: place.holders() == {unreadable: None}, "it is given back")
    process.keeper.offer(readable)
    wait_until(lambda: process.keeper.held.keys() == {readable}, "the other is driven")
    other = place.process("b")
    wait_until(lambda: unreadable in other.keeper.held, "who can read it has it")


def test_a_run_that_others_keep_changing_is_taken_up_by_the_next_beat(place: Place) -> None:
    process = place.process("a")
    root = place.start_run("r")
    process.runs.refusals[root] = Busy()
    process.keeper.offer(root)
    wait_until(lambda: not process.runs.refusals and place.holders() == {root: "a0"}, "it is claimed")
    process.nudge()
    wait_until(lambda: process.keeper.holds(root), "it is held")
    assert place.taken() == [("a0", 1)]


def test_who_has_ended_may_touch_nothing_any_more(place: Place) -> None:
    process = place.process("a")
    root = place.start_run("r")
    process.keeper.offer(root)
    wait_until(lambda: process.keeper.holds(root), "the run is held")
    process.keeper.stop()
    with pytest.raises(LeaseLost):
        process.keeper.check()
