"""The automated gates: in one order, skipped where nobody configured them, and never a dead end."""

from collections.abc import Callable

import pytest

from steersman.domain.event import Text
from steersman.domain.facts.assembly import AssemblyFailed, ReviewRequested
from steersman.domain.facts.directive import SteeringDecided, SteeringReceived
from steersman.domain.facts.gates import (
    GateCompleted,
    GateSpec,
    RaiCompleted,
    RaiStarted,
    Verdict,
    next_gate,
    read_verdict,
)
from steersman.domain.facts.held import EffectHeld
from steersman.domain.process.effects import RunGate
from steersman.domain.process.hold import give_up
from steersman.domain.runs import review
from steersman.domain.work.turns import Overtaken, child_at_work
from steersman.tests.domain.fleet import Fleet, part

RAI = GateSpec(kind="rai", model_id="rehearsal")
BUILD = GateSpec(kind="build-test", command=("true",))


def looked_at(*gates: GateSpec) -> Fleet:
    """A run whose work is assembled, before its first gate."""
    fleet = Fleet(part("One"), part("Two"), gates=gates)
    fleet.work(1)
    fleet.work(2)
    fleet.put(review.integrate(fleet.run, fleet.commit("tree 1"), of_round=fleet.round, has_changes=True, conflicts=()))
    fleet.settle()
    return fleet


def verdict(fleet: Fleet, kind: str, outcome: str, feedback: str = "Hm.", *files: str) -> None:
    found = Verdict(outcome=outcome, feedback=feedback, target_files=files)
    assert fleet.run.assembly is not None
    assert fleet.run.assembly.head is not None
    fleet.put(review.complete_gate(fleet.run, kind, gate_of(fleet, kind), found, fleet.touched))
    fleet.settle()


def gate_of(fleet: Fleet, kind: str) -> str:
    assert fleet.run.assembly is not None
    return fleet.run.assembly.gate_id(kind)


def outcomes(fleet: Fleet) -> list[tuple[str, str]]:
    return [(e.gate_kind, e.outcome) for e in fleet.told(GateCompleted) if isinstance(e, GateCompleted)]


def test_gates_that_nobody_configured_are_skipped_and_never_shown_as_passed() -> None:
    fleet = looked_at()
    assert outcomes(fleet) == [("rai", "skipped"), ("rubberduck", "skipped"), ("build-test", "skipped")]
    assert fleet.plan.status == "in_review"


def test_gates_look_in_one_order_and_a_person_after_them() -> None:
    fleet = looked_at(BUILD, RAI)
    assert [e.kind for e in fleet.effects if isinstance(e, RunGate)] == ["rai"]
    verdict(fleet, "rai", "passed")
    assert [e.kind for e in fleet.effects if isinstance(e, RunGate)] == ["build-test"]
    assert not fleet.told(ReviewRequested)
    verdict(fleet, "build-test", "passed")
    assert outcomes(fleet) == [("rai", "passed"), ("rubberduck", "skipped"), ("build-test", "passed")]
    assert fleet.run.status == "awaiting_review"


def test_a_gates_request_for_changes_is_a_signal_like_any_other_about_the_files_that_it_names() -> None:
    fleet = looked_at(RAI)
    verdict(fleet, "rai", "revise", "Better.", "f2")
    (received,) = [e for e in fleet.told(SteeringReceived) if isinstance(e, SteeringReceived)]
    assert (received.source, received.severity, received.created_by) == ("rai", "request-changes", "gate:rai")
    assert received.target_scope.subtask_ids == (2,)
    assert [e.decision for e in fleet.told(SteeringDecided) if isinstance(e, SteeringDecided)] == ["in_place_steer"]
    assert fleet.work(2).count("Better.") == 1
    assert fleet.plan.status == "assembling"


def test_a_red_verdict_asks_a_person_and_shows_why() -> None:
    fleet = looked_at(RAI)
    verdict(fleet, "rai", "red", "No way.")
    assert (fleet.plan.status, fleet.run.status) == ("in_review", "awaiting_review")
    asked = [e for e in fleet.told(ReviewRequested) if isinstance(e, ReviewRequested)][-1]
    assert asked.escalated
    assert "rai_red" in (asked.reason or "")
    assert [str(words) for words in asked.accumulated_feedback] == ["No way."]


def test_every_round_passes_all_gates_again() -> None:
    fleet = looked_at(RAI)
    verdict(fleet, "rai", "passed")
    fleet.request_changes(1)
    fleet.settle()
    fleet.work(1)
    fleet.put(review.integrate(fleet.run, fleet.commit(), of_round=fleet.round, has_changes=True, conflicts=()))
    fleet.settle()
    gates = [e.id for e in fleet.effects if isinstance(e, RunGate)]
    assert len(gates) == 1
    assert gates[0].endswith("/2")


@pytest.mark.parametrize("tree", ["tree 1", "tree 2"])
def test_a_gate_over_an_earlier_round_says_nothing_about_the_one_that_is_assembled(tree: str) -> None:
    fleet = looked_at(BUILD)
    first = gate_of(fleet, "build-test")
    fleet.command("guidance", 1)
    fleet.settle()
    with pytest.raises(Overtaken):
        review.complete_gate(fleet.run, "build-test", first, Verdict(outcome="passed"), {})
    fleet.work(1)
    # Even a tree that is the same again is another round's, and another look at it is under way.
    fleet.assemble(tree)
    assert [e.id for e in fleet.effects if isinstance(e, RunGate)] == [gate_of(fleet, "build-test")]
    with pytest.raises(Overtaken):
        review.complete_gate(fleet.run, "build-test", first, Verdict(outcome="passed"), {})
    with pytest.raises(Overtaken):
        review.block_gate(fleet.run, "build-test", first, "timed_out")


def test_what_was_put_together_for_an_earlier_round_is_not_taken_for_the_next_one() -> None:
    fleet = Fleet(part("One"))
    fleet.work(1)
    first = fleet.round
    fleet.command("guidance", 1)
    fleet.settle()
    fleet.work(1)
    assert [e.id for e in fleet.effects] == [f"r/assemble/{first + 1}"]
    with pytest.raises(Overtaken):
        review.integrate(fleet.run, fleet.commit(), of_round=first, has_changes=True, conflicts=())


def test_a_gate_that_cannot_do_its_work_parks_the_run_and_a_redirect_resets_nothing_and_assembles_again() -> None:
    fleet = looked_at(BUILD)
    fleet.put(review.block_gate(fleet.run, "build-test", gate_of(fleet, "build-test"), "timed_out"))
    fleet.settle()
    assert (fleet.plan.status, fleet.plan.status_reason, fleet.run.status) == (
        "assembly_blocked",
        "assembly_blocked: build_test_infra_timed_out",
        "in_progress",
    )
    kept = {i: fleet.child_id(i) for i in (1, 2)}
    redirect = fleet.steer("redirect", words="Try again.")
    fleet.settle()
    assert fleet.directive(redirect).status == "applied"
    assert {i: fleet.child_id(i) for i in (1, 2)} == kept
    assert (fleet.plan.status, [fleet.subtask(i).status for i in (1, 2)]) == ("assembling", ["assemble_ready"] * 2)


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        ("Fine.\nVERDICT: GREEN", Verdict(outcome="passed", feedback="Fine.")),
        ("Hm.\nverdict: yellow  \n", Verdict(outcome="passed", feedback="Hm.")),
        (
            "Bad.\nTARGET_FILES: a.py, b.py,\nVERDICT: REVISE",
            Verdict(outcome="revise", feedback="Bad.", target_files=("a.py", "b.py")),
        ),
        ("VERDICT: RED", Verdict(outcome="red")),
        ("The word RED is in here.\nVERDICT: GREEN", Verdict(outcome="passed", feedback="The word RED is in here.")),
        ("VERDICT: GREEN\nbut wait", None),
        ("VERDICT: MAUVE", None),
        ("", None),
    ],
)
def test_only_the_last_line_is_a_verdict_and_prose_is_never_scanned_for_one(answer: str, found: Verdict | None) -> None:
    assert read_verdict(answer) == found


def test_the_next_gate_is_the_first_that_is_configured_and_not_done() -> None:
    assert next_gate((BUILD,), ()) == (("rai", "rubberduck"), BUILD)
    assert next_gate((RAI, BUILD), ("rai", "rubberduck")) == ((), BUILD)
    assert next_gate((), ("rai",)) == (("rubberduck", "build-test"), None)


@pytest.mark.parametrize("gate", [RAI, BUILD])
@pytest.mark.parametrize(
    ("outcome", "flagged", "revision"), [("passed", False, False), ("revise", False, True), ("red", True, False)]
)
def test_only_the_look_for_harm_is_told_under_its_own_name_and_what_it_came_to(
    gate: GateSpec, outcome: str, flagged: bool, revision: bool
) -> None:
    fleet = looked_at(gate)
    assert fleet.run.assembly is not None
    gate_id, branch = gate_of(fleet, "rai"), fleet.run.assembly.branch
    verdict(fleet, gate.kind, outcome, "x" * 5_000, "f1")
    told = [*fleet.told(RaiStarted), *fleet.told(RaiCompleted)]
    if gate is BUILD:
        assert told == []
        return
    plan_id = fleet.plan.work_plan_id
    assert told == [
        RaiStarted(work_plan_id=plan_id, integration_branch=branch, gate_id=gate_id),
        RaiCompleted(
            work_plan_id=plan_id,
            integration_branch=branch,
            gate_id=gate_id,
            rai_safety_flagged=flagged,
            rai_revision_requested=revision,
            feedback=Text("x" * 2_000),
        ),
    ]


def before_any_assembly() -> Fleet:
    return Fleet(part("One"))


def ended() -> Fleet:
    fleet = Fleet(part("One")).to_gate()
    fleet.review(approved=False)
    fleet.settle()
    assert fleet.run.ended
    return fleet


def being_merged() -> Fleet:
    fleet = Fleet(part("One")).to_gate()
    fleet.review(approved=True)
    return fleet


@pytest.mark.parametrize("situation", [before_any_assembly, ended, being_merged])
def test_a_signal_is_refused_where_nothing_is_up_for_review(situation: Callable[[], Fleet]) -> None:
    fleet = situation()
    with pytest.raises(review.NoReviewPending):
        fleet.signal("rai", 1)


def fault_of(effect_id: str) -> EffectHeld:
    return EffectHeld(
        effect_id=effect_id,
        kind="RunGate",
        error_code="unexpected",
        message=Text("what?"),
        attempts=5,
        waits_for="release",
    )


def test_a_gate_that_fails_by_a_fault_too_often_fails_the_run_but_not_one_that_is_being_stopped() -> None:
    fleet = looked_at(RAI)
    (gate,) = [effect for effect in fleet.effects if isinstance(effect, RunGate)]
    assert give_up(fleet.run, fault_of("of nothing that is called for"), 5) == ()
    (failed,) = [
        draft.event for draft in give_up(fleet.run, fault_of(gate.id), 5) if isinstance(draft.event, AssemblyFailed)
    ]
    assert (failed.reason, failed.phase, failed.attempts) == ("unexpected", "rai", 5)
    fleet.steer("stop")
    assert give_up(fleet.run, fault_of(gate.id), 5) == ()


def test_nobody_works_on_for_a_child_that_is_not_there() -> None:
    fleet = Fleet(part("One"))
    with pytest.raises(Overtaken):
        child_at_work(fleet.run, "nobody")
