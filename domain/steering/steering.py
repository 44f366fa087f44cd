"""
Receive corrections of what runs: refuse, or put a receipt on the log. Nothing acts on a correction before that.

The coordinator's door steers a run (`SteerRun`), the worker's door one running child (`SteerWorker`); what is said
about assembled work comes through `gate_signals.py`. All make the same directive.
"""

from collections.abc import Sequence
from typing import Literal

import msgspec

from ..event import Draft, Text
from ..facts import standing
from ..facts.child_run import ENDED, ChildRun
from ..facts.directive import Severity, SteeringReceived, TargetScope, Verb
from ..facts.run import CoordinatorRun
from ..facts.work_plan import SATISFIED
from ..rejected import Invalid, NotFound, Rejected, RunNotActive
from . import parked
from .follow import moved
from .gate_signals import MAX_TARGET_FILES, RequestChanges, Touched, request_changes
from .receipts import fresh_budget, payload_hash, queued

MAX_INSTRUCTION_BYTES = 16_384
#: How many corrections may wait for one child.
MAX_QUEUED = 128

# Commands


class SteerRun(msgspec.Struct, frozen=True, kw_only=True):
    """Correct a run from above."""

    directive_id: str
    kind: Literal["stop", "send", "redirect", "amend"]
    instruction: str
    principal: str
    target_child_run_id: str | None = None
    #: For a stop: the reason that the ended runs give, if it is not steering_stop.
    ends_as: str | None = None


class SteerWorker(msgspec.Struct, frozen=True, kw_only=True):
    """Correct one running child. The fields' rules are checked by `worker_command`."""

    directive_id: str
    child_run_id: str
    kind: Literal["pause", "resume", "guidance", "redirect", "abort"]
    payload_hash: str
    principal: str
    text: str = ""
    reason: str = ""
    session_id: str | None = None
    batch_id: str | None = None


class SteeringInvalid(Invalid):
    """The correction is not one that can be carried out."""

    code = "steering_invalid"


class NothingToSteer(Rejected):
    """No child run is at work now. Nothing was stored; look at the run and send it again."""

    code = "nothing_to_steer"
    retryable = True


class RunNotSteerable(Rejected):
    """The run, or this child of it, is being stopped, so it takes no more corrections."""

    code = "run_not_steerable"


class AlreadyMerged(Rejected):
    """The work is being merged, or is merged, so it can no longer be corrected. Nothing was stored."""

    code = "already_merged"


class QueueFull(Rejected):
    """Too many corrections wait for this child. Those that wait are kept; send this one again later."""

    code = "queue_full"
    status = 429
    retryable = True


class DirectiveNotFound(NotFound):
    """This run has no such directive."""

    code = "directive_not_found"


class NotResolvable(Rejected):
    """The directive does not need attention, so there is nothing to resolve."""

    code = "not_resolvable"


class SessionMismatch(Rejected):
    """The child works under another session than the one that you named. Nothing was stored."""

    code = "session_mismatch"


# Decisions


def steer_run(run: CoordinatorRun, command: SteerRun, touched: Touched) -> Sequence[Draft]:
    """
    Receive a correction of a run, as its situation asks: at its children, at its gate, or where it is parked.

    Raises:
        SteeringInvalid: a blank or oversized instruction, or a target that is no child of this run.
        RunNotActive, RunNotSteerable, AlreadyMerged, NothingToSteer, QueueFull: not now; nothing is stored.
    """
    _check_instruction(command)
    if command.target_child_run_id is not None and command.target_child_run_id not in run.children:
        raise SteeringInvalid(f"{command.target_child_run_id} is not a child run of this run.")
    if run.ended and not parked.can_resume(run, command.kind):
        raise RunNotActive
    _check_steerable(run)
    if standing.is_parked(run) and command.kind != "stop":
        return _receive_parked(run, command)
    if run.status == "awaiting_review" and command.kind in ("redirect", "amend"):
        return _receive_at_gate(run, command, touched)
    # At a gate, a person's or another, and while there is no plan yet, nobody is at work: then a word is advice.
    advice = command.kind == "send" and (run.status == "awaiting_review" or _rests(run, command))
    targets = () if advice else _targets(run, command)
    return _receipt(run, command, targets, severity="advisory" if advice else "request-changes")


def steer_worker(run: CoordinatorRun, command: SteerWorker) -> Sequence[Draft]:
    """
    Receive a correction of one child.

    Raises:
        RunNotActive, RunNotSteerable, AlreadyMerged, SessionMismatch, QueueFull: not now; nothing is stored.
    """
    _check_steerable(run)
    child = _at_work(run, command.child_run_id, revisable=command.kind in ("guidance", "redirect"))
    _check_ending(run, child)
    if command.session_id and command.session_id != child.session_id:
        raise SessionMismatch(expected=command.session_id, actual=child.session_id)
    if command.kind == "pause" and child.status in ("pausing", "paused") and _stays_paused(run, child):
        raise RunNotActive("The child is paused already, and nobody has asked for it to go on.")
    if command.kind in ("guidance", "redirect"):
        _check_queue(run, child.run_id)
    # A child that was never paused has nothing to resume: that is done as soon as it is said.
    idle = command.kind == "resume" and not _is_paused(run, child)
    received = SteeringReceived(
        directive_id=command.directive_id,
        source="human-review",
        severity="request-changes",
        verb=command.kind,
        target_scope=TargetScope(kind="subtask", subtask_ids=(child.subtask_id,), child_run_id=child.run_id),
        feedback=Text(command.text),
        tree_hash=None,
        target_files=(),
        created_by=command.principal,
        payload_hash=command.payload_hash,
        direct=True,
        targets=() if idle else (child.run_id,),
        reason=Text(command.reason),
        session_id=child.session_id,
        batch_id=command.batch_id,
    )
    return queued(run, received)


def resolve(run: CoordinatorRun, directive_id: str, action: Literal["retry", "abandon"]) -> Sequence[Draft]:
    """
    Say what becomes of a directive whose effect failed too often: try it again with a fresh count, or give it up.

    Raises DirectiveNotFound, NotResolvable.
    """
    directive = run.directives.get(directive_id)
    if directive is None:
        raise DirectiveNotFound
    if directive.status != "needs_attention" or run.ended:
        raise NotResolvable
    if action == "retry":
        return (moved(run, directive, "decided", "A person asked for another try."),)
    return (moved(run, directive, "expired", "A person gave it up."),)


# Parts


def _check_instruction(command: SteerRun) -> None:
    if command.kind in ("redirect", "amend") and not command.instruction.strip():
        raise SteeringInvalid(f"`instruction` cannot be blank for a {command.kind}.")
    if len(command.instruction.encode(errors="replace")) > MAX_INSTRUCTION_BYTES:
        raise SteeringInvalid(f"`instruction` has more than {MAX_INSTRUCTION_BYTES} bytes.")


def _check_steerable(run: CoordinatorRun) -> None:
    if run.stopping:
        raise RunNotSteerable
    if run.merging:
        raise AlreadyMerged


def _targets(run: CoordinatorRun, command: SteerRun) -> tuple[str, ...]:
    if command.target_child_run_id is not None:
        child = _at_work(run, command.target_child_run_id, revisable=command.kind != "stop")
        _check_ending(run, child)
        if command.kind != "stop":
            _check_queue(run, child.run_id)
        return (child.run_id,)
    parts = run.plan.subtasks.values() if run.plan else ()
    targets = tuple(part.child_run_id for part in parts if part.in_flight and part.child_run_id is not None)
    if command.kind == "stop":
        return targets
    if not targets and run.plan and all(part.status in SATISFIED for part in run.plan.subtasks.values()):
        # All of it is done, and is being put together or looked at: it is for everybody who made it.
        targets = tuple(part.child_run_id for part in run.plan.subtasks.values() if part.child_run_id is not None)
    if not targets:
        raise NothingToSteer
    for target in targets:
        _check_queue(run, target)
    return targets


def _rests(run: CoordinatorRun, command: SteerRun) -> bool:
    """Whether a word that names nobody finds nobody at work."""
    parts = run.plan.subtasks.values() if run.plan else ()
    return command.target_child_run_id is None and not any(part.in_flight for part in parts)


def _at_work(run: CoordinatorRun, child_run_id: str, *, revisable: bool) -> ChildRun:
    """Return a child that can be steered: one at work, or one whose finished work can still be revised."""
    child = run.children.get(child_run_id)
    subtask = run.part_of(child_run_id)
    if child is None or subtask is None or run.ended:
        raise RunNotActive("This child run has ended, and another one has taken over or the run is over.")
    finished = child.status in ENDED and subtask.status in SATISFIED
    if child.status in ENDED and not (finished and revisable):
        raise RunNotActive("This child run has ended.")
    return child


def _check_ending(run: CoordinatorRun, child: ChildRun) -> None:
    """What is said to a child that is being ended would never be heard, and must not look as if it were."""
    if any(d.verb in ("stop", "abort") and child.run_id in d.targets for d in run.pending_directives()):
        raise RunNotSteerable("This child run is being ended, so it takes no more corrections.")


def _stays_paused(run: CoordinatorRun, child: ChildRun) -> bool:
    """Whether what is on its way already leaves a paused child paused: the newest word is the one that holds."""
    words = [d.verb for d in run.pending_directives() if d.verb in ("pause", "resume") and child.run_id in d.targets]
    return not words or words[-1] == "pause"


def _is_paused(run: CoordinatorRun, child: ChildRun) -> bool:
    """Whether the child is paused, or is about to be."""
    asked = (directive for directive in run.pending_directives() if directive.verb == "pause")
    return child.status in ("pausing", "paused") or any(child.run_id in directive.targets for directive in asked)


def _check_queue(run: CoordinatorRun, child_run_id: str) -> None:
    """Bound what a child's next turns have to carry. What pauses or ends the child has no place in that queue."""
    # Whoever is not open cannot wait, so one by one they are counted only where there could be too many.
    if len(run.waiting.get(child_run_id, ())) + len(run.pending) < MAX_QUEUED:
        return
    waiting = sum(d.direct and d.targets[child_run_id] == "outstanding" for d in run.open_for(child_run_id))
    if waiting >= MAX_QUEUED:
        raise QueueFull


def _receive_at_gate(run: CoordinatorRun, command: SteerRun, touched: Touched) -> Sequence[Draft]:
    files: tuple[str, ...] = ()
    if command.target_child_run_id is not None:
        files = tuple(sorted(touched.get(run.children[command.target_child_run_id].subtask_id, frozenset())))
    request = RequestChanges(
        directive_id=command.directive_id,
        feedback=command.instruction,
        reviewer=command.principal,
        target_files=files[:MAX_TARGET_FILES],
    )
    return request_changes(run, request, touched)


def _receive_parked(run: CoordinatorRun, command: SteerRun) -> Sequence[Draft]:
    if command.kind == "send":
        return _receipt(run, command, (), severity="advisory")
    resets = parked.subtasks_to_reset(run, command.kind)
    if resets is None:
        raise NothingToSteer("An amend restarts flagged subtasks only, and there are none. Send a redirect instead.")
    if command.target_child_run_id is not None:
        subtask_id = run.children[command.target_child_run_id].subtask_id
        if subtask_id not in resets:
            raise NothingToSteer(
                "This child's subtask would not start anew. Leave the target out, or name another one."
            )
        resets = (subtask_id,)
    received = _receipt(run, command, (), subtask_ids=resets)
    if run.plan is None or not any(run.plan.subtasks[subtask_id].recovery_attempts for subtask_id in resets):
        return received
    why = f"A person sent the run {command.kind}, so what was tried before counts no more."
    trips = run.plan.human_review_round_trips
    return (*received, fresh_budget(run, run.plan, command.directive_id, resets, why, trips=trips))


def _receipt(
    run: CoordinatorRun,
    command: SteerRun,
    targets: tuple[str, ...],
    *,
    severity: Severity = "request-changes",
    subtask_ids: tuple[int, ...] = (),
) -> Sequence[Draft]:
    verb: Verb = command.kind
    one = command.target_child_run_id
    ids = subtask_ids or tuple(sorted(run.children[target].subtask_id for target in targets))
    received = SteeringReceived(
        directive_id=command.directive_id,
        source="human-review",
        severity=severity,
        verb=verb,
        target_scope=TargetScope(kind="subtask" if one else "run", subtask_ids=ids, child_run_id=one),
        feedback=Text(command.instruction),
        tree_hash=None,
        target_files=(),
        created_by=command.principal,
        payload_hash=payload_hash(
            {"kind": verb, "run_id": run.run_id, "target_child_run_id": one or "", "instruction": command.instruction}
        ),
        direct=True,
        targets=targets,
        ends_as=command.ends_as,
    )
    return queued(run, received)
