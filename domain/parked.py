"""What a redirect or an amend does to a run that has stopped: which subtasks start anew."""

from .directive import Block
from .run import Run
from .work_plan import SATISFIED, SETTLED


def is_parked(run: Run) -> bool:
    """Whether the run has a plan and stands still until somebody steers it."""
    if run.plan is None:
        return False
    return run.plan.status == "assembly_blocked" or (run.plan.status == "assembly_failed" and run.ended)


def block_of(run: Run) -> Block | None:
    """Return what a run stands still for, None if it does not."""
    if run.plan is None or not is_parked(run):
        return None
    failed = run.assembly.merge_failed if run.assembly else None
    lost = (part for part in run.plan.subtasks.values() if part.status in SETTLED - SATISFIED)
    return Block(
        reason=run.plan.status_reason or "",
        files=failed.conflicting_files if failed else (),
        parts={part.subtask_id: part.reason for part in lost if part.reason is not None},
    )


def can_resume(run: Run, kind: str) -> bool:
    """Whether a run that has ended goes on when it is steered with this verb."""
    stopped = run.result in ("steering_stop", "cancelled", "project_deleted", "deleted")
    return kind in ("redirect", "amend") and run.status in ("failed", "merge_failed") and is_parked(run) and not stopped


def subtasks_to_reset(run: Run, kind: str) -> tuple[int, ...] | None:
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
