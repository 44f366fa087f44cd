"""Server-sent events: what is stored after the client's id, then what is new, each fact exactly once and in order."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from functools import partial
from logging import getLogger
from typing import Annotated, Any, TypeAlias, TypeVar

from anyio import CapacityLimiter, to_thread
from litestar import Request, Response, get
from litestar.di import NamedDependency
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import FromPath, HeaderParameter, QueryParameter, SkipValidation
from litestar.response import Stream

from ...application.ports.log import LogUnavailable, Undecodable
from ...domain.rejected import Forbidden, Invalid, RunNotFound
from ..request.access import Access
from ..request.given import Given, Principal, Services, Subscription
from ..request.problems import Unavailable, refusals
from ..request.reading import NUMBER, only_once
from .feed_sources import FeedSource, LogSource, Page, RunSource, Sent, slices

Value = TypeVar("Value")
_LOGGER = getLogger(__name__)

RETRY_MILLISECONDS = 1_000
OPENING = f": steersman\nretry: {RETRY_MILLISECONDS}\n\n".encode()
#: No id has more digits: positions stay below 2^53.
MAX_ID_DIGITS = 16
KEEPALIVE = b": keep-alive\n\n"
DONE = b"event: done\ndata: {}\n\n"
HEADERS = {"Cache-Control": "no-store, no-transform", "X-Accel-Buffering": "no"}
#: How many feeds of this process read stored facts at once; others wait their turn.
MAX_READERS = 8

Readers: TypeAlias = NamedDependency[SkipValidation[CapacityLimiter]]
After: TypeAlias = Annotated[
    str | None, QueryParameter(pattern=NUMBER, description="Send what comes after this id, as `Last-Event-ID` does.")
]
LastEventId: TypeAlias = Annotated[
    str | None,
    HeaderParameter(name="Last-Event-ID", description="The last id that was received. It wins over `after`."),
]
SHOWN = ResponseSpec(str, description="Server-sent events", media_type="text/event-stream", generate_examples=False)
#: A client that has everything of a run that cannot go on.
NOTHING_MORE = {204: ResponseSpec(None, description="Nothing more will ever come", generate_examples=False)}


class InvalidEventId(Invalid):
    """`Last-Event-ID`, or `after`, must be an id of this feed: a number from 0 to that of its newest event."""

    code = "invalid_event_id"


class TooManyFeeds(Unavailable):
    """As many clients as this process has room for listen to it already. Come again later, or ask another replica."""

    code = "too_many_feeds"


#: Says whether whoever opened a feed may still see it.
May: TypeAlias = Callable[[], bool]


@get(
    "/api/runs/{run_id:str}/stream",
    media_type="text/event-stream",
    responses={200: SHOWN} | NOTHING_MORE | refusals(404),
)
async def stream_run(
    request: Request[Principal, May, Any],
    run_id: FromPath[str],
    services: Given,
    access: NamedDependency[SkipValidation[Access]],
    readers: Readers,
    after: After = None,
    last_event_id: LastEventId = None,
) -> Stream | Response[None]:
    """
    Send the run's events after the client's id and go on as they happen; ends with `event: done`. Whoever comes back with
    the id of the last event of a run that cannot go on is answered 204: an `EventSource` does not come again.
    """
    only_once(request, "after")
    find = partial(access.run, request.user, run_id, hides=True)
    place = await to_thread.run_sync(find, limiter=readers)

    def may() -> bool:
        # Of a run that is deleted the feed itself says that it is over.
        with suppress(RunNotFound):
            try:
                access.run(request.user, run_id)
            except Forbidden:
                return False
        return request.auth()

    return await _open(RunSource(services, place), services, readers, last_event_id or after, may)


@get("/api/events/stream", media_type="text/event-stream", responses={200: SHOWN} | refusals())
async def stream_log(
    request: Request[Principal, May, Any],
    services: Given,
    access: NamedDependency[SkipValidation[Access]],
    readers: Readers,
    after: After = None,
    last_event_id: LastEventId = None,
) -> Stream | Response[None]:
    """Send every event that the caller may see after the client's position, and go on as they happen, without end."""
    only_once(request, "after")
    source = LogSource(services, access, request.user)
    return await _open(source, services, readers, last_event_id or after, request.auth)


async def _open(
    source: FeedSource, services: Services, readers: CapacityLimiter, given: str | None, may: May
) -> Stream | Response[None]:
    reader = Reader(source, services, readers, may)
    if not services.feed.admit(reader):
        raise TooManyFeeds
    try:
        cursor = await reader.cursor(given)
        is_closed = bool(given) and await reader.is_closed(cursor)
    except BaseException:
        services.feed.dismiss(reader)
        raise
    if is_closed:
        services.feed.dismiss(reader)
        return Response(None, status_code=204, headers=HEADERS)
    return Stream(reader.frames(cursor), headers=HEADERS)


class Reader:
    """One client's way through a feed: what is stored, then what is new."""

    def __init__(self, source: FeedSource, services: Services, readers: CapacityLimiter, may: May) -> None:
        self._source = source
        self._may = may
        self._feed = services.feed
        self._settings = services.settings
        self._readers = readers
        self._woken = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._spoke = self._loop.time()

    async def cursor(self, given: str | None) -> int:
        """Return the id to go on from. Raises InvalidEventId for one that this feed has not given out."""
        if not given:
            return 0
        head = await self._in_thread(self._source.head)
        if not (given.isascii() and given.isdigit()) or len(given) > MAX_ID_DIGITS or int(given) > head:
            raise InvalidEventId(expected=f"0 to {head}", actual=given[:MAX_ID_DIGITS])
        return int(given)

    async def is_closed(self, cursor: int) -> bool:
        """Return whether nothing can ever come behind the cursor."""
        return await self._in_thread(partial(self._source.is_closed, cursor))

    async def frames(self, cursor: int) -> AsyncGenerator[bytes]:
        """Yield every frame behind the cursor, in order, until the client goes, is too slow, or the run is over."""
        try:
            yield OPENING
            # A long history is read before subscribing, so that it cannot overrun the queue.
            while (page := await self._stored(cursor)).sent:
                cursor = page.sent[-1].id
                if data := self._said(page.sent):
                    yield data
                if page.is_last:
                    break
            subscription = await self._in_thread(partial(self._feed.subscribe, self._source.run, self._wake))
            try:
                async for sent in self._live(cursor, subscription):
                    yield sent
            finally:
                subscription.close()
        except (LogUnavailable, Undecodable) as error:
            # The answer has begun, so the only way to say no is to end without `done`: the client comes back by its id.
            _LOGGER.warning("a feed was cut short: %s", error)
        finally:
            self._feed.dismiss(self)

    async def _live(self, cursor: int, subscription: Subscription) -> AsyncGenerator[bytes]:
        is_behind, may_be_over = True, True
        looked = self._loop.time()
        while not subscription.is_cut:
            # A token that was revoked, or a role that was taken away, ends the feed; coming back then tells why.
            if self._loop.time() - looked >= self._settings.keepalive_seconds:
                looked = self._loop.time()
                if not await self._in_thread(self._may):
                    return
            if is_behind:
                sent = (await self._stored(cursor)).sent
                is_behind = bool(sent)
            else:
                sent, is_behind = _following(cursor, await self._shown(subscription))
            if sent:
                cursor = sent[-1].id
                may_be_over = may_be_over or any(one.is_terminal for one in sent)
            # The frames are everybody's, and what is made of them for this client is its own: so not all of it at once.
            for part in slices(sent) if sent else [sent]:
                if data := self._said(part):
                    yield data
            if is_behind or sent:
                continue
            if may_be_over and await self._in_thread(partial(self._source.is_over, cursor)):
                yield DONE
                return
            # A silent feed looks into the log again now and then: what was overlooked would keep its client for ever.
            is_behind = may_be_over = not await self._wait()

    async def _shown(self, subscription: Subscription) -> Sequence[Sent]:
        if self._source.shows_at_once:
            return self._source.shown(subscription.take())
        return await self._in_thread(lambda: self._source.shown(subscription.take()))

    async def _stored(self, cursor: int) -> Page:
        return await self._in_thread(partial(self._source.page, cursor))

    def _said(self, sent: Sequence[Sent]) -> bytes:
        """
        Return what the client is sent for these frames: a comment where it may see none of them and has heard nothing
        for long, however much was stepped over meanwhile. A proxy would take such a feed for dead.
        """
        data = b"".join(one.data for one in sent)
        if not data and self._silence() >= self._settings.keepalive_seconds:
            data = KEEPALIVE
        if data:
            self._spoke = self._loop.time()
        return data

    def _silence(self) -> float:
        return self._loop.time() - self._spoke

    async def _wait(self) -> bool:
        """Return True when there may be something to take, False when the client has heard nothing for too long."""
        try:
            async with asyncio.timeout(self._settings.keepalive_seconds - self._silence()):
                await self._woken.wait()
        except TimeoutError:
            return False
        self._woken.clear()
        return True

    def _wake(self) -> None:
        # The loop may be gone already while the hub still goes round.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._woken.set)

    async def _in_thread(self, call: Callable[[], Value]) -> Value:
        return await to_thread.run_sync(call, limiter=self._readers)


def _following(cursor: int, sent: Sequence[Sent]) -> tuple[Sequence[Sent], bool]:
    """Return what follows the cursor without a gap, and whether something in between has to be read from the log."""
    fresh = [one for one in sent if one.id > cursor]
    if fresh and fresh[0].id != cursor + 1:
        return [], True
    return fresh, False
