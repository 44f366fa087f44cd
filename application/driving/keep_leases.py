"""
Hold the leases of the runs that this process drives, and stop driving in time when they cannot be renewed.

All of them stand or fall together: the replica renews itself, not each lease. If it has not managed to for two thirds
of the time after which others may take over, it ends whatever it has under way, and comes back under a new id when
nothing of it is left. Time is measured on the process's monotonic clock, from before a renewal was asked for, so a
process that was stopped, or a store that was away, only makes it end earlier than it would have had to. One thread
renews, and another ends things: a renewal can hang.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from math import ceil
from threading import Event as Flag
from threading import Lock, Thread

import msgspec
import structlog

from ...domain.facts.leases import take_lease
from ...domain.rejected import Busy, RunNotFound
from ..ports.leases import Driven, Leases, LeaseStanding
from ..ports.log import Fence, Fenced, LogUnavailable, Undecodable
from ..ports.tenure import LeaseLost
from ..writer.caller import service
from ..writer.run_log import RunLog

#: The least time between two beats, however many runs are offered.
PAUSE_SECONDS = 0.05
#: After a failed renewal the next one is tried this soon.
RETRY_SECONDS = 0.5

log = structlog.get_logger(__name__)


class LeaseKeeper:
    """The Tenure of one of many processes."""

    def __init__(
        self, leases: Leases, runs: RunLog, new_id: Callable[[], str], renewed: Callable[[float], None]
    ) -> None:
        """*renewed* is told, on the monotonic clock, until when agents may live without another word."""
        self._leases = leases
        self._runs = runs
        self._new_id = new_id
        self._renewed = renewed
        self.heartbeat_seconds = leases.stale_seconds / 3
        self._lasts_seconds = leases.stale_seconds * 2 / 3
        #: From `start` on, and nothing asks for it before.
        self._driven: Driven
        self._replica: str | None = None
        self._until = 0.0
        #: Replaced as a whole, never changed: readers need no lock.
        self._held: Mapping[str, int] = {}
        self._elsewhere: frozenset[str] = frozenset()
        self._declined: set[str] = set()
        self._offered: set[str] = set()
        self._closed: set[str] = set()
        self._reported: Mapping[str, bytes] = {}
        self._draining = False
        self._stopping = Flag()
        self._woken = Flag()
        self._lock = Lock()
        #: Held while it is said until when this life lasts, and while its end is made: no other life begins meanwhile.
        self._ending = Lock()
        self._threads = [
            Thread(target=work, name=name, daemon=True)
            for work, name in ((self._keep, "leases"), (self._watch, "leases-watch"))
        ]

    # What the rest of the process asks

    def holds(self, root: str) -> bool:
        """Whether this process drives the run now."""
        return time.monotonic() < self._until and root in self._held

    def fence(self, root: str) -> Fence | None:
        """Return what an append in the run's name must be let in under. Raises LeaseLost."""
        self.check()
        epoch = self._held.get(root)
        if epoch is None:
            raise LeaseLost(f"the run {root} is not leased to this process")
        return Fence(root=root, epoch=epoch)

    def check(self) -> None:
        """Return if this process may touch what it has in hand. Raises LeaseLost."""
        if time.monotonic() >= self._until:
            raise LeaseLost("this process could not renew its leases in time")

    def offer(self, root: str) -> None:
        """Take note of a run with news that is not driven here: if nobody drives it, somebody has to."""
        if root in self._elsewhere or root in self._declined or self._draining:
            return
        with self._lock:
            self._offered.add(root)
        self._woken.set()

    def close(self, root: str) -> None:
        """Let go of a run in which nothing is left to do."""
        with self._lock:
            self._closed.add(root)
        self._woken.set()

    def decline(self, root: str) -> None:
        """Let go of a run that this release does not understand, for a newer one to take."""
        self._declined.add(root)
        self._woken.set()

    @property
    def held(self) -> Mapping[str, int]:
        """The runs that are driven here, with their epochs."""
        return self._held if time.monotonic() < self._until else {}

    # Its life

    def start(self, driven: Driven) -> None:
        """Begin to hold leases for whoever drives."""
        self._driven = driven
        for thread in self._threads:
            thread.start()

    def drain(self) -> None:
        """Claim nothing more, and let go of each run as soon as nothing is under way in it."""
        self._draining = True
        self._woken.set()

    def stop(self) -> None:
        """Let go of everything, at once. Call it when nothing is under way any more."""
        self._stopping.set()
        self._woken.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join()
        # What ends too late to be waited for stores nothing and moves nothing any more.
        self._held, self._until = {}, 0.0
        if self._replica is not None:
            try:
                self._leases.leave(self._replica)
            except LogUnavailable:
                log.warning("the leases could not be given back; others take them when they are stale")

    def _keep(self) -> None:
        while not self._stopping.is_set():
            pause = self.heartbeat_seconds
            try:
                self._beat()
                if self._replica is not None and time.monotonic() >= self._until:
                    self._lapse()
                    pause = 0.0
            except LogUnavailable as error:
                pause = min(pause, RETRY_SECONDS)
                log.warning("the leases could not be renewed; trying again", error=str(error))
            except Exception:
                pause = min(pause, RETRY_SECONDS)
                log.exception("the leases could not be renewed; trying again")
            self._woken.wait(pause)
            self._woken.clear()
            self._stopping.wait(PAUSE_SECONDS)

    def _watch(self) -> None:
        """End what is under way as soon as the leases lapse: the renewal that fails to come may hang for long."""
        ended: str | None = None
        while not self._stopping.wait(self._lapses_in()):
            with self._ending:
                if time.monotonic() < self._until or self._replica in (None, ended):
                    continue
                try:
                    self._driven.leave_all()
                    ended = self._replica
                except Exception:
                    log.exception("what is under way could not be ended; trying again")

    def _lapses_in(self) -> float:
        """Return for how long nobody need look whether the leases have lapsed."""
        left = self._until - time.monotonic()
        return min(left, self.heartbeat_seconds) if left > 0 else RETRY_SECONDS

    def _beat(self) -> None:
        """Renew, take what is ours to take, and give away what is not."""
        replica, began = self._replica, time.monotonic()
        if replica is not None and began >= self._until:
            return
        if replica is None:
            replica = self._new_id()
            self._leases.enter(replica)
            self._until, self._replica = began + self._lasts_seconds, replica
        standing = self._leases.renew(replica, draining=self._draining)
        with self._ending:
            if standing is None or time.monotonic() >= self._until or not standing.held.keys() >= self._held.keys():
                # Agents have been killed by now, or others may have begun: nothing of this life counts any more.
                self._until = 0.0
                return
            self._until = began + self._lasts_seconds
        self._renewed(self._until)
        self._elsewhere = standing.elsewhere
        # Before anything is let go of: what is given away below must not be taken for something that was not taken up yet.
        for root, epoch in standing.held.items():
            if root not in self._held:
                self._take(replica, root, epoch)  # its claim was stored, and its fact may not be
        self._let_go(replica)
        if not self._draining:
            self._claim(replica, standing)
        self._tell(replica)

    def _let_go(self, replica: str) -> None:
        with self._lock:
            closed, self._closed = self._closed, set()
        busy = self._driven.busy()
        self._release(replica, closed & self._held.keys() - busy, closed=True)
        # What is still under way ends by itself: it is offered again with the news of that.
        self._release(replica, self._declined & self._held.keys() - busy)
        if self._draining:
            self._release(replica, self._held.keys() - busy)

    def _release(self, replica: str, roots: Iterable[str], *, closed: bool = False) -> None:
        leaving = sorted(roots)
        if not leaving:
            return
        held = self._held
        # First out of hand, then out of the store: nobody may begin here what somebody else may begin, too.
        self._held = {root: epoch for root, epoch in held.items() if root not in leaving}
        for root in self._driven.busy().intersection(leaving):
            # Something began a moment before.
            leaving.remove(root)
            self._held = {**self._held, root: held[root]}
            self._driven.wake(root)
        self._driven.forget(leaving)
        self._leases.release(replica, leaving, closed=closed)

    def _claim(self, replica: str, standing: LeaseStanding) -> None:
        """Take runs that nobody holds, up to a fair share; give away what is above it, if nothing is under way in it."""
        with self._lock:
            offered, self._offered = self._offered, set()
        wanted = {
            root for root in offered if root not in self._held and root not in standing.elsewhere
        } - self._declined
        loads = dict(standing.loads)
        mine = len(self._held)
        share = ceil((sum(loads.values()) + standing.free + len(wanted)) / max(1, len(loads)))
        surplus = mine - share
        if surplus > 0:
            idle = sorted(self._held.keys() - self._driven.busy())
            self._release(replica, idle[:surplus])
            with self._lock:
                self._offered |= wanted
            return
        claimed: dict[str, int] = {}
        if standing.free and mine < share:
            claimed |= self._leases.claim_free(replica, share - mine, sorted(self._declined))
        room = share - mine - len(claimed)
        if wanted and room > 0:
            claimed |= self._leases.claim(replica, sorted(wanted)[:room])
        with self._lock:
            # Whoever has room for these takes them; until somebody has, they are asked for again.
            self._offered |= wanted - claimed.keys()
        for root, epoch in claimed.items():
            self._take(replica, root, epoch)

    def _take(self, replica: str, root: str, epoch: int) -> None:
        """Say on the log that the run is ours, and drive it. What an earlier holder stores afterwards is refused."""
        fence = Fence(root=root, epoch=epoch)
        # A repetition after a lost acknowledgement finds the fact that it had stored.
        by = service(f"lease/{root}/{epoch}", fence)
        try:
            self._runs.decide(root, lambda run: take_lease(run, epoch, replica), by)
        except Fenced:
            return  # somebody else has it by now
        except Busy:
            return  # the next beat finds it claimed and tries again
        except RunNotFound:
            self._leases.release(replica, [root], closed=True)
            return
        except Undecodable as undecodable:
            # One run that this release cannot read must not keep the others from being driven.
            log.error("a run cannot be read by this release; it is left to a newer one", run=root, why=str(undecodable))
            self._declined.add(root)
            self._leases.release(replica, [root])
            return
        self._held = {**self._held, root: epoch}
        self._driven.wake(root)

    def _tell(self, replica: str) -> None:
        states = self._driven.states()
        now = {root: msgspec.json.encode(states[root]) if root in states else b"[]" for root in self._held}
        changed = {root: words for root, words in now.items() if self._reported.get(root, b"[]") != words}
        if changed:
            self._leases.report(replica, changed)
        self._reported = now

    def _lapse(self) -> None:
        """End whatever is under way: others may have begun to drive these runs. Then come back as somebody new."""
        log.error("the leases lapsed; ending what is under way", runs=len(self._held), replica=self._replica)
        with self._ending:
            self._until = 0.0
            self._driven.leave_all()
        self._driven.forget(self._held)
        self._held, self._reported, self._replica = {}, {}, None
