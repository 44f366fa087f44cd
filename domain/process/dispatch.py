"""Move a run's plan on as far as the log allows: dispatch what is ready, give up what cannot start, close the round."""

from collections.abc import Sequence
from datetime import datetime
from uuid import NAMESPACE_OID, uuid5

from ..event import Draft, Text
from ..facts.assembly import AssemblyBlocked, ChildrenComplete, IneligibleSubtask
from ..facts.child_run import RevisionHandedOver, RunStarted
from ..facts.line import authors, left_on_branch
from ..facts.run import CoordinatorRun
from ..facts.work_plan import (
    SATISFIED,
    SETTLED,
    Subtask,
    SubtaskDispatched,
    SubtaskStatus,
    WorkPlan,
    failed,
    frontier,
    step,
)
from ..git import child_branch
from ..projects.project import Project
from ..projects.team import Member
from ..runs.records import end_deleted
from ..runs.review import pass_gates
from ..steering.follow import follow
from ..steering.rounds import begin_round
from ..work import budget
from ..work.answers import tend
from ..work.budget import NO_PROJECT
from .hold import release


def advance(
    run: CoordinatorRun, at: datetime, team: Sequence[Member] = (), project: Project = NO_PROJECT
) -> Sequence[Draft]:
    """
    Return the next facts that follow from the log alone, nothing when something outside must happen first.

    One step at a time: the caller appends, folds and asks again. *team* is who may take over rejected work, *project* is
    needed where its budget keeps turns from beginning.
    """
    plan = run.plan
    if run.unknown_topic is not None:
        return ()
    if not run.ended and project.version and (released := budget.release(run, project)):
        return released
    steered = release(run) or end_deleted(run) or tend(run) or follow(run, at, team)
    if steered or plan is None or run.ended or run.stopping:
        return steered
    if plan.status in ("planned", "dispatching"):
        return _give_up(run, plan, at) or _dispatch(run, plan, at) or _complete(run, plan)
    # A correction that changed nothing, before there was anything to show, leaves the work to be assembled again.
    steered_to_nothing = plan.status == "assembly_steering" and not run.open_directives()
    if plan.status == "awaiting_assembly" or steered_to_nothing:
        return _assemble(run, plan)
    if plan.status == "assembling":
        return pass_gates(run)
    waits = _ineligible(plan) or _stuck(run) or "_infra_" in (plan.status_reason or "")
    if plan.status == "assembly_blocked" and not waits:
        return _assemble(run, plan)
    return ()


def next_child_id(run: CoordinatorRun, subtask: Subtask) -> str:
    """Return the id of the next child run of a subtask: the same one however often it is asked for."""
    return str(uuid5(NAMESPACE_OID, f"{run.run_id}/{subtask.subtask_id}/{subtask.dispatches + 1}"))


def _give_up(run: CoordinatorRun, plan: WorkPlan, at: datetime) -> Sequence[Draft]:
    lost = {s.subtask_id: s for s in plan.subtasks.values() if s.status in SETTLED - SATISFIED}
    drafts: list[Draft] = []
    for subtask in plan.subtasks.values() if lost else ():
        missing = sorted(lost.keys() & set(subtask.depends_on))
        if subtask.status != "pending" or not missing:
            continue
        reason = Text(f"Subtask {missing[0]}, which this one depends on, ended without a result.")
        # What waits for a stalled subtask has not failed itself: it never had its turn.
        stalled = any(lost[i].stalled or lost[i].status == "blocked" for i in missing)
        status: SubtaskStatus = "blocked" if stalled else "failed"
        cause = "dependency_stalled" if stalled else "dependency_failed"
        drafts.append(run.on_plan(failed(subtask, at, cause, reason, status)))
    return drafts


def _dispatch(run: CoordinatorRun, plan: WorkPlan, at: datetime) -> Sequence[Draft]:
    drafts: list[Draft] = []
    for subtask in frontier(plan):
        if subtask.child_run_id is not None:
            # Its base was rebuilt: the same child run does it again.
            drafts.append(run.on_plan(step(SubtaskDispatched, subtask, "dispatched", at)))
            continue
        child_id = next_child_id(run, subtask)
        drafts += _new_child(run, subtask, child_id)
        drafts.append(run.on_plan(step(SubtaskDispatched, subtask, "dispatched", at, child_run_id=child_id)))
    return drafts


def _new_child(run: CoordinatorRun, subtask: Subtask, child_id: str) -> Sequence[Draft]:
    left = left_on_branch(run, subtask)
    started = RunStarted(
        run_id=child_id,
        kind="child",
        agent_name=subtask.assigned_agent,
        parent_run_id=run.run_id,
        subtask_id=subtask.subtask_id,
        model_id=subtask.model_id,
        worktree_branch=child_branch(child_id),
        prior_run_id=left.child_run_id if left else None,
        prior_commit=left.commit if left else None,
    )
    if left is None:
        return (run.on_child(child_id, started),)
    handed_over = RevisionHandedOver(
        strategy="fresh_from_prior_branch", prior_child_run_id=left.child_run_id, prior_commit=left.commit
    )
    return run.on_child(child_id, started), run.on_child(child_id, handed_over)


def _complete(run: CoordinatorRun, plan: WorkPlan) -> Sequence[Draft]:
    statuses = [subtask.status for subtask in plan.subtasks.values()]
    if not SETTLED.issuperset(statuses):
        return ()
    event = ChildrenComplete(
        work_plan_id=plan.work_plan_id,
        completed=statuses.count("completed"),
        assemble_ready=statuses.count("assemble_ready"),
        failed=sum(status not in SATISFIED for status in statuses),
        total=len(statuses),
    )
    return (run.coordinator(event),)


def _ineligible(plan: WorkPlan) -> tuple[Subtask, ...]:
    return tuple(subtask for subtask in plan.subtasks.values() if subtask.status not in SATISFIED)


def _stuck(run: CoordinatorRun) -> bool:
    """Whether a correction could not be carried out and waits for a person to say what becomes of it."""
    return bool(run.unresolved)


def _assemble(run: CoordinatorRun, plan: WorkPlan) -> Sequence[Draft]:
    if _stuck(run):
        reason = "steering_execution_exhausted"
        return (run.coordinator(AssemblyBlocked(work_plan_id=plan.work_plan_id, reason=reason)),)
    ineligible = _ineligible(plan)
    if ineligible:
        blocked = AssemblyBlocked(
            work_plan_id=plan.work_plan_id,
            reason="ineligible_subtasks",
            ineligible_subtask_ids=tuple(s.subtask_id for s in ineligible),
            ineligible_subtasks=tuple(
                IneligibleSubtask(
                    id=s.subtask_id,
                    title=s.title,
                    status=s.status,
                    agent=s.assigned_agent,
                    reason=s.reason,
                    cause=s.cause,
                    commit=next((child.ready for child in authors(run, s) if child.ready), None),
                )
                for s in ineligible
            ),
        )
        return (run.coordinator(blocked),)
    return (begin_round(run, plan),)
