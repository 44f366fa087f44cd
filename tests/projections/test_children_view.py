"""A coordinator's children: for each subtask its present run, by subtask."""

from typing import TYPE_CHECKING

import msgspec

from steersman.domain.facts.child_run import RunStarted
from steersman.domain.facts.work_plan import SubtaskPending, step
from steersman.domain.runs.planning import ProposedSubtask
from steersman.projections import children_view

if TYPE_CHECKING:
    from .conftest import History


def test_nothing_is_listed_before_something_is_dispatched(history: "History") -> None:
    history.start()
    assert history.rows(children_view.VIEW, "r") == []


def test_children_are_listed_by_subtask_however_they_were_dispatched(history: "History") -> None:
    history.start(*(ProposedSubtask(title=str(n)) for n in range(12)))
    history.advance()
    assert [row.subtask_id for row in history.rows(children_view.VIEW, "r")] == list(range(1, 13))


def test_a_child_is_shown_beside_its_subtask(history: "History") -> None:
    history.start()
    history.advance()
    child = history.work(1, tools=3)
    (row,) = history.rows(children_view.VIEW, "r")
    assert msgspec.to_builtins(children_view.shown(row)) == {
        "subtaskId": 1,
        "childRunId": child,
        "subtaskStatus": "assemble_ready",
        "assignedAgent": "software-engineer",
        "selectedModelId": "rehearsal/software-engineer",
        "childRunStatus": "assemble_ready",
        "worktreeBranch": f"steersman/{child}",
        "treeHash": "t1",
        "stepCount": 3,
    }


def test_a_child_that_failed_says_why_in_the_last_words_of_its_agent(history: "History") -> None:
    history.start()
    history.advance()
    history.fail(1)
    (row,) = history.rows(children_view.VIEW, "r")
    assert msgspec.to_builtins(row.error) == {
        "message": "It \N{SNOWMAN} crashed.",
        "errorCode": "agent_exited",
        "retryable": True,
    }


def test_a_tree_is_offered_only_once_the_child_is_ready(history: "History") -> None:
    history.start()
    history.advance()
    history.begin_work(1)
    assert [row.tree_hash for row in history.rows(children_view.VIEW, "r")] == [None]


def _second_child(history: "History") -> RunStarted:
    return RunStarted(
        run_id="second",
        kind="child",
        agent_name="tester",
        parent_run_id="r",
        subtask_id=1,
        model_id="m",
        worktree_branch="steersman/second",
    )


def test_a_second_child_of_a_subtask_takes_the_place_of_the_first(history: "History") -> None:
    history.start()
    history.advance()
    first = history.fail(1)
    history.put([history.run.on_child("second", _second_child(history))])
    assert [row.child_run_id for row in history.rows(children_view.VIEW, "r")] == ["second"]
    history.output(first)
    assert history.row(children_view.VIEW, first) is None


def test_a_subtask_that_starts_anew_has_no_child(history: "History") -> None:
    history.start()
    history.advance()
    history.fail(1)
    plan = history.run.plan
    assert plan is not None
    pending = step(SubtaskPending, plan.subtasks[1], "pending", history.at)
    history.put([history.run.on_plan(msgspec.structs.replace(pending, child_run_id=None))])
    assert history.rows(children_view.VIEW, "r") == []
