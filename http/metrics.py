"""What Prometheus is told: requests by route, how long commands take, how far the views and the feed are behind."""

from collections.abc import Generator
from contextlib import contextmanager
from time import monotonic
from typing import cast

from litestar import Response, get
from litestar.di import NamedDependency
from litestar.params import SkipValidation
from litestar.types import Message, Scope
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from ..projections.catalogue import VIEWS
from .authentication import PUBLIC
from .given import Given, Services

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
    """The counters of one application; they begin at zero with it."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "steersman_http_requests",
            "Answers by method, route and status.",
            ("method", "route", "status"),
            registry=self.registry,
        )
        self._commands = Histogram(
            "steersman_command_seconds",
            "From a decoded command to its durable facts.",
            buckets=BUCKETS,
            registry=self.registry,
        )
        self._position = Gauge("steersman_log_position", "The last position of the log.", registry=self.registry)
        self._view_lag = Gauge(
            "steersman_view_lag_positions", "How far a view is behind the log.", ("view",), registry=self.registry
        )
        self._quarantined = Gauge(
            "steersman_quarantined_facts", "Facts that this release cannot decode.", registry=self.registry
        )

    async def count(self, message: Message, scope: Scope) -> None:
        """Count an answer as it begins. Routes are counted by their template, so that ids make no new series."""
        if message["type"] != "http.response.start" or scope["type"] != "http":
            return
        route = cast("str", scope.get("path_template") or "unmatched")
        self._requests.labels(scope["method"], route, str(message["status"])).inc()

    @contextmanager
    def command(self) -> Generator[None]:
        """Measure a command that is stored; what is refused does not count."""
        began = monotonic()
        yield
        self._commands.observe(monotonic() - began)

    def render(self, services: Services) -> bytes:
        """Return everything, the gauges as they are now."""
        head = services.log.head()
        self._position.set(head)
        self._quarantined.set(len(services.feed.quarantined))
        for view in VIEWS:
            self._view_lag.labels(view.name).set(max(0, head - services.views.position(view.name)))
        return generate_latest(self.registry)


@get("/metrics", sync_to_thread=True, opt=PUBLIC, include_in_schema=False)
def metrics_page(services: Given, metrics: NamedDependency[SkipValidation[Metrics]]) -> Response[bytes]:
    """Return the metrics in Prometheus' text format."""
    return Response(metrics.render(services), media_type=CONTENT_TYPE_LATEST)
