"""Pausing, resuming, stopping and aborting: what is said when it is done, and by whose receipt."""

import pytest

from steersman.domain.facts.child_run import Paused, ProcessesKilled, Resumed, RunCancelled
from steersman.domain.process.effects import EndWorkers, PauseWorker, ResumeWorker
from steersman.domain.work import turns, workers
from steersman.domain.work.turns import Overtaken
from steersman.domain.work.workers import Fingerprint
from steersman.tests.domain.fleet import Fleet, part


def at_work(*parts: str) -> Fleet:
    fleet = Fleet(*(part(name) for name in parts or ("One",)))
    for i in fleet.plan.subtasks:
        fleet.start(i)
    return fleet


def test_a_pause_is_pausing_until_every_process_is_stopped_and_then_names_what_stood_there() -> None:
    fleet = at_work()
    pause = fleet.command("pause", 1)
    fleet.settle()
    assert fleet.child(1).status == "pausing"
    assert PauseWorker in [type(effect) for effect in fleet.effects]
    fleet.confirm_pause(pause)
    (paused,) = [e for e in fleet.told(Paused) if isinstance(e, Paused)]
    assert (paused.tree_hash, paused.workspace_hash) == ("t", "w")
    assert paused.receipt_payload_hash == fleet.directive(pause).payload_hash
    assert paused.session_id == fleet.child(1).session_id
    assert (fleet.child(1).status, fleet.directive(pause).status) == ("paused", "applied")


def test_a_resume_of_a_turn_that_was_stopped_in_the_middle_is_done_when_its_processes_run() -> None:
    fleet = at_work()
    fleet.pause(1)
    resume = fleet.command("resume", 1)
    fleet.settle()
    assert ResumeWorker in [type(effect) for effect in fleet.effects]
    fleet.confirm_resume(resume)
    assert (fleet.child(1).status, fleet.directive(resume).status) == ("in_progress", "applied")
    assert len(fleet.told(Resumed)) == 1


def test_a_resume_of_a_child_that_was_never_paused_is_done_as_it_is_said() -> None:
    fleet = at_work()
    resume = fleet.command("resume", 1)
    fleet.settle()
    assert fleet.directive(resume).status == "applied"
    assert not fleet.told(Resumed)


def test_a_resume_while_it_is_pausing_comes_after_the_pause() -> None:
    fleet = at_work()
    pause = fleet.command("pause", 1)
    fleet.settle()
    resume = fleet.command("resume", 1)
    fleet.settle()
    assert ResumeWorker not in [type(effect) for effect in fleet.effects]
    fleet.confirm_pause(pause)
    fleet.confirm_resume(resume)
    assert fleet.child(1).status == "in_progress"


def test_an_abort_while_it_is_pausing_wins() -> None:
    fleet = at_work()
    pause = fleet.command("pause", 1)
    abort = fleet.command("abort", 1)
    fleet.settle()
    fleet.confirm_end(abort, 7, 8)
    found = Fingerprint(tree_hash="t", workspace_hash="w")
    with pytest.raises(Overtaken):
        workers.confirm_pause(fleet.run, pause, fleet.child_id(1), found)
    assert (fleet.directive(abort).status, fleet.directive(pause).status) == ("applied", "superseded")
    assert fleet.child(1).status == "failed"


def test_an_abort_with_ten_queued_guidances_supersedes_them() -> None:
    fleet = at_work()
    queued = [fleet.command("guidance", 1) for _ in range(10)]
    abort = fleet.command("abort", 1)
    fleet.settle()
    fleet.confirm_end(abort, 7)
    assert fleet.directive(abort).status == "applied"
    assert {fleet.directive(d).status for d in queued} == {"superseded"}


def test_an_abort_says_what_was_killed_and_by_which_receipt() -> None:
    fleet = at_work("One", "Two")
    abort = fleet.command("abort", 1)
    fleet.settle()
    fleet.confirm_end(abort, 7, 8)
    (killed,) = [e for e in fleet.told(ProcessesKilled) if isinstance(e, ProcessesKilled)]
    assert (killed.pids, killed.receipt_payload_hash) == ((7, 8), fleet.directive(abort).payload_hash)
    assert [fleet.subtask(i).status for i in (1, 2)] == ["failed", "running"]


def test_a_stop_of_the_run_ends_every_child_and_the_run() -> None:
    fleet = at_work("One", "Two")
    waiting = fleet.command("guidance", 2)
    stop = fleet.steer("stop")
    fleet.settle()
    fleet.confirm_end(stop)
    assert [fleet.subtask(i).status for i in (1, 2)] == ["failed", "failed"]
    cancelled = [e.reason for e in fleet.told(RunCancelled) if isinstance(e, RunCancelled)]
    assert cancelled == ["steering_stop"] * 3
    assert (fleet.run.status, fleet.run.result) == ("failed", "steering_stop")
    assert (fleet.directive(stop).status, fleet.directive(waiting).status) == ("applied", "superseded")
    assert [effect.id for effect in fleet.effects] == ["r/clear-away"]


def test_a_stop_of_one_child_ends_that_one_only() -> None:
    fleet = at_work("One", "Two")
    stop = fleet.steer("stop", 1)
    fleet.settle()
    fleet.confirm_end(stop)
    assert [fleet.subtask(i).status for i in (1, 2)] == ["failed", "running"]
    assert fleet.run.status == "in_progress"
    assert fleet.directive(stop).status == "applied"


def test_a_broadcast_that_one_of_its_targets_will_never_hear_still_reaches_the_others() -> None:
    fleet = at_work("One", "Two")
    sent = fleet.steer("send", words="All hands.")
    abort = fleet.command("abort", 1)
    fleet.settle()
    fleet.confirm_end(abort)
    assert fleet.directive(sent).open
    fleet.end(2)
    fleet.start(2)
    fleet.settle()
    assert fleet.directive(sent).status == "applied"


def test_what_no_target_will_ever_hear_is_not_said_to_have_been_applied() -> None:
    fleet = at_work()
    guidance = fleet.command("guidance", 1)
    fleet.settle()
    fleet.fail(1)
    assert fleet.directive(guidance).status == "expired"


def test_an_abort_is_outstanding_until_it_is_proved() -> None:
    fleet = at_work()
    fleet.command("abort", 1)
    fleet.settle()
    for _ in range(2):
        assert EndWorkers in [type(effect) for effect in fleet.effects]
        fleet.crash()


def test_a_redirect_of_a_paused_child_waits_until_it_goes_on() -> None:
    fleet = at_work()
    fleet.pause(1)
    fleet.command("redirect", 1)
    fleet.settle()
    assert [type(effect).__name__ for effect in fleet.effects] == ["WorkOnSubtask"]
    resume = fleet.command("resume", 1)
    fleet.settle()
    fleet.confirm_resume(resume)
    assert turns.is_cut_short(fleet.run, fleet.child_id(1))
    assert "EndTurn" in [type(effect).__name__ for effect in fleet.effects]
