"""A run's row shows what the domain says of the run, at every moment of its life."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from steersman.domain.event import Text
from steersman.domain.facts.agent_output import ToolCalled
from steersman.domain.facts.assembly import ConflictAutoResolved, Recovered
from steersman.domain.facts.child_run import RunCancelled
from steersman.domain.facts.directive import Action, DirectiveMoved, SteeringDecided, SteeringReceived, TargetScope
from steersman.domain.facts.fold import evolve
from steersman.domain.facts.run import CoordinatorRun
from steersman.domain.facts.work_plan import SubtaskDispatched, SubtaskMoved, SubtaskPending, SubtaskStatus, step
from steersman.domain.git import Commit
from steersman.domain.runs import review
from steersman.projections import children_view, run_detail, run_list, work_plan_view
from steersman.projections.catalogue import VIEWS
from steersman.projections.run_detail import RunDetail, shown
from steersman.projections.view import Rows

if TYPE_CHECKING:
    from .conftest import History


def merged(history: "History") -> None:
    history.to_gate()
    history.decide(approved=True)
    history.merge()
    history.put(review.remove_worktrees(history.run))


def merge_blocked(history: "History") -> None:
    history.to_gate()
    history.decide(approved=True)
    history.put(review.block_merge(history.run, "repository_dirty"))


def merge_failed(history: "History") -> None:
    history.to_gate()
    history.decide(approved=True)
    history.put(review.fail_merge(history.run, ["a.txt"]))


def base_moved(history: "History") -> None:
    history.to_gate()
    history.decide(approved=True)
    history.put(review.move_base(history.run, Commit(commit="m1", tree="tm1"), ["a.txt"]))
    history.put(
        review.integrate(
            history.run,
            Commit(commit="c11", tree="t11"),
            of_round=2,
            has_changes=True,
            conflicts=[
                ConflictAutoResolved(
                    work_plan_id="w",
                    conflicting_branch="steersman/x",
                    conflicting_files=(Text("b.txt"),),
                    strategy="accept_child",
                    ref="refs/steersman/conflicts/r/1",
                    subtask_id=1,
                    replaced="c5",
                )
            ],
        )
    )
    history.put(review.pass_gates(history.run))


def declined(history: "History") -> None:
    history.to_gate()
    history.decide(approved=False)


def assembly_blocked(history: "History") -> None:
    history.start()
    history.advance()
    history.fail(1)
    history.advance()


def failed_without_a_plan(history: "History") -> None:
    history.start(planned=False)
    history.put(review.fail_run(history.run, error_code="planner_failed", message="No plan.", retryable=False))


def cancelled(history: "History") -> None:
    history.start()
    history.advance()
    child = history.begin_work(1)
    history.put([history.run.on_child(child, RunCancelled(reason="steering_stop"))])
    history.put([history.run.coordinator(RunCancelled(reason="steering_stop"))])


def steer(history: "History", decision: Action) -> None:
    """Take a correction of the assembled work from its receipt to its decision."""
    received = SteeringReceived(
        directive_id="d",
        source="human-review",
        severity="request-changes",
        verb="redirect",
        target_scope=TargetScope(kind="work-plan"),
        feedback=Text("Not like this."),
        tree_hash=None,
        target_files=(),
        created_by="bob",
        payload_hash="",
        direct=False,
    )
    decided = SteeringDecided(
        directive_id="d", decision=decision, rationale="", subtask_ids=(1,), attempt=1, charged=decision != "proceed"
    )
    moved = DirectiveMoved(directive_id="d", kind="redirect", status="executing")
    for event in (received, decided, moved):
        history.put([history.run.on_directive("d", event)])


def move(history: "History", kind: type[SubtaskMoved], status: SubtaskStatus, **changes: str | None) -> None:
    """Take the first subtask a step, as a correction does."""
    assert history.run.plan is not None
    moved = step(kind, history.run.plan.subtasks[1], status, history.at)
    history.put([history.run.on_plan(msgspec.structs.replace(moved, **changes))])


def steered_in_place(history: "History") -> None:
    history.to_gate()
    steer(history, "in_place_steer")
    move(history, SubtaskDispatched, "dispatched")
    assert history.child(1).status == "in_progress"


def steered_afresh(history: "History") -> None:
    history.to_gate()
    steer(history, "dispatch_fresh")
    move(history, SubtaskPending, "pending", child_run_id=None)


def handed_to_a_person(history: "History") -> None:
    history.to_gate()
    steer(history, "proceed")
    assert history.run.plan is not None
    assert history.run.plan.status == "assembly_steering"


def recovered(history: "History") -> None:
    history.to_gate()
    history.put(review.fail_run(history.run, error_code="x", message="", retryable=True))
    history.put(review.remove_worktrees(history.run))
    again = Recovered(reason="steering_resume", directive_id="d", reset_subtask_ids=(), instruction=Text("Go on."))
    history.put([history.run.coordinator(again)])
    assert not history.run.ended


LIVES = (
    merged,
    merge_blocked,
    merge_failed,
    base_moved,
    declined,
    assembly_blocked,
    failed_without_a_plan,
    cancelled,
    steered_in_place,
    steered_afresh,
    handed_to_a_person,
    recovered,
)


class Nothing:
    """What is stored before anything is."""

    def row(self, key: str) -> None:
        """There is no row."""

    def group(self, name: str) -> dict[str, bytes]:
        """There is no group."""
        return {}


DETAIL, SUMMARY, PLAN, CHILDREN = (module.VIEW.name for module in (run_detail, run_list, work_plan_view, children_view))


def _row_of(rows: Mapping[str, Rows[Any]], view: str, key: str) -> Any:
    return rows[view].get(key)


def _agree(rows: Mapping[str, Rows[Any]], run: CoordinatorRun) -> None:
    plan, detail, summary = run.plan, _row_of(rows, DETAIL, "r"), _row_of(rows, SUMMARY, "r")
    for row in (detail, summary):
        assert (row.status, row.result) == (run.status, run.result)
        assert row.coordinator_status == (plan.status if plan else None)
        assert (row.ended_at is not None) == run.ended
    assert detail.kept.root_sequence == run.root_sequence
    shown_plan = _row_of(rows, PLAN, "r")
    assert (shown_plan is None) == (plan is None)
    if plan is not None:
        assert (shown_plan.status, shown_plan.status_reason) == (plan.status, plan.status_reason)
        assert (shown_plan.assembly_stage, shown_plan.assembly_terminal_stage) == (plan.stage, plan.terminal_stage)
        assert [(s.subtask_id, s.status, s.child_run_id) for s in shown_plan.subtasks] == [
            (s.subtask_id, s.status, s.child_run_id) for s in plan.subtasks.values()
        ]
    _children_agree(rows, run)


def _children_agree(rows: Mapping[str, Rows[Any]], run: CoordinatorRun) -> None:
    for child in run.children.values():
        row, listed = _row_of(rows, DETAIL, child.run_id), _row_of(rows, CHILDREN, child.run_id)
        assert row.status == child.status
        assert (row.kept.base, row.kept.head) == (child.base, child.head)
        assert run.plan is not None
        subtask = run.plan.subtasks[child.subtask_id]
        if subtask.child_run_id == child.run_id:
            assert (listed.child_run_status, listed.subtask_status) == (child.status, subtask.status)
        else:
            # It was created and its subtask does not name it yet, or not any more.
            assert listed is None or child.status == "pending"


@pytest.mark.parametrize("life", LIVES)
def test_views_agree_with_the_domain_after_every_fact_of_a_life(
    life: "Callable[[History], None]", history: "History"
) -> None:
    life(history)
    rows: dict[str, Rows[Any]] = {view.name: view.open(Nothing()) for view in VIEWS}
    run = CoordinatorRun()
    for fact in history.facts:
        for view in rows.values():
            view.apply(fact)
        if fact.root == "r" and not fact.event.OUTPUT:
            run = evolve(run, fact)
            _agree(rows, run)
    assert run == history.run


def _row(history: "History", run_id: str = "r") -> RunDetail:
    row = history.row(run_detail.VIEW, run_id)
    assert row is not None
    return row


def test_a_merged_run_shows_who_approved_it_and_what_it_became(history: "History") -> None:
    merged(history)
    row = _row(history)
    assert (row.status, row.coordinator_status, row.coordinator_status_reason) == ("completed", "complete", None)
    assert (row.reviewed_by, row.merged_commit_hash, row.tree_hash) == ("bob", "c10", "t9")
    assert (row.coordinator_steerable, row.error, row.autopilot) == (False, None, True)
    assert (row.kept.base, row.kept.head) == (Commit(commit="c0", tree="t0"), Commit(commit="c9", tree="t9"))


def test_a_run_whose_base_moved_shows_why_it_is_at_the_gate_again_and_what_conflicted(history: "History") -> None:
    base_moved(history)
    row = _row(history)
    assert (row.status, row.tree_hash, row.reviewed_by) == ("awaiting_review", "t11", None)
    assert (row.coordinator_status_reason, row.moved_files) == ("base_moved", ("a.txt",))
    assert (row.kept.base, row.kept.head) == (Commit(commit="m1", tree="tm1"), Commit(commit="c11", tree="t11"))
    assert msgspec.to_builtins(row.conflicts) == (
        {
            "branch": "steersman/x",
            "subtask_id": 1,
            "paths": ("b.txt",),
            "ref": "refs/steersman/conflicts/r/1",
            "replaced": "c5",
        },
    )


def test_a_run_at_its_gate_can_be_steered_and_shows_the_tree_that_waits(history: "History") -> None:
    history.to_gate()
    row = _row(history)
    assert (row.status, row.coordinator_status, row.coordinator_steerable) == ("awaiting_review", "in_review", True)
    assert (row.tree_hash, row.worktree_branch) == ("t9", "steersman/integration/r")
    assert (row.agent_name, row.parent_run_id, row.project_id, row.model_source) == (
        "Coordinator",
        None,
        "p",
        "rehearsal",
    )


def test_an_approval_that_could_not_be_merged_is_nobodys_any_more(history: "History") -> None:
    merge_blocked(history)
    row = _row(history)
    assert (row.reviewed_by, row.status, row.coordinator_status_reason) == (
        None,
        "awaiting_review",
        "repository_dirty",
    )


def test_a_failed_run_says_why_and_whether_to_try_again(history: "History") -> None:
    failed_without_a_plan(history)
    row = _row(history)
    assert row.coordinator_status is None
    assert row.coordinator_status_reason == row.result == "planner_failed"
    assert msgspec.to_builtins(row.error) == {
        "message": "No plan.",
        "errorCode": "planner_failed",
        "retryable": False,
    }


def test_a_child_shows_its_parents_project_its_steps_and_its_tree_once_it_is_ready(history: "History") -> None:
    history.start()
    history.advance()
    child = history.begin_work(1, tools=3)
    before = _row(history, child)
    assert (before.status, before.tree_hash, before.ended_at) == ("in_progress", None, None)
    assert (before.parent_run_id, before.subtask_id, before.project_id, before.submitting_user) == (
        "r",
        1,
        "p",
        "alice",
    )
    assert (before.step_count, before.worktree_path) == (3, "/trees/1")


def test_a_child_is_ready_with_its_tree_and_fails_with_its_error(history: "History") -> None:
    history.start()
    history.advance()
    ready = _row(history, history.work(1))
    assert (ready.status, ready.tree_hash, ready.coordinator_status) == ("assemble_ready", "t1", None)
    history.advance()
    failed = _row(history, history.fail(2))
    assert (failed.status, failed.result) == ("failed", "agent_exited")
    assert failed.error is not None
    assert failed.error.message == "It \N{SNOWMAN} crashed."


def test_what_the_row_remembers_is_not_shown(history: "History") -> None:
    history.to_gate()
    assert "internal" not in msgspec.to_builtins(shown(_row(history)))
    assert "internal" in msgspec.to_builtins(_row(history))


def test_the_entity_tag_of_a_run_moves_with_its_tree_and_not_with_its_output(history: "History") -> None:
    history.start()
    history.advance()
    child = history.begin_work(1, tools=0)
    before = _row(history).kept.root_sequence
    history.output(child, *[ToolCalled(call_id="1", tool_name=Text("read"), arguments=Text("{}"))] * 3)
    assert _row(history).kept.root_sequence == before
    assert _row(history, child).step_count == 3
    history.put(review.fail_run(history.run, error_code="x", message="", retryable=True))
    assert _row(history).kept.root_sequence == history.run.root_sequence > before
