"""The plan's row is the plan as clients read it."""

from typing import TYPE_CHECKING

import msgspec

from steersman.projections import work_plan_view

if TYPE_CHECKING:
    from .conftest import History


def test_a_run_without_a_plan_has_no_row(history: "History") -> None:
    history.start(planned=False)
    assert history.row(work_plan_view.VIEW, "r") is None


def test_a_plan_shows_its_parts_and_what_depends_on_what(history: "History") -> None:
    history.start()
    history.advance()
    row = history.row(work_plan_view.VIEW, "r")
    assert row is not None
    child = history.child(1).run_id
    assert msgspec.json.decode(msgspec.json.encode(work_plan_view.shown(row))) == {
        "workPlanId": "w",
        "coordinatorRunId": "r",
        "outcomeSpecId": None,
        "status": "dispatching",
        "statusReason": None,
        "assemblyStage": None,
        "assemblyTerminalStage": None,
        "subtasks": [
            _subtask(1, "Build", "all of it", "software-engineer", "dispatched", child),
            _subtask(2, "Test", "", "tester", "pending", None),
        ],
        "dependencies": [{"subtaskId": 2, "dependsOnSubtaskId": 1}],
    }


def _subtask(
    subtask_id: int, title: str, scope: str, agent: str, status: str, child: str | None
) -> dict[str, str | int | None]:
    return {
        "subtaskId": subtask_id,
        "title": title,
        "scope": scope,
        "assignedAgent": agent,
        "selectedModelId": f"rehearsal/{agent}",
        "phase": "execution",
        "isolation": "worktree",
        "status": status,
        "childRunId": child,
    }


def test_a_blocked_assembly_says_why_and_at_which_stage(history: "History") -> None:
    history.start()
    history.advance()
    history.fail(1)
    history.advance()
    row = history.row(work_plan_view.VIEW, "r")
    assert row is not None
    assert (row.status, row.status_reason) == ("assembly_blocked", "assembly_blocked: ineligible_subtasks")
    assert [part.status for part in row.subtasks] == ["failed", "failed"]
    lost, blocked = row.subtasks
    assert (lost.cause, lost.reason) == ("agent_exited", "It \N{SNOWMAN} crashed.")
    assert blocked.cause == "dependency_failed"


def test_a_part_that_has_a_result_says_nothing_about_why_it_has_none(history: "History") -> None:
    history.to_gate()
    row = history.row(work_plan_view.VIEW, "r")
    assert row is not None
    assert {(part.cause, part.reason) for part in row.subtasks} == {(msgspec.UNSET, msgspec.UNSET)}
