"""The effects of this process: which are under way, which wait for a place, and which wait for another try."""

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime, timedelta
from random import random
from threading import Condition

import msgspec

from ...domain.facts.child_run import work_id
from ...domain.facts.run import CoordinatorRun
from ...domain.process.effects import AnswerQuestion, Effect, ResumeWorker, WorkOnSubtask, in_the_way
from ..effects.carry_out import needs_agent
from ..ports.effect_state import EffectState
from .back_off import BackOff
from .places import Places, PlaceState, Seeker


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """An effect that failed and waits for its next try."""

    effect_id: str
    run_id: str
    attempts: int
    #: How many of the newest failures in a row were faults of the program.
    faults: int
    error: str
    #: On the process's monotonic clock.
    due: float
    #: The same for people, RFC 3339.
    next_try: str


class WorkUnderWay:
    """What the threads of the driver agree on. Every method may be called from any of them."""

    def __init__(
        self,
        places: int,
        back_off: BackOff | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        draw: Callable[[], float] = random,
        processes: int | None = None,
    ) -> None:
        self._places = Places(places, processes)
        self._back_off = back_off or BackOff()
        self._monotonic = monotonic
        self._draw = draw
        self._running: dict[str, Effect] = {}
        self._held: dict[str, Held] = {}
        self._draining = False
        #: Told whenever an effect has ended, or a place may be free.
        self._ended = Condition()

    def held(self) -> list[Held]:
        """Return the effects that wait for another try, and why."""
        with self._ended:
            return list(self._held.values())

    def places(self) -> Mapping[PlaceState, int]:
        """Return how many places for agents are in which state."""
        with self._ended:
            return self._places.counts()

    def running(self) -> list[Effect]:
        """Return the effects that are being carried out now."""
        with self._ended:
            return list(self._running.values())

    def due(self) -> set[str]:
        """Return the runs with an effect whose next try is due."""
        now = self._monotonic()
        with self._ended:
            # One that is being tried, or waits for a place, is news by its end, or by that of another.
            busy = self._running.keys() | {seeker.asked_by for seeker in self._places.line()}
            return {held.run_id for i, held in self._held.items() if held.due <= now and i not in busy}

    def states(self) -> Mapping[str, list[EffectState]]:
        """Return, by run, how its effects stand."""
        states: dict[str, dict[str, EffectState]] = {}
        with self._ended:
            for held in self._held.values():
                states.setdefault(held.run_id, {})[held.effect_id] = EffectState(
                    effect_id=held.effect_id,
                    state="waits_for_next_try",
                    failures=held.attempts,
                    last_error=held.error,
                    next_try=held.next_try,
                )
            for effect in self._running.values():
                states.setdefault(effect.run_id, {})[effect.id] = EffectState(effect_id=effect.id, state="under_way")
            for seeker in self._places.line():
                taken = self._places.in_the_way_of(seeker)
                for effect_id in (seeker.effect_id, seeker.asked_by):
                    waits = EffectState(effect_id=effect_id, state="waits_for_place", held_by=taken)
                    states.setdefault(seeker.run_id, {})[effect_id] = waits
        return {run_id: list(of_run.values()) for run_id, of_run in states.items()}

    def settle(self, run: CoordinatorRun, outstanding: Iterable[Effect]) -> tuple[list[Effect], list[str]]:
        """
        Take note of what a run calls for now.

        Return what is under way and no longer called for, and the runs that can use places that have become free.
        """
        root, ids = run.run_id, {effect.id for effect in outstanding}
        with self._ended:
            self._held = {i: held for i, held in self._held.items() if held.run_id != root or i in ids}
            line = self._places.line()
            freed = self._places.leave_line({s.asked_by for s in line if s.run_id == root} - ids)
            stale = [e for e in self._running.values() if e.run_id == root and e.id not in ids]
            for effect in self._running.values():
                if isinstance(effect, WorkOnSubtask) and effect.run_id == root and self._is_paused(effect, run):
                    freed = self._places.rest(effect.id) or freed
            return stale, self._freed() if freed else []

    def begin(self, effect: Effect, run: CoordinatorRun, may: Callable[[], bool]) -> bool:
        """Return whether the effect is to be carried out now; it is under way from then on, until `finish`."""
        with self._ended:
            if effect.id in self._running:
                return False
            # Asked under the lock: whoever lets go of a run first says so, and then looks whether anything had begun.
            if self._draining or not may() or not self._can_begin(effect, run):
                # Whoever cannot use a place does not wait for one in front of those who can.
                self._places.leave_line({effect.id})
                return False
            if not self._has_place(effect, run):
                return False
            self._running[effect.id] = effect
            return True

    def rest(self, effect_id: str) -> list[str]:
        """Let the place of an effect go that waits for a person's word; return the runs that can use free places."""
        with self._ended:
            return self._freed() if self._places.rest(effect_id) else []

    def go_on(self, effect_id: str, seconds: float) -> bool:
        """Return whether an effect that may have rested has its place again, or gets it in time; else it stays in line."""
        with self._ended:
            return self._ended.wait_for(lambda: self._places.take_again(effect_id), seconds)

    def leave_line(self, effect_id: str) -> list[str]:
        """Let an effect wait for no place any more; return the runs that can use those that are free."""
        with self._ended:
            return self._freed() if self._places.leave_line({effect_id}) else []

    def finish(self, effect: Effect, *, failed: bool) -> list[str]:
        """Take note that an effect has ended; return the runs that can use the places that are free."""
        with self._ended:
            del self._running[effect.id]
            self._places.leave(effect.id)
            if not failed:
                self._held.pop(effect.id, None)
            return self._freed()

    def step_back(self, root: str) -> list[str]:
        """Let a run that cannot be driven now wait for no place; return the runs that can use those that are free."""
        with self._ended:
            self._leave_line({root})
            return self._freed()

    def hold(
        self,
        effect_id: str,
        root: str,
        error: Exception,
        now: datetime,
        busy_seconds: float = 0.0,
        *,
        is_fault: bool = False,
    ) -> Held:
        """
        Let an effect that failed wait, each time longer. *busy_seconds*: how long it kept a processor busy; *is_fault*: the
        program is to blame, and nothing that a person on the machine could mend.
        """
        with self._ended:
            before = self._held.get(effect_id)
            attempts = before.attempts + 1 if before else 1
            faults = (before.faults if before else 0) + 1 if is_fault else 0
            wait = self._back_off.wait(attempts, self._draw(), busy_seconds)
            held = self._held[effect_id] = Held(
                effect_id=effect_id,
                run_id=root,
                attempts=attempts,
                faults=faults,
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
            self._leave_line(gone)

    def drain(self, seconds: float) -> None:
        """Begin nothing more. On return what needs no agent has ended, or the time is over."""
        with self._ended:
            self._draining = True
            self._ended.wait_for(lambda: all(needs_agent(effect) for effect in self._running.values()), seconds)

    def wait_for_end(self, seconds: float) -> None:
        """Return when nothing is under way, or the time is over."""
        with self._ended:
            self._ended.wait_for(lambda: not self._running, seconds)

    def _can_begin(self, effect: Effect, run: CoordinatorRun) -> bool:
        held = self._held.get(effect.id)
        if held is not None and held.due > self._monotonic():
            return False
        if isinstance(effect, WorkOnSubtask) and self._is_paused(effect, run):
            # There is nothing to do for it before somebody resumes it.
            return False
        # The end of what is in the way is news about the run.
        return not any(in_the_way(effect, other) for other in self._running.values())

    def _is_paused(self, effect: WorkOnSubtask, run: CoordinatorRun) -> bool:
        """Whether the child is paused, and nobody who has a place for it is about to let it go on."""
        child = run.children.get(effect.child_run_id)
        resumed = (
            isinstance(e, ResumeWorker) and e.child_run_id == effect.child_run_id for e in self._running.values()
        )
        return child is not None and child.status == "paused" and not any(resumed)

    def _has_place(self, effect: Effect, run: CoordinatorRun) -> bool:
        """Whether the effect needs no place, or has one now; else it waits in line."""
        if isinstance(effect, ResumeWorker):
            # The place is its child's, which works as soon as it is resumed.
            return self._places.take_again(work_id(effect.child_run_id), effect.id)
        answers = isinstance(effect, AnswerQuestion)
        if answers and not self._places.rests(work_id(effect.child_run_id)):
            # Its child has kept its place, and only waits meanwhile.
            return True
        return not (answers or needs_agent(effect)) or self._places.take(
            Seeker(
                effect_id=effect.id,
                run_id=effect.run_id,
                project_id=run.project_id,
                asked_by=effect.id,
                under_way=answers or (isinstance(effect, WorkOnSubtask) and _in_turn(effect, run)),
            )
        )

    def _leave_line(self, roots: Collection[str]) -> None:
        self._places.leave_line({seeker.asked_by for seeker in self._places.line() if seeker.run_id in roots})

    def _freed(self) -> list[str]:
        """Return the runs of those who come next, as many as there are free places; who waits here for theirs is told."""
        self._ended.notify_all()
        return self._places.next_runs()


def _in_turn(effect: WorkOnSubtask, run: CoordinatorRun) -> bool:
    """Whether the child's turn had begun when its agent, or our process, ended."""
    child = run.children.get(effect.child_run_id)
    return child is not None and child.turn is not None and not child.turn.committed
