"""An effect that fails time and again: the log says what stands in the way and who can mend it, and nobody spins."""

import errno
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from steersman.application.driving import advancing
from steersman.application.driving.back_off import LONGEST_REST_SECONDS, BackOff
from steersman.application.driving.under_way import WorkUnderWay
from steersman.application.ports.agents import TurnObserver
from steersman.application.ports.git import RepositoryUnusable
from steersman.application.ports.leases import Holder
from steersman.application.queries.explain_run import explain
from steersman.application.writer.caller import Caller
from steersman.domain.event import Text
from steersman.domain.facts.assembly import AssemblyFailed
from steersman.domain.facts.held import EffectHeld, EffectReleased, EffectRetried
from steersman.domain.facts.run import CoordinatorRun
from steersman.domain.process.dispatch import advance
from steersman.domain.process.effects import WorkOnSubtask, next_effects
from steersman.domain.process.hold import hold, release, try_now
from steersman.tests.application.outside import Session, TickingClock, writes_its_part
from steersman.tests.application.service import Service, part
from steersman.tests.live_agents import PATIENCE_SECONDS, wait_until


@pytest.fixture
def service() -> Iterator[Service]:
    service = Service()
    service.back_off = BackOff(first_seconds=0.01, longest_seconds=0.05)
    yield service
    service.stop()
    assert not service.agents.alive


class Broken:
    """One thing of git that fails until it is mended, with an error that may change."""

    def __init__(self, service: Service, name: str, error: Exception | None) -> None:
        self.error = error
        self.tries = 0
        self._work: Callable[..., Any] = getattr(service.git, name)
        setattr(service.git, name, self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.error is not None:
            self.tries += 1
            raise self.error
        return self._work(*args, **kwargs)


def full() -> OSError:
    return OSError(errno.ENOSPC, "No space left on device")


def gate(run: CoordinatorRun) -> bool:
    return run.status == "awaiting_review"


def test_what_stands_in_the_way_is_told_once_and_taken_back_when_it_is_mended(service: Service) -> None:
    service.start(part("One"))
    broken = Broken(service, "integrate", full())
    service.serve(open_runs=["r"])
    service.wait(lambda run: run.held, "for the fact")
    wait_until(lambda: broken.tries > 8, "more tries")
    (held,) = service.told(EffectHeld)
    assert (held.kind, held.child_run_id, held.error_code, held.waits_for, held.attempts) == (
        "AssembleChildren",
        None,
        "disk_full",
        "operator",
        3,
    )
    assert "No space left" in str(held.message)
    assert not service.told(EffectReleased)
    broken.error = None
    service.wait(gate)
    service.wait(lambda run: not run.held, "for its release")
    (released,) = service.told(EffectReleased)
    assert (released.effect_id, released.error_code) == (held.effect_id, "disk_full")


def test_each_cause_is_told_once_even_if_they_take_turns(service: Service) -> None:
    service.start(part("One"))
    broken = Broken(service, "integrate", full())
    service.serve(open_runs=["r"])
    causes = [full(), RepositoryUnusable("workspace_missing", "it is gone"), ValueError("what?")]
    wait_until(lambda: _took_turns(broken, causes) > 30, "many tries")
    told = [(event.error_code, event.waits_for) for event in service.told(EffectHeld)]
    assert sorted(told) == [("disk_full", "operator"), ("unexpected", "release"), ("workspace_missing", "operator")]
    broken.error = None
    service.wait(gate)


def test_a_fault_that_nobody_can_mend_ends_the_assembly_with_its_cause_and_a_redirect_tries_it_again(
    service: Service,
) -> None:
    service.back_off = BackOff(first_seconds=0.01, longest_seconds=0.05, faults=5)
    broken = Broken(service, "integrate", ValueError("what?"))
    service.start(part("One"))
    service.serve(open_runs=["r"])
    run = service.wait(lambda run: run.ended and run.worktrees_removed)
    (failed,) = service.told(AssemblyFailed)
    assert (failed.reason, failed.phase, failed.attempts) == ("unexpected", "integration", 5)
    assert str(failed.message) == "ValueError: what?"
    assert (run.status, run.result) == ("failed", "assembly_error: unexpected")
    assert run.plan is not None
    assert (run.plan.status, run.held) == ("assembly_failed", {})
    broken.error = None
    service.steer("again", "redirect", words="Try it once more.")
    service.wait(gate)


def test_a_fault_between_others_ends_nothing(service: Service) -> None:
    service.back_off = BackOff(first_seconds=0.01, longest_seconds=0.05, faults=2)
    service.start(part("One"))
    broken = Broken(service, "integrate", full())
    service.serve(open_runs=["r"])
    wait_until(lambda: _took_turns(broken, [full(), ValueError("what?")]) > 20, "many tries")
    assert not service.run.ended
    broken.error = None
    service.wait(gate)


def _took_turns(broken: Broken, causes: list[Exception]) -> int:
    broken.error = causes[broken.tries % len(causes)]
    return broken.tries


def test_a_child_that_gets_on_is_held_no_more_long_before_its_end(service: Service) -> None:
    broken = Broken(service, "make_workplace", PermissionError(errno.EACCES, "Permission denied"))
    began, go_on = threading.Event(), threading.Event()

    def slowly(session: Session, prompt: str, observer: TurnObserver) -> None:
        began.set()
        assert go_on.wait(PATIENCE_SECONDS)
        writes_its_part(session, prompt, observer)

    service.agents.behave = slowly
    service.start(part("One"))
    service.serve(open_runs=["r"])
    run = service.wait(lambda run: run.held)
    (held,) = run.held.values()
    assert (held.child_run_id, held.error_code) == (service.child(1).run_id, "permission_denied")
    broken.error = None
    assert began.wait(PATIENCE_SECONDS)
    service.wait(lambda run: not run.held, "for its release while the agent is at work")
    assert [event.reason for event in service.told(EffectReleased)] == ["went_on"]
    go_on.set()
    service.wait(gate)


def test_what_is_no_longer_called_for_is_held_no_more(service: Service) -> None:
    broken = Broken(service, "integrate", full())
    service.start(part("One"))
    service.serve(open_runs=["r"])
    service.wait(lambda run: run.held)
    service.steer("s", "stop", words="")
    run = service.wait(lambda run: run.worktrees_removed and not run.held)
    assert run.result == "steering_stop"
    assert [event.reason for event in service.told(EffectReleased)] == ["not_outstanding"]
    tries = broken.tries
    service.wait(lambda _: service.driver is not None and not service.driver.held())
    assert broken.tries == tries


def test_a_fresh_process_says_nothing_twice(service: Service) -> None:
    broken = Broken(service, "integrate", full())
    service.start(part("One"))
    service.serve(open_runs=["r"])
    service.wait(lambda run: run.held)
    service.stop()
    service.restart()
    tries = broken.tries
    service.serve(open_runs=["r"])
    wait_until(lambda: broken.tries > tries + 5, "more tries")
    assert len(service.told(EffectHeld)) == 1
    broken.error = None
    service.wait(lambda run: gate(run) and not run.held)


def test_a_run_that_cannot_be_driven_says_so_and_takes_it_back(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.start(part("One"))
    failing = [True]

    def broken(*args: Any) -> Any:
        if failing[0]:
            raise AssertionError("a decision that is wrong")
        return advance(*args)

    monkeypatch.setattr(advancing, "advance", broken)
    service.serve(open_runs=["r"])
    run = service.wait(lambda run: run.held)
    (held,) = run.held.values()
    assert (held.effect_id, held.kind, held.error_code, held.waits_for) == ("r/drive", "Drive", "unexpected", "release")
    failing[0] = False
    service.wait(lambda run: gate(run) and not run.held)
    assert len(service.told(EffectHeld)) == len(service.told(EffectReleased)) == 1


def test_whoever_has_mended_it_can_ask_for_a_try_at_once(service: Service) -> None:
    service.back_off = BackOff(first_seconds=3_600.0, longest_seconds=3_600.0, tries=1)
    broken = Broken(service, "integrate", full())
    service.start(part("One"))
    service.serve(open_runs=["r"])
    service.wait(lambda run: run.held)
    broken.error = None
    service.runs.decide("r", lambda run: try_now(run, "alice"), Caller(principal="alice", command_id="now"))
    service.wait(gate)
    (asked,) = service.told(EffectRetried)
    assert asked.requested_by == "alice"


def test_nothing_is_asked_for_again_where_nothing_is_held(service: Service) -> None:
    service.start(part("One"))
    assert try_now(service.run, "alice") == ()


def test_only_what_is_called_for_is_held_and_a_correction_lets_go_of_it(service: Service) -> None:
    service.start(part("One"))
    told = EffectHeld(
        effect_id="other", kind="RunGate", error_code="x", message=Text("x"), attempts=3, waits_for="operator"
    )
    assert hold(service.run, told) == ()
    assert release(service.run) == ()


def test_explain_names_who_can_mend_it_and_never_the_driver(service: Service) -> None:
    service.start(part("One"))
    service.shop.decide("r", lambda run: advance(run, service.clock.now()))
    (effect,) = next_effects(service.run)
    holder = Holder(replica="one", epoch=1, alive=True, effects=())
    for code, waits_for in (("disk_full", "operator"), ("unexpected", "release")):
        told = EffectHeld(
            effect_id=effect.id,
            kind="WorkOnSubtask",
            child_run_id=service.child(1).run_id,
            error_code=code,
            message=Text("No space left"),
            attempts=3,
            waits_for=waits_for,
        )
        service.shop.decide("r", lambda run, told=told: hold(run, told))
        found = explain(service.run, holder)
        (wait,) = found.waits
        assert (wait.who, wait.request) == (waits_for, "POST /api/runs/r/retry")
        assert code in wait.what
        assert "No space left" in wait.what
        assert [(one.error_code, one.waits_for) for one in found.effects] == [(code, waits_for)]


class Hours:
    """A monotonic clock that a test turns."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def tries_within(seconds: float, *, busy_seconds: float = 0.0) -> int:
    """Return how often an effect that always fails is tried in so much time, while others get the only place."""
    clock, wall, tries = Hours(), TickingClock(), 0
    under_way = WorkUnderWay(1, BackOff(), clock, lambda: 0.5)
    held = WorkOnSubtask(id="held/work", run_id="held", child_run_id="held")
    other = WorkOnSubtask(id="other/work", run_id="other", child_run_id="other")
    while clock.now < seconds:
        if under_way.begin(held, CoordinatorRun(run_id=held.run_id), lambda: True):
            tries += 1
            clock.now += busy_seconds
            under_way.hold(held.id, held.run_id, full(), wall.now(), busy_seconds)
            under_way.finish(held, failed=True)
            assert "held" not in under_way.due()
        assert under_way.begin(other, CoordinatorRun(run_id=other.run_id), lambda: True), (
            "who waits for another try keeps no place"
        )
        under_way.finish(other, failed=False)
        clock.now += 0.25
    return tries


def test_an_hour_of_failures_is_some_sixty_tries_and_a_busy_one_fewer() -> None:
    assert 60 <= tries_within(3_600) <= 85
    # A try that keeps a processor busy for two minutes is rested from: no more than a fifth of the time is spent so.
    busy = tries_within(36_000, busy_seconds=120)
    assert busy * 120 <= 36_000 / 5


def test_no_two_wait_alike_and_none_waits_longer_than_the_bound() -> None:
    back_off = BackOff()
    assert back_off.wait(1, 0.0) == 0.5
    assert back_off.wait(100, 0.0) == 60.0
    assert 45.0 < back_off.wait(100, 0.99) < 60.0
    assert back_off.wait(1, 0.0, busy_seconds=1e6) == LONGEST_REST_SECONDS


def test_what_is_under_way_again_or_waits_for_a_place_is_not_looked_at_again_and_again() -> None:
    clock = Hours()
    under_way = WorkUnderWay(1, BackOff(), clock, lambda: 0.0)
    first = WorkOnSubtask(id="first/work", run_id="first", child_run_id="first")
    second = WorkOnSubtask(id="second/work", run_id="second", child_run_id="second")
    for effect in (first, second):
        assert under_way.begin(effect, CoordinatorRun(run_id=effect.run_id), lambda: True)
        under_way.hold(effect.id, effect.run_id, full(), TickingClock().now())
        under_way.finish(effect, failed=True)
    clock.now = 1.0
    assert under_way.due() == {"first", "second"}
    assert under_way.begin(first, CoordinatorRun(run_id=first.run_id), lambda: True)
    assert not under_way.begin(second, CoordinatorRun(run_id=second.run_id), lambda: True)
    assert under_way.due() == set()
