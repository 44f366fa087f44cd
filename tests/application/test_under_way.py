"""What waits for what in one process: for a place, for its next try, and for whoever still works with the same things."""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from steersman.application.driving.under_way import WorkUnderWay
from steersman.application.ports.outside import CommandResult
from steersman.domain.facts.assembly import AssemblyBlocked
from steersman.domain.facts.child_run import ChildRun
from steersman.domain.facts.directive import SteeringReceived
from steersman.domain.facts.gates import GateSpec
from steersman.domain.facts.run import CoordinatorRun
from steersman.domain.process.effects import (
    AnswerQuestion,
    AssembleChildren,
    ClearAway,
    Effect,
    ResumeWorker,
    RunGate,
    WorkOnSubtask,
)
from steersman.domain.projects.project import Project
from steersman.tests.application import service as services
from steersman.tests.application.service import Service, part

PATIENCE_SECONDS = 120.0


def always() -> bool:
    return True


def work(run_id: str) -> WorkOnSubtask:
    return WorkOnSubtask(id=f"{run_id}/work", run_id=run_id, child_run_id=run_id)


def begin(under_way: WorkUnderWay, *effects: Effect) -> list[bool]:
    return [under_way.begin(effect, CoordinatorRun(run_id=effect.run_id), always) for effect in effects]


def test_a_run_that_cannot_be_driven_keeps_nobody_from_a_place() -> None:
    under_way = WorkUnderWay(1)
    first, broken, other = work("first"), work("broken"), work("other")
    assert begin(under_way, first, broken, other) == [True, False, False]
    assert under_way.finish(first, failed=False) == ["broken"]
    assert begin(under_way, other) == [False]
    assert under_way.step_back("broken") == ["other"]
    assert begin(under_way, other) == [True]


def test_as_many_are_told_as_places_have_become_free() -> None:
    under_way = WorkUnderWay(2)
    first, second, third, fourth = (work(name) for name in ("first", "second", "third", "fourth"))
    begin(under_way, first, second, third, fourth)
    assert under_way.finish(first, failed=False) == ["third"]
    assert under_way.finish(second, failed=False) == ["third", "fourth"]


def test_whoever_has_to_wait_for_another_try_does_not_wait_in_front_of_others() -> None:
    under_way = WorkUnderWay(1)
    first, held, other = work("first"), work("held"), work("other")
    begin(under_way, first, held, other)
    under_way.hold(held.id, "held", RuntimeError("not now"), services.TickingClock().now())
    under_way.finish(first, failed=False)
    assert begin(under_way, held, other) == [False, True]


def test_whoever_answers_a_child_that_has_let_its_place_go_needs_one_and_goes_before_who_is_new() -> None:
    under_way = WorkUnderWay(1)
    child, other, third = work("child"), work("other"), work("third")
    answer = AnswerQuestion(id="q/autopilot/1", run_id="child", child_run_id="child", request_id="q")
    assert begin(under_way, child, answer) == [True, True], "a child that has its place keeps it for who answers"
    under_way.finish(answer, failed=False)
    assert under_way.rest(child.id) == []
    assert begin(under_way, other, third, answer) == [True, False, False]
    assert under_way.finish(other, failed=False) == ["child"]
    assert begin(under_way, third, answer) == [False, True]


def test_a_paused_child_lets_its_place_go_and_is_resumed_when_there_is_one() -> None:
    under_way = WorkUnderWay(1)
    child, other, third = work("child"), work("other"), work("third")
    at_work = ChildRun(run_id="child", subtask_id=1, agent_name="a", model_id="m", branch="b", created_at="")
    run = CoordinatorRun(run_id="child", children={"child": at_work})
    paused = msgspec.structs.replace(run, children={"child": msgspec.structs.replace(at_work, status="paused")})
    resume = ResumeWorker(id="d/resume", run_id="child", child_run_id="child", directive_id="d")
    assert under_way.begin(child, run, always)
    assert begin(under_way, other) == [False]
    assert under_way.settle(paused, [child]) == ([], ["other"])
    assert begin(under_way, other, third) == [True, False]
    assert not under_way.begin(resume, paused, always), "others work in its place"
    shown = {state.effect_id: state for state in under_way.states()["child"]}
    assert {i: shown[i].state for i in (child.id, resume.id)} == dict.fromkeys((child.id, resume.id), "waits_for_place")
    assert [place.run_id for place in shown[resume.id].held_by] == ["other"]
    assert under_way.finish(other, failed=False) == ["child"]
    assert begin(under_way, third) == [False]
    assert under_way.begin(resume, paused, always)
    # What it is about to do is not undone by a look at the run that came before it.
    assert under_way.settle(paused, [child, resume]) == ([], [])
    under_way.finish(resume, failed=False)
    assert begin(under_way, third) == [False], "the place is the child's now"


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        (AssembleChildren(id="r/assemble/1", run_id="r"), AssembleChildren(id="r/assemble/2", run_id="r")),
        (
            RunGate(id="r/build-test/1", run_id="r", kind="build-test"),
            RunGate(id="r/build-test/2", run_id="r", kind="build-test"),
        ),
        (AssembleChildren(id="r/assemble/1", run_id="r"), ClearAway(id="r/clear-away", run_id="r")),
        (ClearAway(id="r/clear-away", run_id="r"), WorkOnSubtask(id="c/work", run_id="r", child_run_id="c")),
    ],
)
def test_what_works_with_the_same_branch_or_worktree_begins_when_the_earlier_one_has_ended(
    earlier: Effect, later: Effect
) -> None:
    under_way = WorkUnderWay(4)
    elsewhere = msgspec.structs.replace(later, id=f"s/{later.id}", run_id="s")
    assert begin(under_way, earlier, later, elsewhere) == [True, False, True]
    under_way.finish(earlier, failed=False)
    assert begin(under_way, later) == [True]


def test_a_tree_that_was_long_in_the_making_is_not_shown_as_the_one_of_the_next_round() -> None:
    service = Service()
    service.start(part("One"))
    integrate = service.git.integrate
    begun, go_on = threading.Event(), threading.Event()

    def slow(*args: Any) -> Any:
        made = integrate(*args)
        if args[-1].endswith("Steersman-Round: 1\n"):
            begun.set()
            assert go_on.wait(PATIENCE_SECONDS)
        return made

    service.git.integrate = slow
    service.serve(open_runs=["r"])
    try:
        assert begun.wait(PATIENCE_SECONDS)
        service.command("g", "guidance", 1, words="One more line.")
        service.wait(lambda run: run.assembly is not None and run.assembly.round == 2)
        go_on.set()
        service.wait(lambda run: run.status == "awaiting_review")
        assert service.run.assembly is not None
        assert service.run.assembly.head is not None
        made = service.child(1).head
        assert made is not None
        assert service.git.files(service.run.assembly.head.commit) == service.git.files(made.commit)
    finally:
        go_on.set()
        service.stop()


class Builds:
    """Commands that end when a test says so, or when they are killed."""

    def __init__(self) -> None:
        self.begun: list[Path] = []
        self._changed = threading.Condition()
        self._killed: set[Path] = set()
        self._passed = False

    def run(
        self, command: Sequence[str], cwd: Path, timeout_seconds: float, reads: Sequence[Path] = ()
    ) -> CommandResult:
        with self._changed:
            self.begun.append(cwd)
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: self._passed or cwd in self._killed, PATIENCE_SECONDS)
            if cwd in self._killed:
                self._killed.discard(cwd)
                return CommandResult(state="interrupted", output="")
            return CommandResult(state="exited", exit_code=0, output="")

    def wait_for(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.begun) >= count, PATIENCE_SECONDS)

    def let_pass(self) -> None:
        with self._changed:
            self._passed = True
            self._changed.notify_all()

    def kill(self, cwd: Path) -> None:
        with self._changed:
            self._killed.add(cwd)
            self._changed.notify_all()

    def close(self) -> None:
        self.let_pass()


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> Callable[[], tuple[Service, Builds]]:
    """A function that starts a service whose project has a build to pass, with a run that builds."""
    replay = services.replay

    def with_gate(facts: Any) -> Project:
        return msgspec.structs.replace(replay(facts), gates=(GateSpec(kind="build-test", command=("make",)),))

    def start() -> tuple[Service, Builds]:
        service, builds = Service(), Builds()
        service.shop.commands = builds
        monkeypatch.setattr(services, "replay", with_gate)
        service.start(part("One"))
        monkeypatch.setattr(services, "replay", replay)
        service.serve(open_runs=["r"])
        builds.wait_for(1)
        return service, builds

    return start


def test_a_build_of_an_earlier_round_is_ended_and_says_nothing_about_the_next_one(
    built: Callable[[], tuple[Service, Builds]],
) -> None:
    service, builds = built()
    try:
        service.command("g", "guidance", 1, words="One more line.")
        builds.wait_for(2)
        builds.let_pass()
        service.wait(lambda run: run.status == "awaiting_review")
        assert not service.told(AssemblyBlocked)
        assert [event.source for event in service.told(SteeringReceived)] == ["human-review"]
        assert len(builds.begun) == 2
    finally:
        service.stop()


def test_a_stop_ends_the_build_that_is_under_way(built: Callable[[], tuple[Service, Builds]]) -> None:
    service, builds = built()
    try:
        service.steer("s", "stop", words="")
        service.wait(lambda run: run.worktrees_removed)
        assert service.directive("s").status == "applied"
        assert service.driver is not None
        assert service.driver.under_way() == []
        assert len(builds.begun) == 1
    finally:
        service.stop()
