"""Steer: from every door to a receipt. What comes of it is decided, and done, by the driver."""

from collections.abc import Sequence
from typing import Literal

from ...domain.event import Draft, Fact
from ...domain.facts.run import CoordinatorRun
from ...domain.rejected import RunNotFound
from ...domain.steering import gate_signals, steering
from ...domain.steering.gate_signals import RequestChanges
from ...domain.steering.steering import SteerRun, SteerWorker
from ..looking.touched_files import LookedUp
from ..ports.git import Repositories
from ..writer.caller import Caller
from ..writer.run_log import Answering, RunLog

#: No plan has a subtask whose number is longer, and Python turns no text of any length into a number.
MAX_SUBTASK_DIGITS = 9
NOT_A_TASK = "That is a coordinator run. Steer it at /api/runs/{id}/steer, or name one of its tasks."
NO_SUCH_TASK = "There is no such task, or no child run works on it yet."


def steer_run(
    root: str,
    command: SteerRun,
    by: Caller,
    runs: RunLog,
    repositories: Repositories,
    answer: Answering | None = None,
) -> Sequence[Fact]:
    """Put a correction of a run on the log; on return its receipt is durable. Raises what `steering.steer_run` raises."""
    touched = LookedUp(lambda: runs.run(root), repositories)

    def decision(run: CoordinatorRun) -> Sequence[Draft]:
        # Only at the gate it matters who has changed what.
        of_gate = command.kind in ("redirect", "amend") and run.status == "awaiting_review"
        return steering.steer_run(run, command, touched.of(run) if of_gate else {})

    return runs.decide(root, decision, by, answer, touched.look)


def steer_worker(
    root: str, command: SteerWorker, by: Caller, runs: RunLog, answer: Answering | None = None
) -> Sequence[Fact]:
    """Put a correction of one child on the log. Raises what `steering.steer_worker` raises."""
    return runs.decide(root, lambda found: steering.steer_worker(found, command), by, answer)


def request_changes(
    root: str,
    command: RequestChanges,
    by: Caller,
    runs: RunLog,
    repositories: Repositories,
    answer: Answering | None = None,
) -> Sequence[Fact]:
    """Put a person's request at the gate on the log. Raises what `steering.request_changes` raises."""
    touched = LookedUp(lambda: runs.run(root), repositories)
    touched.look()
    return runs.decide(
        root,
        lambda run: gate_signals.request_changes(run, command, touched.of(run)),
        by,
        answer,
        touched.look,
    )


def resolve_directive(
    root: str,
    directive_id: str,
    action: Literal["retry", "abandon"],
    by: Caller,
    runs: RunLog,
    answer: Answering | None = None,
) -> Sequence[Fact]:
    """Say what becomes of a directive that needs attention. Raises DirectiveNotFound, NotResolvable."""
    return runs.decide(root, lambda found: steering.resolve(found, directive_id, action), by, answer)


def child_of_task(task_id: str, runs: RunLog) -> tuple[str, str]:
    """
    Return the coordinator and child run of a task: a child run's id, or `{coordinatorRunId}:{subtaskId}`.

    Raises RunNotFound: there is no such task, or no child run works on it yet.
    """
    root, colon, _ = task_id.partition(":")
    if not colon:
        root = runs.root_of(task_id)
        if root == task_id:
            raise RunNotFound(NOT_A_TASK)
        return root, task_id
    return root, child_of(runs.run(root), task_id)


def child_of(run: CoordinatorRun, task_id: str) -> str:
    """Return the child run of a run's task: a child run's id, or `{coordinatorRunId}:{subtaskId}`. Raises RunNotFound."""
    child_run_id, colon, number = task_id.partition(":")
    if not colon:
        return child_run_id
    is_number = number.isascii() and number.isdigit() and len(number) <= MAX_SUBTASK_DIGITS
    subtask = run.plan.subtasks.get(int(number)) if run.plan and is_number else None
    if subtask is None or subtask.child_run_id is None:
        raise RunNotFound(NO_SUCH_TASK)
    return subtask.child_run_id
