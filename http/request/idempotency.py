"""What a POST may ask for: to be carried out once, however often it is sent with the same `Idempotency-Key`."""

import asyncio
import re
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from datetime import datetime
from hashlib import sha256
from threading import Lock
from typing import Annotated, Any, TypeAlias

import msgspec
from litestar import Request, Response
from litestar.di import NamedDependency
from litestar.params import HeaderParameter, RawBody, SkipValidation

from ...application.commands.deny_steering import Denials
from ...application.ports.log import AlreadyAnswered, Answered, EventLog, Stored, Tell
from ...application.writer.caller import Answer, Caller, IdempotencyKey
from ...application.writer.randomness import RANDOMNESS
from ...application.writer.run_log import Decision
from ...domain.event import Fact
from ...domain.rejected import Invalid, Rejected
from .access import Access
from .given import CommandTimer, Principal, Services

_TRACEPARENT = re.compile(r"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
#: The header of an answer that was given before.
REPLAYED = "Idempotent-Replayed"
KEY = r"^[\x21-\x7e]{1,255}$"


class KeySpent(Rejected):
    """This Idempotency-Key was used for another request body. Send this one with a new key."""

    code = "idempotency_key_spent"
    status = 422


class KeyInFlight(Rejected):
    """A request with this Idempotency-Key is being carried out. Send it again in a moment for its answer."""

    code = "idempotency_key_in_flight"
    retryable = True


class InFlight:
    """The keys of the commands that this process carries out now."""

    def __init__(self) -> None:
        self._lock = Lock()
        self.keys: set[tuple[str, ...]] = set()

    @contextmanager
    def holding(self, key: tuple[str, ...]) -> Generator[None]:
        """Hold a key until the block ends. Raises KeyInFlight when somebody else does."""
        with self._lock:
            if key in self.keys:
                raise KeyInFlight(key_state="in_flight")
            self.keys.add(key)
        try:
            yield
        finally:
            with self._lock:
                self.keys.discard(key)


class Draining(Rejected):
    """This process is about to end and takes no new work; nothing was stored. Send it again: another one takes it."""

    code = "draining"
    status = 503
    retryable = True


class At:
    """A clock that stands still, so that the answer and the facts of one command name the same moment."""

    def __init__(self, moment: datetime) -> None:
        self._moment = moment

    def now(self) -> datetime:
        """Return the moment of the command."""
        return self._moment


class Command:
    """One attempt at what was asked: who asks, when, and what they are told when it is stored."""

    def __init__(self, by: Caller, clock: At) -> None:
        self.by = by
        self.clock = clock
        self.told: Answer | None = None

    def tell(self, status: int, body: object) -> Answer:
        """Return the answer, to be stored with the facts. The last one told is the one that was stored."""
        self.told = Answer(status=status, body=msgspec.json.encode(body))
        return self.told

    def keep(self, log: EventLog, status: int, body: object) -> Sequence[Fact]:
        """Store the answer alone, without a fact, so that every repetition gets it; without a key nothing is stored."""
        told = self.tell(status, body)
        return () if self.by.key is None else log.append(self.by.append((), {}, self.clock.now(), told))


class Answers:
    """Outcomes on their way from the thread that writes to the event loop, which is woken once for a whole batch."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._ready: list[tuple[asyncio.Future[Stored | Exception], Stored | Exception]] = []

    async def of(self, submit: Callable[[Tell], None]) -> Stored | Exception:
        """Return the outcome of what is submitted."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Stored | Exception] = loop.create_future()

        def tell(outcome: Stored | Exception) -> None:
            with self._lock:
                self._ready.append((future, outcome))
                is_first = len(self._ready) == 1
            if is_first:
                with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                    loop.call_soon_threadsafe(self._hand_over)

        submit(tell)
        return await future

    def _hand_over(self) -> None:
        with self._lock:
            ready, self._ready = self._ready, []
        for future, outcome in ready:
            if not future.done():  # the client may have left
                future.set_result(outcome)


class Asking:
    """One request that wants something changed."""

    def __init__(
        self,
        services: Services,
        access: Access,
        principal: Principal,
        in_flight: InFlight,
        timer: CommandTimer,
        denials: Denials,
        answers: "Answers",
        key: IdempotencyKey | None,
        traceparent: str | None,
        body: bytes,
    ) -> None:
        self.services = services
        self.access = access
        self.principal = principal
        self.key = key
        self.body = body
        self._in_flight = in_flight
        self._timer = timer
        self._denials = denials
        self._answers = answers
        self._traceparent = traceparent

    def deny(self, run_id: str, *, kind: str, reason: str) -> None:
        """Keep on the run's log that whoever asks may not steer it."""
        place = self.access.place(run_id.lower())
        by = self._caller(None)
        self._denials.deny(place.root, by, scope=self.principal.scope, kind=kind, target=place.run_id, reason=reason)

    def part(self, name: str) -> "Asking":
        """Return one of several commands that a request asks for; with a key, each has its own part of it."""
        # The blank is in no key that a client can send, so no request is taken for a part of another one.
        key = msgspec.structs.replace(self.key, key=f"{self.key.key} {name}") if self.key is not None else None
        return Asking(
            self.services,
            self.access,
            self.principal,
            self._in_flight,
            self._timer,
            self._denials,
            self._answers,
            key,
            self._traceparent,
            self.body,
        )

    def once(self, carry_out: Callable[[Command], Sequence[Fact]], location: str | None = None) -> Response[bytes]:
        """
        Carry the command out and return what it tells; if its key was answered before, return that answer again.

        *location* is a path with the names of members of the answer in braces.

        Raises:
            KeySpent: the key was used for another body.
            KeyInFlight: the same request is being carried out in this process.
            Rejected: whatever the command is refused for; that is not stored, so the key stays free.
        """
        if self.key is None:
            return self._carry_out(carry_out, location)
        with self.held():
            answered = self.services.log.answered(*self._row(self.key))
            if answered is not None:
                return self._replay(self.key, answered, location)
            try:
                return self._carry_out(carry_out, location)
            except AlreadyAnswered as already:
                # Another process stored the same request between our look and our append.
                return self._replay(self.key, already.answered, location)
            except Rejected:
                # Perhaps because of what the same request has just done in another process.
                answered = self.services.log.answered(*self._row(self.key))
                if answered is None:
                    raise
                return self._replay(self.key, answered, location)

    async def decided(self, root: str, decision: Decision, told: Answer) -> Stored | Response[bytes]:
        """
        Have the writer decide while the event loop goes on, and return what it stored.

        *told* is kept for the repetitions of the request; what is kept of an earlier one is returned as a response. Raises
        what `once` raises, and what the decision raises.
        """
        with self.held(), self._timer.command():
            by, runs = self._caller(self.key), self.services.runs
            outcome = await self._answers.of(lambda tell: runs.submit(root, decision, by, tell, lambda _, __: told))
        if isinstance(outcome, AlreadyAnswered) and self.key is not None:
            return self._replay(self.key, outcome.answered, None)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    @contextmanager
    def held(self) -> Generator[None]:
        """Keep the request's repetitions in this process away until the block ends. Raises KeyInFlight."""
        with self._in_flight.holding(self._row(self.key)) if self.key is not None else nullcontext():
            yield

    def _row(self, key: IdempotencyKey) -> tuple[str, str, str, str]:
        return self.principal.user, key.method, key.path, key.key

    def _carry_out(self, carry_out: Callable[[Command], Sequence[Fact]], location: str | None) -> Response[bytes]:
        command = Command(self._caller(self.key), At(self.services.clock.now()))
        with self._timer.command():
            facts = carry_out(command)
        assert command.told is not None
        position = facts[-1].position if facts else self.services.log.head()
        return response_of(command.told, position, location)

    def _caller(self, key: IdempotencyKey | None) -> Caller:
        return Caller(
            principal=self.principal.user, command_id=RANDOMNESS.new_id(), traceparent=self._traceparent, key=key
        )

    def _replay(self, key: IdempotencyKey, answered: Answered, location: str | None) -> Response[bytes]:
        if answered.body_digest != key.body_digest:
            raise KeySpent(key_state="spent")
        response = response_of(Answer(status=answered.status, body=answered.answer), answered.position, location)
        response.set_header(REPLAYED, "true")
        return response


def response_of(told: Answer, position: int, location: str | None = None) -> Response[bytes]:
    """Return the response that tells it. *location* as for `Asking.once`."""
    headers = {"Steersman-Position": str(position)}
    if location is not None:
        headers["Location"] = location.format(**msgspec.json.decode(told.body))
    return Response(told.body, status_code=told.status, media_type="application/json", headers=headers)


def asking_over(services: Services, access: Access, timer: CommandTimer) -> Callable[..., Asking]:
    """
    Return what provides the handlers of POSTs with what they need.

    It depends on nothing that has to be provided itself: that would take a task group for each request.
    """
    in_flight, denials, answers = InFlight(), Denials(services.runs), Answers()

    def provide_asking(
        request: Request[Principal, Any, Any],
        body: RawBody,
        idempotency_key: Annotated[
            str | None,
            HeaderParameter(
                name="Idempotency-Key",
                description="1 to 255 visible ASCII characters. The same key and body get the first answer again.",
                pattern=KEY,
            ),
        ] = None,
    ) -> Asking:
        if services.draining.is_set():
            raise Draining
        _refuse_nul(body)
        traceparent = request.headers.get("traceparent", "")
        key = None
        if idempotency_key is not None:
            path = request.scope["path"]
            key = IdempotencyKey(
                method=request.method, path=path, key=idempotency_key, body_digest=sha256(body).hexdigest()
            )
        found = traceparent if _TRACEPARENT.fullmatch(traceparent) else None
        return Asking(services, access, request.user, in_flight, timer, denials, answers, key, found, body)

    return provide_asking


Asks: TypeAlias = NamedDependency[SkipValidation[Asking]]


def directive_id() -> str:
    """Return the id of the directive that is asked for: one that no other has. Take it once for each request."""
    # Not derived from the idempotency key: its row is forgotten after 24 hours and the directive never, so whoever used
    # a key again would write over their own earlier directive. A repetition finds the id in the answer that the row
    # keeps, and an append whose acknowledgement was lost is found by its command id.
    return RANDOMNESS.new_id()


def _refuse_nul(body: bytes) -> None:
    """Refuse a body with a NUL character: neither git, nor the file system, nor every store can hold one."""
    if b"\\u0000" not in body:
        return
    try:
        left: list[Any] = [msgspec.json.decode(body)]
    except (msgspec.DecodeError, RecursionError):
        return  # refused where the body is decoded to what the route takes
    while left:
        found = left.pop()
        if isinstance(found, str) and "\0" in found:
            raise Invalid("The body contains a NUL character (\\u0000). Send text without it.")
        left.extend(_parts(found))


def _parts(found: Any) -> Sequence[Any]:
    if isinstance(found, dict):
        return [part for pair in found.items() for part in pair]  # pyright: ignore[reportUnknownVariableType]
    return found if isinstance(found, list) else ()  # pyright: ignore[reportUnknownVariableType]
