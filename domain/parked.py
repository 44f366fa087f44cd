"""What a redirect or an amend does to a run that has stopped: which subtasks start anew, and under which budget."""

from .directive import Block
from .rejected import Rejected
from .run import Run
from .steering_table import MAX_RECOVERY_ATTEMPTS
from .work_plan import SATISFIED, SETTLED, Subtask


class RecoveryExhausted(Rejected):
    """
    Every subtask that would have to start anew has used its budget. Nothing was changed. Cancel the run and retry it: a new
    run goes on from what its agents have committed.
    """

    code = "steering_recovery_exhausted"


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

    None: an amend finds nothing that it may restart. Raises RecoveryExhausted when every one has used its budget.
    """
    assert run.plan is not None
    parts = sorted(run.plan.subtasks.values(), key=lambda part: part.subtask_id)
    if kind == "amend":
        flagged = tuple(part for part in parts if part.status == "rai_flagged")
        return _under_budget(flagged) if flagged else None
    lost = tuple(part for part in parts if part.status in SETTLED - SATISFIED)
    if lost:
        return _under_budget(lost)
    reason = run.plan.status_reason or ""
    if "build_test_infra_" in reason or "ineligible_subtasks" in reason:
        return ()
    if "conflict" in reason:
        return _under_budget(tuple(part for part in parts if part.status == "assemble_ready"))
    return ()


def _under_budget(parts: tuple[Subtask, ...]) -> tuple[int, ...]:
    kept = tuple(part.subtask_id for part in parts if part.recovery_attempts < MAX_RECOVERY_ATTEMPTS)
    if parts and not kept:
        raise RecoveryExhausted
    return kept
