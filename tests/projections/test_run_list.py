"""A project's list holds its coordinator runs, in the shape that the list has."""

from typing import TYPE_CHECKING

import msgspec

from steersman.domain.event import Text
from steersman.domain.facts.assembly import Recovered
from steersman.domain.runs import review
from steersman.projections import open_runs, run_list

if TYPE_CHECKING:
    from .conftest import History


def test_a_project_lists_its_coordinator_runs_and_no_children(history: "History") -> None:
    history.to_gate()
    assert [row.execution_id for row in history.rows(run_list.VIEW, "p")] == ["r"]
    assert history.rows(run_list.VIEW, "another") == []


def test_a_listed_run_has_the_fields_of_the_list_and_no_others(history: "History") -> None:
    history.to_gate()
    history.decide(approved=False)
    (row,) = history.rows(run_list.VIEW, "p")
    shown = msgspec.to_builtins(run_list.shown(row))
    assert shown == {
        "workflow_run_id": "r",
        "execution_id": "r",
        "project_id": "p",
        "status": "declined",
        "model_id": "rehearsal/x",
        "task": "Sell things",
        "agent_name": "Coordinator",
        "submitting_user": "alice",
        "reviewed_by": "bob",
        "started_at": "2026-06-07T21:09:48+00:00",
        "ended_at": row.ended_at,
        "result": "assembly_declined",
        "coordinator_status": "assembly_declined",
        "coordinator_status_reason": "assembly_declined",
        "archived_at": None,
    }
    assert row.ended_at is not None


def test_a_run_is_open_until_what_it_left_behind_is_cleared_away(history: "History") -> None:
    history.to_gate()
    assert [row.run_id for row in history.rows(open_runs.VIEW, open_runs.GROUP)] == ["r"]
    history.decide(approved=True)
    history.merge()
    assert history.run.ended
    assert [row.run_id for row in history.rows(open_runs.VIEW, open_runs.GROUP)] == ["r"]
    history.put(review.remove_worktrees(history.run))
    assert history.rows(open_runs.VIEW, open_runs.GROUP) == []


def test_a_closed_run_that_somebody_has_go_on_is_open_again(history: "History") -> None:
    history.to_gate()
    history.put(review.fail_run(history.run, error_code="x", message="", retryable=True))
    history.put(review.remove_worktrees(history.run))
    assert history.rows(open_runs.VIEW, open_runs.GROUP) == []
    again = Recovered(reason="steering_resume", directive_id="d", reset_subtask_ids=(), instruction=Text("Go on."))
    history.put([history.run.coordinator(again)])
    assert [row.run_id for row in history.rows(open_runs.VIEW, open_runs.GROUP)] == ["r"]
