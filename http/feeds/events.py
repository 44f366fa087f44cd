"""Stored facts as lists: those of one run, and those of the whole log that the caller may see."""

from typing import Annotated, Any, TypeAlias

import msgspec
from litestar import Request, Response, get
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import FromPath, QueryParameter
from msgspec import Meta

from ...application.ports.log import EventLog, Undecodable
from ...domain.event import Fact
from ...domain.rejected import NotFound
from ...projections.feeds.timeline import LogEntry, TimelineEntry, log_entry, timeline_entry
from ..request.one_run import run_row
from ..request.problems import refusals
from ..request.reading import MAX_PAGE, Reads, only_once

PAGE = 500
DEFAULT_LIMIT = 500
#: How many facts one request looks through when few of them are the caller's to see.
MAX_SCANNED = 20_000
MAX_SEQUENCE = 2**53

After: TypeAlias = Annotated[
    int, QueryParameter(ge=0, le=MAX_SEQUENCE, description="List what comes after this number.")
]
Limit: TypeAlias = Annotated[int, QueryParameter(ge=1, le=MAX_PAGE, description="How many to list at most.")]
Topic: TypeAlias = Annotated[
    str | None,
    QueryParameter(name="type", min_length=1, max_length=128, description="List only facts of this type."),
]


class EventBody(msgspec.Struct, frozen=True, kw_only=True):
    """One fact of a run."""

    sequence: int
    type: str
    timestamp: Annotated[str, Meta(extra_json_schema={"format": "date-time"})]
    payload: dict[str, Any]


class LogEventBody(msgspec.Struct, frozen=True, kw_only=True):
    """One fact of the log, and its places."""

    position: int
    stream: str
    version: int
    type: str
    run: str | None
    run_sequence: int | None
    root: str | None
    root_sequence: int | None
    at: str
    principal: str
    payload: dict[str, Any]


@get(
    "/api/runs/{run_id:str}/events",
    sync_to_thread=True,
    responses={200: ResponseSpec(list[EventBody], description="Facts, ascending", generate_examples=False)}
    | refusals(403, 404),
)
def list_events(
    request: Request[Any, Any, Any],
    run_id: FromPath[str],
    reading: Reads,
    after: After = 0,
    limit: Limit = DEFAULT_LIMIT,
    topic: Topic = None,
) -> Response[bytes]:
    """List a run's facts in order. Numbers have no gap, unless a `type` is asked for."""
    only_once(request, "after", "limit", "type")
    reading.await_log()
    place = reading.access.run(reading.principal, run_id)
    found: list[TimelineEntry] = []
    # Ends: every turn reads on behind the last, and a run's feed is bounded.
    while len(found) < limit and (page := reading.services.log.read_run(place.run_id, after, PAGE)):
        wanted = [fact for fact in page if topic is None or fact.topic == topic]
        found += [timeline_entry(fact) for fact in wanted[: limit - len(found)]]
        after = page[-1].run_sequence or 0
    return Response(msgspec.json.encode(found), media_type="application/json")


class HistoryNotFound(NotFound):
    """This run has not ended, so it has no history yet. GET …/events lists what happened so far."""

    code = "history_not_found"


@get(
    "/api/runs/{run_id:str}/history",
    sync_to_thread=True,
    responses={200: ResponseSpec(list[EventBody], description="Facts, ascending", generate_examples=False)}
    | refusals(403, 404),
)
def show_history(run_id: FromPath[str], reading: Reads) -> Response[bytes]:
    """Return everything that a run which has ended said and did, in order."""
    row = run_row(reading, run_id)
    if row.ended_at is None:
        raise HistoryNotFound
    found: list[TimelineEntry] = []
    after = 0
    while page := reading.services.log.read_run(row.run_id, after, PAGE):
        found += [timeline_entry(fact) for fact in page]
        after = page[-1].run_sequence or 0
    return Response(msgspec.json.encode(found), media_type="application/json")


@get(
    "/api/events",
    sync_to_thread=True,
    responses={200: ResponseSpec(list[LogEventBody], description="Facts, ascending", generate_examples=False)}
    | refusals(),
)
def list_log(
    request: Request[Any, Any, Any], reading: Reads, after: After = 0, limit: Limit = DEFAULT_LIMIT
) -> Response[bytes]:
    """
    List the log's facts that the caller may see, in order.

    The answer is complete up to its `Steersman-Position`: go on from there, also when the list is empty.
    """
    only_once(request, "after", "limit")
    reading.await_log()
    found: list[LogEntry] = []
    scanned = 0
    while len(found) < limit and scanned < MAX_SCANNED:
        page, after = read_on(reading.services.log, after)
        scanned += PAGE
        if not page:
            break
        sees = reading.access.seeing(reading.principal)
        for fact in page:
            after = fact.position
            if sees(fact):
                found.append(log_entry(fact))
                if len(found) == limit:
                    break
    body = msgspec.json.encode(found)
    return Response(body, media_type="application/json", headers={"Steersman-Position": str(after)})


def read_on(log: EventLog, after: int, limit: int = PAGE) -> tuple[list[Fact], int]:
    """Return the next facts of the log and the position behind what was read; undecodable ones are stepped over."""
    while True:
        try:
            page = list(log.read(after, limit))
        except Undecodable as undecodable:
            # Ends: each of these has a higher position than the one before.
            after = undecodable.position
            continue
        return page, page[-1].position if page else after
