"""
Move directives on as far as the log alone allows: decide, carry out what is a matter of facts, and close.

What needs something outside (an agent asked, a process stopped) is an effect, in `effects.py`; its proof comes back
as a fact, and the next call here closes the directive.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime

from ..event import Draft, Text
from ..facts.assembly import BaseMoved, ChangesRequested, Recovered
from ..facts.child_run import ENDED, PauseBegun, RunCancelled
from ..facts.directive import DirectiveMoved, DirectiveStatus, RevisionExecution, SteeringDecided, SteeringDirective
from ..facts.run import CoordinatorRun, in_order
from ..facts.standing import is_parked
from ..facts.work_plan import SATISFIED, SETTLED, Subtask, SubtaskDispatched, SubtaskPending, step
from ..projects.team import Member
from .decision_table import concerned, decide
from .earlier import earlier
from .expiry import expire_requests
from .rotation import rotate
from .rounds import open_gate

MAX_ACCUMULATED_FEEDBACK = 32
MAX_FEEDBACK_CHARACTERS = 2_000


def follow(run: CoordinatorRun, at: datetime, team: Sequence[Member]) -> Sequence[Draft]:
    """
    Return the next facts about the oldest directive that can be moved on, nothing when all of them wait.

    A decision is always an append of its own: no effect is ever on the log without an earlier decision.
    """
    # While the whole run is being stopped, nothing else is carried out: the stop supersedes it.
    pending = run.pending_directives()
    stops = tuple(directive for directive in pending if directive.stops_run)
    undecided = (run.directives[directive_id] for directive_id in run.undecided.values())
    looked_at = stops or in_order((*pending, *undecided, *_for_the_finished(run)))
    for place, directive in enumerate(looked_at):
        if directive.direct and directive.action is None:
            # What rests on nothing but its own words is decided together with all that is like it.
            return tuple(draft for other in looked_at[place:] if other.direct for draft in _decided(run, other))
        drafts = _decided(run, directive) or _followed(run, directive, at, team)
        if drafts:
            return drafts
    return ()


def _for_the_finished(run: CoordinatorRun) -> Iterable[SteeringDirective]:
    """Return the words that wait for children whose part is done: these are taken up again for them."""
    if run.plan is None or not run.waiting:
        return ()
    done = (part.child_run_id for part in run.plan.subtasks.values() if part.status in SATISFIED)
    ids = {directive_id for child_id in done for directive_id in run.waiting.get(child_id or "", ())}
    return (run.directives[directive_id] for directive_id in ids - {*run.undecided.values()})


def close_all(run: CoordinatorRun, status: DirectiveStatus, reason: str, *, but: str | None = None) -> Sequence[Draft]:
    """Return the ends of all open directives (except one): nothing outlives the gate or the end of what it is about."""
    return tuple(
        moved(run, directive, status, reason) for directive in run.open_directives() if directive.directive_id != but
    )


def moved(
    run: CoordinatorRun, directive: SteeringDirective, status: DirectiveStatus, reason: str | None = None
) -> Draft:
    """Return the step of a directive, on the coordinator's stream."""
    event = DirectiveMoved(
        directive_id=directive.directive_id,
        kind=directive.verb,
        status=status,
        target_child_run_id=directive.scope.child_run_id,
        reason=reason,
    )
    return run.coordinator(event)


def proof(run: CoordinatorRun, directive: SteeringDirective, child_run_id: str) -> Draft:
    """Return the proof that a directive has taken effect at one child."""
    confirmed = RevisionExecution(
        directive_id=directive.directive_id,
        attempt=directive.attempt,
        child_run_id=child_run_id,
        state="effect_confirmed",
        receipt_payload_hash=directive.payload_hash,
    )
    return run.on_directive(directive.directive_id, confirmed)


def feedback_rounds(run: CoordinatorRun, subtask_id: int) -> tuple[SteeringDirective, ...]:
    """
    Return every correction about a subtask that is not mere advice, oldest first.

    Without what its author was told nobody will hear: it was superseded, given up, or its child had ended before.
    """
    return tuple(
        directive
        for directive in run.received()
        if directive.severity != "advisory"
        and directive.action is not None
        and str(directive.feedback).strip()
        and directive.status != "superseded"
        and (directive.status != "expired" or directive.confirmed)
        and subtask_id in directive.subtask_ids
    )


def _decided(run: CoordinatorRun, directive: SteeringDirective) -> Sequence[Draft]:
    return tuple(run.on_directive(directive.directive_id, decision) for decision in decide(run, directive))


def _followed(
    run: CoordinatorRun, directive: SteeringDirective, at: datetime, team: Sequence[Member]
) -> Sequence[Draft]:
    match directive.action:
        case "advisory":
            return (moved(run, directive, "applied"),)
        case "proceed" if directive.direct:
            return _begin_pause(run, directive)
        case "proceed":
            return _escalate(run, directive)
        case "dispatch_fresh" if directive.direct:
            return _recover(run, directive, at)
        case "dispatch_fresh":
            return _start_afresh(run, directive, at, team) or _close(run, directive)
        case "in_place_steer":
            return (
                _start_afresh(run, directive, at, team)
                or _give_up_in_place(run, directive)
                or _reopen(run, directive, at)
                or _close(run, directive)
            )
        case _:
            return ()


# Proceed


def _begin_pause(run: CoordinatorRun, directive: SteeringDirective) -> Sequence[Draft]:
    if directive.verb != "pause":
        return ()
    for child_id in directive.targets:
        child = run.children[child_id]
        if child.status in ENDED:
            return (moved(run, directive, "expired", "The child run had ended."),)
        if child.status == "paused":
            if earlier(run, directive, child_id, "resume"):
                # It goes on first, as was asked before this: whoever lets it go on may be at it.
                return ()
            # Another pause has stopped it already; this one must not come back after the resume.
            return (proof(run, directive, child_id), moved(run, directive, "applied"))
        if child.status != "pausing":
            why = f"pause {directive.directive_id}"
            resumes = earlier(run, directive, child_id, "resume")
            begun = run.on_child(child_id, PauseBegun(directive_id=directive.directive_id))
            return (*(moved(run, other, "superseded", why) for other in resumes), begun)
    return ()


def _escalate(run: CoordinatorRun, directive: SteeringDirective) -> Sequence[Draft]:
    """The durable human gate: open it over what is assembled, or leave it to the next one when nothing is."""
    applied = moved(run, directive, "applied")
    plan, assembly = run.plan, run.assembly
    if plan is None or assembly is None or assembly.head is None or plan.status != "assembly_steering":
        return (applied,)
    rounds = [d.feedback for d in run.received() if d.severity != "advisory" and str(d.feedback).strip()]
    feedback = [Text(str(words)[:MAX_FEEDBACK_CHARACTERS]) for words in rounds[-MAX_ACCUMULATED_FEEDBACK:]]
    requested = open_gate(run, plan, assembly, assembly.head, directive.rationale, feedback)
    others = close_all(run, "superseded", "The gate was opened for a person.", but=directive.directive_id)
    return (*others, requested, applied)


# Dispatch afresh


def _recover(run: CoordinatorRun, directive: SteeringDirective, at: datetime) -> Sequence[Draft]:
    """A run that stood still goes on with the subtasks that the directive names, but for those that do so already."""
    parts = [part for part in _parts(run, directive.afresh) if part.status in SETTLED]
    applied = moved(run, directive, "applied")
    if not parts and not is_parked(run):
        # Another correction was faster. Whoever works on these subtasks since then is told of this one, too.
        return (applied,)
    recovered = Recovered(
        reason="steering_resume" if parts else "steering_resume_assembly",
        directive_id=directive.directive_id,
        reset_subtask_ids=tuple(part.subtask_id for part in parts),
        instruction=directive.feedback,
    )
    resets = [draft for part in parts for draft in _pending_afresh(run, part, directive, at)]
    return (run.coordinator(recovered), *_onto_what_conflicted(run), *resets, applied)


def _onto_what_conflicted(run: CoordinatorRun) -> Sequence[Draft]:
    """After a merge that conflicted, the run goes on from what the branch held then: else it would only conflict again."""
    failed = run.assembly.merge_failed if run.assembly else None
    if failed is None or failed.onto is None or failed.onto == run.base:
        return ()
    moved_on = BaseMoved(
        work_plan_id=failed.work_plan_id,
        branch=run.branch,
        previous=run.base,
        base=failed.onto,
        reason=failed.reason,
        files=failed.conflicting_files,
    )
    return (run.coordinator(moved_on),)


def _start_afresh(
    run: CoordinatorRun, directive: SteeringDirective, at: datetime, team: Sequence[Member]
) -> Sequence[Draft]:
    """
    Start the subtasks that cannot go on in place with a new child run each, and an author whose work was not rejected.

    Without anything to hand over there is no point in doing the same again: then a person has to look at it.
    """
    parts = _parts(run, directive.afresh)
    if not parts:
        return ()
    if directive.action == "dispatch_fresh" and not any(feedback_rounds(run, part.subtask_id) for part in parts):
        why = "lockout_no_context: there is no feedback to hand over, so a person has to decide."
        return (_further(run, directive, "proceed", why, "lockout_no_context", parts),)
    rotation = rotate(parts, team)
    named = directive.subtask_ids if directive.targets else directive.afresh
    changes = _changes_requested(run, directive, named)
    if rotation.chosen:
        locked = {str(p.subtask_id): p.assigned_agent for p in parts}
        chosen = {str(subtask_id): member.name for subtask_id, member in rotation.chosen.items()}
        why = "The work was rejected, so other authors take it over: " + ", ".join(sorted(set(chosen.values()))) + "."
        decision = _further(run, directive, "dispatch_fresh", why, "author_rotation", (), locked=locked, chosen=chosen)
    else:
        why = "single_eligible_agent: nobody else fits, so the same author goes on with the feedback so far."
        decision = _further(run, directive, "dispatch_fresh", why, "author_rotation", ())
    resets = [
        draft
        for part in parts
        for draft in _pending_afresh(run, part, directive, at, rotation.chosen.get(part.subtask_id))
    ]
    dependants = _outdate(run, directive, [part.subtask_id for part in parts], at)
    return (decision, *changes, *resets, *dependants)


def _pending_afresh(
    run: CoordinatorRun, part: Subtask, directive: SteeringDirective, at: datetime, author: Member | None = None
) -> Sequence[Draft]:
    event = SubtaskPending(
        subtask_id=part.subtask_id,
        status="pending",
        child_run_id=None,
        assigned_agent=author.name if author else part.assigned_agent,
        selected_model_id=_model_of(run, author) or part.model_id,
        timestamp_utc=at.isoformat(),
        reason=directive.feedback,
        directive_id=directive.directive_id,
    )
    child = run.children.get(part.child_run_id or "")
    if child is None or child.status in ENDED:
        return (run.on_plan(event),)
    # Nobody works for it from here on, so it must not be left as if somebody did.
    cancelled = RunCancelled(reason="steering_dispatch_fresh", directive_id=directive.directive_id)
    return (*expire_requests(run, child), run.on_child(child.run_id, cancelled), run.on_plan(event))


def _model_of(run: CoordinatorRun, author: Member | None) -> str | None:
    """Return the model that another author brings along; none if the caller chose one for the whole run."""
    return None if author is None or run.model_pinned else author.model_id or run.model_id


def _further(
    run: CoordinatorRun,
    directive: SteeringDirective,
    decision: str,
    rationale: str,
    phase: str,
    parts: Sequence[Subtask],
    *,
    locked: dict[str, str] | None = None,
    chosen: dict[str, str] | None = None,
    targets: tuple[str, ...] = (),
) -> Draft:
    event = SteeringDecided(
        directive_id=directive.directive_id,
        decision="proceed" if decision == "proceed" else "dispatch_fresh",
        rationale=rationale,
        subtask_ids=tuple(part.subtask_id for part in parts),
        attempt=directive.attempt,
        phase=phase,
        failed_subtask_ids=tuple(p.subtask_id for p in parts) if phase == "in_place_revision_failed_terminal" else (),
        targets=targets,
        rotated_from=locked or {},
        rotated_to=chosen or {},
        disposition="rejection" if locked else None,
        locked_out_roster=_locked_out(run, locked) if locked else (),
    )
    return run.on_directive(directive.directive_id, event)


def _locked_out(run: CoordinatorRun, locked: dict[str, str]) -> tuple[str, ...]:
    """Return everybody whose work was rejected in this plan, with those who are locked out now."""
    before = run.plan.subtasks.values() if run.plan else ()
    return tuple(sorted({*locked.values(), *(author for part in before for author in part.locked_out)}))


# In place


def _give_up_in_place(run: CoordinatorRun, directive: SteeringDirective) -> Sequence[Draft]:
    """A child that failed under its revision starts afresh, visibly; the healthy ones are kept."""
    if directive.direct or run.plan is None:
        return ()
    failed = (part for part in concerned(run.plan, directive) if part.status == "failed")
    lost = [part for part in failed if not _was_ended(run, part)]
    targets = tuple(part.child_run_id for part in lost if part.child_run_id in directive.targets)
    parts = [part for part in lost if part.child_run_id in targets]
    if not parts:
        return ()
    why = "The revision in place ended without a result, so that part starts afresh with the feedback so far."
    phase = "in_place_revision_failed_terminal"
    ids = tuple(target for target in targets if target is not None)
    return (_further(run, directive, "dispatch_fresh", why, phase, parts, targets=ids),)


def _reopen(run: CoordinatorRun, directive: SteeringDirective, at: datetime) -> Sequence[Draft]:
    """Children that were done go on under the same id; what builds on them is to be done again after them."""
    if run.plan is None:
        return ()
    owners = {child_id: run.part_of(child_id) for child_id, s in directive.targets.items() if s == "outstanding"}
    # A dependant that waits for what it builds on is taken up after it, and hears of the directive then.
    ids = [part.subtask_id for part in owners.values() if part is not None and part.status in SATISFIED]
    if not ids:
        return ()
    again = (
        run.on_plan(
            step(SubtaskDispatched, run.plan.subtasks[i], "dispatched", at, directive_id=directive.directive_id)
        )
        for i in ids
    )
    return (*_changes_requested(run, directive, ids), *again, *_outdate(run, directive, ids, at))


def _outdate(
    run: CoordinatorRun, directive: SteeringDirective, changed: Iterable[int], at: datetime
) -> Sequence[Draft]:
    assert run.plan is not None
    named = {*directive.subtask_ids, *changed}
    return tuple(
        run.on_plan(step(SubtaskPending, part, "pending", at))
        for part in _parts(run, run.plan.dependants(changed))
        if part.subtask_id not in named and part.status in SATISFIED
    )


def _changes_requested(
    run: CoordinatorRun, directive: SteeringDirective, subtask_ids: Sequence[int]
) -> Sequence[Draft]:
    if directive.direct or run.plan is None or run.plan.status != "assembly_steering":
        return ()
    dependants = tuple(i for i in run.plan.dependants(subtask_ids) if i not in directive.subtask_ids)
    event = ChangesRequested(
        work_plan_id=run.plan.work_plan_id,
        directive_id=directive.directive_id,
        implicated_subtask_ids=directive.subtask_ids,
        dependent_subtask_ids=dependants,
        redispatch_subtask_ids=tuple(sorted({*directive.subtask_ids, *dependants})),
        redispatched_subtask_ids=tuple(sorted(subtask_ids)),
        feedback=directive.feedback,
    )
    return (run.coordinator(event),)


# Closing


def _close(run: CoordinatorRun, directive: SteeringDirective) -> Sequence[Draft]:
    """Close a directive whose every target was reached or has ended; for assembled work, once the results are there."""
    if directive.afresh or not directive.delivered:
        return ()
    if directive.direct:
        return _close_direct(run, directive)
    if directive.action == "dispatch_fresh" and not directive.targets:
        return (moved(run, directive, "applied"),)
    parts = concerned(run.plan, directive) if run.plan else ()
    reached = (part for part in parts if part.child_run_id in directive.targets and not _was_ended(run, part))
    return (moved(run, directive, "applied"),) if all(part.status in SATISFIED for part in reached) else ()


def _close_direct(run: CoordinatorRun, directive: SteeringDirective) -> Sequence[Draft]:
    if directive.confirmed or not directive.targets:
        return (moved(run, directive, "applied"),)
    subtask_ids = {run.children[child_id].subtask_id for child_id in directive.targets}
    others = (part for part in _parts(run, subtask_ids) if part.child_run_id not in directive.targets)
    taken_over = [part for part in others if part.status not in SETTLED - SATISFIED]
    if taken_over and directive.verb not in ("pause", "resume"):
        # Whoever takes over from a child is told with its task what that one could not hear any more.
        told = any(part.child_run_id and run.children[part.child_run_id].briefed for part in taken_over)
        return (moved(run, directive, "applied", "It was told to the child run that took over."),) if told else ()
    return (moved(run, directive, "expired", "The child run ended before it could be delivered."),)


def _was_ended(run: CoordinatorRun, part: Subtask) -> bool:
    """Whether somebody stopped or aborted the subtask's child: then no correction starts it again by itself."""
    ends = (d for d in run.directives.values() if d.verb in ("stop", "abort") and d.status == "applied")
    return any(part.child_run_id in directive.targets for directive in ends)


def _parts(run: CoordinatorRun, subtask_ids: Iterable[int]) -> list[Subtask]:
    if run.plan is None:
        return []
    return [run.plan.subtasks[i] for i in subtask_ids if i in run.plan.subtasks]
