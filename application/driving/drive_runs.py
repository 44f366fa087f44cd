"""
Drive every run: decide what follows from the log, and start what is outstanding and not yet under way.

There is no recovery here. A start, a wake-up and the sweep all make the same call, `_drive`; after a crash it finds
more to do than usual, that is all.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Event as Flag
from threading import Lock, Thread

import structlog

from ...domain.event import Event, Fact, Text
from ...domain.facts.assembly import WorktreesRemoved
from ...domain.facts.directive import WORDS, DirectiveMoved, SteeringDecided, SteeringReceived
from ...domain.facts.held import DRIVE, EffectHeld, EffectReleased, EffectRetried
from ...domain.facts.leases import LeaseTaken
from ...domain.facts.run import CoordinatorRun
from ...domain.facts.run_records import RunErased
from ...domain.process.effects import Effect, EndTurn, next_effects
from ...domain.process.hold import drive_id, give_up, hold, release_drive
from ...domain.rejected import Busy, Rejected, RunNotFound
from ..effects.carry_out import abandon, carry_out
from ..effects.workshop import Closing, Workshop
from ..looking.cause import UNEXPECTED, cause_of
from ..ports.effect_state import EffectState
from ..ports.log import Fenced, LogUnavailable, Undecodable
from ..ports.outside import Wakeups
from ..ports.tenure import LeaseLost
from .advancing import Advancing
from .back_off import BackOff
from .rounds import Outcome, Round, Rounds
from .say_what_happened import say_what_happened
from .under_way import Held, WorkUnderWay

#: How long the driver waits for more news after it has looked at some.
TICK_SECONDS = 0.01
CLOSE_SECONDS = 20.0
#: More steps than any log allows in a row; a decision that repeats itself is a fault, not progress.
MAX_STEPS = 10_000
PAGE = 500

#: After these there is nothing to do that there was not before.
NO_NEWS = (LeaseTaken, WorktreesRemoved, RunErased, EffectHeld, EffectReleased)

log = structlog.get_logger(__name__)


class NothingCameOfIt(Exception):
    """An effect ended without a fact while it was still called for."""


class Driver:
    """The one who drives the runs of this process."""

    def __init__(
        self,
        shop: Workshop,
        wakeups: Wakeups,
        open_runs: Callable[[], Iterable[str]],
        *,
        max_agents: int,
        max_processes: int | None = None,
        back_off: BackOff | None = None,
    ) -> None:
        self._shop = shop
        self._wakeups = wakeups
        self._open_runs = open_runs
        self._back_off = back_off or BackOff()
        self._effects = WorkUnderWay(max_agents, self._back_off, processes=max_processes)
        shop.at_work = self
        self._advancing = Advancing(shop)
        self._news: SimpleQueue[str] = SimpleQueue()
        self._stopping = Flag()
        self._lock = Lock()
        #: Effects that are no longer called for and are being cut short.
        self._abandoned: set[str] = set()
        self._threads: list[Thread] = []
        self._rounds = Rounds()

    def start(self) -> None:
        """Begin to drive. What the log held before is found by the sweep that comes first."""
        position = self._shop.runs.log.head()
        self._shop.runs.states.following = self._advancing
        for work in (lambda: self._listen(position), self._loop):
            thread = Thread(target=work, daemon=True, name="driver")
            thread.start()
            self._threads.append(thread)

    def stop(self) -> None:
        """On return no effect is under way and no agent of this process is alive; the log has what is left to do."""
        self._stopping.set()
        self._shop.runs.states.following = None
        self._shop.close()
        for thread in list(self._threads):
            thread.join(CLOSE_SECONDS)

    def held(self) -> list[Held]:
        """Return the effects that wait for another try, and why."""
        return self._effects.held()

    def under_way(self) -> list[Effect]:
        """Return the effects that are being carried out now."""
        return self._effects.running()

    def states(self) -> Mapping[str, Sequence[EffectState]]:
        """Return, by run, how its effects stand."""
        return self._effects.states()

    def rounds(self) -> Sequence[Round]:
        """Return the newest sweeps and what came of each, the newest first; not more than MAX_ROUNDS."""
        return self._rounds.newest()

    # For whoever holds the leases

    def wake(self, root: str) -> None:
        """Look at a run soon."""
        self._news.put(root)

    def busy(self) -> frozenset[str]:
        """Return the runs in which something is under way here."""
        return frozenset(effect.run_id for effect in self._effects.running())

    def forget(self, roots: Iterable[str]) -> None:
        """Let nothing of these runs wait here any more: others drive them."""
        self._effects.forget(roots)

    def leave_all(self) -> None:
        """Cut short whatever is under way. On return nothing is; what is to be done next is for others to say."""
        while (running := self._effects.running()) and not self._stopping.is_set():
            for effect in running:
                self._abandon(effect)
            self._effects.wait_for_end(self._shop.timings.poll)

    def drain(self, seconds: float) -> None:
        """Begin nothing more. On return what needs no agent has ended, or the time is over."""
        self._effects.drain(seconds)

    # For the agents' own threads

    def rest(self, effect_id: str) -> None:
        """On return the effect holds no place: others work meanwhile."""
        for root in self._effects.rest(effect_id):
            self._news.put(root)

    def go_on(self, effect_id: str, still_wanted: Callable[[], None]) -> None:
        """Return when the effect has a place. *still_wanted* raises to leave the line."""
        try:
            has_place = False
            while not has_place:
                has_place = self._effects.go_on(effect_id, self._shop.timings.poll)
                # Also of one that has its place: others may have left theirs because the service goes down.
                still_wanted()
        finally:
            for root in self._effects.leave_line(effect_id):
                self._news.put(root)

    # The two threads

    def _listen(self, position: int) -> None:
        """Turn the log's growth into news about runs."""
        announced = position
        while not self._stopping.is_set():
            try:
                # From the last announcement, not from what could be read: one that is ahead of the log, because that
                # was put back to a backup, must not make this a busy loop.
                announced = max(announced, self._wakeups.wait(announced, self._shop.timings.poll))
                while facts := self._shop.runs.log.read(position, PAGE):
                    say_what_happened(facts, self._shop.tenure.holds)
                    for root in _to_be_tried(facts):
                        self._effects.try_now(root, self._shop.now())
                    for root in self._with_news(facts):
                        self._look_at(root)
                    position = facts[-1].position
            except Undecodable as undecodable:
                # Its run is stuck until a newer release drives it; the others are behind it in the log.
                position = undecodable.position
                if undecodable.run is not None:
                    log.error("a fact cannot be read; its run is not driven", run=undecodable.run, position=position)
            except Exception:
                # Whatever stands between us and the log, the next round asks again; the sweep misses nothing.
                log.exception("the log could not be followed; trying again", position=position)
                self._stopping.wait(self._shop.timings.poll)

    def _loop(self) -> None:
        swept = -self._shop.timings.sweep
        while not self._stopping.is_set():
            if time.monotonic() - swept >= self._shop.timings.sweep:
                swept = time.monotonic()
                outcomes = self._sweep()
                outcomes.extend(self._attempt(root) for root in self._all_news())
                self._rounds.add(outcomes, time.monotonic() - swept, self._shop.now().isoformat())
            news = self._next_news()
            for root in news:
                self._attempt(root)
            if news:
                # Under load the news of several commits is looked at once.
                self._stopping.wait(TICK_SECONDS)

    def _sweep(self) -> list[Outcome]:
        try:
            for root in self._open_runs():
                self._look_at(root)
        except Exception:
            log.exception("the open runs could not be listed; the next sweep tries again")
            return ["failed"]
        return []

    def _with_news(self, facts: Sequence[Fact]) -> set[str]:
        """Return the runs about which there may be something to do: none for a fact that only says that all is done."""
        told, roots = set[str](), set[str]()
        for fact in facts:
            if fact.root and not fact.event.OUTPUT and not isinstance(fact.event, NO_NEWS):
                (told if _are_words(fact.event) else roots).add(fact.root)
        for root in told - roots:
            # Whoever works with the agent looks for them itself. Only what others received is to be decided here.
            run = self._shop.runs.states.kept(root)
            if run is None or run.undecided or run.pending:
                roots.add(root)
        return roots

    def _look_at(self, root: str) -> None:
        """Drive a run that is ours; see to it that somebody drives one that is not."""
        if self._shop.tenure.holds(root):
            self._news.put(root)
        else:
            self._shop.tenure.offer(root)

    def _next_news(self) -> set[str]:
        """Return the runs to look at, after waiting a little for one."""
        with suppress(Empty):
            return {self._news.get(timeout=self._shop.timings.poll)} | self._all_news()
        return self._all_news()

    def _all_news(self) -> set[str]:
        roots = self._effects.due()
        with suppress(Empty):
            while True:
                roots.add(self._news.get_nowait())
        return roots

    # One run

    def _attempt(self, root: str) -> Outcome:
        if not self._shop.tenure.holds(root):
            return "rested"
        try:
            return "acted" if self._drive(root) else "rested"
        except (LeaseLost, Fenced):
            # Whoever has the run now drives it.
            return "rested"
        except Exception as error:
            # One run that cannot be driven now must not keep the others waiting.
            log.exception(
                "a run could not be driven; trying again later", run=root, **self._in_words(drive_id(root), error)
            )
            held = self._effects.hold(drive_id(root), root, error, self._shop.now())
            self._tell(held, DRIVE, None, error)
            for waiting in self._effects.step_back(root):
                self._news.put(waiting)
            return "failed"

    def _drive(self, root: str) -> bool:
        """Take a run as far as it goes now; return whether anything was decided or begun."""
        before = self._shop.runs.run(root).root_sequence
        run = self._advance(root)
        outstanding = next_effects(run)
        stale, next_in_line = self._effects.settle(run, outstanding)
        if run.closed:
            self._shop.tenure.close(root)
        elif run.unknown_topic is not None:
            self._shop.tenure.decline(root)
        for waiting in next_in_line:
            self._news.put(waiting)
        for effect in stale:
            self._abandon(effect)
        begun = [self._begin(effect, run) for effect in outstanding]
        if drive_id(root) in run.held:
            self._shop.decide(root, release_drive)
        return any(begun) or run.root_sequence > before

    def _abandon(self, effect: Effect) -> None:
        """Cut an effect short, in a thread of its own: an agent that is hard to kill must not hold the other runs."""
        with self._lock:
            if effect.id in self._abandoned:
                return
            self._abandoned.add(effect.id)
        self._in_thread(lambda: self._cut_short(effect), f"{effect.id}/abandon")

    def _cut_short(self, effect: Effect) -> None:
        try:
            # It may have ended meanwhile, and have begun anew because it is called for again.
            if any(running is effect for running in self._effects.running()):
                abandon(effect, self._shop)
        except Exception:
            log.exception("an effect could not be cut short; its run's next drive tries again", effect=effect.id)
        finally:
            with self._lock:
                self._abandoned.discard(effect.id)

    def _advance(self, root: str) -> CoordinatorRun:
        """Decide what follows and was not decided with what it follows from: others stored that, or the run was not ours."""
        for _ in range(MAX_STEPS):
            run, now = self._shop.runs.run(root), self._shop.now()
            if not self._advancing.drafts(run, now):
                return run
            self._shop.decide(root, lambda found, now=now: self._advancing.drafts(found, now))
        raise RuntimeError(f"run {root} does not come to rest")

    def _begin(self, effect: Effect, run: CoordinatorRun) -> bool:
        begins = self._effects.begin(effect, run, lambda: self._shop.tenure.holds(effect.run_id))
        if begins:
            try:
                self._in_thread(lambda: self._carry_out(effect), effect.id)
            except RuntimeError:
                # The system gives no thread now: nothing of the effect is under way.
                self._effects.finish(effect, failed=True)
                raise
        return begins

    def _in_thread(self, work: Callable[[], None], name: str) -> None:
        thread = Thread(target=work, daemon=True, name=name)
        with self._lock:
            self._threads = [t for t in self._threads if t.is_alive()] + [thread]
            thread.start()

    def _carry_out(self, effect: Effect) -> None:
        error: Exception | None = None
        began, busy = time.thread_time(), 0.0
        try:
            before = self._shop.runs.run(effect.run_id).root_sequence
            carry_out(effect, self._shop)
            if self._shop.runs.run(effect.run_id).root_sequence == before:
                # Nothing was there to be done yet. Without a pause the next drive would try again at once, for ever.
                error = NothingCameOfIt("nothing came of it; trying again later")
        except (Closing, LeaseLost):
            # Going down, or no longer ours: the log says what is left, and whoever reads it next does that.
            error = None
        except (Rejected, Fenced) as faster:
            error = faster
        except Exception as failure:
            error, busy = failure, time.thread_time() - began
            log.exception(
                "an effect failed; trying again later",
                effect=effect.id,
                run=effect.run_id,
                **self._in_words(effect.id, failure),
            )
        self._finish(effect, error, busy)

    def _finish(self, effect: Effect, error: Exception | None, busy_seconds: float) -> None:
        held = None
        if error is not None:
            is_fault = cause_of(error).error_code == UNEXPECTED and not isinstance(error, NothingCameOfIt)
            held = self._effects.hold(
                effect.id, effect.run_id, error, self._shop.now(), busy_seconds, is_fault=is_fault
            )
        # Its place is free before anything is told: the log may be slow to answer.
        next_in_line = self._effects.finish(effect, failed=error is not None)
        if held is not None and error is not None and not _only_waits(effect, error):
            self._tell(held, type(effect).__name__, getattr(effect, "child_run_id", None), error)
        for root in (effect.run_id, *next_in_line):
            self._news.put(root)

    def _in_words(self, effect_id: str, error: Exception) -> dict[str, object]:
        """Return what a log line has of a failure; where it happened is said the first few times."""
        cause = cause_of(error)
        return {
            "error_code": cause.error_code,
            "waits_for": cause.waits_for,
            "error": cause.message,
            "exc_info": self._effects.failures(effect_id) < self._back_off.tries,
        }

    def _tell(self, held: Held, kind: str, child_run_id: str | None, error: Exception) -> None:
        """Say what stands in the way, and who can mend it, if that was so several times in a row."""
        if held.attempts < self._back_off.tries:
            return
        cause = cause_of(error)
        told = EffectHeld(
            effect_id=held.effect_id,
            kind=kind,
            child_run_id=child_run_id,
            error_code=cause.error_code,
            message=Text(cause.message),
            attempts=held.attempts,
            waits_for=cause.waits_for,
        )
        try:
            self._shop.decide(held.run_id, lambda run: hold(run, told))
            if held.faults >= self._back_off.faults:
                self._shop.decide(held.run_id, lambda run: give_up(run, told, held.faults))
        except (LeaseLost, Fenced, RunNotFound, Undecodable, LogUnavailable):
            # Whoever has the run now tells; and without its log nothing can be told, or is: /health says so.
            return
        except Exception:
            log.exception("what stands in the way could not be told; the next failure tells it", run=held.run_id)


def _only_waits(effect: Effect, error: Exception) -> bool:
    """Whether nothing stands in the way of an effect that ended without a fact: others are to do something first."""
    # A turn that is to be ended may be that of a child that has no place yet.
    return isinstance(error, Busy | Fenced) or (isinstance(error, NothingCameOfIt) and isinstance(effect, EndTurn))


def _to_be_tried(facts: Sequence[Fact]) -> set[str]:
    """Return the runs in which somebody asks for another try at once."""
    return {fact.root for fact in facts if fact.root and isinstance(fact.event, EffectRetried)}


def _are_words(event: Event) -> bool:
    """Whether a fact is about words that wait for an agent to hear them, on their way there."""
    match event:
        case SteeringReceived():
            return event.direct and event.verb in WORDS and bool(event.targets)
        case DirectiveMoved(status="queued"):
            return event.kind in WORDS
        case SteeringDecided(decision="in_place_steer", phase=None):
            return event.attempt == 0
        case _:
            return False
