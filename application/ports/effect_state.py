"""How the effects of runs stand, and for what their places are taken."""

from collections.abc import Sequence
from typing import Literal

import msgspec


class PlaceHolder(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The run, and its project, that one of the places is taken for."""

    run_id: str
    project_id: str


class EffectState(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """How one effect stands in the process that drives its run."""

    effect_id: str
    state: Literal["under_way", "waits_for_place", "waits_for_next_try"]
    #: How often it failed in a row, of what, and when it is tried again.
    failures: int = 0
    last_error: str | None = None
    next_try: str | None = None
    #: For what the places are taken that it waits for.
    held_by: Sequence[PlaceHolder] = ()
