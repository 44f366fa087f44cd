"""What agents use is counted, and where a budget is used up no turn of theirs begins until somebody has raised it."""

from collections.abc import Sequence
from datetime import datetime

import msgspec

from ..event import Draft
from ..facts.child_run import ChildRun
from ..facts.run import CoordinatorRun, counted_stream
from ..facts.spending import (
    Budget,
    BudgetReached,
    BudgetReleased,
    BudgetSet,
    Count,
    SpendingCounted,
    TurnCounted,
    milliseconds,
    used_up,
)
from ..projects.project import Project, spending_stream
from ..rejected import Invalid, RunNotActive

NO_PROJECT = Project()
#: The most that a budget can name of anything: what a fact can hold.
MAX_AMOUNT = 2**53 - 1


class Reported(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent has said of a turn: its tokens, and what its session has cost so far. None: it has not said."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_read_tokens: int | None = None
    cached_write_tokens: int | None = None
    thought_tokens: int | None = None
    total_tokens: int | None = None
    session_cost_micros: int | None = None
    currency: str | None = None


def together(reports: Sequence[Reported]) -> Reported:
    """Return what one session's answers have used: their tokens added up, and what the session had cost at the end."""
    last = reports[-1]
    tokens = {
        name: sum(said) if (said := [v for r in reports if (v := getattr(r, name)) is not None]) else None
        for name in Reported.__struct_fields__
        if name.endswith("_tokens")
    }
    costs = [report for report in reports if report.session_cost_micros is not None]
    cost = costs[-1] if costs else last
    return Reported(**tokens, session_cost_micros=cost.session_cost_micros, currency=cost.currency)


class Changes(msgspec.Struct, frozen=True, kw_only=True):
    """What of a budget is to be another one; None: that is not limited any more, UNSET: it stays."""

    tokens: int | msgspec.UnsetType | None = msgspec.UNSET
    money_micros: int | msgspec.UnsetType | None = msgspec.UNSET
    currency: str | msgspec.UnsetType = msgspec.UNSET
    turns: int | msgspec.UnsetType | None = msgspec.UNSET
    minutes: int | msgspec.UnsetType | None = msgspec.UNSET


# What is used


def count_turn(
    run: CoordinatorRun,
    child_run_id: str,
    turn_id: str,
    reported: Reported,
    at: datetime,
    *,
    ended: bool,
) -> Sequence[Draft]:
    """Count what a child's turn has used since it was counted last, up to a moment; nothing in a run that is deleted."""
    child = run.children.get(child_run_id)
    if child is None or run.deleted:
        return ()
    # An agent that took its session up again may count anew: less than before is all new.
    before = child.session_cost_micros if child.session_id == child.counted_session else 0
    counted = _count(
        turn_id,
        child.model_id,
        reported,
        _beyond(reported.session_cost_micros, before),
        milliseconds(child.clock, at),
        ended=ended,
        # The run counts it as soon as it is opened; its project with the first part of it.
        turns=0,
    )
    first = turn_id != child.counted_turn
    return _counted(run, child_run_id, counted, child.session_id, reported.session_cost_micros, turns=int(first))


def count_coordinator_turn(
    run: CoordinatorRun, turn_id: str, model_id: str, reported: Reported, began: datetime, at: datetime, *, ended: bool
) -> Sequence[Draft]:
    """Count what a turn of the coordinator's own has used, which had a session of its own; nothing in a deleted run."""
    if run.deleted:
        return ()
    took = max(0, round((at - began).total_seconds() * 1_000))
    counted = _count(turn_id, model_id, reported, reported.session_cost_micros, took, ended=ended, turns=1)
    return _counted(run, run.run_id, counted, None, None, turns=1)


def _count(
    turn_id: str, model_id: str, reported: Reported, cost: int | None, took: int, *, ended: bool, turns: int
) -> Count:
    return Count(
        turn_id=turn_id,
        model_id=model_id,
        ended=ended,
        turns=turns,
        milliseconds=took,
        input_tokens=reported.input_tokens,
        output_tokens=reported.output_tokens,
        cached_read_tokens=reported.cached_read_tokens,
        cached_write_tokens=reported.cached_write_tokens,
        thought_tokens=reported.thought_tokens,
        total_tokens=reported.total_tokens,
        cost_micros=cost,
        currency=reported.currency,
    )


def _counted(
    run: CoordinatorRun,
    run_id: str,
    counted: Count,
    session_id: str | None,
    session_cost: int | None,
    *,
    turns: int,
) -> Sequence[Draft]:
    event = TurnCounted(run_id=run_id, counted=counted, session_id=session_id, session_cost_micros=session_cost)
    # It may come after the end of the run, and a feed ends with the fact that ended its run.
    of_run = Draft(stream=counted_stream(run.run_id), event=event, root=run.run_id)
    of_project = SpendingCounted(
        project_id=run.project_id, run_id=run_id, counted=msgspec.structs.replace(counted, turns=turns)
    )
    return (of_run, Draft(stream=spending_stream(run.project_id), event=of_project))


def _beyond(cost: int | None, before: int) -> int | None:
    return cost if cost is None or cost < before else cost - before


# What may be used


def may_begin(run: CoordinatorRun, project: Project) -> Sequence[Draft]:
    """Return nothing if a turn may begin, else the fact that it may not, and why; also where that is said already."""
    of_run, of_project = used_up(run.budget, run.spending), used_up(project.budget, project.spending)
    found = of_run or of_project
    if found is None:
        return ()
    reached = BudgetReached(
        scope="run" if of_run else "project",
        limit=found.limit,
        reason=found.reason,
        spent=found.spent,
        allowed=found.allowed,
        currency=found.currency,
        model_id=found.model_id,
    )
    return (run.coordinator(reached),)


def rests(run: CoordinatorRun, child: ChildRun) -> bool:
    """Whether a child run can only go on with a new turn, and none may begin. A turn that has begun goes on."""
    if run.out_of is None or run.ended:
        return False
    in_turn = child.turn is not None and not child.turn.committed
    return not in_turn and wants_turn(run, child)


def wants_turn(run: CoordinatorRun, child: ChildRun) -> bool:
    """Whether there is something left to ask the child's agent: its task, or what was said to it."""
    subtask = run.part_of(child.run_id)
    told = child.turn is not None and child.briefed and not child.rebuilt
    outdated = subtask is not None and subtask.outdated
    return not told or outdated or any(d.waits_for(child.run_id) for d in run.open_for(child.run_id))


def release(run: CoordinatorRun, project: Project) -> Sequence[Draft]:
    """Let turns begin in a run that its project's budget kept from it, once that is not used up any more."""
    if run.out_of is None or run.out_of.scope != "project" or used_up(project.budget, project.spending) is not None:
        return ()
    return (run.coordinator(BudgetReleased(scope="project")),)


def set_budget(run: CoordinatorRun, changes: Changes, by: str) -> Sequence[Draft]:
    """Say what a run's agents may use from now on. Raises RunNotActive, Invalid."""
    if run.ended:
        raise RunNotActive
    return (run.coordinator(BudgetSet(budget=changed(run.budget, changes), set_by=by)),)


def changed(budget: Budget | None, changes: Changes) -> Budget:
    """Return a budget with the changes. Raises Invalid for an amount that is none."""
    given = {
        name: value for name in Changes.__struct_fields__ if (value := getattr(changes, name)) is not msgspec.UNSET
    }
    if any(isinstance(value, int) and not 0 < value <= MAX_AMOUNT for value in given.values()):
        raise Invalid("What a budget allows is more than nothing, or null for no limit.")
    return msgspec.structs.replace(budget or Budget(), **given)
