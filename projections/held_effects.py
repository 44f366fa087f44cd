"""What stands in the way of a run's effects, as every view of a run shows it."""

import msgspec

from ..domain.event import Fact
from ..domain.facts.held import EffectHeld, EffectReleased, WaitsFor


class HeldView(msgspec.Struct, frozen=True, kw_only=True):
    """An effect that failed several times in a row and is tried again slowly, until who is waited for has mended it."""

    effect_id: str
    kind: str
    child_run_id: str | None
    error_code: str
    message: str | None
    waits_for: WaitsFor
    since: str
    attempts: int


def held_after(held: tuple[HeldView, ...], fact: Fact) -> tuple[HeldView, ...]:
    """Return what is held after a fact, in the order in which it was told."""
    match fact.event:
        case EffectHeld() as event:
            since = next((one.since for one in held if one.effect_id == event.effect_id), fact.at.isoformat())
            one = HeldView(
                effect_id=event.effect_id,
                kind=event.kind,
                child_run_id=event.child_run_id,
                error_code=event.error_code,
                message=event.message.value,
                waits_for=event.waits_for,
                since=since,
                attempts=event.attempts,
            )
            return (*without(held, event.effect_id), one)
        case EffectReleased() as event:
            return without(held, event.effect_id)
        case _:
            return held


def without(held: tuple[HeldView, ...], effect_id: str) -> tuple[HeldView, ...]:
    """Return the others."""
    return tuple(one for one in held if one.effect_id != effect_id)
