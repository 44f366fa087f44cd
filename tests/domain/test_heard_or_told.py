"""Every correction is heard by somebody, or whoever made it is told that it was not: whatever meets it on the way."""

import pytest

from steersman.domain.facts.bad_ends import STALLED, BadEnd
from steersman.domain.facts.child_run import MAX_INTERRUPTIONS
from steersman.domain.facts.directive import SteeringDecided
from steersman.domain.process.effects import ResumeWorker
from steersman.domain.steering import steering
from steersman.domain.steering.steering import MAX_QUEUED, QueueFull
from steersman.domain.work import child_ends, turns
from steersman.tests.domain.fleet import Fleet, part

WORDS = "Use metres."
STALL = BadEnd(code=STALLED, message="Silence.", stall_seconds=300)


def stall(fleet: Fleet, subtask_id: int) -> None:
    fleet.put(child_ends.end_badly(fleet.run, fleet.child_id(subtask_id), fleet.now, STALL))
    fleet.settle()


def further_decisions(fleet: Fleet) -> list[str | None]:
    return [e.phase for e in fleet.told(SteeringDecided) if isinstance(e, SteeringDecided)][1:]


def both_failed() -> Fleet:
    fleet = Fleet(part("One"), part("Two"))
    for subtask_id in (1, 2):
        fleet.start(subtask_id)
    for subtask_id in (1, 2):
        fleet.fail(subtask_id)
    assert fleet.plan.status == "assembly_blocked"
    return fleet


def test_two_redirects_of_a_run_that_stands_still_each_start_what_they_are_about() -> None:
    fleet = both_failed()
    ids = [fleet.steer("redirect", subtask_id, words=WORDS) for subtask_id in (1, 2)]
    fleet.settle()
    assert [(fleet.directive(i).action, fleet.directive(i).status) for i in ids] == [("dispatch_fresh", "applied")] * 2
    assert [fleet.subtask(i).in_flight for i in (1, 2)] == [True, True]


def test_a_redirect_of_what_another_one_has_started_restarts_nothing_and_is_told_with_it() -> None:
    fleet = both_failed()
    fleet.steer("redirect", 1, words="Go left.")
    again = fleet.steer("redirect", 1, words=WORDS)
    fleet.settle()
    assert fleet.directive(again).status == "applied"
    assert fleet.subtask(1).dispatches == 2
    assert fleet.start(1).count(WORDS) == 1


def test_a_redirect_that_meets_guidance_for_finished_work_still_restarts_what_failed() -> None:
    fleet = Fleet(part("One"), part("Two"))
    fleet.work(1)
    fleet.start(2)
    fleet.fail(2)
    fleet.command("guidance", 1, words="Also that.")
    fleet.steer("redirect", words=WORDS)
    fleet.settle()
    assert [fleet.subtask(i).in_flight for i in (1, 2)] == [True, True]


def test_a_resume_that_follows_a_pause_which_nobody_has_acted_on_ends_that_pause() -> None:
    fleet = Fleet(part("One"))
    fleet.start(1)
    pause, resume = fleet.command("pause", 1), fleet.command("resume", 1)
    fleet.settle()
    fleet.confirm_pause(pause)
    assert fleet.directive(resume).open
    assert [e.directive_id for e in fleet.effects if isinstance(e, ResumeWorker)] == [resume]


def test_what_starts_afresh_hears_of_a_request_whose_other_part_was_aborted() -> None:
    fleet = Fleet(part("One"), part("Two"))
    fleet.work(1)
    fleet.work(2, capabilities=())
    fleet.assemble()
    changes = fleet.request_changes(words=WORDS)
    fleet.settle()
    abort = fleet.command("abort", 1)
    fleet.settle()
    fleet.confirm_end(abort, 7)
    assert fleet.directive(changes).status != "superseded"
    assert fleet.start(2).count(WORDS) == 1


@pytest.mark.parametrize("verb", ["guidance", "redirect"])
def test_what_a_stalled_child_could_not_hear_is_told_to_the_next_one_and_applied_only_then(verb: str) -> None:
    fleet = Fleet(part("One"))
    fleet.start(1)
    said = fleet.command(verb, 1, words=WORDS)
    fleet.settle()
    stall(fleet, 1)
    assert fleet.directive(said).open, "nobody has heard it yet"
    assert fleet.start(1).count(WORDS) == 1
    fleet.settle()
    assert fleet.directive(said).status == "applied"


def test_what_nobody_takes_over_expires_and_is_not_told_later() -> None:
    fleet = Fleet(part("One"))
    fleet.start(1)
    said = fleet.command("guidance", 1, words=WORDS)
    fleet.settle()
    fleet.fail(1)
    assert fleet.directive(said).status == "expired"
    fleet.steer("redirect", words="Do it again.")
    fleet.settle()
    assert WORDS not in fleet.start(1)


def test_a_revision_that_stalls_is_no_proof_and_starts_afresh_with_a_decision() -> None:
    fleet = Fleet(part("One")).to_gate()
    changes = fleet.request_changes(1, words=WORDS)
    fleet.settle()
    fleet.prepare(1)
    fleet.open_turn(1)
    old = fleet.child_id(1)
    stall(fleet, 1)
    assert further_decisions(fleet) == ["in_place_revision_failed_terminal", "author_rotation"]
    assert fleet.child_id(1) != old
    assert (fleet.subtask(1).recovery_attempts, fleet.subtask(1).stalled) == (1, False)
    assert fleet.start(1).count(WORDS) == 1
    assert fleet.directive(changes).action == "in_place_steer"


def test_a_revision_that_is_cut_off_too_often_after_a_failed_try_is_left_to_a_person() -> None:
    fleet = Fleet(part("One")).to_gate()
    changes = fleet.request_changes(1)
    fleet.settle()
    fleet.prepare(1)
    fleet.open_turn(1)
    fleet.put(turns.fail_execution(fleet.run, fleet.child_id(1), "gone"))
    for _ in range(MAX_INTERRUPTIONS):
        fleet.put(turns.interrupt_turn(fleet.run, fleet.child_id(1), found_in_history=True, session_kept=True))
    fleet.fail(1, turns.InterruptedTooOften.code)
    assert fleet.directive(changes).status == "needs_attention"
    assert fleet.plan.status == "assembly_blocked"


def test_what_a_person_gave_up_is_not_told_to_whoever_does_the_work_over() -> None:
    fleet = Fleet(part("One")).to_gate()
    changes = fleet.request_changes(1, words=WORDS)
    fleet.settle()
    fleet.prepare(1)
    fleet.open_turn(1)
    for _ in range(3):
        fleet.put(turns.fail_execution(fleet.run, fleet.child_id(1), "no sign of life"))
    fleet.put(steering.resolve(fleet.run, changes, "abandon"))
    fleet.put(turns.commit_tree(fleet.run, fleet.child_id(1), fleet.commit()))
    fleet.fail(1)
    fleet.steer("redirect", words="Do it again.")
    fleet.settle()
    assert WORDS not in fleet.start(1)


@pytest.mark.parametrize("door", ["pause", "abort", "stop the child", "stop the run"])
def test_a_full_queue_keeps_nobody_from_pausing_or_ending_the_child(door: str) -> None:
    fleet = Fleet(part("One"))
    fleet.start(1)
    for _ in range(MAX_QUEUED):
        fleet.command("guidance", 1, words=WORDS)
    with pytest.raises(QueueFull):
        fleet.command("guidance", 1, words=WORDS)
    with pytest.raises(QueueFull):
        fleet.steer("send", words=WORDS)
    match door:
        case "stop the child":
            ends = fleet.steer("stop", 1)
        case "stop the run":
            ends = fleet.steer("stop")
        case verb:
            ends = fleet.command(verb, 1)
    assert fleet.directive(ends).open
