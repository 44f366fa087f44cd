"""Whether a run stands still until somebody steers it, and what for."""

from .directive import Block
from .run import CoordinatorRun
from .work_plan import SATISFIED, SETTLED


def is_parked(run: CoordinatorRun) -> bool:
    """Whether the run has a plan and stands still until somebody steers it."""
    if run.plan is None:
        return False
    return run.plan.status == "assembly_blocked" or (run.plan.status == "assembly_failed" and run.ended)


def block_of(run: CoordinatorRun) -> Block | None:
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
