"""The whole decision table: what a correction of assembled work leads to, in which row, and what it costs."""

from collections.abc import Callable

import msgspec
import pytest

from steersman.domain.facts.directive import SteeringDecided
from steersman.domain.facts.run import CoordinatorRun
from steersman.domain.facts.work_plan import change_subtasks
from steersman.domain.steering.decision_table import decide
from steersman.tests.domain.fleet import LOADS, Fleet, part

Change = Callable[[CoordinatorRun], CoordinatorRun]


def attempts(run: CoordinatorRun, subtask_id: int, used: int) -> CoordinatorRun:
    assert run.plan is not None
    plan = change_subtasks(run.plan, [subtask_id], lambda s: msgspec.structs.replace(s, recovery_attempts=used))
    return msgspec.structs.replace(run, plan=plan)


def iterations(run: CoordinatorRun, used: int) -> CoordinatorRun:
    assert run.plan is not None
    return msgspec.structs.replace(run, plan=msgspec.structs.replace(run.plan, steering_iterations=used))


def decision(fleet: Fleet, directive_id: str, change: Change = lambda run: run) -> SteeringDecided:
    run = change(fleet.run)
    (first,) = decide(run, run.directives[directive_id])
    return first


def at_gate(capabilities: tuple[str, ...] = LOADS) -> Fleet:
    return Fleet(part("One"), part("Two")).to_gate(capabilities)


@pytest.mark.parametrize("severity", ["advisory", "request-changes", "blocking"])
@pytest.mark.parametrize("worn_out", [False, True])
@pytest.mark.parametrize("stale", [False, True])
@pytest.mark.parametrize("resumable", [False, True])
def test_every_row_of_the_table(severity: str, worn_out: bool, stale: bool, resumable: bool) -> None:
    fleet = at_gate(LOADS if resumable else ())
    signal = fleet.signal("rai", 1, severity=severity, tree="other" if stale else None)
    found = decision(fleet, signal, (lambda run: attempts(run, 1, 3)) if worn_out else lambda run: run)
    if severity == "advisory":
        wanted = "advisory"
    elif worn_out or severity == "blocking" or stale:
        wanted = "proceed"
    else:
        wanted = "in_place_steer" if resumable else "dispatch_fresh"
    assert found.decision == wanted
    assert found.charged == (wanted in ("in_place_steer", "dispatch_fresh"))
    assert found.rationale
    assert found.attempt == 1


def test_advice_with_both_budgets_used_up_is_still_advice() -> None:
    fleet = at_gate()
    signal = fleet.signal("rai", 1, severity="advisory")
    found = decision(fleet, signal, lambda run: iterations(attempts(run, 1, 3), 6))
    assert (found.decision, found.charged) == ("advisory", False)


def test_a_plan_that_used_its_six_iterations_goes_to_a_person_and_stays_at_six() -> None:
    fleet = at_gate()
    signal = fleet.signal("rai", 1)
    found = decision(fleet, signal, lambda run: iterations(run, 6))
    assert (found.decision, found.attempt, found.charged) == ("proceed", 7, False)


def test_one_target_at_its_cap_sends_all_of_them_to_a_person_and_charges_none() -> None:
    fleet = at_gate()
    signal = fleet.signal("rai", 1, 2)
    found = decision(fleet, signal, lambda run: attempts(run, 2, 3))
    assert (found.decision, found.charged) == ("proceed", False)
    fleet.put(fleet.run.on_directive(signal, e) for e in [found])
    assert [fleet.subtask(i).recovery_attempts for i in (1, 2)] == [0, 0]


def test_the_last_iteration_is_given_to_one_of_two_signals_and_the_other_goes_to_a_person() -> None:
    fleet = Fleet(part("One"), part("Two"), max_iterations=1).to_gate()
    first, second = fleet.signal("rai", 1), fleet.signal("build-test", 2)
    fleet.settle()
    assert fleet.directive(first).action == "in_place_steer"
    assert fleet.directive(second).action == "proceed"
    assert fleet.plan.steering_iterations == 1


def test_without_a_plan_a_person_decides_and_is_told_why() -> None:
    fleet = at_gate()
    signal = fleet.signal("rai", 1)
    found = decision(fleet, signal, lambda run: msgspec.structs.replace(run, plan=None))
    assert found.decision == "proceed"
    assert "no work plan" in found.rationale


@pytest.mark.parametrize("source", ["human-review", "rai", "rubberduck", "build-test", "agent", "coordinator", "step"])
def test_whoever_asks_the_same_gets_the_same_decision(source: str) -> None:
    fleet = at_gate()
    signal = fleet.signal(source, 1)
    fleet.settle()
    decisions = [e for e in fleet.told(SteeringDecided) if isinstance(e, SteeringDecided)]
    assert [(e.directive_id, e.decision) for e in decisions] == [(signal, "in_place_steer")]
    assert fleet.plan.steering_iterations == 1
    assert fleet.subtask(1).recovery_attempts == 1
    assert fleet.subtask(2).recovery_attempts == 0


def test_a_directive_that_is_decided_is_not_decided_again() -> None:
    fleet = at_gate()
    signal = fleet.signal("rai", 1)
    fleet.settle()
    assert decide(fleet.run, fleet.directive(signal)) == ()


def test_targets_that_can_go_on_do_and_the_rest_start_afresh_at_one_price() -> None:
    fleet = Fleet(part("One"), part("Two"))
    fleet.work(1)
    fleet.work(2, capabilities=())
    fleet.assemble()
    signal = fleet.signal("rai", 1, 2)
    first, second = decide(fleet.run, fleet.directive(signal))
    assert (first.decision, first.subtask_ids, first.charged) == ("in_place_steer", (1, 2), True)
    assert first.targets == (fleet.child_id(1),)
    assert (second.decision, second.subtask_ids, second.charged) == ("dispatch_fresh", (2,), False)
    assert first.attempt == second.attempt
    assert "cannot load a session" in second.rationale
    fleet.settle()
    assert fleet.plan.steering_iterations == 1
    assert [fleet.subtask(i).recovery_attempts for i in (1, 2)] == [1, 1]


def test_a_child_without_a_session_or_with_a_failed_run_cannot_go_on_in_place() -> None:
    fleet = at_gate()
    signal = fleet.signal("rai", 1)
    child = fleet.child(1)
    for broken in (msgspec.structs.replace(child, session_id=None), msgspec.structs.replace(child, status="failed")):
        found = decision(
            fleet,
            signal,
            lambda run, broken=broken: msgspec.structs.replace(run, children={**run.children, broken.run_id: broken}),
        )
        assert found.decision == "dispatch_fresh"


def test_a_child_that_was_never_started_cannot_go_on_in_place() -> None:
    fleet = at_gate()
    signal = fleet.signal("rai", 1)
    assert fleet.run.plan is not None

    def without_child(run: CoordinatorRun) -> CoordinatorRun:
        assert run.plan is not None
        plan = change_subtasks(run.plan, [1], lambda s: msgspec.structs.replace(s, child_run_id=None))
        return msgspec.structs.replace(run, plan=plan)

    assert decision(fleet, signal, without_child).decision == "dispatch_fresh"


def test_a_signal_about_the_assembled_tree_is_not_stale() -> None:
    fleet = Fleet(part("One"))
    fleet.work(1)
    fleet.assemble("tree 1")
    assert decision(fleet, fleet.signal("rai", 1, tree="tree 1")).decision == "in_place_steer"
