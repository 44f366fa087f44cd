"""Fold a coordinator's tree into its run: one fact at a time, total, the same on every replica."""

from collections.abc import Callable, Iterable
from functools import reduce

import msgspec
from immutables import Map

from ..event import Event, Fact, Unknown
from . import asking, child_run, outcome_spec, work_plan
from . import assembly as assembling
from . import directive as steering
from . import held as holding
from .asking import ALWAYS, ApprovalResolved, AutopilotFailed, OptionsSet
from .child_run import BaseRebuilt, RunCancelled, RunFailed, RunStarted, TurnInterrupted, WorktreePrepared, work_id
from .delivery import Delivery
from .directive import DirectiveMoved, RevisionExecution, SteeringDecided, SteeringDirective, SteeringReceived
from .gates import GateStarted
from .held import EffectHeld, EffectReleased
from .run import CoordinatorRun, CoordinatorStarted, RunStatus
from .run_records import RunArchived, RunDeleted, RunErased
from .spending import BudgetReached, BudgetReleased, BudgetSet, TurnCounted, spent
from .standing import block_of
from .work_plan import PlanStatus, Subtask, SubtaskMoved, WorkPlanMade

#: What is said about directives, always on the coordinator's feed: by far the most facts of a run that is steered much.
STEERING = (SteeringReceived, SteeringDecided, DirectiveMoved, RevisionExecution)


def evolve(run: CoordinatorRun, fact: Fact) -> CoordinatorRun:
    """Add one fact to the state. Total: a fact is never refused here."""
    run = msgspec.structs.replace(
        run,
        versions=run.versions.set(fact.stream, fact.version),
        root_sequence=fact.root_sequence or run.root_sequence,
    )
    event = fact.event
    if isinstance(event, STEERING):
        return _evolve_steering(run, event, fact)
    if isinstance(event, Unknown):
        return msgspec.structs.replace(run, unknown_topic=run.unknown_topic or event.topic)
    at = fact.at.isoformat()
    if isinstance(event, RunDeleted | RunErased | RunArchived):
        return _evolve_record(run, event, at)
    if isinstance(event, EffectHeld | EffectReleased):
        return msgspec.structs.replace(run, held=holding.evolve(run.held, event, at))
    if isinstance(event, TurnCounted | BudgetSet | BudgetReached | BudgetReleased):
        return _evolve_spending(run, event, fact)
    if fact.run is not None and fact.run != fact.root:
        return _evolve_child(run, fact.run, event, at)
    if isinstance(event, WorkPlanMade):
        return msgspec.structs.replace(run, plan=work_plan.planned(event))
    if isinstance(event, SubtaskMoved):
        return _evolve_subtask(run, event)
    return _evolve_coordinator(run, fact, at)


def _evolve_record(run: CoordinatorRun, event: RunDeleted | RunErased | RunArchived, at: str) -> CoordinatorRun:
    match event:
        case RunArchived():
            return msgspec.structs.replace(run, archived_at=at)
        case RunDeleted():
            return msgspec.structs.replace(run, deleted=True)
        case RunErased():
            return msgspec.structs.replace(run, erased=True, held={})


def _evolve_spending(
    run: CoordinatorRun, event: TurnCounted | BudgetSet | BudgetReached | BudgetReleased, fact: Fact
) -> CoordinatorRun:
    replace = msgspec.structs.replace
    match event:
        case TurnCounted():
            run = replace(run, spending=spent(run.spending, event.counted))
            child = run.children.get(event.run_id)
            if child is None:
                return run
            child = child_run.counted(child, event, fact.position, fact.at.isoformat())
            return replace(run, children={**run.children, child.run_id: child})
        case BudgetSet():
            return replace(run, budget=event.budget, out_of=None)
        case BudgetReached():
            return replace(run, out_of=event)
        case BudgetReleased():
            return replace(run, out_of=None)


def _evolve_child(run: CoordinatorRun, child_run_id: str, event: Event, at: str) -> CoordinatorRun:
    if isinstance(event, RunStarted):
        child = child_run.started(event, at)
    elif (known := run.children.get(child_run_id)) is not None:
        event = _with_foundation(run, known, event)
        child = child_run.evolve(known, event, at)
        if isinstance(event, child_run.TurnEnded) and known.turn is not None and not known.turn.started:
            for directive in _unheard(run, child_run_id):
                run = _with_directive(run, steering.not_begun(directive, child_run_id))
    else:
        return run
    run = msgspec.structs.replace(run, children={**run.children, child_run_id: child})
    if isinstance(event, child_run.TurnOpened):
        used = msgspec.structs.replace(run.spending, turns=run.spending.turns + 1)
        run = msgspec.structs.replace(run, spending=used)
    if run.held and not isinstance(event, TurnInterrupted):
        # That a turn was interrupted is said by each try, also by one that fails like those before it.
        run = msgspec.structs.replace(run, held=holding.got_on(run.held, work_id(child_run_id)))
    if isinstance(event, ApprovalResolved) and event.approved and event.scope == "always":
        run = msgspec.structs.replace(run, grants=run.grants | {ALWAYS})
    if isinstance(event, BaseRebuilt) and run.plan is not None:
        current = work_plan.change_subtasks(
            run.plan, (child.subtask_id,), lambda s: msgspec.structs.replace(s, outdated=False)
        )
        run = msgspec.structs.replace(run, plan=current)
    if child.status != "failed":
        return run
    return _undeliverable(run, child_run_id)


def _with_foundation(run: CoordinatorRun, child: child_run.ChildRun, event: Event) -> Event:
    """Return a fact of an earlier release, which does not say what of a base is the subtask's own, as it is to be read."""
    prior = run.children.get(child.prior_run_id or "")
    if not isinstance(event, WorktreePrepared) or event.foundation is not None or prior is None:
        return event
    # The one before it built on the same producers; where they have been revised since, too much counts as its own.
    return msgspec.structs.replace(event, foundation=prior.base)


def _undeliverable(run: CoordinatorRun, child_run_id: str) -> CoordinatorRun:
    """Nothing can be delivered to this child any more."""
    for directive in _unheard(run, child_run_id):
        run = _with_directive(run, steering.ended_for(directive, child_run_id))
    return run


def _unheard(run: CoordinatorRun, child_run_id: str) -> tuple[SteeringDirective, ...]:
    """Return what may yet be delivered to a child: what is open, or may be opened again."""
    return (*run.open_for(child_run_id), *(run.directives[directive_id] for directive_id in run.unresolved))


def _with_directive(run: CoordinatorRun, directive: SteeringDirective) -> CoordinatorRun:
    """Put a directive where it belongs by how far it is, and nowhere else."""
    key, before = directive.directive_id, run.directives.get(directive.directive_id)
    if directive is before:
        return run
    waited = steering.NOWHERE if before is None else before.waits_at
    waits = directive.waits_at
    waiting = run.waiting if waits == waited else _waiting(run, directive, waited, waits)
    pending = _listed(run.pending, directive, is_in=directive.open and not waits)
    undecided = _listed(run.undecided, directive, is_in=bool(waits) and directive.action is None)
    needs_attention = directive.status == "needs_attention"
    unresolved = run.unresolved
    if needs_attention != (key in unresolved):
        unresolved = unresolved | {key} if needs_attention else unresolved - {key}
    return msgspec.structs.replace(
        run,
        directives=run.directives.set(key, directive),
        pending=pending,
        undecided=undecided,
        waiting=waiting,
        unresolved=unresolved,
    )


def _waiting(
    run: CoordinatorRun, directive: SteeringDirective, waited: frozenset[str], waits: frozenset[str]
) -> Map[str, tuple[str, ...]]:
    """Return what waits for each child, with a directive that waited for some of them and now waits for others."""
    waiting, key = run.waiting, directive.directive_id
    for child in waited - waits:
        left = tuple(other for other in waiting[child] if other != key)
        waiting = waiting.set(child, left) if left else waiting.delete(child)
    for child in waits - waited:
        waiting = waiting.set(child, (*waiting.get(child, ()), key))
    return waiting


def _listed(listed: Map[int, str], directive: SteeringDirective, *, is_in: bool) -> Map[int, str]:
    if is_in == (directive.position in listed):
        return listed
    return listed.set(directive.position, directive.directive_id) if is_in else listed.delete(directive.position)


def _evolve_subtask(run: CoordinatorRun, event: SubtaskMoved) -> CoordinatorRun:
    if run.plan is None or event.subtask_id not in run.plan.subtasks:
        return run
    replace = msgspec.structs.replace
    before = run.plan.subtasks[event.subtask_id].child_run_id
    run = replace(run, plan=work_plan.moved(run.plan, event))
    if before is not None and (event.child_run_id is None or isinstance(event, work_plan.SubtaskFailed)):
        run = _undeliverable(run, before)
    directive = run.directives.get(event.directive_id or "")
    if directive is not None and isinstance(event, work_plan.SubtaskPending):
        run = _with_directive(run, steering.begun_afresh(directive, event.subtask_id))
    if not isinstance(event, work_plan.SubtaskDispatched | work_plan.SubtaskPending):
        return run
    run = replace(_plan(_close_gate(run), "dispatching", stage=None, status_reason=None), status="in_progress")
    child = run.children.get(event.child_run_id or "")
    if isinstance(event, work_plan.SubtaskDispatched) and child is not None and child.status in child_run.ENDED:
        # The same child run goes on: its session, worktree and history are what a correction needs.
        run = replace(run, children={**run.children, child.run_id: replace(child, status="in_progress")})
    return run


def _evolve_steering(
    run: CoordinatorRun,
    event: SteeringReceived | SteeringDecided | DirectiveMoved | RevisionExecution,
    fact: Fact,
) -> CoordinatorRun:
    replace = msgspec.structs.replace
    match event:
        case SteeringReceived():
            run = _with_directive(run, steering.received(event, fact.position, fact.at, block_of(run)))
            return run if event.direct or event.severity == "advisory" else _close_gate(run)
        case SteeringDecided():
            run = _charge(run, event)
            if event.decision == "proceed" and not run.directives[event.directive_id].direct:
                run = replace(run, escalation=event.rationale)
        case DirectiveMoved(work_plan_id=str()):
            return _fresh_budget(run, event)
        case _:
            pass
    directive = run.directives.get(event.directive_id)
    return run if directive is None else _with_directive(run, steering.evolve(directive, event, fact.at))


def _close_gate(run: CoordinatorRun) -> CoordinatorRun:
    """A correction of the assembled work is under way: nobody can approve that tree any more."""
    if run.plan is None or run.assembly is None or run.plan.status not in ("in_review", "assembling"):
        return run
    closed = msgspec.structs.replace(run.assembly, gate_open=False)
    run = _plan(run, "assembly_steering", stage=None, status_reason=None)
    return msgspec.structs.replace(run, status="in_progress", assembly=closed)


def _charge(run: CoordinatorRun, event: SteeringDecided) -> CoordinatorRun:
    if run.plan is None or not (event.charged or event.rotated_from):
        return run
    plan = work_plan.change_subtasks(
        run.plan,
        [subtask_id for subtask_id in run.plan.subtasks if str(subtask_id) in event.rotated_from],
        lambda s: msgspec.structs.replace(s, locked_out=s.locked_out | {event.rotated_from[str(s.subtask_id)]}),
    )
    if event.charged:
        plan = msgspec.structs.replace(plan, steering_iterations=plan.steering_iterations + 1)
        plan = work_plan.change_subtasks(
            plan,
            event.subtask_ids,
            lambda s: msgspec.structs.replace(s, recovery_attempts=s.recovery_attempts + 1),
        )
    return msgspec.structs.replace(run, plan=plan)


def _fresh_budget(run: CoordinatorRun, event: DirectiveMoved) -> CoordinatorRun:
    if run.plan is None:
        return run
    plan = msgspec.structs.replace(
        run.plan, steering_iterations=0, human_review_round_trips=event.human_review_round_trip or 0
    )
    plan = work_plan.change_subtasks(
        plan, event.reset_subtask_ids, lambda s: msgspec.structs.replace(s, recovery_attempts=0)
    )
    return msgspec.structs.replace(run, plan=plan)


def _evolve_coordinator(run: CoordinatorRun, fact: Fact, at: str) -> CoordinatorRun:
    event = fact.event
    replace = msgspec.structs.replace
    run = replace(
        run,
        assembly=assembling.evolve(run.assembly, event, at),
        outcome_spec=outcome_spec.evolve(run.outcome_spec, event),
    )
    match event:
        case CoordinatorStarted():
            return _begin(run, fact.run or "", event)
        case assembling.ChildrenComplete():
            return _plan(run, "awaiting_assembly", stage=None)
        case assembling.AssemblyStarted():
            return _plan(run, "assembling", stage=None, status_reason=None)
        case assembling.AssemblyBlocked():
            return _park(_plan(run, "assembly_blocked", status_reason=f"assembly_blocked: {event.reason}"))
        case assembling.ReviewRequested():
            shown = _plan(run, "in_review", stage="review", status_reason=event.reason)
            return replace(shown, status="awaiting_review", escalation=None)
        case assembling.StallDetected():
            return _change_subtask(run, event.subtask_id, lambda s: replace(s, stalled=True))
        case assembling.SubtaskRedispatched():
            return _change_subtask(
                run, event.subtask_id, lambda s: replace(s, stalled=False, recovery_attempts=event.attempt)
            )
        case OptionsSet():
            if event.grants_revoked:
                bare = {i: replace(child, grants=frozenset()) for i, child in run.children.items()}
                run = replace(run, grants=frozenset(), children=bare)
            if event.autopilot and not run.autopilot:
                again = {
                    i: replace(child, requests=asking.try_again(child.requests)) for i, child in run.children.items()
                }
                run = replace(run, children=again)
            return replace(run, auto_approve_tools=event.auto_approve_tools, autopilot=event.autopilot)
        case AutopilotFailed() if (child := run.children.get(event.child_run_id)) is not None:
            child = replace(child, requests=asking.failed_at(child.requests, event))
            return replace(run, children={**run.children, child.run_id: child})
        case GateStarted():
            return _plan(run, "assembling", stage=event.gate_kind)
        case assembling.ReviewApproved():
            approved = _plan(run, "assembling", stage="merge", status_reason=None)
            return replace(approved, status="in_progress", moved=None)
        case assembling.BaseMoved():
            return _move_base(run, event)
        case assembling.MergeBlocked():
            return replace(
                _plan(run, "in_review", stage="review", status_reason=event.reason), status="awaiting_review"
            )
        case assembling.Recovered():
            run = replace(run, status="in_progress", result=None, worktrees_removed=False)
            return _plan(run, "dispatching", stage=None, status_reason=None)
        case assembling.WorktreesRemoved():
            cleared = {i: replace(child, cleared=True) for i, child in run.children.items()}
            return replace(run, worktrees_removed=True, children=cleared)
        case _:
            return _evolve_end(run, event)


def _move_base(run: CoordinatorRun, event: assembling.BaseMoved) -> CoordinatorRun:
    run = msgspec.structs.replace(run, base=event.base, moved=event)
    if run.plan is None:
        return run
    # Whoever is asked to revise their work does so on top of what the branch holds now.
    begun = [part.subtask_id for part in run.plan.subtasks.values() if part.child_run_id is not None]
    plan = work_plan.change_subtasks(run.plan, begun, lambda s: msgspec.structs.replace(s, outdated=True))
    return msgspec.structs.replace(run, plan=plan)


def _evolve_end(run: CoordinatorRun, event: Event) -> CoordinatorRun:
    match event:
        case assembling.AssemblyCompleted() as event:
            result = "assembly_complete" if event.has_changes else "no_changes"
            return _end(_plan(run, "complete", stage="done"), "completed", result)
        case assembling.AssemblyDeclined():
            return _end(_park(_plan(run, "assembly_declined")), "declined", "assembly_declined")
        case assembling.MergeFailed():
            return _end(_park(_plan(run, "assembly_failed")), "merge_failed", f"assembly_merge_failed: {event.reason}")
        case assembling.AssemblyFailed():
            return _end(_park(_plan(run, "assembly_failed")), "failed", f"assembly_error: {event.reason}")
        case RunFailed():
            return _end(_park(_plan(run, "assembly_failed")), "failed", event.error_code)
        case RunCancelled():
            return _end(_park(_plan(run, "assembly_failed")), "failed", event.reason)
        case _:
            return run


def _change_subtask(run: CoordinatorRun, subtask_id: int, change: Callable[[Subtask], Subtask]) -> CoordinatorRun:
    if run.plan is None:
        return run
    return msgspec.structs.replace(run, plan=work_plan.change_subtasks(run.plan, (subtask_id,), change))


def _begin(run: CoordinatorRun, run_id: str, event: CoordinatorStarted) -> CoordinatorRun:
    return msgspec.structs.replace(
        run,
        run_id=run_id,
        project_id=event.project_id,
        goal=event.goal,
        user=event.submitting_user,
        repository=event.repository_path,
        branch=event.originating_branch,
        base=event.base,
        model_id=event.model_id,
        model_pinned=event.model_pinned,
        auto_approve_tools=event.auto_approve_tools,
        autopilot=event.autopilot,
        max_steering_iterations=event.max_steering_iterations,
        gates=event.gates,
        policy=event.policy,
        retries=event.retries,
        budget=event.budget,
        delivery=event.delivery or Delivery(),
    )


def _plan(run: CoordinatorRun, status: PlanStatus, **changes: str | None) -> CoordinatorRun:
    if run.plan is None:
        return run
    return msgspec.structs.replace(run, plan=msgspec.structs.replace(run.plan, status=status, **changes))


def _park(run: CoordinatorRun) -> CoordinatorRun:
    if run.plan is None:
        return run
    return msgspec.structs.replace(run, plan=msgspec.structs.replace(run.plan, terminal_stage=run.plan.stage))


def _end(run: CoordinatorRun, status: RunStatus, result: str) -> CoordinatorRun:
    if run.plan is not None and status != "completed":
        run = msgspec.structs.replace(run, plan=msgspec.structs.replace(run.plan, status_reason=result))
    # Nobody decides any more about what an ended run had assembled.
    closed = msgspec.structs.replace(run.assembly, gate_open=False) if run.assembly else None
    return msgspec.structs.replace(run, status=status, result=result, assembly=closed)


def replay(facts: Iterable[Fact], run: CoordinatorRun | None = None) -> CoordinatorRun:
    """Fold a tree's facts into its run, onto *run* if that much is known already."""
    return reduce(evolve, facts, run or CoordinatorRun())
