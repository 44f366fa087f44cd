"""How a child run ends, or its subtask starts afresh, as decisions; what follows from a bad end is in `bad_ends.py`."""

from collections.abc import Sequence
from datetime import datetime

from ..event import Draft, Event, Text
from ..facts.assembly import StallDetected, SubtaskRedispatched
from ..facts.bad_ends import BadEnd
from ..facts.child_run import (
    AssembleReady,
    ChildRun,
    NoChangesProduced,
    RunCancelled,
    RunCompleted,
    RunFailed,
    TreeCommitted,
    TurnEnded,
)
from ..facts.directive import SteeringDecided
from ..facts.run import CoordinatorRun
from ..facts.work_plan import Subtask, SubtaskAssembleReady, SubtaskCompleted, SubtaskPending, failed, step
from ..git import Commit
from ..steering.decision_table import MAX_RECOVERY_ATTEMPTS
from ..steering.expiry import expire_requests
from ..steering.follow import moved
from .turns import MAX_MESSAGE_CHARACTERS, InterruptedTooOften, Overtaken, child_at_work, is_being_stopped


def settle_child(run: CoordinatorRun, child_run_id: str, at: datetime, ignored: int = 0) -> Sequence[Draft]:
    """
    The child has nothing left to do: its line's work is ready for the assembly, or there is none. Nothing while it is paused.

    *ignored* is how many files of its workplace git ignores, which is told where nothing else was changed.
    """
    child, subtask = child_at_work(run, child_run_id)
    if child.turn is None or not child.turn.committed or child.head is None:
        raise Overtaken
    if child.status in ("pausing", "paused"):
        return ()
    if not child.has_changes:
        return _completed(run, child, subtask, at, ignored)
    ready = AssembleReady(
        run_id=child_run_id,
        subtask_id=subtask.subtask_id,
        parent_run_id=run.run_id,
        worktree_branch=child.branch,
        tree_hash=child.head.tree,
        commit_hash=child.head.commit,
        has_changes=True,
        handed_on_from=None if child.has_committed else child.prior_run_id,
    )
    return _both(run, child, ready, step(SubtaskAssembleReady, subtask, "assemble_ready", at))


def fail_child(
    run: CoordinatorRun, child_run_id: str, at: datetime, *, error_code: str, message: str, retryable: bool
) -> Sequence[Draft]:
    """The child run ends without a result, and so does its subtask."""
    child, subtask = child_at_work(run, child_run_id)
    if is_being_stopped(run, child_run_id):
        # Whoever stops it says how it ended.
        raise Overtaken
    end = BadEnd(code=error_code, message=message, retryable=retryable)
    return (*expire_requests(run, child), *_failed(run, child, subtask, at, end))


def end_badly(
    run: CoordinatorRun, child_run_id: str, at: datetime, end: BadEnd, unfinished: Commit | None = None
) -> Sequence[Draft]:
    """
    The child's turn ended badly, so its run ends, and its subtask starts afresh as long as that may help and its budget
    lasts; then a person is asked. *unfinished* is the commit of what it had half done, if that was kept.
    """
    child, subtask = child_at_work(run, child_run_id)
    if is_being_stopped(run, child_run_id):
        raise Overtaken
    last = (*expire_requests(run, child), *_last_of_turn(run, child, end, unfinished))
    if end.stall_seconds is not None:
        detected = StallDetected(
            child_run_id=child_run_id, subtask_id=subtask.subtask_id, stall_timeout_seconds=end.stall_seconds
        )
        last = (*last, run.coordinator(detected))
    attempt = subtask.recovery_attempts + 1
    revises = any(not d.direct and child_run_id in d.targets for d in run.pending_directives())
    if end.way.then != "start afresh" or revises or attempt > MAX_RECOVERY_ATTEMPTS:
        # A revision that ended like this is no proof of it: what follows for its directive is decided as for any
        # child that fails under one, within the budget that the directive was charged for.
        return (*last, *_failed(run, child, subtask, at, end))
    again = SubtaskRedispatched(
        subtask_id=subtask.subtask_id,
        prior_child_run_id=child.run_id,
        attempt=attempt,
        max_attempts=MAX_RECOVERY_ATTEMPTS,
        reason=end.way.reason,
        timestamp_utc=at.isoformat(),
    )
    child_failed = run.on_child(child_run_id, _run_failed(end))
    return (*last, child_failed, run.coordinator(again), run.on_plan(_afresh(subtask, at, _words(end))))


def _last_of_turn(run: CoordinatorRun, child: ChildRun, end: BadEnd, unfinished: Commit | None) -> Sequence[Draft]:
    turn, drafts = child.turn, list[Draft]()
    if turn is None or turn.committed:
        return ()
    if end.stop_reason is not None and turn.stop_reason is None:
        drafts.append(run.on_child(child.run_id, TurnEnded(turn_id=turn.turn_id, stop_reason=end.stop_reason)))
    if unfinished is not None and child.head is not None:
        changed = unfinished.tree != child.head.tree
        kept = TreeCommitted(turn_id=turn.turn_id, commit=unfinished, has_changes=changed, unfinished=True)
        drafts.append(run.on_child(child.run_id, kept))
    return drafts


def _failed(run: CoordinatorRun, child: ChildRun, subtask: Subtask, at: datetime, end: BadEnd) -> Sequence[Draft]:
    ends = _both(run, child, _run_failed(end), failed(subtask, at, end.code, _words(end)))
    if end.code != InterruptedTooOften.code or child.turn is None:
        return ends
    carried = [run.directives[i] for i in child.turn.directive_ids if run.directives[i].open]
    # One whose execution failed before waits to be carried by the same turn once more.
    unproved = [d for d in carried if d.targets.get(child.run_id) in ("initiated", "outstanding")]
    return (*(moved(run, d, "needs_attention", InterruptedTooOften.code) for d in unproved), *ends)


def _run_failed(end: BadEnd) -> RunFailed:
    return RunFailed(message=_words(end), error_code=end.code, retryable=end.retryable)


def _words(end: BadEnd) -> Text:
    return Text(end.message[:MAX_MESSAGE_CHARACTERS])


def dispatch_outdated_afresh(run: CoordinatorRun, child_run_id: str, at: datetime) -> Sequence[Draft]:
    """The child's own work does not fit onto its new base, so the subtask starts afresh from there."""
    child, subtask = child_at_work(run, child_run_id)
    if not subtask.outdated:
        raise Overtaken
    why = Text("What this subtask builds on was changed in the same places, so it starts afresh.")
    cancelled = run.on_child(child.run_id, RunCancelled(reason="base_conflict"))
    return (*_dispatch_fresh_said(run, subtask), cancelled, run.on_plan(_afresh(subtask, at, why)))


def _dispatch_fresh_said(run: CoordinatorRun, subtask: Subtask) -> Sequence[Draft]:
    cause = next((d for d in reversed(run.received()) if not d.direct and d.action is not None), None)
    if cause is None:
        return ()
    decision = SteeringDecided(
        directive_id=cause.directive_id,
        decision="dispatch_fresh",
        rationale=f"Subtask {subtask.subtask_id} conflicts with its rebuilt base, so that part starts afresh.",
        subtask_ids=(),
        attempt=cause.attempt,
        phase="dependant_base_conflict",
    )
    return (run.on_directive(cause.directive_id, decision),)


def _afresh(subtask: Subtask, at: datetime, why: Text) -> SubtaskPending:
    return SubtaskPending(
        subtask_id=subtask.subtask_id,
        status="pending",
        child_run_id=None,
        assigned_agent=subtask.assigned_agent,
        selected_model_id=subtask.model_id,
        timestamp_utc=at.isoformat(),
        reason=why,
    )


def _completed(run: CoordinatorRun, child: ChildRun, subtask: Subtask, at: datetime, ignored: int) -> Sequence[Draft]:
    message = "The agent ended its turn without changing a file."
    if ignored:
        message = (
            f"The agent ended its turn without changing a file that git looks at. Of its workplace {ignored} files are "
            "ignored, by a .gitignore or by what the repository's user has configured: they are not taken in."
        )
    nothing = NoChangesProduced(
        run_id=child.run_id,
        subtask_id=subtask.subtask_id,
        parent_run_id=run.run_id,
        message=message,
    )
    completed = step(SubtaskCompleted, subtask, "completed", at)
    return (run.on_child(child.run_id, nothing), *_both(run, child, RunCompleted(result="no_changes"), completed))


def _both(run: CoordinatorRun, child: ChildRun, of_run: Event, of_subtask: Event) -> Sequence[Draft]:
    return (run.on_child(child.run_id, of_run), run.on_plan(of_subtask))
