"""Try a failed run again."""

from collections.abc import Callable, Sequence

from ..domain import parked, retry, steering
from ..domain.event import Fact
from ..domain.parked import RecoveryExhausted
from ..domain.run import Run
from ..domain.steering import SteerRun
from .agent_port import Agents
from .caller import Answer, Caller
from .git_port import Repositories
from .ports import Clock
from .register_project import load_project
from .run_log import RunLog
from .start_orchestration import start_orchestration

#: What a redirect says that nobody worded.
AGAIN = "Try again: what failed before is to be done now."


class Ids:
    """The ids that a retry gives, whichever way it goes."""

    def __init__(self, run_id: str, work_plan_id: str, directive_id: str) -> None:
        self.run_id = run_id
        self.work_plan_id = work_plan_id
        self.directive_id = directive_id


def retry_run(
    root: str,
    ids: Ids,
    by: Caller,
    runs: RunLog,
    repositories: Repositories,
    agents: Agents,
    clock: Clock,
    answer: Callable[[str | None], Answer],
) -> Sequence[Fact]:
    """
    Have the run go on where it stood, if it can, else store a new run with its goal and plan.

    *answer* is asked with the id of the new run, or with None when the run itself goes on.

    Raises:
        RunNotRetryable, RetryLimitReached: see the decision.
        NoTeam, UnknownModel, WorkspaceUnavailable: a new run cannot be started now.
    """
    run = runs.run(root)
    retry.check_retryable(run)
    if parked.can_resume(run, "redirect"):
        redirect = SteerRun(directive_id=ids.directive_id, kind="redirect", instruction=AGAIN, principal=by.principal)
        try:
            return runs.decide(
                root, lambda found: steering.steer_run(found, redirect, {}), by, lambda _, __: answer(None)
            )
        except RecoveryExhausted:
            pass
    return _start_again(run, ids, by, runs, repositories, agents, clock, answer)


def _start_again(
    run: Run,
    ids: Ids,
    by: Caller,
    runs: RunLog,
    repositories: Repositories,
    agents: Agents,
    clock: Clock,
    answer: Callable[[str | None], Answer],
) -> Sequence[Fact]:
    team = {member.name for member in load_project(run.project_id, runs.log).team}
    command = retry.start_again(run, ids.run_id, ids.work_plan_id, team)
    return start_orchestration(
        run.project_id,
        command,
        by,
        runs.log,
        clock,
        repositories,
        agents,
        pinned_model=run.model_id if run.model_pinned else None,
        answer=lambda _: answer(ids.run_id),
    )
