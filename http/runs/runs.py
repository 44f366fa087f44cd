"""Runs, coordinators and children: their state, their work plan, their children."""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Annotated

import msgspec
from litestar import Response, get
from litestar.params import FromPath
from msgspec import Meta

from ...application.looking.look import WorkspaceUnavailable, looked
from ...application.ports.git import Repositories
from ...domain.rejected import NotFound
from ...projections import children_view, waiting, work_plan_view
from ...projections.children_view import ChildView
from ...projections.run_detail import RunDetail
from ...projections.waiting import WaitingKind
from ...projections.work_plan_view import WorkPlanView
from ..request.etags import etag
from ..request.one_run import run_row
from ..request.problems import refusals
from ..request.reading import Reads
from ..request.what_waits import kinds_of

MAX_DIFF_BYTES = 256 * 1024
#: How many diffs are remembered; a pair of commits has the same one for ever.
MAX_DIFFS = 64


class RunBody(RunDetail, frozen=True, kw_only=True):
    """A run, and what it has changed."""

    diff: Annotated[str | None, Meta(description="Unified diff, cut at 256 KiB; null while there is nothing.")] = None
    waiting: Annotated[
        Sequence[WaitingKind] | msgspec.UnsetType,
        Meta(description="The kinds of what waits for somebody, the oldest first; absent where nothing waits."),
    ] = msgspec.UNSET


class WorkPlanNotFound(NotFound):
    """The run has no work plan yet. Ask again while the run is in progress."""

    code = "work_plan_not_found"
    retryable = True


@get("/api/runs/{run_id:str}", sync_to_thread=True, responses=refusals(403, 404))
def show_run(run_id: FromPath[str], reading: Reads) -> Response[RunBody]:
    """Return the run as it is now. Its ETag moves with every fact that is not mere agent output."""
    row = run_row(reading, run_id)
    fields = {name: getattr(row, name) for name in RunDetail.__struct_fields__}
    waits = reading.row(waiting.VIEW, row.kept.root)
    kinds = kinds_of(waits, None if row.parent_run_id is None else row.run_id)
    fields |= {"internal": msgspec.UNSET, "diff": _diff_of(row, reading.services.repositories)}
    fields |= {"waiting": kinds or msgspec.UNSET}
    return Response(RunBody(**fields), headers={"ETag": etag(row.kept.root_sequence)})


@get("/api/runs/{run_id:str}/work-plan", sync_to_thread=True, responses=refusals(403, 404))
def show_work_plan(run_id: FromPath[str], reading: Reads) -> WorkPlanView:
    """Return the subtasks of a coordinator run, what depends on what, and how far each is."""
    place = reading.access.run(reading.principal, run_id)
    row = reading.row(work_plan_view.VIEW, place.run_id)
    if row is None:
        raise WorkPlanNotFound
    return work_plan_view.shown(row)


@get("/api/runs/{run_id:str}/children", sync_to_thread=True, responses=refusals(403, 404))
def list_children(run_id: FromPath[str], reading: Reads) -> list[ChildView]:
    """List the child runs of a coordinator run, each beside its subtask, by subtask id."""
    place = reading.access.run(reading.principal, run_id)
    return [children_view.shown(row) for _, row in reading.rows(children_view.VIEW, place.run_id)]


def _diff_of(row: RunDetail, repositories: Repositories) -> str | None:
    kept = row.kept
    if kept.base is None or kept.head is None or kept.repository_path is None:
        return None
    try:
        repository, base, head = Path(kept.repository_path), kept.base.commit, kept.head.commit
        return looked(lambda: _diff(repositories, repository, base, head))
    except WorkspaceUnavailable:
        # The run is shown even if its repository is gone; what it changed then cannot be.
        return None


@lru_cache(maxsize=MAX_DIFFS)
def _diff(repositories: Repositories, repository: Path, base: str, head: str) -> str:
    return repositories.diff(repository, base, head, MAX_DIFF_BYTES)
