"""An effect that failed time and again: what stands in its way is a fact, and so is who can mend it."""

from collections.abc import Mapping
from typing import ClassVar, Literal

import msgspec

from ..event import Event, Text

#: Who can mend it: whoever looks after the machine and the repositories on it, or a newer release of this program.
WaitsFor = Literal["operator", "release"]
#: What stands for an effect where it is the run itself that cannot be driven.
DRIVE = "Drive"

# Events


class EffectHeld(Event, frozen=True, kw_only=True):
    """
    An effect has failed several times in a row and goes on being tried, slowly. Told once for each cause.

    `error_code` is the kind of cause, `message` the words of the last failure.
    """

    TOPIC: ClassVar[str] = "coordinator.effect_held"

    effect_id: str
    kind: str
    child_run_id: str | None = None
    error_code: str
    message: Text
    attempts: int
    waits_for: WaitsFor


class EffectReleased(Event, frozen=True, kw_only=True):
    """Nothing stands in the way of the effect any more: it has got on, or is no longer called for."""

    TOPIC: ClassVar[str] = "coordinator.effect_released"

    effect_id: str
    kind: str
    child_run_id: str | None = None
    error_code: str
    reason: Literal["went_on", "not_outstanding"]


class EffectRetried(Event, frozen=True, kw_only=True):
    """Somebody says that what stood in the way is mended: these effects are tried again at once."""

    TOPIC: ClassVar[str] = "coordinator.effect_retried"

    effect_ids: tuple[str, ...]
    requested_by: str


# State


class HeldEffect(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of an effect from its being held to its release."""

    effect_id: str
    kind: str
    child_run_id: str | None
    #: The cause that was told last, and since when there has been one.
    error_code: str
    message: Text
    attempts: int
    waits_for: WaitsFor
    since: str
    #: Every cause that was told, so that two that take turns are told once each.
    told: frozenset[str]
    #: Whether its work has got on since.
    went_on: bool = False


HeldEffects = Mapping[str, HeldEffect]


def evolve(held: HeldEffects, event: EffectHeld | EffectReleased, at: str) -> HeldEffects:
    """Return what is held after the fact."""
    if isinstance(event, EffectReleased):
        return {key: one for key, one in held.items() if key != event.effect_id}
    before = held.get(event.effect_id)
    if before is not None and before.went_on:
        before = None
    one = HeldEffect(
        effect_id=event.effect_id,
        kind=event.kind,
        child_run_id=event.child_run_id,
        error_code=event.error_code,
        message=event.message,
        attempts=event.attempts,
        waits_for=event.waits_for,
        since=before.since if before is not None else at,
        told=(before.told if before is not None else frozenset[str]()) | {event.error_code},
    )
    return {**held, one.effect_id: one}


def got_on(held: HeldEffects, effect_id: str) -> HeldEffects:
    """Return what is held after the work of an effect has got on: its release follows."""
    one = held.get(effect_id)
    return held if one is None else {**held, effect_id: msgspec.structs.replace(one, went_on=True)}
