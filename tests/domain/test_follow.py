"""What decisions lead to: the same child once more, a new one with another author, a person, or nothing at all."""

import msgspec
import pytest

from steersman.domain.facts.assembly import AssemblyBlocked, ChangesRequested, Recovered, ReviewRequested
from steersman.domain.facts.child_run import RevisionHandedOver, RunStarted
from steersman.domain.facts.directive import DirectiveMoved, RevisionExecution, SteeringDecided, SteeringReceived
from steersman.domain.facts.work_plan import SubtaskPending, change_subtasks
from steersman.domain.projects.team import Member
from steersman.domain.steering.steering import NothingToSteer
from steersman.domain.work import child_ends, turns
from steersman.tests.domain.fleet import TEAM, Fleet, part

TESTER = Member(name="tess", role_id="tester", role_title="Tester who writes tests", model_id="rehearsal/tess")
#: `tess` fits a part with "tests" in its title, nobody else does.
FITTING = (TEAM[0], TESTER)


def topics(fleet: Fleet, after: int) -> list[str]:
    return [fact.topic for fact in fleet.facts[after:]]


def decisions(fleet: Fleet) -> list[SteeringDecided]:
    return [e for e in fleet.told(SteeringDecided) if isinstance(e, SteeringDecided)]


# In place


def test_a_revision_in_place_is_received_decided_initiated_confirmed_and_applied_in_this_order() -> None:
    fleet = Fleet(part("One")).to_gate()
    child, before = fleet.child_id(1), len(fleet.facts)
    changes = fleet.request_changes(1)
    fleet.settle()
    fleet.work(1)
    assert fleet.child_id(1) == child
    seen = [t for t in topics(fleet, before) if t.startswith("coordinator.steering") or "revision_execution" in t]
    assert seen == [
        "coordinator.steering_received",
        "coordinator.steering",
        "coordinator.steering",
        "coordinator.steering_decision",
        "coordinator.revision_execution",
        "coordinator.revision_execution",
        "coordinator.steering",
    ]
    marks = [e.state for e in fleet.told(RevisionExecution) if isinstance(e, RevisionExecution)]
    assert marks == ["initiated", "effect_confirmed"]
    assert fleet.directive(changes).status == "applied"


def test_a_correction_is_relayed_when_the_first_agent_is_given_it_and_that_is_said_once() -> None:
    fleet = Fleet(part("One"), part("Two")).to_gate()
    changes = fleet.request_changes(1, 2)
    fleet.settle()
    assert fleet.directive(changes).relayed_at is None, "it is decided, and waits for the agents' turns"
    fleet.start(1)
    first = fleet.directive(changes).relayed_at
    marked = [fact.at.isoformat() for fact in fleet.facts if isinstance(fact.event, RevisionExecution)]
    assert first == marked[0]
    fleet.start(2)
    assert fleet.directive(changes).relayed_at == first


def test_a_correction_that_no_agent_goes_on_with_is_relayed_with_its_decision() -> None:
    fleet = Fleet(part("One")).to_gate()
    note = fleet.steer("send")
    fleet.settle()
    decided = [fact.at.isoformat() for fact in fleet.facts if isinstance(fact.event, SteeringDecided)]
    assert fleet.directive(note).relayed_at == decided[-1]


def test_a_revision_keeps_session_worktree_author_and_branch() -> None:
    fleet = Fleet(part("One")).to_gate()
    before = fleet.child(1)
    fleet.request_changes(1)
    fleet.settle()
    fleet.work(1)
    after = fleet.child(1)
    assert (after.session_id, after.branch, after.agent_name, str(after.worktree_path)) == (
        before.session_id,
        before.branch,
        before.agent_name,
        str(before.worktree_path),
    )
    assert not fleet.subtask(1).locked_out
    assert len(fleet.told(RunStarted)) == 1


def test_a_directive_is_not_applied_while_a_confirmed_target_still_works() -> None:
    fleet = Fleet(part("One")).to_gate()
    changes = fleet.request_changes(1)
    fleet.settle()
    fleet.start(1)
    fleet.settle()
    assert fleet.directive(changes).status == "executing"
    fleet.end(1)
    fleet.finish(1)
    assert fleet.directive(changes).status == "applied"


def test_finished_targets_without_a_confirmation_are_driven_again() -> None:
    fleet = Fleet(part("One"), part("Two")).to_gate()
    changes = fleet.request_changes(1, 2)
    fleet.settle()
    fleet.work(1)
    assert fleet.directive(changes).status == "executing"
    fleet.crash()
    assert fleet.directive(changes).targets[fleet.child_id(1)] == "confirmed"
    assert "Better, please." in fleet.work(2)
    assert fleet.directive(changes).status == "applied"


def test_a_confirmed_target_is_not_asked_again_after_a_crash() -> None:
    fleet = Fleet(part("One")).to_gate()
    fleet.request_changes(1)
    fleet.settle()
    fleet.start(1)
    fleet.crash()
    fleet.settle()
    assert turns.start_turn(fleet.run, fleet.child_id(1)) == ()
    fleet.end(1)
    assert fleet.open_turn(1) is None


def test_an_initiated_target_is_asked_with_the_same_turn_after_a_crash() -> None:
    fleet = Fleet(part("One")).to_gate()
    fleet.request_changes(1)
    fleet.settle()
    fleet.prepare(1)
    fleet.open_turn(1)
    turn = fleet.child(1).turn
    fleet.crash()
    assert turn is not None
    assert fleet.child(1).turn == turn
    fleet.put(turns.interrupt_turn(fleet.run, fleet.child_id(1), found_in_history=False, session_kept=True))
    fleet.put(turns.start_turn(fleet.run, fleet.child_id(1)))
    marks = [e.state for e in fleet.told(RevisionExecution) if isinstance(e, RevisionExecution)]
    assert marks == ["initiated", "effect_confirmed"]


def test_a_child_that_has_worked_before_proves_nothing_about_a_new_attempt() -> None:
    fleet = Fleet(part("One")).to_gate()
    changes = fleet.request_changes(1)
    fleet.settle()
    assert fleet.child(1).turn is not None
    assert fleet.child(1).turn.started
    assert fleet.directive(changes).targets == {fleet.child_id(1): "outstanding"}


def test_a_target_that_fails_starts_afresh_visibly_and_the_healthy_one_is_kept() -> None:
    fleet = Fleet(part("One"), part("Two")).to_gate()
    changes = fleet.request_changes(1, 2)
    fleet.settle()
    healthy = fleet.child_id(1)
    fleet.work(1)
    fleet.start(2)
    fleet.fail(2)
    assert fleet.child_id(1) == healthy
    assert fleet.subtask(1).status == "assemble_ready"
    assert fleet.subtask(2).status == "dispatched"
    phases = [(e.decision, e.phase, e.failed_subtask_ids) for e in decisions(fleet)]
    assert ("dispatch_fresh", "in_place_revision_failed_terminal", (2,)) in phases
    assert fleet.directive(changes).status == "applied"
    assert not fleet.told(AssemblyBlocked)


def test_dependants_of_revised_work_are_no_targets_and_run_again_after_it_with_the_same_child() -> None:
    fleet = Fleet(part("One"), part("Two", 0)).to_gate()
    two = fleet.child_id(2)
    fleet.request_changes(1)
    fleet.settle()
    assert (fleet.subtask(2).status, fleet.subtask(2).recovery_attempts) == ("pending", 0)
    fleet.work(1)
    assert (fleet.subtask(2).status, fleet.child_id(2)) == ("dispatched", two)
    prompt = fleet.work(2)
    assert "has been changed since you finished" in prompt
    assert "Better, please." not in prompt
    assert {e.child_run_id for e in fleet.told(RevisionExecution) if isinstance(e, RevisionExecution)} == {
        fleet.child_id(1)
    }


def test_a_dependant_that_works_while_its_producer_is_revised_is_left_alone() -> None:
    fleet = Fleet(part("One"), part("Two", 0))
    fleet.work(1)
    fleet.start(2)
    fleet.command("guidance", 1)
    fleet.settle()
    assert fleet.subtask(2).status == "running"


def test_a_dependant_that_conflicts_with_its_new_base_starts_afresh_and_the_feed_says_so() -> None:
    fleet = Fleet(part("One"), part("Two", 0)).to_gate()
    old = fleet.child_id(2)
    fleet.request_changes(1)
    fleet.settle()
    fleet.work(1)
    fleet.put(child_ends.dispatch_outdated_afresh(fleet.run, old, fleet.now))
    fleet.settle()
    assert fleet.child_id(2) != old
    assert fleet.child(2).prior_run_id is None, "nobody goes on from what did not fit"
    assert not [e for e in fleet.events if isinstance(e, RevisionHandedOver)]
    assert not fleet.subtask(2).outdated
    assert decisions(fleet)[-1].phase == "dependant_base_conflict"


# Afresh


def test_a_fresh_dispatch_is_decided_before_anything_is_reset() -> None:
    fleet = Fleet(part("One")).to_gate(capabilities=())
    fleet.signal("rai", 1)
    fleet.settle()
    seen = [e for e in fleet.events if isinstance(e, SteeringDecided | SubtaskPending)]
    assert isinstance(seen[0], SteeringDecided)
    assert seen[0].decision == "dispatch_fresh"
    assert sum(isinstance(e, SubtaskPending) for e in seen) == 1


def test_rejected_work_goes_to_another_author_who_fits_with_the_branch_and_every_word() -> None:
    fleet = Fleet(part("Write tests"), team=FITTING).to_gate(capabilities=())
    old = fleet.child_id(1)
    fleet.signal("rai", 1, words="Round one.")
    fleet.settle()
    handed = fleet.child(1)
    assert (handed.agent_name, handed.prior_run_id, handed.run_id != old) == ("tess", old, True)
    (told,) = [e for e in fleet.events if isinstance(e, RevisionHandedOver)]
    assert (told.strategy, told.prior_child_run_id) == ("fresh_from_prior_branch", old)
    assert told.prior_commit == handed.prior_commit
    assert fleet.subtask(1).locked_out == {"ann"}
    assert fleet.subtask(1).prior_child_run_id == old
    rotation = decisions(fleet)[-1]
    assert (rotation.rotated_from, rotation.rotated_to) == ({"1": "ann"}, {"1": "tess"})
    assert (rotation.disposition, rotation.locked_out_roster) == ("rejection", ("ann",))
    prompt = fleet.work(1, capabilities=())
    assert prompt.count("Round one.") == 1


def test_only_the_rejected_subtask_changes_its_author() -> None:
    fleet = Fleet(part("Write tests"), part("Write more tests"), team=FITTING).to_gate(capabilities=())
    fleet.signal("rai", 1)
    fleet.settle()
    assert [fleet.subtask(i).assigned_agent for i in (1, 2)] == ["tess", "ann"]
    assert not fleet.subtask(2).locked_out


def test_a_single_eligible_author_goes_on_with_the_feedback_and_nobody_is_locked_out() -> None:
    fleet = Fleet(part("One")).to_gate(capabilities=())
    fleet.signal("rai", 1)
    fleet.settle()
    assert (fleet.child(1).agent_name, fleet.subtask(1).locked_out) == ("ann", frozenset())
    assert decisions(fleet)[-1].rationale.startswith("single_eligible_agent")
    assert (fleet.plan.status, fleet.run.status) == ("dispatching", "in_progress")


def test_one_target_without_another_author_keeps_everybodys() -> None:
    fleet = Fleet(part("Write tests"), part("Two"), team=FITTING).to_gate(capabilities=())
    fleet.signal("rai", 1, 2)
    fleet.settle()
    assert [fleet.subtask(i).assigned_agent for i in (1, 2)] == ["ann", "ann"]
    assert not fleet.subtask(1).locked_out


def test_four_rejections_of_a_single_author_are_three_dispatches_and_then_a_person() -> None:
    fleet = Fleet(part("One")).to_gate(capabilities=())
    for round_number in (1, 2, 3):
        fleet.signal("rai", 1, words=f"Round {round_number}.")
        fleet.settle()
        assert decisions(fleet)[-1].attempt == round_number
        prompt = fleet.work(1, capabilities=())
        assert [prompt.count(f"Round {n}.") for n in (1, 2, 3)] == [int(n <= round_number) for n in (1, 2, 3)]
        fleet.assemble()
    fourth = fleet.signal("rai", 1, words="Round 4.")
    fleet.settle()
    assert fleet.directive(fourth).action == "proceed"
    assert (fleet.plan.status, fleet.plan.stage, fleet.run.status) == ("in_review", "review", "awaiting_review")
    assert not fleet.told(AssemblyBlocked)
    fleet.request_changes(1)
    fleet.settle()
    assert (fleet.plan.steering_iterations, fleet.subtask(1).recovery_attempts) == (1, 1)


def test_without_any_feedback_a_person_decides_instead_of_the_same_being_done_again() -> None:
    fleet = Fleet(part("One")).to_gate(capabilities=())
    mute = fleet.request_changes(1, words=" ")
    fleet.settle()
    assert decisions(fleet)[-1].rationale.startswith("lockout_no_context")
    assert fleet.directive(mute).action == "proceed"
    assert fleet.plan.status == "in_review"


@pytest.mark.parametrize("pinned", [False, True])
def test_a_pinned_model_wins_over_the_new_authors_own(pinned: bool) -> None:
    fleet = Fleet(part("Write tests"), team=FITTING, pinned=pinned).to_gate(capabilities=())
    before = fleet.child(1).model_id
    fleet.signal("rai", 1)
    fleet.settle()
    assert fleet.child(1).agent_name == "tess"
    assert fleet.child(1).model_id == (before if pinned else "rehearsal/tess")


# A person


def test_an_exhausted_budget_opens_the_gate_once_and_shows_all_that_was_said() -> None:
    fleet = Fleet(part("One"), max_iterations=1).to_gate()
    fleet.signal("rubberduck", 1, words="First.")
    fleet.settle()
    fleet.work(1)
    fleet.assemble()
    openings = len(fleet.told(ReviewRequested))
    second = fleet.signal("rubberduck", 1, words="Second.")
    fleet.settle()
    fleet.crash()
    fleet.settle()
    asked = [e for e in fleet.told(ReviewRequested) if isinstance(e, ReviewRequested)][openings:]
    assert len(asked) == 1
    assert asked[0].escalated
    assert "budget" in (asked[0].reason or "")
    assert [str(words) for words in asked[0].accumulated_feedback] == ["First.", "Second."]
    assert fleet.directive(second).status == "applied"
    fleet.review(approved=False)
    assert (fleet.plan.status, fleet.run.status) == ("assembly_declined", "declined")


def test_a_red_verdict_goes_to_a_person_and_blocks_nothing() -> None:
    fleet = Fleet(part("One")).to_gate()
    fleet.signal("rai", 1, severity="blocking")
    fleet.settle()
    assert (fleet.plan.status, fleet.run.status) == ("in_review", "awaiting_review")
    assert "rai_red" in (fleet.plan.status_reason or "")


def test_a_persons_request_starts_the_budgets_anew_and_a_gates_does_not() -> None:
    fleet = Fleet(part("One"), part("Two")).to_gate()
    fleet.signal("rai", 1)
    fleet.settle()
    fleet.work(1)
    fleet.assemble()
    fleet.signal("rubberduck", 1)
    fleet.settle()
    assert (fleet.plan.steering_iterations, fleet.subtask(1).recovery_attempts) == (2, 2)
    fleet.work(1)
    fleet.assemble()
    fleet.request_changes(1)
    fleet.settle()
    assert (fleet.plan.steering_iterations, fleet.subtask(1).recovery_attempts) == (1, 1)
    assert fleet.plan.human_review_round_trips == 1
    fresh = [e for e in fleet.told(DirectiveMoved) if isinstance(e, DirectiveMoved) and e.note]
    assert [e.human_review_round_trip for e in fresh] == [1]


def test_people_may_ask_for_changes_as_often_as_they_like() -> None:
    fleet = Fleet(part("One")).to_gate()
    for n in range(1, 9):
        fleet.request_changes(1, words=f"Round {n}.")
        fleet.settle()
        assert fleet.directive(f"d{n}").action == "in_place_steer"
        fleet.work(1)
        fleet.assemble()
    assert fleet.plan.human_review_round_trips == 8


def test_proceed_outside_a_gate_moves_no_plan_and_the_next_gate_shows_it() -> None:
    fleet = Fleet(part("One"), part("Two")).to_gate()
    fleet.request_changes(1)
    fleet.settle()
    signal = fleet.signal("agent", 1, severity="blocking")
    fleet.settle()
    assert (fleet.plan.status, fleet.directive(signal).status) == ("dispatching", "applied")
    fleet.work(1)
    fleet.assemble()
    asked = [e for e in fleet.told(ReviewRequested) if isinstance(e, ReviewRequested)][-1]
    assert asked.escalated


def test_changes_that_are_requested_name_the_dependants_that_run_again() -> None:
    fleet = Fleet(part("One"), part("Two", 0), part("Three")).to_gate()
    fleet.request_changes(1)
    fleet.settle()
    (asked,) = [e for e in fleet.told(ChangesRequested) if isinstance(e, ChangesRequested)]
    assert asked.implicated_subtask_ids == (1,)
    assert asked.dependent_subtask_ids == (2,)
    assert asked.redispatch_subtask_ids == (1, 2)


# Where a run stands still


def blocked() -> Fleet:
    fleet = Fleet(part("One"), part("Two"))
    fleet.work(1)
    fleet.start(2)
    fleet.fail(2)
    assert fleet.plan.status == "assembly_blocked"
    return fleet


def test_a_blocked_assembly_names_what_is_missing_and_leaves_the_run_open() -> None:
    fleet = blocked()
    (found,) = [e for e in fleet.told(AssemblyBlocked) if isinstance(e, AssemblyBlocked)]
    assert (found.reason, found.ineligible_subtask_ids) == ("ineligible_subtasks", (2,))
    assert fleet.run.status == "in_progress"


def test_a_redirect_of_a_blocked_run_starts_only_what_failed_afresh() -> None:
    fleet = blocked()
    kept = fleet.child_id(1)
    redirect = fleet.steer("redirect", words="Try the other way.")
    fleet.settle()
    assert (fleet.subtask(1).status, fleet.child_id(1)) == ("assemble_ready", kept)
    assert fleet.subtask(2).status == "dispatched"
    assert fleet.directive(redirect).status == "applied"
    (recovered,) = [e for e in fleet.told(Recovered) if isinstance(e, Recovered)]
    assert (recovered.reason, recovered.reset_subtask_ids) == ("steering_resume", (2,))
    assert fleet.work(2).count("Try the other way.") == 1


def test_a_redirect_of_a_blocked_run_for_one_child_restarts_that_one_only() -> None:
    fleet = blocked()
    with pytest.raises(NothingToSteer):
        fleet.steer("redirect", 1)
    redirect = fleet.steer("redirect", 2)
    assert fleet.directive(redirect).subtask_ids == (2,)


def test_an_amend_of_a_blocked_run_restarts_nothing_that_only_failed() -> None:
    fleet = blocked()
    with pytest.raises(NothingToSteer):
        fleet.steer("amend")
    assert fleet.plan.status == "assembly_blocked"


def test_a_message_to_a_blocked_run_is_taken_note_of_and_restarts_nothing() -> None:
    fleet = blocked()
    sent = fleet.steer("send")
    fleet.settle()
    assert (fleet.directive(sent).status, fleet.plan.status) == ("applied", "assembly_blocked")


def test_a_stop_of_a_blocked_run_ends_it() -> None:
    fleet = blocked()
    stop = fleet.steer("stop")
    fleet.settle()
    fleet.confirm_end(stop)
    assert (fleet.run.status, fleet.run.result) == ("failed", "steering_stop")


def test_a_redirect_of_a_parked_run_begins_a_new_count_of_what_is_tried() -> None:
    fleet = blocked()
    assert fleet.run.plan is not None
    worn = change_subtasks(fleet.run.plan, [1, 2], lambda s: msgspec.structs.replace(s, recovery_attempts=3))
    fleet.run = msgspec.structs.replace(fleet.run, plan=worn)
    redirect = fleet.steer("redirect")
    fleet.settle()
    assert fleet.directive(redirect).status == "applied"
    assert fleet.subtask(2).status == "dispatched"
    assert [fleet.subtask(n).recovery_attempts for n in (1, 2)] == [3, 0]


def test_every_correction_has_a_receipt_before_anything_else_is_said_of_it() -> None:
    fleet = Fleet(part("One")).to_gate()
    changes = fleet.request_changes(1)
    fleet.settle()
    about = [e for e in fleet.events if getattr(e, "directive_id", None) == changes]
    assert isinstance(about[0], SteeringReceived)


def test_the_roster_of_the_locked_out_names_everybody_whose_work_was_rejected_so_far() -> None:
    third = msgspec.structs.replace(TESTER, name="tom")
    fleet = Fleet(part("Write tests"), team=(*FITTING, third)).to_gate(capabilities=())
    for roster in (("ann",), ("ann", "tess")):
        fleet.signal("rai", 1)
        fleet.settle()
        assert decisions(fleet)[-1].locked_out_roster == roster
        fleet.work(1, capabilities=())
        fleet.assemble()
