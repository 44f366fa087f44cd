"""A round of assembly: how it begins, and how what it made is put before a person."""

from collections.abc import Sequence

from ..event import Draft, Text
from ..facts.assembly import Assembly, AssemblyStarted, ReviewRequested
from ..facts.line import conflicts_in
from ..facts.run import CoordinatorRun
from ..facts.work_plan import WorkPlan
from ..git import Commit, integration_branch


def begin_round(run: CoordinatorRun, plan: WorkPlan) -> Draft:
    """Put the children's work together, for the first time or once more."""
    started = AssemblyStarted(
        work_plan_id=plan.work_plan_id,
        integration_branch=integration_branch(run.run_id),
        subtask_count=len(plan.subtasks),
        round=run.assembly.round + 1 if run.assembly else 1,
    )
    return run.coordinator(started)


def open_gate(
    run: CoordinatorRun,
    plan: WorkPlan,
    assembly: Assembly,
    head: Commit,
    escalation: str | None,
    feedback: Sequence[Text] = (),
) -> Draft:
    """Put the assembled work before a person, with everything that they should know before they decide."""
    requested = ReviewRequested(
        work_plan_id=plan.work_plan_id,
        integration_branch=assembly.branch,
        tree_hash=head.tree,
        commit_hash=head.commit,
        base=assembly.base or run.base,
        gate_id=f"{run.run_id}/review/{assembly.round}.{assembly.openings + 1}",
        gate_kind="human-review",
        has_changes=assembly.has_changes,
        included_subtask_ids=tuple(sorted(plan.subtasks)),
        escalated=escalation is not None,
        reason=escalation or ("base_moved" if run.moved else None),
        accumulated_feedback=tuple(feedback),
        conflicts=conflicts_in(run),
        left_out=assembly.left_out,
        moved_files=run.moved.files if run.moved else (),
        isolation=isolation_of(run),
    )
    return run.coordinator(requested)


def isolation_of(run: CoordinatorRun) -> str | None:
    """Return what kept the run's agents apart from the service: `none` if one of them was not; None: not known."""
    found = {child.isolation for child in run.children.values()} - {None}
    return "none" if "none" in found else next(iter(found), None)
