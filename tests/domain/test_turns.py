"""A child run from its worktree to its end, decision by decision."""

import pytest

from steersman.domain.facts.bad_ends import STALLED, BadEnd
from steersman.domain.facts.child_run import (
    MAX_INTERRUPTIONS,
    AssembleReady,
    NoChangesProduced,
    RunCompleted,
    RunFailed,
    TurnInterrupted,
    TurnOpened,
)
from steersman.domain.facts.directive import MAX_EXECUTIONS, RevisionExecution
from steersman.domain.facts.work_plan import SubtaskRunning
from steersman.domain.steering import steering
from steersman.domain.work import child_ends, turns
from steersman.domain.work.prompts import digest
from steersman.domain.work.turns import InterruptedTooOften, Overtaken
from steersman.tests.domain.fleet import BASE, Fleet, part


def test_a_worktree_is_prepared_once() -> None:
    fleet = Fleet(part("One"))
    fleet.prepare(1)
    assert (fleet.child(1).status, fleet.subtask(1).status) == ("in_progress", "running")
    with pytest.raises(Overtaken):
        turns.prepare_worktree(fleet.run, fleet.child_id(1), BASE, "/x", fleet.now)
    assert len(fleet.told(SubtaskRunning)) == 1


def test_no_turn_is_opened_before_there_is_a_worktree() -> None:
    fleet = Fleet(part("One"))
    with pytest.raises(Overtaken):
        turns.open_turn(fleet.run, fleet.child_id(1))


def test_a_turn_names_itself_in_its_prompt_and_is_known_by_its_digest() -> None:
    fleet = Fleet(part("One"))
    prompt = fleet.start(1)
    (opened,) = [e for e in fleet.told(TurnOpened) if isinstance(e, TurnOpened)]
    assert prompt.splitlines()[0] == f"Steersman-Turn: {opened.turn_id}"
    assert opened.prompt_digest == digest(prompt)
    assert opened.parent == BASE


def test_a_turns_id_is_the_same_on_every_replica() -> None:
    first, second = Fleet(part("One")), Fleet(part("One"))
    first.start(1)
    second.start(1)
    assert first.child(1).turn == second.child(1).turn


def test_a_turn_starts_once_and_ends_once() -> None:
    fleet = Fleet(part("One"))
    fleet.start(1)
    assert turns.start_turn(fleet.run, fleet.child_id(1)) == ()
    fleet.end(1)
    with pytest.raises(Overtaken):
        turns.end_turn(fleet.run, fleet.child_id(1), "end_turn")
    with pytest.raises(Overtaken):
        turns.commit_tree(fleet.run, fleet.child_id(1), BASE)


def test_a_turn_that_ends_without_a_word_was_worked_on_all_the_same() -> None:
    fleet = Fleet(part("One")).to_gate()
    changes = fleet.request_changes(1)
    fleet.settle()
    fleet.prepare(1)
    fleet.open_turn(1)
    fleet.end(1)
    assert fleet.directive(changes).targets == {fleet.child_id(1): "confirmed"}


def test_work_with_changes_is_ready_and_without_is_complete() -> None:
    fleet = Fleet(part("One"), part("Two"))
    fleet.work(1)
    fleet.work(2, changes=False)
    (ready,) = [e for e in fleet.told(AssembleReady) if isinstance(e, AssembleReady)]
    assert (ready.run_id, ready.subtask_id, ready.tree_hash) == (fleet.child_id(1), 1, fleet.child(1).head.tree)
    assert [type(e) for e in fleet.events if isinstance(e, NoChangesProduced | RunCompleted)] == [
        NoChangesProduced,
        RunCompleted,
    ]
    assert [fleet.subtask(i).status for i in (1, 2)] == ["assemble_ready", "completed"]


def test_a_child_that_takes_its_changes_back_in_a_revision_has_none() -> None:
    fleet = Fleet(part("One")).to_gate()
    fleet.request_changes(1)
    fleet.settle()
    fleet.start(1)
    fleet.put(turns.end_turn(fleet.run, fleet.child_id(1), "end_turn"))
    fleet.put(turns.commit_tree(fleet.run, fleet.child_id(1), fleet.commit(BASE.tree)))
    fleet.finish(1)
    assert fleet.subtask(1).status == "completed"


def test_a_paused_child_opens_no_turn_and_does_not_settle() -> None:
    fleet = Fleet(part("One"))
    fleet.start(1)
    pause = fleet.command("pause", 1)
    fleet.settle()
    fleet.end(1, stop_reason="cancelled")
    fleet.command("guidance", 1)
    fleet.settle()
    assert turns.open_turn(fleet.run, fleet.child_id(1)) == ()
    assert child_ends.settle_child(fleet.run, fleet.child_id(1), fleet.now) == ()
    fleet.confirm_pause(pause)
    assert turns.open_turn(fleet.run, fleet.child_id(1)) == ()


def test_a_turn_may_be_cut_off_twenty_times_and_a_new_turn_starts_counting_anew() -> None:
    fleet = Fleet(part("One"))
    fleet.start(1)
    for _ in range(MAX_INTERRUPTIONS):
        fleet.put(turns.interrupt_turn(fleet.run, fleet.child_id(1), found_in_history=True, session_kept=True))
    with pytest.raises(InterruptedTooOften):
        turns.interrupt_turn(fleet.run, fleet.child_id(1), found_in_history=True, session_kept=True)
    assert len(fleet.told(TurnInterrupted)) == 20
    fleet.end(1)
    fleet.command("guidance", 1)
    fleet.settle()
    fleet.start(1)
    fleet.put(turns.interrupt_turn(fleet.run, fleet.child_id(1), found_in_history=True, session_kept=True))


def test_interruption_charges_no_execution_and_failure_does() -> None:
    fleet = Fleet(part("One")).to_gate()
    changes = fleet.request_changes(1)
    fleet.settle()
    fleet.prepare(1)
    fleet.open_turn(1)
    fleet.put(turns.interrupt_turn(fleet.run, fleet.child_id(1), found_in_history=False, session_kept=True))
    assert fleet.directive(changes).failures == 0
    for n in range(1, MAX_EXECUTIONS + 1):
        fleet.put(turns.fail_execution(fleet.run, fleet.child_id(1), "no"))
        assert fleet.directive(changes).failures == n
    assert fleet.directive(changes).status == "needs_attention"
    assert turns.fail_execution(fleet.run, fleet.child_id(1), "no") == ()
    assert (fleet.child(1).turn or None) is not None
    fleet.put(turns.commit_tree(fleet.run, fleet.child_id(1), fleet.child(1).head))
    fleet.finish(1)
    assert (fleet.plan.status, fleet.plan.status_reason) == (
        "assembly_blocked",
        "assembly_blocked: steering_execution_exhausted",
    )


def test_every_mark_names_the_receipt_that_it_carries_out() -> None:
    fleet = Fleet(part("One")).to_gate()
    changes = fleet.request_changes(1)
    fleet.settle()
    fleet.work(1)
    receipt = fleet.directive(changes).payload_hash
    marks = [e for e in fleet.told(RevisionExecution) if isinstance(e, RevisionExecution)]
    assert {(e.receipt_payload_hash, e.attempt, e.child_run_id) for e in marks} == {(receipt, 1, fleet.child_id(1))}


def test_a_child_that_somebody_stops_says_nothing_about_its_own_end() -> None:
    fleet = Fleet(part("One"))
    fleet.start(1)
    fleet.command("abort", 1)
    fleet.settle()
    with pytest.raises(Overtaken):
        fleet.fail(1)
    assert not fleet.told(RunFailed)


def test_nothing_is_decided_about_a_child_that_has_ended_or_was_replaced() -> None:
    fleet = Fleet(part("One")).to_gate(capabilities=())
    old = fleet.child_id(1)
    fleet.request_changes(1)
    fleet.settle()
    for step in (
        lambda: turns.open_turn(fleet.run, old),
        lambda: child_ends.settle_child(fleet.run, old, fleet.now),
        lambda: child_ends.fail_child(fleet.run, old, fleet.now, error_code="x", message="", retryable=False),
        lambda: turns.open_turn(fleet.run, "nobody"),
    ):
        with pytest.raises(Overtaken):
            step()


def test_a_dependants_base_is_rebuilt_only_when_it_is_outdated() -> None:
    fleet = Fleet(part("One"))
    fleet.prepare(1)
    for step in (
        lambda: turns.rebuild_base(fleet.run, fleet.child_id(1), BASE, BASE, fleet.now),
        lambda: child_ends.dispatch_outdated_afresh(fleet.run, fleet.child_id(1), fleet.now),
    ):
        with pytest.raises(Overtaken):
            step()


def test_an_agent_that_stalls_starts_afresh_three_times_and_then_has_failed() -> None:
    fleet = Fleet(part("One"))
    stall, seen = BadEnd(code=STALLED, message="Silence.", stall_seconds=300), list[str]()
    for n in range(4):
        fleet.start(1)
        seen.append(fleet.child_id(1))
        fleet.put(child_ends.end_badly(fleet.run, fleet.child_id(1), fleet.now, stall))
        assert fleet.run.children[seen[-1]].status == "failed"
        fleet.settle()
        assert fleet.subtask(1).recovery_attempts == min(n + 1, 3)
    assert len(set(seen)) == 4
    assert fleet.subtask(1).status == "failed"
    assert {e.error_code for e in fleet.told(RunFailed) if isinstance(e, RunFailed)} == {"agent_stall_timeout"}


def test_words_that_are_tried_once_more_are_told_before_those_that_came_after_them() -> None:
    fleet = Fleet(part("One"))
    fleet.start(1)
    first = fleet.command("guidance", 1, words="Metres.")
    fleet.settle()
    fleet.end(1)
    fleet.open_turn(1)
    for _ in range(MAX_EXECUTIONS):
        fleet.put(turns.fail_execution(fleet.run, fleet.child_id(1), "no"))
    assert fleet.directive(first).status == "needs_attention"
    second = fleet.command("guidance", 1, words="Celsius.")
    fleet.settle()
    fleet.put(steering.resolve(fleet.run, first, "retry"))
    fleet.settle()
    assert [d.directive_id for d in fleet.run.open_for(fleet.child_id(1))] == [first, second]
