"""What Prometheus is told: requests by route, how long appends take, what is outstanding, how far the views are behind."""

from collections import Counter as Counted
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from time import monotonic
from typing import cast, get_args

from litestar import Response, get
from litestar.di import NamedDependency
from litestar.params import SkipValidation
from litestar.types import Message, Scope
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)

from ...application.looking.disk_space import disk_space
from ...application.ports.log import LogTampered, LogUnavailable
from ...application.ports.notices import COMMAND_ID
from ...application.ports.outside import Views
from ...domain.facts.held import WaitsFor
from ...projections import held_runs, open_runs, outstanding_directives, run_list, waiting, webhooks
from ...projections.catalogue import VIEWS
from ...projections.waiting import WaitingItem, WaitingKind
from ..request.authentication import PUBLIC
from ..request.given import Given, Services
from .health import alarms, look_at_newest, rolled_back

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
FACTS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000)
#: Any other is counted as `other`: clients make up what they like.
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
#: Up to which age in seconds a directive counts as which; what is older is `ge1h`.
AGES = (("lt1m", 60), ("lt10m", 600), ("lt1h", 3_600))
OLDEST = "ge1h"
#: No more directives than these are counted, the oldest first: the page has to stay cheap.
MOST_DIRECTIVES = 5_000
PAGE = 500
#: Without its character set, which is added to every text.
MEDIA_TYPE = CONTENT_TYPE_LATEST.partition("; charset")[0]
#: Nor is more looked through for what waits than these runs, the newest first.
MOST_OPEN_RUNS = 5_000
#: The status of each is looked up, so of fewer.
MOST_STATUSES = 1_000
MOST_CAUSES, OTHER_CAUSE = 100, "other"


class Metrics:
    """The counters of one application; they begin at zero with it. It is also what the log's writer is observed by."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self._requests = Counter(
            "steersman_http_requests",
            "Answers by method, route and status.",
            ("method", "route", "status"),
            registry=registry,
        )
        self._commands = Histogram(
            "steersman_command_seconds",
            "From a decoded command to its durable facts.",
            buckets=SECONDS,
            registry=registry,
        )
        self._appends = Histogram(
            "steersman_append_seconds",
            "From the moment an append is handed to the log until its facts are durable.",
            buckets=SECONDS,
            registry=registry,
        )
        self._batches = Histogram(
            "steersman_append_batch_facts",
            "How many facts one transaction of the log stored.",
            buckets=FACTS,
            registry=registry,
        )
        self._failed_turns = Counter(
            "steersman_failed_turns",
            "Agents' runs that failed in this process, by the cause in a word.",
            ("cause",),
            registry=registry,
        )
        self._causes = set[str]()
        self._gauges = _Gauges(registry)

    async def count(self, message: Message, scope: Scope) -> None:
        """Count an answer as it begins. Routes are counted by their template, so that ids make no new series."""
        if message["type"] != "http.response.start" or scope["type"] != "http":
            return
        route = cast("str", scope.get("path_template") or "unmatched")
        method = scope["method"] if scope["method"] in METHODS else "other"
        self._requests.labels(method, route, str(message["status"])).inc()

    @contextmanager
    def command(self) -> Generator[None]:
        """Measure a command that is stored; what is refused does not count."""
        began = monotonic()
        yield
        self._commands.observe(monotonic() - began)

    def committed(self, facts: int, seconds: Sequence[float]) -> None:
        """Measure a transaction of the log, and each append in it."""
        self._batches.observe(facts)
        for one in seconds:
            self._appends.observe(one)

    def turn_failed(self, cause: str) -> None:
        """Count an agent's run that failed. Causes are words of ours; should one make up many, they count as one."""
        if len(self._causes) < MOST_CAUSES:
            self._causes.add(cause)
        self._failed_turns.labels(cause if cause in self._causes else OTHER_CAUSE).inc()

    def render(self, services: Services) -> bytes:
        """Return everything, the gauges as they are now; without the log those about it stay as they were."""
        self._gauges.look(services)
        return generate_latest(self.registry)


class _Gauges:
    """What is looked up when somebody asks. No value costs more than a few rows, however long the log is."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, words: str, *labels: str) -> Gauge:
            return Gauge(name, words, labels, registry=registry)

        self._build = gauge("steersman_build", "1, for the release that runs.", "version")
        self._log_up = gauge("steersman_log_up", "Whether the log and the views could be read just now.")
        self._rolled_back = gauge(
            "steersman_log_rolled_back", "1 once the store was seen to be put back: nothing more is stored."
        )
        self._redis_up = gauge("steersman_redis_up", "0 while a Redis is configured and cannot be reached, else 1.")
        self._position = gauge("steersman_log_position", "The last position of the log.")
        self._view_lag = gauge("steersman_view_lag_facts", "How many facts a view has not folded yet.", "view")
        self._quarantined = gauge("steersman_quarantined_facts", "Facts that this release cannot decode.")
        self._tampered = gauge(
            "steersman_log_tampered",
            "Places in the log's store that this process read and found changed behind its back.",
        )
        self._damages = gauge(
            "steersman_log_damages",
            "What this process found that the log does not hold as it was signed: `damages` of /health.",
        )
        self._outstanding = gauge(
            "steersman_outstanding_directives", "Directives that are not closed, by the age of their receipt.", "age"
        )
        self._attention = gauge(
            "steersman_directives_needing_attention", "Directives that wait for a person to say what becomes of them."
        )
        self._held = gauge(
            "steersman_held_runs", "Runs in which something stands in the way, by who can mend it.", "waits_for"
        )
        self._waiting = gauge("steersman_waiting", "What waits for somebody, by kind: see GET /api/waiting.", "kind")
        self._waiting_seconds = gauge(
            "steersman_waiting_oldest_seconds", "For how long the oldest of each kind waits; 0: none does.", "kind"
        )
        self._runs = gauge(
            "steersman_runs", "Runs that are not closed, the newest thousand, by status: see GET /api/runs.", "status"
        )
        self._seen_statuses = set[str]()
        self._places = gauge(
            "steersman_agent_places", "Places for agents in this process, and who is beside them.", "state"
        )
        self._webhooks = gauge(
            "steersman_webhooks", "Webhooks: active, failing (tried again) or disabled (somebody has to look).", "state"
        )
        self._command_failures = gauge(
            "steersman_notify_command_failures", "How often in a row the notification command has failed."
        )
        self._subscribers = gauge("steersman_feed_subscribers", "Clients that listen to a feed of this process.")
        self._agents = gauge("steersman_agent_processes", "Agents that this process has running.")
        self._leases = gauge("steersman_leases", "Leases: held by this process, or stale, whoever had them.", "state")
        self._free = gauge("steersman_data_free_bytes", "Free space where the data directory is.")

    def look(self, services: Services) -> None:
        """Take the values of this moment."""
        self._build.labels(services.settings.version).set(1)
        self._subscribers.set(services.feed.subscribers)
        self._agents.set(services.counts.agents())
        for state, count in services.counts.places().items():
            self._places.labels(state).set(count)
        self._rolled_back.set(rolled_back(services) is not None)
        self._redis_up.set(services.redis() != "unavailable")
        if (space := disk_space(services.data_dir)) is not None:
            self._free.set(space[0])
        try:
            self._look_into_stores(services)
        except LogTampered:
            self._log_up.set(0)
            self._tampered.set(1)
        except LogUnavailable:
            self._log_up.set(0)
        else:
            self._log_up.set(1)
        # Last: what was just read may have shown more.
        unread = (*services.feed.quarantined, *services.findings.undecodable)
        self._quarantined.set(len({one.position for one in unread}))
        self._damages.set(len(services.findings.damages))

    def _look_into_stores(self, services: Services) -> None:
        head = services.log.head()
        look_at_newest(services, head)
        self._position.set(head)
        self._tampered.set(len(alarms(services)))
        for view in VIEWS:
            self._view_lag.labels(view.name).set(max(0, head - services.views.position(view.name)))
        for age, count in by_age(_received(services.views), services.clock.now()).items():
            self._outstanding.labels(age).set(count)
        waiting = services.views.list(
            outstanding_directives.VIEW.name, outstanding_directives.NEEDS_ATTENTION, limit=PAGE
        )
        self._attention.set(len(waiting))
        held = services.views.list(held_runs.VIEW.name, held_runs.GROUP, limit=PAGE)
        waits_for = [set(held_runs.VIEW.decode(row.body).waits_for.values()) for row in held]
        for who in get_args(WaitsFor):
            self._held.labels(who).set(sum(who in whom for whom in waits_for))
        self._look_at_waiting(services.views, services.clock.now())
        self._look_at_statuses(services.views)
        self._look_at_receivers(services)
        for state, count in services.counts.leases().items():
            self._leases.labels(state).set(count)

    def _look_at_waiting(self, views: Views, now: datetime) -> None:
        since = dict[str, list[datetime]]()
        for item in _waiting(views):
            since.setdefault(item.kind, []).append(datetime.fromisoformat(item.since))
        for kind in get_args(WaitingKind):
            found = since.get(kind, [])
            self._waiting.labels(kind).set(len(found))
            self._waiting_seconds.labels(kind).set((now - min(found)).total_seconds() if found else 0)

    def _look_at_statuses(self, views: Views) -> None:
        counts = Counted(_statuses(views))
        # What there was once is told as none, or the last number would stand for ever.
        self._seen_statuses |= counts.keys()
        for status in self._seen_statuses:
            self._runs.labels(status).set(counts[status])

    def _look_at_receivers(self, services: Services) -> None:
        failing = {one.id: one.failures for one in services.receivers.every()}
        counts = Counted[str]()
        for row in services.views.list(webhooks.VIEW.name, webhooks.GROUP, limit=PAGE):
            webhook = webhooks.VIEW.decode(row.body)
            counts["failing" if failing.get(webhook.webhook_id) else "active"] += webhook.enabled
            counts["disabled"] += not webhook.enabled
        for state in ("active", "failing", "disabled"):
            self._webhooks.labels(state).set(counts[state])
        self._command_failures.set(failing.get(COMMAND_ID, 0))


def by_age(received: Iterator[datetime], now: datetime) -> dict[str, int]:
    """Return how many there are of each age."""
    counts = dict.fromkeys((*(name for name, _ in AGES), OLDEST), 0)
    for at in received:
        age = (now - at).total_seconds()
        counts[next((name for name, limit in AGES if age < limit), OLDEST)] += 1
    return counts


def _received(views: Views) -> Iterator[datetime]:
    """Give the moments at which open directives were received, the oldest first."""
    view, before = outstanding_directives.VIEW, None
    for _ in range(MOST_DIRECTIVES // PAGE):
        rows = views.list(view.name, outstanding_directives.OPEN, before=before, limit=PAGE)
        yield from (datetime.fromisoformat(view.decode(row.body).received_at) for row in rows)
        if len(rows) < PAGE:
            return
        before = rows[-1].order


def _statuses(views: Views) -> Iterator[str]:
    """Give the status of each of the newest open runs."""
    for row in views.list(open_runs.VIEW.name, open_runs.GROUP, limit=MOST_STATUSES):
        run = views.get(run_list.VIEW.name, open_runs.VIEW.decode(row.body).run_id)
        if run is not None:
            yield run_list.VIEW.decode(run).status


def _waiting(views: Views) -> Iterator[WaitingItem]:
    """Give what waits in the projects of the newest open runs: something that waits is in an open run."""
    runs = views.list(open_runs.VIEW.name, open_runs.GROUP, limit=MOST_OPEN_RUNS)
    for project_id in {open_runs.VIEW.decode(run.body).project_id for run in runs}:
        for row in views.list(waiting.VIEW.name, project_id, limit=PAGE):
            yield from waiting.VIEW.decode(row.body).items


@get("/metrics", sync_to_thread=True, opt=PUBLIC, include_in_schema=False)
def metrics_page(services: Given, metrics: NamedDependency[SkipValidation[Metrics]]) -> Response[bytes]:
    """Return the metrics in Prometheus' text format."""
    return Response(metrics.render(services), media_type=MEDIA_TYPE)
