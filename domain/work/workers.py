"""Pausing, resuming, stopping and aborting the agents of a run, as decisions."""

from collections.abc import Mapping, Sequence
from datetime import datetime

import msgspec

from ..event import Draft, Text
from ..facts.child_run import ENDED, Paused, ProcessesKilled, Resumed, RunCancelled
from ..facts.directive import SteeringDirective
from ..facts.run import CoordinatorRun
from ..facts.work_plan import failed
from ..steering.decision_table import concerned
from ..steering.earlier import earlier
from ..steering.expiry import expire_requests
from ..steering.follow import moved, proof
from .turns import Overtaken


class Fingerprint(msgspec.Struct, frozen=True, kw_only=True):
    """What a worktree holds: the git tree of what would be committed, and a digest over every file in it."""

    tree_hash: str
    workspace_hash: str


def confirm_pause(run: CoordinatorRun, directive_id: str, child_run_id: str, found: Fingerprint) -> Sequence[Draft]:
    """Every process of the child is stopped, and its worktree held *found* then. Raises Overtaken when it has ended."""
    directive, child = open_directive(run, directive_id), run.children[child_run_id]
    if child.status != "pausing":
        raise Overtaken
    paused = Paused(
        directive_id=directive_id,
        receipt_payload_hash=directive.payload_hash,
        session_id=child.session_id or "",
        tree_hash=found.tree_hash,
        workspace_hash=found.workspace_hash,
    )
    stopped = run.on_child(child_run_id, paused)
    return (stopped, proof(run, directive, child_run_id), moved(run, directive, "applied"))


def confirm_resume(run: CoordinatorRun, directive_id: str, child_run_id: str) -> Sequence[Draft]:
    """
    The child's processes may run again. Where its turn is still open that is the whole effect; where the pause ended
    the turn, the next one tells the agent to go on, and is the proof.
    """
    directive, child = open_directive(run, directive_id), run.children[child_run_id]
    if child.status != "paused":
        raise Overtaken
    resumed = run.on_child(
        child_run_id, Resumed(directive_id=directive_id, receipt_payload_hash=directive.payload_hash)
    )
    if child.turn is not None and child.turn.stop_reason is not None:
        return (resumed,)
    # Whoever else asked for it has it too, and needs no turn of their own.
    # But for those who asked after somebody had asked for another pause.
    asked = [
        d
        for d in run.pending_directives()
        if d.verb == "resume" and d.action and child_run_id in d.targets and not earlier(run, d, child_run_id, "pause")
    ]
    proofs = (draft for d in asked for draft in (proof(run, d, child_run_id), moved(run, d, "applied")))
    return (resumed, *proofs)


def to_be_ended(run: CoordinatorRun, directive_id: str) -> tuple[str, ...]:
    """Return the child runs that a stop or an abort ends: those named, or every one that is at work."""
    directive = open_directive(run, directive_id)
    if directive.scope.kind == "run":
        parts = run.plan.subtasks.values() if run.plan else ()
        at_work = (part.child_run_id for part in parts if part.in_flight)
    else:
        at_work = iter(directive.targets)
    return tuple(child for child in at_work if child is not None and run.children[child].status not in ENDED)


def confirm_end(
    run: CoordinatorRun, directive_id: str, killed: Mapping[str, Sequence[int]], at: datetime
) -> Sequence[Draft]:
    """Nothing of these children is alive, so they have ended, and so has the run if all of it was to stop."""
    directive = open_directive(run, directive_id)
    whole_run = directive.scope.kind == "run"
    reason = directive.ends_as or ("steering_abort" if directive.verb == "abort" else "steering_stop")
    drafts: list[Draft] = []
    for child_id in to_be_ended(run, directive_id):
        if child_id not in killed:
            # It came to work after the others were killed: the next call kills it too.
            raise Overtaken
        drafts.extend(_ended(run, directive, child_id, killed[child_id], reason, at))
    if not drafts and not whole_run:
        return (moved(run, directive, "expired", "The child run had ended."),)
    drafts.extend(_superseded(run, directive, killed, whole_run=whole_run))
    drafts.append(moved(run, directive, "applied"))
    if whole_run:
        drafts.append(run.coordinator(RunCancelled(reason=reason, directive_id=directive_id)))
    return drafts


def open_directive(run: CoordinatorRun, directive_id: str) -> SteeringDirective:
    """Return a directive that something is left to do about. Raises Overtaken when it is closed."""
    directive = run.directives.get(directive_id)
    if directive is None or not directive.open or run.ended:
        raise Overtaken
    return directive


def _ended(
    run: CoordinatorRun, directive: SteeringDirective, child_id: str, pids: Sequence[int], reason: str, at: datetime
) -> Sequence[Draft]:
    receipt = directive.payload_hash
    killed = ProcessesKilled(directive_id=directive.directive_id, receipt_payload_hash=receipt, pids=tuple(pids))
    cancelled = RunCancelled(reason=reason, directive_id=directive.directive_id)
    drafts = [
        *expire_requests(run, run.children[child_id]),
        run.on_child(child_id, killed),
        run.on_child(child_id, cancelled),
        proof(run, directive, child_id),
    ]
    subtask = run.part_of(child_id)
    if subtask is not None:
        words = str(directive.reason) or str(directive.feedback) or reason
        drafts.append(run.on_plan(failed(subtask, at, reason, Text(words))))
    return drafts


def _superseded(
    run: CoordinatorRun, directive: SteeringDirective, ended: Mapping[str, Sequence[int]], *, whole_run: bool
) -> Sequence[Draft]:
    """What still waited for the ended children will never be delivered: the stop came first."""
    return tuple(
        moved(run, other, "superseded", f"{directive.verb} {directive.directive_id}")
        for other in run.open_directives()
        if other.directive_id != directive.directive_id and (whole_run or _is_about(run, other, ended))
    )


def _is_about(run: CoordinatorRun, directive: SteeringDirective, children: Mapping[str, Sequence[int]]) -> bool:
    """Whether a directive is about these children alone: also none of its subtasks starts afresh with another one."""
    if directive.stops_run or not directive.targets or not set(directive.targets) <= set(children):
        return False
    parts = concerned(run.plan, directive) if run.plan else ()
    return directive.direct or all(part.child_run_id in children for part in parts)
