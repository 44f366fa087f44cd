"""Corrections, decisions and ends that meet each other: the first on the log wins, and nothing is stuck or done twice."""

import msgspec
import pytest

from steersman.domain.facts.child_run import RunCancelled, TurnOpened
from steersman.domain.facts.directive import RevisionExecution, SteeringReceived
from steersman.domain.process.effects import AssembleChildren, EndWorkers, MakePlan, ResumeWorker
from steersman.domain.runs import review
from steersman.domain.runs.review import NoReviewPending, ReviewAssembly
from steersman.domain.steering import gate_signals, steering
from steersman.domain.steering.steering import RunNotActive, SteerRun
from steersman.domain.work import child_ends, turns, workers
from steersman.domain.work.turns import Overtaken
from steersman.tests.domain.fleet import Fleet, part

WORDS = "Use metres."


def confirmed(fleet: Fleet, directive_id: str) -> int:
    found = fleet.told(RevisionExecution)
    return sum(
        isinstance(e, RevisionExecution) and e.directive_id == directive_id and e.state == "effect_confirmed"
        for e in found
    )


def test_a_merge_that_failed_can_be_steered_again() -> None:
    fleet = Fleet(part("One")).to_gate()
    fleet.review(approved=True)
    fleet.put(review.fail_merge(fleet.run, ["a.txt"]))
    assert fleet.run.status == "merge_failed"
    redirect = fleet.steer("redirect")
    fleet.settle()
    assert fleet.directive(redirect).status == "applied"
    assert (fleet.run.status, fleet.plan.status, fleet.subtask(1).in_flight) == ("in_progress", "dispatching", True)


def test_an_approval_does_not_pass_a_stop_that_came_first() -> None:
    fleet = Fleet(part("One")).to_gate()
    stop = fleet.steer("stop")
    with pytest.raises(NoReviewPending):
        fleet.review(approved=True)
    fleet.settle()
    fleet.confirm_end(stop)
    assert (fleet.run.status, fleet.run.result) == ("failed", "steering_stop")


def test_an_approval_does_not_pass_guidance_for_finished_work_that_came_first() -> None:
    fleet = Fleet(part("One")).to_gate()
    fleet.command("guidance", 1)
    with pytest.raises(NoReviewPending):
        fleet.review(approved=True)
    fleet.settle()
    assert (fleet.plan.status, fleet.subtask(1).in_flight) == ("dispatching", True)


def test_guidance_does_not_pass_an_approval_that_came_first() -> None:
    fleet = Fleet(part("One")).to_gate()
    fleet.review(approved=True)
    with pytest.raises(steering.AlreadyMerged):
        fleet.command("guidance", 1)


def test_advice_keeps_nobody_from_approving() -> None:
    fleet = Fleet(part("One")).to_gate()
    fleet.steer("send")
    fleet.review(approved=True)
    fleet.settle()
    fleet.merge()
    assert fleet.run.status == "completed"
    assert not fleet.run.open_directives()


def test_a_signal_cannot_take_work_back_that_is_being_merged() -> None:
    fleet = Fleet(part("One")).to_gate()
    fleet.review(approved=True)
    with pytest.raises(NoReviewPending):
        fleet.signal("rai", 1)
    assert (fleet.plan.status, fleet.plan.stage) == ("assembling", "merge")


def test_nothing_is_begun_while_a_run_is_being_stopped() -> None:
    fleet = Fleet(part("One"), part("Two", 0))
    fleet.start(1)
    stop = fleet.steer("stop")
    fleet.end(1)
    fleet.finish(1)
    assert fleet.subtask(2).status == "pending"
    fleet.settle()
    assert [type(effect) for effect in fleet.effects] == [EndWorkers]
    fleet.confirm_end(stop)
    assert (fleet.run.result, fleet.subtask(2).status) == ("steering_stop", "pending")


def test_a_run_that_is_being_stopped_is_not_assembled() -> None:
    fleet = Fleet(part("One"))
    fleet.work(1)
    assert AssembleChildren in [type(effect) for effect in fleet.effects]
    fleet.steer("stop")
    fleet.settle()
    assert [type(effect) for effect in fleet.effects] == [EndWorkers]


def test_a_run_that_is_being_stopped_asks_no_planner() -> None:
    fleet = Fleet()
    assert [type(effect) for effect in fleet.effects] == [MakePlan]
    fleet.steer("stop")
    fleet.settle()
    assert [type(effect) for effect in fleet.effects] == [EndWorkers]


def test_a_planner_that_is_killed_by_a_stop_says_nothing_about_its_run() -> None:
    fleet = Fleet()
    stop = fleet.steer("stop")
    fleet.settle()
    with pytest.raises(Overtaken):
        review.fail_run(fleet.run, error_code="agent_exited", message="killed", retryable=True)
    fleet.confirm_end(stop)
    assert fleet.run.result == "steering_stop"


def test_an_abort_does_not_take_the_stop_of_the_run_with_it() -> None:
    fleet = Fleet(part("One"))
    fleet.start(1)
    abort = fleet.command("abort", 1)
    stop = fleet.steer("stop")
    fleet.settle()
    fleet.confirm_end(abort, 7)
    assert fleet.directive(stop).open
    fleet.confirm_end(stop)
    assert (fleet.directive(stop).status, fleet.run.result) == ("applied", "steering_stop")


def test_an_abort_that_comes_after_the_end_is_not_said_to_have_been_applied() -> None:
    fleet = Fleet(part("One"))
    fleet.start(1)
    abort = fleet.command("abort", 1)
    fleet.settle()
    fleet.end(1)
    fleet.finish(1)
    fleet.confirm_end(abort)
    assert fleet.directive(abort).status == "expired"


def test_an_aborted_child_is_not_started_afresh_by_the_revision_that_it_was_part_of() -> None:
    fleet = Fleet(part("One"), part("Two")).to_gate()
    changes = fleet.request_changes()
    fleet.settle()
    for i in (1, 2):
        fleet.start(i)
    aborted = fleet.child_id(1)
    abort = fleet.command("abort", 1)
    fleet.settle()
    fleet.confirm_end(abort, 7)
    assert (fleet.subtask(1).status, fleet.subtask(1).child_run_id) == ("failed", aborted)
    fleet.end(2)
    fleet.finish(2)
    assert not fleet.directive(changes).open
    assert fleet.plan.status == "assembly_blocked"


def test_a_second_pause_is_confirmed_by_the_first_and_does_not_come_back_after_the_resume() -> None:
    fleet = Fleet(part("One"))
    fleet.start(1)
    first = fleet.command("pause", 1)
    second = fleet.command("pause", 1)
    fleet.settle()
    fleet.confirm_pause(first)
    assert [fleet.directive(d).status for d in (first, second)] == ["applied", "applied"]
    assert confirmed(fleet, second) == 1
    resume = fleet.command("resume", 1)
    fleet.settle()
    fleet.confirm_resume(resume)
    assert fleet.child(1).status == "in_progress"


def test_a_pause_is_not_undone_by_a_resume_that_was_for_the_pause_before() -> None:
    fleet = Fleet(part("One"))
    fleet.start(1)
    fleet.command("pause", 1)
    fleet.settle()
    fleet.put(turns.end_turn(fleet.run, fleet.child_id(1), "cancelled"))
    fleet.confirm_pause("d1")
    resume = fleet.command("resume", 1)
    fleet.settle()
    fleet.confirm_resume(resume)
    assert fleet.directive(resume).open, "the next turn is its proof"
    fleet.pause(1)
    assert fleet.child(1).status == "paused"
    assert not [effect for effect in fleet.effects if isinstance(effect, ResumeWorker)]
    assert fleet.directive(resume).status == "superseded"


def test_a_second_resume_opens_no_turn_of_its_own() -> None:
    fleet = Fleet(part("One"))
    fleet.start(1)
    fleet.pause(1)
    first, second = fleet.command("resume", 1), fleet.command("resume", 1)
    fleet.settle()
    fleet.confirm_resume(first)
    assert [fleet.directive(d).status for d in (first, second)] == ["applied", "applied"]
    fleet.end(1)
    assert fleet.open_turn(1) is None


def test_guidance_whose_turn_was_cut_short_before_its_first_sign_is_said_in_the_next_turn() -> None:
    fleet = Fleet(part("One"))
    fleet.start(1)
    guidance = fleet.command("guidance", 1, words="Use metres.")
    fleet.settle()
    fleet.end(1)
    assert "Use metres." in (fleet.open_turn(1) or "")
    redirect = fleet.command("redirect", 1, words="Go left.")
    fleet.settle()
    fleet.put(turns.end_turn(fleet.run, fleet.child_id(1), "cancelled"))
    fleet.put(turns.commit_tree(fleet.run, fleet.child_id(1), fleet.commit()))
    prompt = fleet.open_turn(1) or ""
    assert prompt.count("Use metres.") == 1
    assert prompt.count("Go left.") == 1
    fleet.put(turns.start_turn(fleet.run, fleet.child_id(1)))
    fleet.settle()
    assert [fleet.directive(d).status for d in (guidance, redirect)] == ["applied", "applied"]
    assert confirmed(fleet, guidance) == 1


def test_a_redirect_before_the_first_sign_still_tells_the_agent_its_task() -> None:
    fleet = Fleet(part("Paint the fence"))
    fleet.prepare(1)
    fleet.open_session(1)
    fleet.open_turn(1)
    fleet.command("redirect", 1, words="In green.")
    fleet.settle()
    fleet.put(turns.end_turn(fleet.run, fleet.child_id(1), "cancelled"))
    fleet.put(turns.commit_tree(fleet.run, fleet.child_id(1), fleet.commit("t0")))
    prompt = fleet.open_turn(1) or ""
    assert "Paint the fence" in prompt
    assert prompt.count("In green.") == 1


def test_a_first_turn_that_never_began_is_no_finished_work() -> None:
    fleet = Fleet(part("One"))
    guidance = fleet.command("guidance", 1, words=WORDS)
    fleet.settle()
    fleet.prepare(1)
    fleet.open_session(1)
    assert WORDS in (fleet.open_turn(1) or "")
    for _ in range(3):
        assert fleet.put(turns.fail_execution(fleet.run, fleet.child_id(1), "no sign of life"))
    assert fleet.directive(guidance).status == "needs_attention"
    assert fleet.child(1).turn is not None
    assert fleet.child(1).turn.stop_reason == "cancelled"
    fleet.put(turns.commit_tree(fleet.run, fleet.child_id(1), fleet.commit()))
    prompt = fleet.open_turn(1) or ""
    assert "Your part: One" in prompt, "the task itself was never begun"
    assert WORDS not in prompt, "what was given up is not told to anybody"
    assert not turns.fail_execution(fleet.run, fleet.child_id(1), "no sign of life")
    fleet.fail(1)
    assert fleet.subtask(1).status == "failed"


def test_work_handed_over_stays_handed_over_when_it_is_sent_back_twice() -> None:
    fleet = Fleet(part("One")).to_gate(capabilities=())
    first_child = fleet.child_id(1)
    fleet.signal("rai", 1)
    fleet.signal("rubberduck", 1)
    fleet.settle()
    assert fleet.subtask(1).prior_child_run_id == first_child
    assert fleet.child(1).prior_run_id == first_child


def test_a_child_whose_subtask_starts_afresh_while_it_works_has_ended() -> None:
    fleet = Fleet(part("One")).to_gate()
    fleet.request_changes(1)
    fleet.settle()
    fleet.prepare(1)
    old = fleet.child_id(1)
    fleet.put(turns.open_session(fleet.run, old, "another", ()))
    fleet.signal("rai", 1)
    fleet.settle()
    assert fleet.child_id(1) != old
    assert fleet.run.children[old].status == "failed"
    assert [e for e in fleet.told(RunCancelled) if isinstance(e, RunCancelled)][-1].reason == "steering_dispatch_fresh"


def test_guidance_for_a_child_that_was_just_replaced_leaves_no_subtask_without_a_child() -> None:
    fleet = Fleet(part("One")).to_gate(capabilities=())
    changes = fleet.request_changes(1)
    guidance = fleet.command("guidance", 1, words=WORDS)
    fleet.settle()
    assert fleet.child_id(1)
    assert not fleet.directive(changes).open
    assert fleet.directive(guidance).open, "nobody has heard it yet"
    assert fleet.work(1).count(WORDS) == 1
    assert fleet.directive(guidance).status == "applied"


def test_guidance_for_a_dependant_waits_until_what_it_builds_on_is_there() -> None:
    fleet = Fleet(part("One"), part("Two", 0)).to_gate()
    fleet.request_changes(1)
    guidance = fleet.command("guidance", 2, words="Use metres.")
    fleet.settle()
    assert (fleet.subtask(1).status, fleet.subtask(2).status) == ("dispatched", "pending")
    fleet.work(1)
    assert fleet.subtask(2).status == "dispatched"
    assert fleet.subtask(2).outdated
    assert fleet.work(2).count("Use metres.") == 1
    assert fleet.directive(guidance).status == "applied"


def test_an_escalation_is_shown_at_one_gate_and_not_at_the_next() -> None:
    fleet = Fleet(part("One")).to_gate()
    fleet.signal("rai", 1, severity="blocking")
    fleet.settle()
    assert fleet.plan.status == "in_review"
    fleet.request_changes(1)
    fleet.settle()
    fleet.work(1)
    fleet.assemble()
    assert fleet.plan.status_reason is None


def test_a_signal_about_nothing_of_the_plan_ends_at_the_gate() -> None:
    fleet = Fleet(part("One")).to_gate()
    assert fleet.run.plan is not None
    signal = gate_signals.Signal(
        directive_id="d", source="rai", severity="request-changes", feedback="No.", created_by="gate:rai"
    )
    draft = gate_signals.receive_signal(fleet.run, signal, {})[0]
    assert isinstance(draft.event, SteeringReceived)
    nobody = msgspec.structs.replace(draft.event.target_scope, subtask_ids=(99,))
    fleet.put([msgspec.structs.replace(draft, event=msgspec.structs.replace(draft.event, target_scope=nobody))])
    fleet.settle()
    assert (fleet.plan.status, fleet.run.status) == ("in_review", "awaiting_review")
    assert fleet.directive("d").status == "applied"


def test_a_turn_that_was_interrupted_too_often_leaves_its_directives_to_a_person() -> None:
    fleet = Fleet(part("One")).to_gate()
    changes = fleet.request_changes(1)
    fleet.settle()
    fleet.prepare(1)
    fleet.open_turn(1)
    for _ in range(20):
        fleet.put(turns.interrupt_turn(fleet.run, fleet.child_id(1), found_in_history=True, session_kept=True))
    with pytest.raises(turns.InterruptedTooOften) as given_up:
        turns.interrupt_turn(fleet.run, fleet.child_id(1), found_in_history=True, session_kept=True)
    fleet.fail(1, given_up.value.code)
    assert fleet.directive(changes).status == "needs_attention"
    assert fleet.plan.status == "assembly_blocked"
    fleet.put(steering.resolve(fleet.run, changes, "retry"))
    fleet.settle()
    assert (fleet.plan.status, fleet.subtask(1).in_flight) == ("dispatching", True)
    fleet.work(1)
    assert fleet.directive(changes).status == "applied"
    assert fleet.plan.status == "assembling"


def test_the_second_of_two_approvals_is_told_that_it_came_too_late() -> None:
    fleet = Fleet(part("One")).to_gate()
    fleet.review(approved=True)
    with pytest.raises(NoReviewPending):
        review.review(fleet.run, ReviewAssembly(approved=True, reviewer="bob"))


def test_a_redirect_that_loses_to_an_approval_is_told_so_and_one_that_wins_takes_the_gate() -> None:
    fleet = Fleet(part("One")).to_gate()
    before = fleet.run
    redirect = fleet.steer("redirect", touched=fleet.touched)
    with pytest.raises(NoReviewPending):
        fleet.review(approved=True)
    fleet.settle()
    assert fleet.directive(redirect).action == "in_place_steer"
    other = Fleet(part("One")).to_gate()
    assert other.run.plan is not None
    assert before.plan is not None
    other.review(approved=True)
    with pytest.raises(steering.AlreadyMerged):
        other.steer("redirect")


def test_a_stop_after_a_stop_is_refused() -> None:
    fleet = Fleet(part("One"))
    fleet.steer("stop")
    for again in ("stop", "send"):
        with pytest.raises(steering.RunNotSteerable):
            steering.steer_run(fleet.run, SteerRun(directive_id="x", kind=again, instruction="x", principal="a"), {})


def test_a_steer_of_a_run_that_has_ended_is_refused() -> None:
    fleet = Fleet(part("One"))
    stop = fleet.steer("stop")
    fleet.settle()
    fleet.confirm_end(stop)
    with pytest.raises(RunNotActive):
        fleet.steer("redirect")


def test_a_child_that_came_to_work_after_the_kill_is_not_said_to_be_dead() -> None:
    fleet = Fleet(part("One"), part("Two"))
    stop = fleet.steer("stop")
    fleet.settle()
    only_one = {fleet.child_id(1): (1,)}
    with pytest.raises(Overtaken):
        workers.confirm_end(fleet.run, stop, only_one, fleet.now)


def test_a_child_that_waits_for_its_place_can_be_paused_resumed_and_aborted() -> None:
    fleet = Fleet(part("One"))
    fleet.pause(1)
    assert fleet.child(1).status == "paused"
    resume = fleet.command("resume", 1)
    fleet.settle()
    fleet.confirm_resume(resume)
    assert (fleet.child(1).status, fleet.directive(resume).status) == ("pending", "applied")
    abort = fleet.command("abort", 1)
    fleet.settle()
    fleet.confirm_end(abort)
    assert fleet.subtask(1).status == "failed"
    assert not [e for e in fleet.told(TurnOpened)]


def test_guidance_for_a_child_that_ends_before_it_is_decided_is_closed() -> None:
    fleet = Fleet(part("One"))
    fleet.start(1)
    guidance = fleet.command("guidance", 1)
    fleet.put(
        child_ends.fail_child(
            fleet.run, fleet.child_id(1), fleet.now, error_code="agent_exited", message="gone", retryable=True
        )
    )
    fleet.settle()
    assert fleet.directive(guidance).status == "expired"


def test_a_stop_is_not_lost_when_the_gate_escalates_beside_it() -> None:
    fleet = Fleet(part("One")).to_gate()
    fleet.signal("rai", 1, severity="blocking")
    stop = fleet.steer("stop")
    fleet.settle()
    assert fleet.directive(stop).open
    fleet.confirm_end(stop)
    assert fleet.run.result == "steering_stop"
    assert not fleet.run.open_directives()


def test_a_revision_that_came_before_the_stop_is_not_begun_any_more() -> None:
    fleet = Fleet(part("One")).to_gate()
    changes = fleet.request_changes(1)
    stop = fleet.steer("stop")
    fleet.settle()
    assert not fleet.subtask(1).in_flight
    fleet.confirm_end(stop)
    assert fleet.directive(changes).status == "superseded"


def test_two_redirects_end_one_turn_once() -> None:
    fleet = Fleet(part("One"))
    fleet.start(1)
    fleet.command("redirect", 1)
    fleet.command("redirect", 1)
    fleet.settle()
    ids = [effect.id for effect in fleet.effects]
    assert len(ids) == len(set(ids)) == 2


def test_a_blocking_signal_before_anything_is_assembled_does_not_leave_the_plan_without_a_next_step() -> None:
    fleet = Fleet(part("One"))
    fleet.work(1)
    assert fleet.plan.status == "assembling"
    fleet.signal("agent", 1, severity="blocking")
    fleet.settle()
    fleet.assemble()
    assert fleet.plan.status == "in_review"
    assert (fleet.plan.status_reason or "").startswith("The signal is blocking"), "the gate shows why"


def test_guidance_for_a_dependant_whose_producer_fails_meanwhile_is_closed() -> None:
    fleet = Fleet(part("One"), part("Two", 0)).to_gate()
    fleet.request_changes(1)
    guidance = fleet.command("guidance", 2, words="Use metres.")
    fleet.settle()
    fleet.start(1)
    stop = fleet.steer("stop", 1)
    fleet.settle()
    fleet.confirm_end(stop)
    assert fleet.plan.status == "assembly_blocked"
    assert fleet.directive(guidance).status == "expired"
