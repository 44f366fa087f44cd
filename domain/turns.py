"""What happens to a child run from its worktree to its end, as decisions."""

from collections.abc import Sequence
from datetime import datetime
from uuid import NAMESPACE_OID, uuid5

from . import prompts
from .child_run import (
    ENDED,
    MAX_INTERRUPTIONS,
    AssembleReady,
    ChildRun,
    NoChangesProduced,
    RunCompleted,
    RunFailed,
    SessionOpened,
    TreeCommitted,
    TurnEnded,
    TurnInterrupted,
    TurnOpened,
    TurnStarted,
    WorktreePrepared,
)
from .event import Draft, Event, Text
from .git import Commit
from .rejected import Rejected
from .run import Run
from .work_plan import Subtask, SubtaskAssembleReady, SubtaskCompleted, SubtaskFailed, SubtaskRunning, step

MAX_MESSAGE_CHARACTERS = 2_000


class Overtaken(Rejected):
    """The run has moved on, so this step is no longer wanted. Nothing was stored."""

    code = "overtaken"


class InterruptedTooOften(Rejected):
    """The turn was cut off so often that it is given up."""

    code = "agent_interrupted_too_often"


def child_at_work(run: Run, child_run_id: str) -> tuple[ChildRun, Subtask]:
    """Return a child run and its subtask. Raises Overtaken when the child has ended or works on it no longer."""
    child = run.children.get(child_run_id)
    subtask = run.plan.of_child(child_run_id) if run.plan else None
    if child is None or subtask is None or child.status in ENDED or run.ended:
        raise Overtaken
    return child, subtask


def prepare_worktree(run: Run, child_run_id: str, base: Commit, path: str, at: datetime) -> Sequence[Draft]:
    """The worktree stands at *base*, so the subtask runs."""
    child, subtask = child_at_work(run, child_run_id)
    if child.base is not None:
        raise Overtaken
    prepared = WorktreePrepared(base=base, worktree_path=Text(path), worktree_branch=child.branch)
    running = step(SubtaskRunning, subtask, "running", at)
    return (run.on_child(child_run_id, prepared), run.on_plan(running))


def open_session(run: Run, child_run_id: str, session_id: str, capabilities: Sequence[str]) -> Sequence[Draft]:
    """An agent process stands ready with this session."""
    child, _ = child_at_work(run, child_run_id)
    opened = SessionOpened(session_id=session_id, model_id=child.model_id, capabilities=tuple(capabilities))
    return (run.on_child(child_run_id, opened),)


def open_turn(run: Run, child_run_id: str) -> Sequence[Draft]:
    """Decide what the agent is asked next; nothing when its last turn has been answered and nothing is left to ask."""
    child, subtask = child_at_work(run, child_run_id)
    if child.head is None:
        raise Overtaken
    if child.turn is not None:
        return ()
    turn_id = str(uuid5(NAMESPACE_OID, f"{child_run_id}/turn/1"))
    prompt = prompts.task_prompt(run, subtask, turn_id)
    opened = TurnOpened(
        turn_id=turn_id,
        number=1,
        directive_ids=(),
        prompt=Text(prompt),
        prompt_digest=prompts.digest(prompt),
        parent=child.head,
    )
    return (run.on_child(child_run_id, opened),)


def interrupt_turn(run: Run, child_run_id: str, *, found_in_history: bool, session_kept: bool) -> Sequence[Draft]:
    """An open turn is taken up again. Raises InterruptedTooOften past the bound."""
    child, _ = child_at_work(run, child_run_id)
    if child.turn is None or child.turn.stop_reason is not None:
        raise Overtaken
    if child.interruptions >= MAX_INTERRUPTIONS:
        raise InterruptedTooOften
    event = TurnInterrupted(turn_id=child.turn.turn_id, found_in_history=found_in_history, session_kept=session_kept)
    return (run.on_child(child_run_id, event),)


def start_turn(run: Run, child_run_id: str) -> Sequence[Draft]:
    """The agent shows that it works on the open turn; said once."""
    child, _ = child_at_work(run, child_run_id)
    if child.turn is None or child.turn.started:
        return ()
    return (run.on_child(child_run_id, TurnStarted(turn_id=child.turn.turn_id)),)


def end_turn(run: Run, child_run_id: str, stop_reason: str) -> Sequence[Draft]:
    """The agent ended the open turn."""
    child, _ = child_at_work(run, child_run_id)
    if child.turn is None or child.turn.stop_reason is not None:
        raise Overtaken
    return (run.on_child(child_run_id, TurnEnded(turn_id=child.turn.turn_id, stop_reason=stop_reason)),)


def commit_tree(run: Run, child_run_id: str, commit: Commit) -> Sequence[Draft]:
    """The ended turn's files are committed."""
    child, _ = child_at_work(run, child_run_id)
    if child.turn is None or child.turn.committed or child.head is None:
        raise Overtaken
    changed = commit.tree != child.head.tree
    event = TreeCommitted(turn_id=child.turn.turn_id, commit=commit, has_changes=changed)
    return (run.on_child(child_run_id, event),)


def settle_child(run: Run, child_run_id: str, at: datetime) -> Sequence[Draft]:
    """The child has nothing left to do: its work is ready for the assembly, or it made none."""
    child, subtask = child_at_work(run, child_run_id)
    if child.turn is None or not child.turn.committed or child.head is None:
        raise Overtaken
    if not child.has_changes:
        return _completed(run, child, subtask, at)
    ready = AssembleReady(
        run_id=child_run_id,
        subtask_id=subtask.subtask_id,
        parent_run_id=run.run_id,
        worktree_branch=child.branch,
        tree_hash=child.head.tree,
        commit_hash=child.head.commit,
        has_changes=True,
    )
    return _both(run, child, ready, step(SubtaskAssembleReady, subtask, "assemble_ready", at))


def fail_child(
    run: Run, child_run_id: str, at: datetime, *, error_code: str, message: str, retryable: bool
) -> Sequence[Draft]:
    """The child run ends without a result, and so does its subtask."""
    child, subtask = child_at_work(run, child_run_id)
    words = Text(message[:MAX_MESSAGE_CHARACTERS])
    failed = RunFailed(message=words, error_code=error_code, retryable=retryable)
    return _both(run, child, failed, step(SubtaskFailed, subtask, "failed", at, reason=words))


def refusal_of(stop_reason: str) -> str | None:
    """Return the error code of a turn that ended like this without a result; None if it has one."""
    return {
        "refusal": "agent_refused",
        "max_tokens": "agent_turn_limit",
        "max_turn_requests": "agent_turn_limit",
    }.get(stop_reason)


def _completed(run: Run, child: ChildRun, subtask: Subtask, at: datetime) -> Sequence[Draft]:
    nothing = NoChangesProduced(
        run_id=child.run_id,
        subtask_id=subtask.subtask_id,
        parent_run_id=run.run_id,
        message="The agent ended its turn without changing a file.",
    )
    completed = step(SubtaskCompleted, subtask, "completed", at)
    return (run.on_child(child.run_id, nothing), *_both(run, child, RunCompleted(result="no_changes"), completed))


def _both(run: Run, child: ChildRun, of_run: Event, of_subtask: Event) -> Sequence[Draft]:
    return (run.on_child(child.run_id, of_run), run.on_plan(of_subtask))
