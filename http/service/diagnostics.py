"""What somebody who operates the service looks at when something stands still."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
from litestar import get
from litestar.params import FromPath

from ...application.looking.disk_space import disk_space
from ...application.looking.look import WorkspaceUnavailable, looked
from ...domain.rejected import ProjectNotFound
from ...projections import open_runs, project_view
from ..request.problems import refusals
from ..request.reading import Reads
from ..request.what_waits import waiting_kinds
from .health import HealthBody, health_of
from .overview import RunCounts, counts, project_runs

#: The name of the recurring task that every service has.
DRIVER = "Coordinator Heartbeat"


class DiskBody(msgspec.Struct, frozen=True, kw_only=True):
    """The file system that holds the data directory."""

    free_bytes: int
    total_bytes: int


class DiagnosticsBody(msgspec.Struct, frozen=True, kw_only=True):
    """The log and the views (as /health says), the disk, and how many runs have not been cleared away yet."""

    health: HealthBody
    disk: DiskBody | None
    open_runs: int


class TickRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One round of a recurring task: the driver looked at every open run."""

    automation_name: str
    #: In how many runs something was decided or begun.
    acted_count: int
    #: How many runs could not be driven.
    error_count: int
    duration_ms: int
    recorded_at: str


class HeartbeatBody(msgspec.Struct, frozen=True, kw_only=True):
    """
    The newest rounds of the process that answers, the newest first, at most 100; none from one that drives no runs.

    Runs are driven by the log's own growth; a round looks at every open run, so that nothing is ever forgotten.
    """

    tick_records: Sequence[TickRecord]
    #: The log's head: what moves while anything happens.
    position: int


class ProjectDiagnosticsBody(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a project's repository can be worked with, and how its runs stand."""

    project_id: str
    repository: str
    #: Why it cannot be worked with: the word that a start would be refused with.
    problem: str | None
    branch_commit: str | None
    #: What would keep work from being merged now.
    merge_obstacle: str | None
    runs: RunCounts


@get("/api/diagnostics", sync_to_thread=True, responses=refusals())
def show_diagnostics(reading: Reads) -> DiagnosticsBody:
    """Return how the service itself is."""
    space = disk_space(reading.services.data_dir)
    return DiagnosticsBody(
        health=health_of(reading.services),
        disk=DiskBody(free_bytes=space[0], total_bytes=space[1]) if space else None,
        open_runs=len(reading.rows(open_runs.VIEW, open_runs.GROUP)),
    )


@get("/api/diagnostics/heartbeat", sync_to_thread=True, responses=refusals())
def show_heartbeat(reading: Reads) -> HeartbeatBody:
    """Return what recurring tasks did of late."""
    records = [
        TickRecord(
            automation_name=DRIVER,
            acted_count=found.acted,
            error_count=found.failed,
            duration_ms=found.milliseconds,
            recorded_at=found.at,
        )
        for found in reading.services.rounds()
    ]
    return HeartbeatBody(tick_records=records, position=reading.services.log.head())


@get("/api/projects/{project_id:str}/diagnostics", sync_to_thread=True, responses=refusals(404))
def show_project_diagnostics(project_id: FromPath[str], reading: Reads) -> ProjectDiagnosticsBody:
    """Return whether a project can be worked on, and why not."""
    reading.access.project(reading.principal, project_id)
    row = reading.row(project_view.VIEW, project_id)
    if row is None:
        raise ProjectNotFound
    repositories, path = reading.services.repositories, Path(row.working_directory or "")
    problem, tip, obstacle = None, None, None
    try:
        tip = looked(lambda: repositories.tip(path, row.default_branch).commit)
        obstacle = looked(lambda: repositories.obstacle(path, row.default_branch))
    except WorkspaceUnavailable as unavailable:
        problem = unavailable.reason
    return ProjectDiagnosticsBody(
        project_id=project_id,
        repository=str(path),
        problem=problem,
        branch_commit=tip,
        merge_obstacle=obstacle,
        runs=counts(project_runs(reading, project_id), len(waiting_kinds(reading, project_id))),
    )
