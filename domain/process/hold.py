"""Tell what stands in the way of a run's effects, once, and take it back when nothing does: decided from the log alone."""

from collections.abc import Sequence

from ..event import Draft
from ..facts.assembly import AssemblyFailed
from ..facts.held import DRIVE, EffectHeld, EffectReleased, EffectRetried, HeldEffect
from ..facts.run import CoordinatorRun
from ..steering.follow import close_all
from .effects import AssembleChildren, RunGate, next_effects


def drive_id(run_id: str) -> str:
    """Return what stands for an effect where it is the run itself that cannot be driven."""
    return f"{run_id}/drive"


def hold(run: CoordinatorRun, told: EffectHeld) -> Sequence[Draft]:
    """Say what stands in the way; nothing to store if that was said, or if the effect is no longer called for."""
    known = run.held.get(told.effect_id)
    if known is not None and not known.went_on and told.error_code in known.told:
        return ()
    called_for = {effect.id for effect in next_effects(run)}
    if told.kind == DRIVE and not run.closed and run.unknown_topic is None:
        called_for.add(told.effect_id)
    return (run.coordinator(told),) if told.effect_id in called_for else ()


def release(run: CoordinatorRun) -> Sequence[Draft]:
    """Take back what no longer stands in anybody's way. That a run is driven is said by `release_drive`."""
    if not run.held or run.erased:
        return ()
    called_for = {effect.id for effect in next_effects(run)}
    return [
        _released(run, held)
        for held in run.held.values()
        if held.went_on or (held.kind != DRIVE and held.effect_id not in called_for)
    ]


def release_drive(run: CoordinatorRun) -> Sequence[Draft]:
    """Say that the run can be driven; nothing to store if nobody has said that it cannot."""
    held = run.held.get(drive_id(run.run_id))
    return () if held is None or run.erased else (_released(run, held, went_on=True),)


def give_up(run: CoordinatorRun, told: EffectHeld, faults: int) -> Sequence[Draft]:
    """
    End a run whose assembly, or whose gate's look at it, failed by a fault of the program as often as it may; nothing for
    an effect that is no longer called for, and never for a merge: the branch may have been moved.
    """
    effect = next((effect for effect in next_effects(run) if effect.id == told.effect_id), None)
    if not isinstance(effect, AssembleChildren | RunGate) or run.plan is None or run.stopping:
        return ()
    failed = AssemblyFailed(
        work_plan_id=run.plan.work_plan_id,
        reason=told.error_code,
        phase=effect.kind if isinstance(effect, RunGate) else "integration",
        message=told.message,
        attempts=faults,
    )
    released = [_released(run, held) for held in run.held.values() if held.effect_id == told.effect_id]
    return (*released, *close_all(run, "expired", "The assembly failed."), run.coordinator(failed))


def try_now(run: CoordinatorRun, by: str) -> Sequence[Draft]:
    """Have what is held tried again at once; nothing to store if nothing is."""
    if not run.held:
        return ()
    return (run.coordinator(EffectRetried(effect_ids=tuple(run.held), requested_by=by)),)


def _released(run: CoordinatorRun, held: HeldEffect, *, went_on: bool = False) -> Draft:
    return run.coordinator(
        EffectReleased(
            effect_id=held.effect_id,
            kind=held.kind,
            child_run_id=held.child_run_id,
            error_code=held.error_code,
            reason="went_on" if went_on or held.went_on else "not_outstanding",
        )
    )
