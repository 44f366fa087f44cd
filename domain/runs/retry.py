"""Try a failed run again: where it stood, if it can be taken up there, else as a new run that is linked to it."""

from collections.abc import Collection, Mapping
from uuid import NAMESPACE_OID, uuid5

from ..event import Text
from ..facts.line import Left, in_the_work
from ..facts.run import CoordinatorRun, RunStatus
from ..facts.work_plan import Correction, EarlierWork, Subtask
from ..rejected import Rejected
from ..steering.follow import feedback_rounds
from ..work.what_happened import how_it_ended
from .orchestration import StartRun
from .planning import ProposedSubtask

#: How many runs may follow each other as retries.
MAX_RETRIES = 3
#: How much of what was said about a part its author in the new run is told: the newest.
MAX_CORRECTIONS = 32


#: A run in one of these can be tried again as a whole.
RETRYABLE = frozenset[RunStatus]({"failed", "merge_failed"})


class RunNotRetryable(Rejected):
    """Only a run that failed, or whose merge failed, or of which something is held, can be tried again."""

    code = "run_not_retryable"


class AlreadyRetried(Rejected):
    """This run was tried again already, as the run in `retried_as`. Look at that one, or start a new orchestration."""

    code = "already_retried"


class RetryLimitReached(Rejected):
    """This goal was tried again too often. Start a new orchestration, and say in its goal what went wrong."""

    code = "retry_limit_reached"


def check_retryable(run: CoordinatorRun) -> None:
    """Return if the run can be tried again. Raises RunNotRetryable."""
    if run.status not in RETRYABLE:
        raise RunNotRetryable(f"The run is in status '{run.status}'. {RunNotRetryable.__doc__}")
    if any(directive.status != "needs_attention" for directive in run.open_directives()):
        raise RunNotRetryable("A correction of this run is on its log already, and takes it up where it stood.")


def successor(run_id: str) -> str:
    """Return the id of the run that tries this one again: always the same, so that the log takes only one of them."""
    return str(uuid5(NAMESPACE_OID, f"{run_id}/retry"))


def start_again(
    run: CoordinatorRun, work_plan_id: str, team: Collection[str], handed_on: Mapping[int, Left]
) -> StartRun:
    """
    Return the command for a new run with the same goal, outcome spec, plan, user and options; the failed one stays as it is.

    *handed_on* is what the parts' authors have committed, by the parts' ids: the new ones go on from it.
    A part whose author has left the *team* goes to whoever is next. Raises RunNotRetryable, RetryLimitReached.
    """
    check_retryable(run)
    if run.retries >= MAX_RETRIES:
        raise RetryLimitReached
    places = [*enumerate(part for _, part in sorted(run.plan.subtasks.items()))] if run.plan else []
    return StartRun(
        run_id=successor(run.run_id),
        work_plan_id=work_plan_id,
        goal=str(run.goal),
        user=run.user,
        model_id=run.model_id,
        start_mode="define_outcome" if run.outcome_spec is not None and run.plan is None else "direct",
        plan=_plan(run, team),
        outcome_spec=run.outcome_spec,
        handed_on={place: handed_on[part.subtask_id] for place, part in places if part.subtask_id in handed_on},
        earlier={
            place: earlier
            for place, part in places
            if (earlier := _earlier(run, part, is_handed_on=part.subtask_id in handed_on)) is not None
        },
        auto_approve_tools=run.auto_approve_tools,
        autopilot=run.autopilot,
        max_steering_iterations=run.max_steering_iterations,
        base_branch=run.branch,
        budget=run.budget,
        delivery=run.delivery,
        retried_from=run.run_id,
        retries=run.retries + 1,
    )


def _earlier(run: CoordinatorRun, part: Subtask, *, is_handed_on: bool) -> EarlierWork | None:
    """
    Return what the new run's author of a part is told of this one; None if nobody has begun the part, nor said a word
    about it.
    """
    child = run.children.get(part.child_run_id or part.prior_child_run_id or "")
    before = part.earlier
    known = in_the_work(run, part) if is_handed_on else frozenset[str]()
    rounds = (*(before.corrections if before else ()), *feedback_rounds(run, part.subtask_id))
    if child is None and before is None and not rounds:
        return None
    corrections = tuple(
        Correction(
            directive_id=said.directive_id,
            source=said.source,
            feedback=said.feedback,
            in_work=said.directive_id in known,
        )
        for said in rounds[-MAX_CORRECTIONS:]
    )
    name = child.agent_name if child else before.agent_name if before else ""
    return EarlierWork(agent_name=name, ended=Text(how_it_ended(run, part, child)), corrections=corrections)


def _plan(run: CoordinatorRun, team: Collection[str]) -> tuple[ProposedSubtask, ...] | None:
    if run.plan is None:
        return None
    parts = [part for _, part in sorted(run.plan.subtasks.items())]
    places = {part.subtask_id: place for place, part in enumerate(parts)}
    return tuple(
        ProposedSubtask(
            title=str(part.title),
            scope=str(part.scope),
            assigned_agent=part.assigned_agent if part.assigned_agent in team else None,
            phase=part.phase,
            depends_on=tuple(places[needed] for needed in part.depends_on),
            files=tuple(str(path) for path in part.files),
        )
        for part in parts
    )
