"""GET /api/waiting: everything that waits for somebody, with the requests that end it."""

from collections.abc import Iterable, Sequence
from typing import Annotated, Any, TypeAlias

import msgspec
from litestar import Request, Response, get
from litestar.params import QueryParameter
from msgspec import Meta

from ...domain.rejected import Forbidden
from ...projections import waiting
from ...projections.waiting import WaitingDetail, WaitingItem, WaitingKind, WaitingRun, WaitsForWhom
from ..request.access import InvalidProjectId, is_uuid
from ..request.problems import refusals
from ..request.reading import DEFAULT_PAGE, Limit, Reads, link_to, only_once
from ..request.what_waits import own_projects
from .requests import RequestToSend, requests_for, summary_of

ProjectId: TypeAlias = Annotated[str | None, QueryParameter(description="Only what waits in this project.")]
RunId: TypeAlias = Annotated[str | None, QueryParameter(description="Only what waits in this run, or its coordinator.")]
Kind: TypeAlias = Annotated[WaitingKind | None, QueryParameter(description="Only what is of this kind.")]
Mine: TypeAlias = Annotated[bool, QueryParameter(description="Only what waits in runs that the caller has started.")]
After: TypeAlias = Annotated[
    int, QueryParameter(ge=0, le=2**53, description="List what comes after this cursor, from a `next` link.")
]


class WaitingBody(msgspec.Struct, frozen=True, kw_only=True):
    """Something that waits for somebody."""

    id: str
    kind: WaitingKind
    project_id: str
    #: The coordinator run, and the child run that asks, if one does.
    run_id: str
    child_run_id: str | None
    since: Annotated[str, Meta(extra_json_schema={"format": "date-time"})]
    summary: str
    detail: WaitingDetail
    waits_for: WaitsForWhom = msgspec.field(name="for")
    #: Who started the run.
    started_by: str
    #: Left out for whoever may only look.
    requests: Sequence[RequestToSend] | msgspec.UnsetType = msgspec.UNSET


@get("/api/waiting", sync_to_thread=True, responses=refusals(403, 404))
def list_waiting(
    request: Request[Any, Any, Any],
    reading: Reads,
    project_id: ProjectId = None,
    run_id: RunId = None,
    kind: Kind = None,
    mine: Mine = False,
    limit: Limit = DEFAULT_PAGE,
    after: After = 0,
) -> Response[list[WaitingBody]]:
    """List what waits for somebody in the caller's projects, the oldest first, each with the requests that end it."""
    only_once(request, "project_id", "run_id", "kind", "mine", "limit", "after")
    found = sorted(
        (item.position, item, row)
        for row in _rows(reading, project_id, run_id)
        if not mine or row.started_by == reading.principal.user
        for item in row.items
        if item.position > after and kind in (None, item.kind)
    )
    page = found[:limit]
    may = {row.project_id: _may_answer(reading, row.project_id) for _, _, row in page}
    body = [_shown(row, item, may_answer=may[row.project_id]) for _, item, row in page]
    return Response(body, headers=link_to(request, after=page[-1][0]) if len(found) > limit else {})


def _rows(reading: Reads, project_id: str | None, run_id: str | None) -> Iterable[WaitingRun]:
    if run_id is not None:
        place = reading.access.run(reading.principal, run_id)
        row = reading.row(waiting.VIEW, place.root)
        return [row] if row is not None and project_id in (None, row.project_id) else []
    if project_id is not None:
        if not is_uuid(project_id):
            raise InvalidProjectId
        reading.access.project(reading.principal, project_id)
        return reading.every(waiting.VIEW, project_id)
    return (row for project in own_projects(reading) for row in reading.every(waiting.VIEW, project))


def _may_answer(reading: Reads, project_id: str) -> bool:
    try:
        reading.access.project(reading.principal, project_id, change=True)
    except Forbidden:
        return False
    return True


def _shown(row: WaitingRun, item: WaitingItem, *, may_answer: bool) -> WaitingBody:
    return WaitingBody(
        id=item.id,
        kind=item.kind,
        project_id=row.project_id,
        run_id=row.run_id,
        child_run_id=item.child_run_id,
        since=item.since,
        summary=summary_of(row, item),
        detail=item.detail,
        waits_for=item.waits_for,
        started_by=row.started_by,
        requests=requests_for(row, item) if may_answer else msgspec.UNSET,
    )
