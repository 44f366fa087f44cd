"""What the service says about itself, to everybody."""

from collections.abc import Sequence
from typing import Any, Literal, Protocol, runtime_checkable

import msgspec
from litestar import Request, Response, get
from litestar.openapi.datastructures import ResponseSpec

from ...application.ports.log import Alarm, LogTampered, LogUnavailable, Undecodable
from ...application.views.project_views import QUARANTINE, QuarantinedStream
from ...projections import held_runs
from ...projections.catalogue import VIEWS
from ..request.authentication import PUBLIC, principal_of
from ..request.findings import Damage
from ..request.given import Given, RedisState, Services
from ..request.reading import MAX_PAGE


class ViewHealth(msgspec.Struct, frozen=True, kw_only=True):
    """How far a view is."""

    position: int
    lag: int


class QuarantinedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run, or a stream outside every run, that this release cannot follow since the fact at this position."""

    name: str
    position: int
    reason: str


class TamperedBody(msgspec.Struct, frozen=True, kw_only=True):
    """What this process read in the store that is not what was written there; without a position it belongs to no fact."""

    position: int | None
    run: str | None
    reason: str


class HealthBody(msgspec.Struct, frozen=True, kw_only=True):
    """
    Whether the service works. It is `degraded` when a run is quarantined, the log is `damaged` (whatever anybody who asked
    this process found that it does not hold as it was signed), the store was changed behind the log's back (`tampered`) or
    nothing more is stored, `unavailable` without its log, and `draining` when this process is about to end and takes no
    new work.

    `log_rolled_back` says why nothing more is stored, and what to do: the store was put back to an earlier state; else it
    is null. `held` is in how many runs something stands in the way that a person or a newer release has to mend: the
    service works, and `GET /api/runs/{id}/explain` says what. `redis` is null where none is configured. Without it everything works, and what other replicas do is seen later.

    `isolation` is `none` where agents have all rights of the service.
    """

    status: Literal["ok", "degraded", "unavailable", "draining"]
    log: Literal["ok", "damaged", "unavailable"]
    log_rolled_back: str | None
    redis: RedisState | None
    isolation: Literal["bubblewrap", "none"]
    position: int | None
    views: dict[str, ViewHealth]
    quarantined: list[QuarantinedRun]
    held: int | None
    damages: list[Damage]
    version: str
    tampered: list[TamperedBody] = []


class ServerInfoBody(msgspec.Struct, frozen=True, kw_only=True):
    """Where the service keeps its data (null for whoever shows no good token), and its version."""

    data_directory: str | None
    version: str


@get("/", sync_to_thread=False, media_type="text/plain", opt=PUBLIC)
def banner() -> str:
    """Say who answers here."""
    return "Steersman API"


UNAVAILABLE = {
    503: ResponseSpec(
        HealthBody, description="The log cannot be reached, or this process is about to end", generate_examples=False
    )
}


@get("/health", sync_to_thread=True, opt=PUBLIC, responses=UNAVAILABLE)
def health(services: Given) -> Response[HealthBody]:
    """Say whether the log can be reached, how far each view is, and which runs are quarantined."""
    return _answered(services)


@get("/api/health", sync_to_thread=True, opt=PUBLIC, responses=UNAVAILABLE)
def api_health(services: Given) -> Response[HealthBody]:
    """Say the same as /health."""
    return _answered(services)


@get("/api/server/info", sync_to_thread=True, opt=PUBLIC)
def server_info(request: Request[Any, Any, Any], services: Given) -> ServerInfoBody:
    """Return server metadata. Where the data is, is told to people with a token only."""
    shown = principal_of(request, services) is not None
    return ServerInfoBody(data_directory=str(services.data_dir) if shown else None, version=services.settings.version)


def _answered(services: Services) -> Response[HealthBody]:
    try:
        body = health_of(services)
    except LogUnavailable as error:
        changed = [TamperedBody(position=None, run=None, reason=str(error))] if isinstance(error, LogTampered) else []
        body = HealthBody(
            status="unavailable",
            log="unavailable",
            log_rolled_back=None,
            redis=services.redis(),
            isolation=services.agents.isolation,
            position=None,
            views={},
            quarantined=[],
            held=None,
            damages=[],
            version=services.settings.version,
            tampered=changed,
        )
    if services.draining.is_set():
        body = msgspec.structs.replace(body, status="draining")
    status = 503 if body.status in ("unavailable", "draining") else 200
    return Response(body, status_code=status, headers={"Cache-Control": "no-store"})


def health_of(services: Services) -> HealthBody:
    """Return how the service is. Raises LogUnavailable."""
    head = services.log.head()
    look_at_newest(services, head)
    positions = {view.name: services.views.position(view.name) for view in VIEWS}
    found, reason, tampered = quarantined(services), rolled_back(services), _tampered(services)
    damages = list(services.findings.damages)
    return HealthBody(
        status="degraded" if found or reason or damages or tampered else "ok",
        log="damaged" if damages or tampered else "ok",
        log_rolled_back=reason,
        redis=services.redis(),
        isolation=services.agents.isolation,
        position=head,
        views={name: ViewHealth(position=at, lag=max(0, head - at)) for name, at in positions.items()},
        quarantined=found,
        held=len(services.views.list(held_runs.VIEW.name, held_runs.GROUP, limit=MAX_PAGE)),
        damages=damages,
        version=services.settings.version,
        tampered=tampered,
    )


def look_at_newest(services: Services, head: int) -> None:
    """Read the newest fact as any request would: that the log knows its head does not show that it has its facts."""
    try:
        if head and not services.log.read(head - 1, 1):
            services.findings.damaged("A stored fact is gone", head)
    except Undecodable as error:
        services.findings.met(error)


@runtime_checkable
class Restorable(Protocol):
    """A log whose store can be put back to an earlier state behind its back."""

    @property
    def rolled_back(self) -> str | None:
        """Why nothing is stored, and what to do, once that was noticed; else None."""
        ...


def rolled_back(services: Services) -> str | None:
    """Return why the log stores nothing any more, None if it does."""
    return services.log.rolled_back if isinstance(services.log, Restorable) else None


@runtime_checkable
class Watchful(Protocol):
    """A log that keeps in mind what it read and was not what had been written there."""

    @property
    def alarms(self) -> Sequence[Alarm]:
        """What was found and has not been found in order since."""
        ...


def alarms(services: Services) -> Sequence[Alarm]:
    """Return what the log found changed in its store."""
    return services.log.alarms if isinstance(services.log, Watchful) else ()


def _tampered(services: Services) -> list[TamperedBody]:
    found = [TamperedBody(position=one.position, run=one.run, reason=one.reason) for one in alarms(services)]
    return sorted(found, key=lambda one: one.position or 0)[:MAX_PAGE]


def quarantined(services: Services) -> list[QuarantinedRun]:
    """Return what the feed, or any request, could not read and what a view could not fold, each once."""
    found = {
        fact.run or f"position {fact.position}": QuarantinedRun(
            name=fact.run or "", position=fact.position, reason=fact.reason
        )
        for fact in (*services.feed.quarantined, *services.findings.undecodable)
    }
    for one in alarms(services):
        if one.position is not None:
            changed = QuarantinedRun(name=one.run or "", position=one.position, reason=one.reason)
            found.setdefault(one.run or f"position {one.position}", changed)
    for view in VIEWS:
        for row in services.views.list(view.name, QUARANTINE, limit=MAX_PAGE):
            one = msgspec.json.decode(row.body, type=QuarantinedStream)
            found.setdefault(one.name, QuarantinedRun(name=one.name, position=one.position, reason=one.reason))
    return sorted(found.values(), key=lambda one: one.position)[:MAX_PAGE]
