"""What /metrics tells of the log, the views, directives, feeds, agents and leases; and that it stays cheap and bounded."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from steersman.adapters.clock import SystemClock
from steersman.adapters.stores.memory_views import MemoryViews
from steersman.adapters.stores.sqlite_log import SqliteLog
from steersman.application.ports.log import LogUnavailable
from steersman.application.writer.run_log import RunLog
from steersman.domain.kinds.catalogue import CATALOGUE
from steersman.domain.steering.follow import moved
from steersman.http.request.given import Counts, Services
from steersman.http.service.metrics import MOST_DIRECTIVES, Metrics, by_age
from steersman.projections import outstanding_directives
from steersman.projections.catalogue import VIEWS

from .conftest import Api, served
from .feeds import listening

Samples = Mapping[tuple[str, tuple[str, ...]], float]
#: Every label there is, and none of them has a value per run, user, project or directive.
LABELS = {"cause", "kind", "method", "route", "status", "view", "age", "state", "version", "le", "waits_for"}


def scrape(url: str) -> Samples:
    """Return every sample by its name and the values of its labels."""
    text = httpx.get(f"{url}/metrics").raise_for_status().text
    return {
        (sample.name, tuple(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def outstanding(samples: Samples) -> dict[str, float]:
    """Return how many directives there are of each age."""
    return {labels[0]: n for (name, labels), n in samples.items() if name == "steersman_outstanding_directives"}


def settled(api: Any) -> None:
    """Wait until the views have folded everything."""
    for view in VIEWS:
        assert api.services.views.wait(view.name, api.services.log.head(), 20)


class Later:
    """A clock that is ahead."""

    def __init__(self, ahead: timedelta) -> None:
        self._ahead = ahead

    def now(self) -> datetime:
        """Return a moment to come."""
        return datetime.now(UTC) + self._ahead


class HeadOnly:
    """A log of a hundred thousand facts that shows none but the newest."""

    def head(self) -> int:
        """Return the last position."""
        return 100_000

    def read(self, after: int, limit: int) -> list[object]:
        """Return the newest fact."""
        assert (after, limit) == (99_999, 1)
        return [object()]


class Away:
    """A log that is away."""

    def head(self) -> int:
        """Raise LogUnavailable."""
        raise LogUnavailable("the log is away")


@contextmanager
def on_sqlite(services: Services, path: Path) -> Iterator[tuple[Api, str]]:
    """Serve the API on a log whose writer is measured."""
    metrics, clock = Metrics(), SystemClock()
    log = SqliteLog(path / "log.db", CATALOGUE, observer=metrics)
    try:
        measured = replace(services, log=log, runs=RunLog(log, clock), clock=clock)
        with served(measured, measured=metrics) as url:
            api = Api(measured, url)
            with api.stack:
                yield api, url
    finally:
        log.close()


def test_every_append_is_timed_and_every_transaction_counted(
    services: Services, repository: Path, tmp_path: Path
) -> None:
    with on_sqlite(services, tmp_path) as (api, url):
        assert scrape(url)["steersman_append_seconds_count", ()] == 0
        body = {"name": "Shop", "origin": "blank", "working_directory": str(repository)}
        client = api.client()
        project = client.post("/api/projects", json=body).raise_for_status().json()["project_id"]
        client.post(f"/api/projects/{project}/team/members", json={"role_id": "tester"}).raise_for_status()
        client.post("/api/projects", json={**body, "origin": "nowhere"})
        samples = scrape(url)
        assert samples["steersman_append_seconds_count", ()] == 2
        assert 0 < samples["steersman_append_seconds_sum", ()] < 20
        assert samples["steersman_append_batch_facts_count", ()] == 2
        assert samples["steersman_append_batch_facts_sum", ()] == samples["steersman_log_position", ()]


def test_an_open_directive_is_counted_by_its_age_until_it_is_closed(api: Any, url: str, story: Any) -> None:
    story.start()
    story.advance()
    settled(api)
    before = outstanding(scrape(url))
    assert set(before) == {"lt1m", "lt10m", "lt1h", "ge1h"}
    body = {"kind": "redirect", "instruction": "Look here.", "target_child_run_id": story.child(1)}
    directive_id = story.client.post(f"/api/runs/{story.run_id}/steer", json=body).raise_for_status().json()["id"]
    settled(api)
    assert outstanding(scrape(url)) == {**before, "lt1m": before["lt1m"] + 1}
    for minutes, age in ((2, "lt10m"), (20, "lt1h"), (100, "ge1h")):
        with served(replace(api.services, clock=Later(timedelta(minutes=minutes)))) as later:
            assert outstanding(scrape(later))[age] == sum(before.values()) + 1
    story.decide(lambda run: (moved(run, run.directives[directive_id], "superseded", "x"),))
    settled(api)
    assert outstanding(scrape(url)) == before


def test_a_directive_that_needs_a_person_is_counted_until_somebody_resolves_it(api: Any, url: str, story: Any) -> None:
    story.start()
    story.advance()
    body = {"kind": "redirect", "instruction": "Look here.", "target_child_run_id": story.child(1)}
    directive_id = story.client.post(f"/api/runs/{story.run_id}/steer", json=body).raise_for_status().json()["id"]
    story.decide(lambda run: (moved(run, run.directives[directive_id], "needs_attention", "x"),))
    settled(api)
    samples = scrape(url)
    assert samples["steersman_directives_needing_attention", ()] == 1
    story.client.post(
        f"/api/runs/{story.run_id}/steering/{directive_id}/resolve", json={"action": "abandon"}
    ).raise_for_status()
    settled(api)
    after = scrape(url)
    assert after["steersman_directives_needing_attention", ()] == 0
    assert outstanding(after) == outstanding(samples)


def test_whoever_listens_to_a_feed_is_counted_until_they_leave(api: Any, url: str, story: Any) -> None:
    story.start()
    settled(api)
    name = ("steersman_feed_subscribers", ())
    assert scrape(url)[name] == 0
    with listening(story.client, f"/api/runs/{story.run_id}/stream") as feed:
        next(feed.events())
        assert scrape(url)[name] == 1
    for _ in range(200):  # the server notices a client that left at the next frame or comment
        if scrape(url)[name] == 0:
            return
        api.services.views.wait("run_list", 1_000_000, 0.1)
    raise AssertionError("somebody who left is still counted")


def test_agents_and_leases_are_counted_by_whoever_wires_the_process(services: Services) -> None:
    counts = Counts(agents=lambda: 3, leases=lambda: {"held": 2, "stale": 1})
    with served(services) as plain, served(replace(services, counts=counts)) as wired:
        assert scrape(plain)["steersman_agent_processes", ()] == 0
        assert [scrape(plain)["steersman_leases", (state,)] for state in ("held", "stale")] == [0, 0]
        assert scrape(wired)["steersman_agent_processes", ()] == 3
        assert [scrape(wired)["steersman_leases", (state,)] for state in ("held", "stale")] == [2, 1]


def test_the_page_reads_no_fact_but_the_newest_however_long_the_log_is(services: Services) -> None:
    long: Any = HeadOnly()
    with served(replace(services, log=long)) as url:
        samples = scrape(url)
    assert samples["steersman_log_position", ()] == 100_000
    lags = {labels[0]: lag for (name, labels), lag in samples.items() if name == "steersman_view_lag_facts"}
    assert set(lags) == {view.name for view in VIEWS}


def test_without_the_log_the_page_still_answers_and_says_so(services: Services) -> None:
    away: Any = Away()
    with served(replace(services, log=away)) as url:
        samples = scrape(url)
    assert samples["steersman_log_up", ()] == 0
    assert samples["steersman_data_free_bytes", ()] > 0
    with served(services) as url:
        assert scrape(url)["steersman_log_up", ()] == 1


def test_no_label_has_a_value_for_every_run(api: Any, url: str, story: Any) -> None:
    story.start()
    story.advance()
    story.client.get(f"/api/runs/{story.run_id}").raise_for_status()
    story.client.request("BREW", f"/api/runs/{story.run_id}")
    settled(api)
    text = httpx.get(f"{url}/metrics").text
    families = [f for f in text_string_to_metric_families(text) if f.name.startswith("steersman_")]
    assert {label for family in families for sample in family.samples for label in sample.labels} <= LABELS
    for secret in (story.run_id, story.project_id, story.child(1), api.name("alice"), "BREW"):
        assert secret not in text


@pytest.mark.parametrize("amount", [0, 1, MOST_DIRECTIVES + 1])
def test_no_more_directives_are_looked_at_than_the_page_can_afford(services: Services, amount: int) -> None:
    rows = [
        outstanding_directives.OutstandingDirective(
            directive_id=str(n), root="r", position=n, received_at=datetime.now(UTC).isoformat()
        )
        for n in range(1, amount + 1)
    ]
    views: Any = MemoryViews()
    view = outstanding_directives.VIEW
    changes = {row.directive_id: (*view.place(row), msgspec.json.encode(row)) for row in rows}
    views.begin(view.name, view.version, beside=None)
    assert views.extend(view.name, views.heads(view.name)[0].generation, after=0, upto=1, fold=lambda _: changes)
    with served(replace(services, views=views)) as url:
        assert sum(outstanding(scrape(url)).values()) == min(amount, MOST_DIRECTIVES)


def test_an_age_counts_up_to_its_bound() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    ages = (-5, 0, 59.9, 60, 599, 600, 3_599, 3_600, 10**8)
    counted = by_age((now - timedelta(seconds=age) for age in ages), now)
    assert counted == {"lt1m": 3, "lt10m": 2, "lt1h": 2, "ge1h": 2}
