"""One reader of the log for all clients of this process: each fact is encoded once and handed to whoever listens."""

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Event, Lock, Thread
from weakref import WeakSet

import msgspec
import structlog

from ...application.ports.log import EventLog, LogUnavailable, Undecodable
from ...application.ports.outside import Wakeups
from ...domain.event import Fact
from ...projections.feeds import server_sent_events

#: The log is looked at this often even if nobody says that it has grown.
POLL_SECONDS = 1.0
PAGE = 500
#: A client that leaves more than this untaken is cut off; what comes at once it is given at once, if it has taken the rest.
MAX_QUEUED_FRAMES = 4_096
MAX_QUEUED_BYTES = 256 * 1024
#: How many clients one process serves: each takes a socket, and some 40 KiB; one that does not read, up to 200 KiB more.
MAX_CLIENTS = 4_096
#: How many undecodable facts are remembered by name.
MAX_QUARANTINED = 1_000

log = structlog.get_logger(__name__)


class LiveFrame:
    """One fact as it is sent, encoded when somebody first wants it and never again."""

    def __init__(self, fact: Fact) -> None:
        self.fact = fact
        self._of_run: bytes | None = None
        self._of_log: bytes | None = None

    @property
    def of_run(self) -> bytes:
        """The frame on the feed of its run."""
        if self._of_run is None:
            self._of_run = server_sent_events.of_run(self.fact)
        return self._of_run

    @property
    def of_log(self) -> bytes:
        """The frame on the feed of the whole log."""
        if self._of_log is None:
            self._of_log = server_sent_events.of_log(self.fact)
        return self._of_log


class QuarantinedFact(msgspec.Struct, frozen=True, kw_only=True):
    """A fact that cannot be decoded by this release."""

    position: int
    run: str | None
    reason: str


class Queue:
    """One client's frames that it has not taken yet; see the Subscription of the API."""

    def __init__(self, hub: "FeedHub", run: str | None, wake: Callable[[], None]) -> None:
        self.run = run
        self._hub = hub
        self._wake = wake
        self._lock = Lock()
        self._frames = deque[LiveFrame]()
        self._bytes = 0
        self.is_cut = False

    def put(self, frames: Sequence[LiveFrame]) -> None:
        """Add the frames, or cut the client off: then it has all frames before them, and can come back for these."""
        with self._lock:
            if self.is_cut:
                return
            had_any = bool(self._frames)
            self._frames.extend(frames)
            self._bytes += sum(len(frame.of_log if self.run is None else frame.of_run) for frame in frames)
            if had_any and (len(self._frames) > self._hub.max_frames or self._bytes > self._hub.max_bytes):
                self._cut()
        self._wake()

    def take(self) -> Sequence[LiveFrame]:
        """Return, and forget, what has arrived."""
        with self._lock:
            taken = list(self._frames)
            self._frames.clear()
            self._bytes = 0
            return taken

    def cut(self) -> None:
        """Hand over nothing more, and say so."""
        with self._lock:
            self._cut()
        self._wake()

    def close(self) -> None:
        """Leave the hub."""
        self._hub.leave(self)

    def _cut(self) -> None:
        self.is_cut = True
        self._frames.clear()
        self._bytes = 0


class FeedHub:
    """The Feed of the API. A reader that cannot read the log tries again for ever: clients just see nothing new."""

    def __init__(
        self,
        log: EventLog,
        wakeups: Wakeups,
        *,
        poll_seconds: float = POLL_SECONDS,
        max_frames: int = MAX_QUEUED_FRAMES,
        max_bytes: int = MAX_QUEUED_BYTES,
        max_clients: int = MAX_CLIENTS,
    ) -> None:
        self._log = log
        self._wakeups = wakeups
        self._poll_seconds = poll_seconds
        self.max_frames = max_frames
        self.max_bytes = max_bytes
        self._max_clients = max_clients
        # Weakly: an answer whose client left before it began never ends, so nobody says that its place is free.
        self._clients = WeakSet[object]()
        self._lock = Lock()
        self._queues: set[Queue] = set()
        self._quarantined: dict[int, QuarantinedFact] = {}
        self._closing = Event()
        self._is_started = False
        self._thread = Thread(target=self._follow, name="feed-hub", daemon=True)
        self.position = 0

    def start(self) -> None:
        """Read from now on, behind what is stored: clients read that themselves. Again is no fault. Raises LogUnavailable."""
        with self._lock:
            if not self._is_started:
                self.position = self._log.head()
                self._thread.start()
                self._is_started = True

    def close(self) -> None:
        """Cut every client off, so that none holds up the end of the process, and stop reading."""
        self._closing.set()
        with self._lock:
            queues = list(self._queues)
        for queue in queues:
            queue.cut()
        if self._thread.is_alive():
            self._thread.join()

    @property
    def quarantined(self) -> Sequence[QuarantinedFact]:
        """The undecodable facts that were met."""
        with self._lock:
            return list(self._quarantined.values())

    @property
    def subscribers(self) -> int:
        """How many clients listen."""
        with self._lock:
            return len(self._queues)

    def admit(self, client: object) -> bool:
        """Count a client among those that are served; see the Feed of the API."""
        with self._lock:
            if len(self._clients) >= self._max_clients:
                return False
            self._clients.add(client)
            return True

    def dismiss(self, client: object) -> None:
        """Count a client no more."""
        with self._lock:
            self._clients.discard(client)

    def subscribe(self, run: str | None, wake: Callable[[], None]) -> Queue:
        """Return a subscription; every fact above `position` is handed to it. Raises LogUnavailable."""
        self.start()
        queue = Queue(self, run, wake)
        with self._lock:
            self._queues.add(queue)
        if self._closing.is_set():
            queue.cut()
        return queue

    def leave(self, queue: Queue) -> None:
        """Hand nothing more to a queue."""
        with self._lock:
            self._queues.discard(queue)

    def _follow(self) -> None:
        announced = 0
        while not self._closing.is_set():
            try:
                while not self._closing.is_set() and self._next():
                    pass
                # From the last announcement, not from where we are: one that runs ahead of what can be read (of a
                # log put back to a backup) must not make this a busy loop.
                announced = max(announced, self._wakeups.wait(announced, self._poll_seconds))
            except LogUnavailable:
                self._closing.wait(self._poll_seconds)
            except Exception:
                # Whatever stands between us and the log (tables that are just being put back, a right that was taken
                # away), the next round asks again. A reader that died of it would leave every client waiting for ever.
                log.exception("the log could not be read for its feeds; trying again", position=self.position)
                self._closing.wait(self._poll_seconds)

    def _next(self) -> bool:
        """Read a page and hand it over; return whether there was one."""
        try:
            facts = self._log.read(self.position, PAGE)
        except Undecodable as undecodable:
            self._step_over(undecodable)
            return True
        if not facts:
            return False
        # A client that subscribes now either gets these, or finds `position` behind them, and them in the log.
        with self._lock:
            frames = [LiveFrame(fact) for fact in facts] if self._queues else []
            by_run: dict[str, list[LiveFrame]] = {}
            for frame in frames:
                if frame.fact.run is not None:
                    by_run.setdefault(frame.fact.run, []).append(frame)
            for queue in list(self._queues):
                if wanted := frames if queue.run is None else by_run.get(queue.run):
                    self._hand_over(queue, wanted)
            self.position = facts[-1].position
        return True

    def _hand_over(self, queue: Queue, frames: Sequence[LiveFrame]) -> None:
        """Give a client its frames, or let it go: then it can come back for them, and no other gets any twice."""
        try:
            queue.put(frames)
        except Exception:
            log.exception("a client could not be given what is new; it is cut off", run=queue.run)
            with suppress(Exception):
                queue.cut()
            self._queues.discard(queue)

    def _step_over(self, undecodable: Undecodable) -> None:
        fact = QuarantinedFact(position=undecodable.position, run=undecodable.run, reason=undecodable.reason)
        with self._lock:
            if len(self._quarantined) < MAX_QUARANTINED:
                self._quarantined[fact.position] = fact
            self.position = undecodable.position
