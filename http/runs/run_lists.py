"""GET /api/runs: the coordinator runs of all of the caller's projects, the newest first."""

from collections.abc import Iterator, Mapping, Sequence
from heapq import merge
from itertools import islice
from typing import Annotated, Any, TypeAlias

from litestar import Request, Response, get
from litestar.params import QueryParameter

from ...domain.facts.run import RunStatus
from ...projections import run_list
from ...projections.run_list import RunSummary
from ..request.access import InvalidProjectId, is_uuid
from ..request.problems import refusals
from ..request.reading import DEFAULT_PAGE, Before, Limit, Reads, link_to, only_once
from ..request.what_waits import own_projects, waiting_kinds

ProjectId: TypeAlias = Annotated[str | None, QueryParameter(description="Only the runs of this project.")]
Status: TypeAlias = Annotated[RunStatus | None, QueryParameter(description="Only runs in this status.")]
Waiting: TypeAlias = Annotated[
    bool | None, QueryParameter(description="Only runs in which something waits for somebody, or (false) nothing does.")
]


@get("/api/runs", sync_to_thread=True, responses=refusals(404))
def list_all_runs(
    request: Request[Any, Any, Any],
    reading: Reads,
    project_id: ProjectId = None,
    status: Status = None,
    waiting: Waiting = None,
    limit: Limit = DEFAULT_PAGE,
    before: Before = None,
) -> Response[list[RunSummary]]:
    """List the coordinator runs that the caller may see, the newest first, each with the kinds of what waits in it."""
    only_once(request, "project_id", "status", "waiting", "limit", "before")
    if project_id is not None:
        if not is_uuid(project_id):
            raise InvalidProjectId
        reading.access.project(reading.principal, project_id)
    projects = [project_id] if project_id is not None else own_projects(reading)
    waits = {run_id: kinds for project in projects for run_id, kinds in waiting_kinds(reading, project).items()}
    rows = merge(*(_runs(reading, project, before, limit) for project in projects), key=_newest_first)
    found = [row for row in islice(_wanted(rows, waits, status, waiting), limit + 1)]
    page = found[:limit]
    body = [run_list.shown(row, waits.get(row.execution_id, ())) for row in page]
    return Response(body, headers=link_to(request, before=page[-1].kept.position) if len(found) > limit else {})


def _runs(reading: Reads, project_id: str, before: int | None, limit: int) -> Iterator[RunSummary]:
    return reading.every(run_list.VIEW, project_id, before=before, page=limit + 1)


def _newest_first(row: RunSummary) -> int:
    return -row.kept.position


def _wanted(
    rows: Iterator[RunSummary], waits: Mapping[str, Sequence[str]], status: str | None, waiting: bool | None
) -> Iterator[RunSummary]:
    for row in rows:
        if status in (None, row.status) and waiting in (None, row.execution_id in waits):
            yield row
