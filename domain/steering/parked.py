"""What a redirect or an amend does to a run that has stopped: which subtasks start anew."""

from ..facts.run import CoordinatorRun
from ..facts.standing import is_parked
from ..facts.work_plan import SATISFIED, SETTLED


def can_resume(run: CoordinatorRun, kind: str) -> bool:
    """Whether a run that has ended goes on when it is steered with this verb."""
    stopped = run.result in ("steering_stop", "cancelled", "project_deleted", "deleted")
    return kind in ("redirect", "amend") and run.status in ("failed", "merge_failed") and is_parked(run) and not stopped


def subtasks_to_reset(run: CoordinatorRun, kind: str) -> tuple[int, ...] | None:
    """
    Return the subtasks that start anew, by id; none of them when only the assembly is to be tried again.

    None: an amend finds nothing that it may restart.
    """
    assert run.plan is not None
    parts = sorted(run.plan.subtasks.values(), key=lambda part: part.subtask_id)
    if kind == "amend":
        return tuple(part.subtask_id for part in parts if part.status == "rai_flagged") or None
    lost = tuple(part.subtask_id for part in parts if part.status in SETTLED - SATISFIED)
    if lost:
        return lost
    reason = run.plan.status_reason or ""
    if "build_test_infra_" in reason or "ineligible_subtasks" in reason:
        return ()
    if "conflict" in reason:
        return tuple(part.subtask_id for part in parts if part.status == "assemble_ready")
    return ()
