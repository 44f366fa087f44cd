"""Try a failed run again, or at once what is held in one that goes on."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ...domain.event import Draft, Fact
from ...domain.facts.line import Left, left_on_branch
from ...domain.facts.run import CoordinatorRun
from ...domain.process import hold
from ...domain.rejected import Busy, RunNotFound
from ...domain.runs import retry
from ...domain.runs.retry import AlreadyRetried, RunNotRetryable
from ...domain.steering import parked, steering
from ...domain.steering.steering import SteerRun
from ..ports.agents import Agents
from ..ports.git import Repositories, RepositoryUnusable
from ..ports.log import ConcurrencyConflict
from ..writer.caller import Answer, Caller
from ..writer.projects import load_project
from ..writer.run_log import MAX_ATTEMPTS, RunLog, read_versions
from .start_orchestration import start_orchestration

#: What a redirect says that nobody worded.
AGAIN = "Try again: what failed before is to be done now."


class Ids:
    """The ids that a retry gives, whichever way it goes."""

    def __init__(self, work_plan_id: str, directive_id: str) -> None:
        self.work_plan_id = work_plan_id
        self.directive_id = directive_id


def retry_run(
    root: str,
    ids: Ids,
    by: Caller,
    runs: RunLog,
    repositories: Repositories,
    agents: Agents,
    answer: Callable[[str | None], Answer],
) -> Sequence[Fact]:
    """
    Have a failed run go on where it stood, if it can, else store a new run with its goal and plan; either way only once.

    In a run that has not failed, what failed several times in a row is tried again now, if there is such a thing.

    *answer* is asked with the id of the new run, or with None when the run itself goes on.

    Raises:
        RunNotFound: it was deleted meanwhile.
        RunNotRetryable, AlreadyRetried, RetryLimitReached: see the decision.
        NoTeam, UnknownModel, WorkspaceUnavailable: a new run cannot be started now.
        Busy: others won MAX_ATTEMPTS times.
    """
    if runs.run(root).status not in retry.RETRYABLE:
        return _try_now(root, by, runs, answer)
    for _ in range(MAX_ATTEMPTS):
        run = _retryable(root, runs)
        if parked.can_resume(run, "redirect"):
            return _take_up(root, ids, by, runs, answer)
        try:
            return _start_again(run, ids, by, runs, repositories, agents, answer)
        except ConcurrencyConflict:
            continue
    raise Busy


def _try_now(root: str, by: Caller, runs: RunLog, answer: Callable[[str | None], Answer]) -> Sequence[Fact]:
    def decision(found: CoordinatorRun) -> Sequence[Draft]:
        drafts = hold.try_now(found, by.principal)
        if not drafts:
            raise RunNotRetryable(
                f"The run is in status '{found.status}', and nothing of it fails. {RunNotRetryable.__doc__}"
            )
        return drafts

    return runs.decide(root, decision, by, lambda _, __: answer(None))


def _retryable(root: str, runs: RunLog) -> CoordinatorRun:
    run = runs.run(root)
    if run.deleted:
        raise RunNotFound
    new = retry.successor(root)
    if runs.log.read_run(new, limit=1):
        raise AlreadyRetried(retried_as=new)
    retry.check_retryable(run)
    return run


def _take_up(root: str, ids: Ids, by: Caller, runs: RunLog, answer: Callable[[str | None], Answer]) -> Sequence[Fact]:
    command = SteerRun(directive_id=ids.directive_id, kind="redirect", instruction=AGAIN, principal=by.principal)

    def redirect(found: CoordinatorRun) -> Sequence[Draft]:
        # Whoever came first has taken it up: to do so twice would start everything in it anew.
        retry.check_retryable(found)
        return steering.steer_run(found, command, {})

    return runs.decide(root, redirect, by, lambda _, __: answer(None))


def _handed_on(run: CoordinatorRun, repositories: Repositories) -> Mapping[int, Left]:
    """Return what the parts' authors left, by the parts' ids, where it still is where they left it."""
    return {
        part.subtask_id: left
        for part in (run.plan.subtasks.values() if run.plan else ())
        if (left := left_on_branch(run, part)) is not None and _tip(run, left.branch, repositories) == left.commit
    }


def _tip(run: CoordinatorRun, branch: str, repositories: Repositories) -> str | None:
    try:
        return repositories.tip(Path(str(run.repository)), branch).commit
    except RepositoryUnusable:
        # If it is more than the branch that is missing, the run cannot be started, and says so.
        return None


def _start_again(
    run: CoordinatorRun,
    ids: Ids,
    by: Caller,
    runs: RunLog,
    repositories: Repositories,
    agents: Agents,
    answer: Callable[[str | None], Answer],
) -> Sequence[Fact]:
    team = {member.name for member in load_project(run.project_id, runs.log).team}
    command = retry.start_again(run, ids.work_plan_id, team, _handed_on(run, repositories))
    return start_orchestration(
        run.project_id,
        command,
        by,
        runs.log,
        runs.clock,
        repositories,
        agents,
        pinned_model=run.model_id if run.model_pinned else None,
        # The failed run is as it was looked at, and not deleted: what is said in it must not go on in another one.
        rests_on=read_versions(run),
        answer=lambda _: answer(command.run_id),
    )
