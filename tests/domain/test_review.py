"""The human gate and the merge: given these facts, when this is decided, then this follows."""

import pytest

from steersman.domain.event import Draft, Text
from steersman.domain.facts.assembly import (
    AssemblyCompleted,
    AssemblyDeclined,
    MergeBlocked,
    MergeFailed,
    MergePrepared,
    MergeStarted,
    ReviewApproved,
    ReviewRequested,
)
from steersman.domain.facts.gates import GateSpec, GateStarted
from steersman.domain.rejected import Invalid
from steersman.domain.runs import review
from steersman.domain.runs.planning import make_plan
from steersman.domain.runs.review import MAX_FEEDBACK_BYTES, HeadMoved, ReviewAssembly
from steersman.domain.steering.gate_signals import MAX_TARGET_FILES, NoReviewPending, RequestChanges, request_changes
from steersman.domain.work.turns import Overtaken
from steersman.tests.domain.fleet import BASE, TEAM, Fleet, part
from steersman.tests.spec import given

APPROVE = ReviewAssembly(approved=True, reviewer="alice")


def log(fleet: Fleet) -> list[Draft]:
    """What a fleet's log holds, to be given to a decision."""
    return [Draft(stream=f.stream, event=f.event, run=f.run, root=f.root) for f in fleet.facts]


def at_gate() -> Fleet:
    fleet = Fleet(part("One"))
    fleet.work(1)
    fleet.assemble("tree 1")
    return fleet


def test_an_approval_is_of_exactly_the_tree_that_stands_at_the_gate() -> None:
    fleet = at_gate()
    assert fleet.run.assembly is not None
    approved = ReviewApproved(
        work_plan_id="w", gate_id=fleet.run.assembly.gate or "", reviewer="alice", tree_hash="tree 1"
    )
    started = MergeStarted(work_plan_id="w", integration_branch="steersman/integration/r")
    given(log(fleet)).when(lambda run: review.review(run, APPROVE)).then(approved, started)


def test_an_approval_of_another_tree_is_refused_with_both() -> None:
    seen = ReviewAssembly(approved=True, reviewer="alice", tree_hash="tree 0")
    refused = given(log(at_gate())).when(lambda run: review.review(run, seen)).then_rejected(HeadMoved)
    assert refused.details == {"expected": "tree 0", "actual": "tree 1"}


def test_a_decline_ends_the_run_and_merges_nothing() -> None:
    fleet = at_gate()
    assert fleet.run.assembly is not None
    no = ReviewAssembly(approved=False, reviewer="alice", feedback="No.")
    declined = AssemblyDeclined(
        work_plan_id="w", gate_id=fleet.run.assembly.gate or "", reason=Text("No."), reviewer="alice"
    )
    given(log(fleet)).when(lambda run: review.review(run, no)).then(declined)
    fleet.put(review.review(fleet.run, no))
    assert (fleet.run.status, fleet.run.result, fleet.plan.terminal_stage) == (
        "declined",
        "assembly_declined",
        "review",
    )


def test_before_the_gate_is_open_there_is_nothing_to_decide() -> None:
    fleet = Fleet(part("One"))
    given(log(fleet)).when(lambda run: review.review(run, APPROVE)).then_rejected(NoReviewPending)
    changes = RequestChanges(directive_id="d", feedback="x", reviewer="a")
    given(log(fleet)).when(lambda run: request_changes(run, changes, {})).then_rejected(NoReviewPending)


@pytest.mark.parametrize("approved", [True, False])
def test_feedback_is_measured_in_bytes(approved: bool) -> None:
    long = ReviewAssembly(approved=approved, reviewer="a", feedback="é" * (MAX_FEEDBACK_BYTES // 2) + "x")
    given(log(at_gate())).when(lambda run: review.review(run, long)).then_rejected(Invalid)
    changes = RequestChanges(directive_id="d", feedback=long.feedback, reviewer="a")
    given(log(at_gate())).when(lambda run: request_changes(run, changes, {})).then_rejected(Invalid)


def test_no_more_files_are_named_than_a_fact_can_hold() -> None:
    many = RequestChanges(directive_id="d", feedback="", reviewer="a", target_files=("f",) * (MAX_TARGET_FILES + 1))
    given(log(at_gate())).when(lambda run: request_changes(run, many, {})).then_rejected(Invalid)


def test_a_merge_names_its_move_before_it_is_made_and_ends_the_run() -> None:
    fleet = at_gate()
    fleet.review(approved=True)
    fleet.merge()
    merge = [e for e in fleet.events if isinstance(e, MergePrepared | AssemblyCompleted)]
    assert [type(e) for e in merge] == [MergePrepared, AssemblyCompleted]
    assert (fleet.run.status, fleet.run.result, fleet.plan.status, fleet.plan.stage) == (
        "completed",
        "assembly_complete",
        "complete",
        "done",
    )
    with pytest.raises(Overtaken):
        review.complete_merge(fleet.run, "m1")


def test_a_blocked_merge_opens_the_gate_again_and_each_approval_is_another_attempt() -> None:
    fleet = at_gate()
    ids = set()
    for _ in range(3):
        fleet.review(approved=True)
        ids |= {effect.id for effect in fleet.effects}
        fleet.put(review.prepare_merge(fleet.run, "c0", "m1"))
        fleet.put(review.block_merge(fleet.run, "repository_dirty"))
        assert (fleet.run.status, fleet.plan.status, fleet.plan.status_reason) == (
            "awaiting_review",
            "in_review",
            "repository_dirty",
        )
        assert fleet.run.assembly is not None
        assert fleet.run.assembly.merge is None
    assert len(ids) == 3
    assert len(fleet.told(MergeBlocked)) == 3


def test_a_conflict_with_the_originating_branch_ends_the_run_and_names_the_files() -> None:
    fleet = at_gate()
    fleet.review(approved=True)
    fleet.put(review.fail_merge(fleet.run, ["a.txt"]))
    (failed,) = [e for e in fleet.told(MergeFailed) if isinstance(e, MergeFailed)]
    assert [str(path) for path in failed.conflicting_files] == ["a.txt"]
    assert (fleet.run.status, fleet.plan.terminal_stage) == ("merge_failed", "merge")


def test_the_gate_is_opened_once_for_a_round() -> None:
    fleet = Fleet(part("One"))
    fleet.work(1)
    fleet.assemble()
    with pytest.raises(Overtaken):
        review.integrate(fleet.run, fleet.commit(), of_round=fleet.round, has_changes=True, conflicts=())
    assert len(fleet.told(ReviewRequested)) == 1


def test_what_an_ended_run_left_is_cleared_away_once() -> None:
    fleet = at_gate()
    with pytest.raises(Overtaken):
        review.remove_worktrees(fleet.run)
    fleet.review(approved=False)
    assert [effect.id for effect in fleet.effects] == ["r/clear-away"]
    (draft,) = review.remove_worktrees(fleet.run)
    assert draft.run is None, "a feed ends with the fact that ended its run"
    fleet.put([draft])
    assert fleet.effects == []
    with pytest.raises(Overtaken):
        review.remove_worktrees(fleet.run)


@pytest.mark.parametrize("approved", [True, False])
def test_nobody_decides_about_the_work_of_a_run_that_was_stopped_at_its_gate(approved: bool) -> None:
    fleet = Fleet(part("One")).to_gate()
    stop = fleet.steer("stop")
    fleet.settle()
    fleet.confirm_end(stop)
    assert (fleet.run.status, fleet.run.result) == ("failed", "steering_stop")
    with pytest.raises(NoReviewPending):
        fleet.review(approved=approved)


def test_a_plan_that_comes_after_the_stop_is_not_wanted() -> None:
    fleet = Fleet()
    made = make_plan("w", [part("Late")], TEAM, {member.name: "rehearsal" for member in TEAM}, {})
    assert review.put_plan(fleet.run, made)
    stop = fleet.steer("stop")
    fleet.settle()
    with pytest.raises(Overtaken):
        review.put_plan(fleet.run, made)
    fleet.confirm_end(stop)
    with pytest.raises(Overtaken):
        review.put_plan(fleet.run, made)


def test_nobody_is_asked_to_look_at_nothing() -> None:
    fleet = Fleet(part("One"), gates=(GateSpec(kind="rai", model_id="rehearsal"),))
    fleet.work(1, changes=False)
    drafts = review.integrate(fleet.run, BASE, of_round=fleet.round, has_changes=False, conflicts=())
    fleet.put(drafts)
    fleet.settle()
    assert (fleet.run.status, fleet.run.result, fleet.plan.status) == ("completed", "no_changes", "complete")
    assert not any(isinstance(fact.event, ReviewRequested | GateStarted | MergeStarted) for fact in fleet.facts)


def test_a_request_for_changes_without_words_spends_no_agents_turn_and_comes_back_to_the_person() -> None:
    fleet = Fleet(part("One")).to_gate()
    asked = fleet.request_changes(1, words="  ")
    fleet.settle()
    directive = fleet.directive(asked)
    assert (directive.action, directive.status) == ("proceed", "applied")
    assert directive.rationale.startswith("lockout_no_context")
    assert (fleet.run.status, fleet.plan.steering_iterations) == ("awaiting_review", 0)
    assert not fleet.subtask(1).in_flight
