"""The effects of this process: which are under way, which wait for a place, and which wait for another try."""

import time
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from random import random
from threading import Condition
from typing import Literal

import msgspec

from ...domain.effects import Effect, WorkOnSubtask, in_the_way
from ...domain.run import Run
from ..effects.carry_out import needs_agent
from .back_off import BackOff


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """An effect that failed and waits for its next try."""

    effect_id: str
    run_id: str
    attempts: int
    error: str
    #: On the process's monotonic clock.
    due: float
    #: The same for people, RFC 3339.
    next_try: str


class EffectState(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """How one effect stands in the process that drives its run."""

    effect_id: str
    state: Literal["under_way", "waits_for_place", "waits_for_next_try"]
    #: How often it failed in a row, of what, and when it is tried again.
    failures: int = 0
    last_error: str | None = None
    next_try: str | None = None


class UnderWay:
    """What the threads of the driver agree on. Every method may be called from any of them."""

    def __init__(
        self,
        places: int,
        back_off: BackOff | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        draw: Callable[[], float] = random,
    ) -> None:
        self._places = places
        self._back_off = back_off or BackOff()
        self._monotonic = monotonic
        self._draw = draw
        #: Effects whose agents are paused: they keep their processes and give up their places.
        self._parked: set[str] = set()
        self._running: dict[str, Effect] = {}
        #: Effects that wait for a place, in the order in which they asked, with their runs.
        self._waiting: dict[str, str] = {}
        self._held: dict[str, Held] = {}
        self._draining = False
        #: Told whenever an effect has ended.
        self._ended = Condition()

    def held(self) -> list[Held]:
        """Return the effects that wait for another try, and why."""
        with self._ended:
            return list(self._held.values())

    def running(self) -> list[Effect]:
        """Return the effects that are being carried out now."""
        with self._ended:
            return list(self._running.values())

    def due(self) -> set[str]:
        """Return the runs with an effect whose next try is due."""
        now = self._monotonic()
        with self._ended:
            # One that is being tried, or waits for a place, is news by its end, or by that of another.
            busy = self._running.keys() | self._waiting.keys()
            return {held.run_id for i, held in self._held.items() if held.due <= now and i not in busy}

    def states(self) -> Mapping[str, list[EffectState]]:
        """Return, by run, how its effects stand."""
        states: dict[str, list[EffectState]] = {}
        with self._ended:
            for effect in self._running.values():
                states.setdefault(effect.run_id, []).append(EffectState(effect_id=effect.id, state="under_way"))
            for effect_id, root in self._waiting.items():
                states.setdefault(root, []).append(EffectState(effect_id=effect_id, state="waits_for_place"))
            for held in self._held.values():
                if held.effect_id not in self._running:
                    states.setdefault(held.run_id, []).append(
                        EffectState(
                            effect_id=held.effect_id,
                            state="waits_for_next_try",
                            failures=held.attempts,
                            last_error=held.error,
                            next_try=held.next_try,
                        )
                    )
        return states

    def settle(self, run: Run, outstanding: Iterable[Effect]) -> tuple[list[Effect], list[str]]:
        """
        Take note of what a run calls for now.

        Return what is under way and no longer called for, and the runs that can use places that have become free.
        """
        root, ids = run.run_id, {effect.id for effect in outstanding}
        with self._ended:
            self._held = {i: held for i, held in self._held.items() if held.run_id != root or i in ids}
            gone = [i for i, waits in self._waiting.items() if waits == root and i not in ids]
            for effect_id in gone:
                del self._waiting[effect_id]
            stale = [e for e in self._running.values() if e.run_id == root and e.id not in ids]
            return stale, self._next_in_line() if self._park(run) or gone else []

    def begin(self, effect: Effect, may: Callable[[], bool]) -> bool:
        """Return whether the effect is to be carried out now; it is under way from then on, until `finish`."""
        with self._ended:
            # Asked under the lock: whoever lets go of a run first says so, and then looks whether anything had begun.
            if effect.id in self._running:
                return False
            if self._draining or not may() or not self._can_begin(effect):
                # Whoever cannot use a place does not wait for one in front of those who can.
                self._waiting.pop(effect.id, None)
                return False
            if needs_agent(effect) and not self._take_place(effect):
                return False
            self._running[effect.id] = effect
            return True

    def finish(self, effect: Effect, *, failed: bool) -> list[str]:
        """Take note that an effect has ended; return the runs that can use the places that are free."""
        with self._ended:
            del self._running[effect.id]
            self._parked.discard(effect.id)
            if not failed:
                self._held.pop(effect.id, None)
            self._ended.notify_all()
            return self._next_in_line()

    def step_back(self, root: str) -> list[str]:
        """Let a run that cannot be driven now wait for no place; return the runs that can use those that are free."""
        with self._ended:
            self._waiting = {i: waits for i, waits in self._waiting.items() if waits != root}
            return self._next_in_line()

    def hold(self, effect_id: str, root: str, error: Exception, now: datetime, busy_seconds: float = 0.0) -> Held:
        """Let an effect that failed wait, each time longer. *busy_seconds*: how long it kept a processor busy."""
        with self._ended:
            before = self._held.get(effect_id)
            attempts = before.attempts + 1 if before else 1
            wait = self._back_off.wait(attempts, self._draw(), busy_seconds)
            held = self._held[effect_id] = Held(
                effect_id=effect_id,
                run_id=root,
                attempts=attempts,
                error=f"{type(error).__name__}: {error}",
                due=self._monotonic() + wait,
                next_try=(now + timedelta(seconds=wait)).isoformat(),
            )
            return held

    def try_now(self, root: str, now: datetime) -> None:
        """Let what waits in this run for its next try wait no longer; should it fail again, it waits as long as before."""
        with self._ended:
            for effect_id, held in self._held.items():
                if held.run_id == root:
                    self._held[effect_id] = msgspec.structs.replace(
                        held, due=min(held.due, self._monotonic()), next_try=now.isoformat()
                    )

    def failures(self, effect_id: str) -> int:
        """Return how often in a row an effect has failed so far."""
        with self._ended:
            held = self._held.get(effect_id)
            return held.attempts if held is not None else 0

    def forget(self, roots: Iterable[str]) -> None:
        """Let nothing of these runs wait here any more: others drive them."""
        gone = set(roots)
        with self._ended:
            self._held = {i: held for i, held in self._held.items() if held.run_id not in gone}
            self._waiting = {i: root for i, root in self._waiting.items() if root not in gone}

    def drain(self, seconds: float) -> None:
        """Begin nothing more. On return what needs no agent has ended, or the time is over."""
        with self._ended:
            self._draining = True
            self._ended.wait_for(lambda: all(needs_agent(effect) for effect in self._running.values()), seconds)

    def wait_for_end(self, seconds: float) -> None:
        """Return when nothing is under way, or the time is over."""
        with self._ended:
            self._ended.wait_for(lambda: not self._running, seconds)

    def _can_begin(self, effect: Effect) -> bool:
        held = self._held.get(effect.id)
        if held is not None and held.due > self._monotonic():
            return False
        # The end of what is in the way is news about the run.
        return not any(in_the_way(effect, other) for other in self._running.values())

    def _park(self, run: Run) -> bool:
        """Take note of who is paused in this run; return whether places have become free."""
        paused = {child.run_id for child in run.children.values() if child.status == "paused"}
        of_run = {e.id: e for e in self._running.values() if isinstance(e, WorkOnSubtask) and e.run_id == run.run_id}
        parked = {effect_id for effect_id, effect in of_run.items() if effect.child_run_id in paused}
        freed = parked - self._parked
        self._parked = (self._parked - of_run.keys()) | parked
        return bool(freed)

    def _next_in_line(self) -> list[str]:
        """Return the runs of those who come next, as many as there are free places."""
        return list(self._waiting.values())[: self._free()]

    def _free(self) -> int:
        busy = sum(needs_agent(effect) and effect.id not in self._parked for effect in self._running.values())
        return max(0, self._places - busy)

    def _take_place(self, effect: Effect) -> bool:
        """Take a place for an agent, first come first served."""
        self._waiting.setdefault(effect.id, effect.run_id)
        if effect.id not in list(self._waiting)[: self._free()]:
            return False
        del self._waiting[effect.id]
        return True
