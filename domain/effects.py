"""What is outstanding: the effects that the log calls for and that no fact has proved yet."""

import msgspec

from .child_run import ENDED
from .run import Run


class Effect(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Something to be done outside. Its id is the same for the same need, on every replica and after every restart."""

    id: str
    run_id: str


class MakePlan(Effect, frozen=True, kw_only=True):
    """Ask the planner for a work plan."""


class WorkOnSubtask(Effect, frozen=True, kw_only=True):
    """Take a child run through its turns to its end."""

    child_run_id: str


class AssembleChildren(Effect, frozen=True, kw_only=True):
    """Put the children's work together on the integration branch."""


class MergeAssembly(Effect, frozen=True, kw_only=True):
    """Merge the approved work into the originating branch."""


class ClearAway(Effect, frozen=True, kw_only=True):
    """Remove the worktrees of a run that has ended."""


def next_effects(run: Run) -> tuple[Effect, ...]:
    """
    Return everything that is outstanding in a run, in the order in which it should be begun.

    A run with a fact that this release does not know has none here: a newer replica must drive it.
    """
    if not run.exists or run.unknown_topic is not None:
        return ()
    if run.ended:
        return () if run.worktrees_removed else (ClearAway(id=f"{run.run_id}/clear-away", run_id=run.run_id),)
    if run.plan is None:
        return (MakePlan(id=f"{run.run_id}/plan", run_id=run.run_id),)
    return (*_work(run), *_assembly(run))


def _work(run: Run) -> tuple[Effect, ...]:
    assert run.plan is not None
    at_work = (subtask.child_run_id for _, subtask in sorted(run.plan.subtasks.items()) if subtask.in_flight)
    return tuple(
        WorkOnSubtask(id=f"{child_id}/work", run_id=run.run_id, child_run_id=child_id)
        for child_id in at_work
        if child_id is not None and run.children[child_id].status not in ENDED
    )


def _assembly(run: Run) -> tuple[Effect, ...]:
    if run.plan is None or run.assembly is None or run.plan.status != "assembling":
        return ()
    if run.plan.stage is None:
        return (AssembleChildren(id=f"{run.run_id}/assemble/{run.assembly.round}", run_id=run.run_id),)
    if run.plan.stage == "merge":
        round_and_try = f"{run.assembly.round}/{run.assembly.approvals}"
        return (MergeAssembly(id=f"{run.run_id}/merge/{round_and_try}", run_id=run.run_id),)
    return ()
