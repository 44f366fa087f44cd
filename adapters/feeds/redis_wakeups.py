"""
Wake-ups between processes, over Redis: who announces wakes its own waiters at once, and those of the others soon.

Redis carries numbers and keeps nothing. While it is down, slow, emptied or answers nonsense, an announcement reaches
the waiters of this process only, and those elsewhere find what is new by polling, as the port says. Whoever can
publish on the channel can slow others down to polling (by announcing a position far ahead), and mislead nobody.
"""

import random
from collections.abc import Callable
from datetime import datetime
from threading import Condition, Event, Lock, Thread
from time import monotonic
from typing import Any, Literal
from urllib.parse import urlsplit

import msgspec
import redis
import structlog
from redis.backoff import NoBackoff
from redis.retry import Retry

from ...application.ports.outside import Clock
from ..clock import SYSTEM_CLOCK
from ..stores.memory import MemoryWakeups

#: How long a connection, or one answer, may take.
ANSWER_SECONDS = 2.0
#: After a silence of this length the server is asked whether it is still there: a partition says nothing by itself.
SILENCE_SECONDS = 3.0
#: How long the listener sleeps without a look at whether it is to end.
LISTEN_SECONDS = 0.25
FIRST_REST_SECONDS = 0.1
LONGEST_REST_SECONDS = 5.0
CLOSE_SECONDS = 5.0
#: Positions stay below 2^53; what is longer is none.
MAX_DIGITS = 16
#: How much of an error is kept for people.
MAX_ERROR_LENGTH = 200
NOT_YET = "it was not reached yet"

#: One connection's work on a channel. It tells whenever the other side has answered, and ends when closing.
Work = Callable[[str, Callable[[], None]], None]

_logger = structlog.get_logger(__name__)


class AddressInvalid(Exception):
    """It cannot be read: it is redis://[[USER]:PASSWORD@]HOST[:PORT][/DATABASE], the same with rediss://, or unix:///PATH."""

    # The address may hold a password, so neither it nor what the driver says about it is repeated.

    def __str__(self) -> str:
        return str(self.__doc__)


class RedisState(msgspec.Struct, frozen=True, kw_only=True):
    """Whether announcements go between processes, since when, and the last reason why they did not."""

    state: Literal["ok", "unavailable"]
    since: datetime
    last_error: str | None


class RedisWakeups:
    """
    The Wakeups of one of several processes on one log.

    From `start` on two threads keep two connections, one to publish and one to listen, and make new ones for ever.
    """

    def __init__(
        self,
        url: str,
        *,
        clock: Clock = SYSTEM_CLOCK,
        answer_seconds: float = ANSWER_SECONDS,
        silence_seconds: float = SILENCE_SECONDS,
        longest_rest_seconds: float = LONGEST_REST_SECONDS,
    ) -> None:
        self._connect = _connector(url, answer_seconds)
        self._answer_seconds = answer_seconds
        self._silence_seconds = silence_seconds
        self._longest_rest_seconds = longest_rest_seconds
        self._local = MemoryWakeups()
        self._standing = _Standing(clock)
        self._closing = Event()
        self._grown = Condition()
        self._announced = 0
        self._threads: list[Thread] = []

    def start(self, log_name: str) -> None:
        """Reach the other processes from now on: those that were started for the log of the same name, and no others."""
        channel = f"steersman:{log_name}:wakeups"
        for part, work in (("publish", self._publish), ("listen", self._listen)):
            thread = Thread(target=self._for_ever, args=(part, work, channel), name=f"redis-{part}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def close(self) -> None:
        """Reach nobody any more; waiters of this process are still woken by it."""
        self._closing.set()
        with self._grown:
            self._grown.notify_all()
        for thread in self._threads:
            thread.join(CLOSE_SECONDS)

    def announce(self, position: int) -> None:
        """Tell every waiter that the log has reached *position*: here at once, elsewhere from another thread."""
        self._local.announce(position)
        with self._grown:
            if position > self._announced:
                self._announced = position
                self._grown.notify_all()

    def wait(self, after: int, timeout_seconds: float) -> int:
        """Return the newest announced position, as soon as it is greater than *after* or the time is over."""
        return self._local.wait(after, timeout_seconds)

    @property
    def state(self) -> RedisState:
        """How it is now."""
        return self._standing.now()

    # The two threads

    def _for_ever(self, part: str, work: Work, channel: str) -> None:
        """Do the work until closing, anew after every fault, resting longer each time until it has succeeded again."""
        failures = 0

        def succeeded() -> None:
            nonlocal failures
            failures = 0
            self._standing.works(part)

        while not self._closing.is_set():
            try:
                work(channel, succeeded)
            except Exception as error:  # noqa: BLE001 - whatever a server, a network or the driver does, it is tried again
                failures += 1
                self._standing.fails(part, error)
                rest = min(FIRST_REST_SECONDS * 2 ** min(failures - 1, 16), self._longest_rest_seconds)
                # Not all processes at the same moment: a server that has just come back is to stay.
                self._closing.wait(rest * random.uniform(0.5, 1.0))

    def _publish(self, channel: str, succeeded: Callable[[], None]) -> None:
        # What was published last is forgotten with the connection: it may have got lost, and twice does no harm.
        published = 0
        with self._connect() as client:
            client.ping()
            succeeded()
            while (position := self._next(published)) is not None:
                client.publish(channel, position)
                published = position
                succeeded()

    def _next(self, published: int) -> int | None:
        """Return the newest position as soon as it is not published yet; None when closing."""
        with self._grown:
            self._grown.wait_for(lambda: self._announced > published or self._closing.is_set())
            return None if self._closing.is_set() else self._announced

    def _listen(self, channel: str, succeeded: Callable[[], None]) -> None:
        with self._connect() as client, client.pubsub() as subscription:
            subscription.subscribe(channel)
            heard, asked = monotonic(), True  # the answer to `subscribe` is due
            while not self._closing.is_set():
                message = subscription.get_message(timeout=LISTEN_SECONDS)
                silent = monotonic() - heard
                if message is not None:
                    heard, asked = monotonic(), False
                    self._heed(message)
                    succeeded()
                elif asked and silent > self._answer_seconds:
                    raise TimeoutError("no answer")
                elif not asked and silent > self._silence_seconds:
                    subscription.ping()
                    heard, asked = monotonic(), True

    def _heed(self, message: Any) -> None:
        """Wake the waiters of this process, if the message is a position."""
        if message["type"] != "message":
            return
        data = message["data"]
        digits = data.decode(errors="replace") if isinstance(data, bytes) else str(data)
        if digits.isascii() and digits.isdigit() and len(digits) <= MAX_DIGITS:
            self._local.announce(int(digits))


class _Standing:
    """What is known about the connections: all well only when both are."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = Lock()
        self._errors = {"publish": NOT_YET, "listen": NOT_YET}
        self._state = RedisState(state="unavailable", since=clock.now(), last_error=None)

    def now(self) -> RedisState:
        with self._lock:
            return self._state

    def works(self, part: str) -> None:
        with self._lock:
            if self._errors.pop(part, None) is None or self._errors:
                return
            self._state = msgspec.structs.replace(self._state, state="ok", since=self._clock.now())
        _logger.info("redis_reached")

    def fails(self, part: str, error: Exception) -> None:
        reason = f"{type(error).__name__}: {error}"[:MAX_ERROR_LENGTH]
        with self._lock:
            is_news = self._errors.get(part) in (None, NOT_YET)
            self._errors[part] = reason
            was = self._state
            since = self._clock.now() if was.state == "ok" else was.since
            self._state = RedisState(state="unavailable", since=since, last_error=reason)
        if is_news:
            _logger.warning("redis_unavailable", doing=part, error=reason)


def _connector(url: str, answer_seconds: float) -> Callable[[], Any]:
    """Return what makes a client; nothing is connected yet. Raises AddressInvalid."""
    client_type: Any = redis.Redis  # the driver's types are incomplete

    def connect() -> Any:
        return client_type.from_url(
            url,
            socket_connect_timeout=answer_seconds,
            socket_timeout=answer_seconds,
            retry=Retry(NoBackoff(), 0),
        )

    try:
        parts = urlsplit(url)
        is_valid = parts.path if parts.scheme == "unix" else (parts.path.strip("/") or "0").isdigit()
        with connect() as client:
            # What an address asks for beyond host and port is looked at only now.
            client.connection_pool.make_connection()
    except (ValueError, TypeError, redis.RedisError):
        is_valid = False
    if not is_valid:
        raise AddressInvalid
    return connect
