"""What the service says about itself, to everybody."""

from typing import Literal

import msgspec
from litestar import Response, get
from litestar.openapi.datastructures import ResponseSpec

from ..application.ports import LogUnavailable
from ..projections.catalogue import VIEWS
from .authentication import PUBLIC
from .given import Given, Services
from .reading import MAX_PAGE


class ViewHealth(msgspec.Struct, frozen=True, kw_only=True):
    """How far a view is."""

    position: int
    lag: int


class QuarantinedFact(msgspec.Struct, frozen=True, kw_only=True):
    """A fact that this release cannot read; only its run is affected."""

    position: int
    run: str | None
    reason: str


class HealthBody(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the service works. It is `degraded` when a run is quarantined, `unavailable` without its log."""

    status: Literal["ok", "degraded", "unavailable"]
    log: Literal["ok", "unavailable"]
    position: int | None
    views: dict[str, ViewHealth]
    quarantined: list[QuarantinedFact]
    version: str


class ServerInfoBody(msgspec.Struct, frozen=True, kw_only=True):
    """Where the service keeps its data, and its version."""

    data_directory: str
    version: str


@get("/", sync_to_thread=False, media_type="text/plain", opt=PUBLIC)
def banner() -> str:
    """Say who answers here."""
    return "Steersman API"


@get(
    ["/health", "/api/health"],
    sync_to_thread=True,
    opt=PUBLIC,
    responses={503: ResponseSpec(HealthBody, description="The log cannot be reached", generate_examples=False)},
)
def health(services: Given) -> Response[HealthBody]:
    """Say whether the log can be reached, how far each view is, and which runs are quarantined."""
    try:
        body = _health(services)
    except LogUnavailable:
        body = HealthBody(
            status="unavailable",
            log="unavailable",
            position=None,
            views={},
            quarantined=_quarantined(services),
            version=services.settings.version,
        )
    status = 503 if body.status == "unavailable" else 200
    return Response(body, status_code=status, headers={"Cache-Control": "no-store"})


@get("/api/server/info", sync_to_thread=False, opt=PUBLIC)
def server_info(services: Given) -> ServerInfoBody:
    """Return public server metadata."""
    return ServerInfoBody(data_directory=str(services.data_dir), version=services.settings.version)


def _health(services: Services) -> HealthBody:
    head = services.log.head()
    positions = {view.name: services.views.position(view.name) for view in VIEWS}
    quarantined = _quarantined(services)
    return HealthBody(
        status="degraded" if quarantined else "ok",
        log="ok",
        position=head,
        views={name: ViewHealth(position=at, lag=max(0, head - at)) for name, at in positions.items()},
        quarantined=quarantined,
        version=services.settings.version,
    )


def _quarantined(services: Services) -> list[QuarantinedFact]:
    found = list(services.feed.quarantined)[:MAX_PAGE]
    return [QuarantinedFact(position=fact.position, run=fact.run, reason=fact.reason) for fact in found]
