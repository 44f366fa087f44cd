"""No success waits for a time limit: with limits of an hour every route answers as soon as what it tells of is true."""

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from threading import Event, Thread
from typing import Any

import httpx
import pytest
from litestar.handlers import HTTPRouteHandler

from steersman.domain.facts.run import CoordinatorRun
from steersman.domain.rejected import Rejected
from steersman.domain.work import workers
from steersman.domain.work.turns import Overtaken
from steersman.http.app import ROUTES
from steersman.http.request.given import Services
from steersman.tests.http.conftest import Api, Story, served

HOUR = 3_600.0
#: Far more than anything takes that does not wait for its limit.
PATIENCE_SECONDS = 60.0
#: They have no end while the run has none.
FEEDS = {"/api/runs/{run_id:str}/stream", "/api/events/stream"}


def end(run: CoordinatorRun, stop: str) -> Any:
    """Nothing of the run is alive."""
    return workers.confirm_end(run, stop, {child: () for child in workers.to_be_ended(run, stop)}, datetime.now(UTC))


@contextmanager
def machine(story: Story) -> Iterator[None]:
    """Do what is decided about the story's run: end what is stopped, and merge what is approved."""
    done = Event()

    def work() -> None:
        while not done.wait(0.02):
            with suppress(Rejected, Overtaken, AssertionError):
                story.advance()
                run = story.run
                for stop in (d.directive_id for d in run.open_directives() if d.stops_run and d.action):
                    story.decide(lambda found, stop=stop: end(found, stop))
                if run.merging and not run.ended and run.assembly and run.assembly.head:
                    story.merge(run.assembly.head)

    thread = Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(PATIENCE_SECONDS)


@pytest.fixture(scope="module")
def patient(services: Services) -> Iterator[str]:
    """A server whose every limit is an hour."""
    settings = replace(services.settings, min_position_seconds=HOUR, effect_seconds=HOUR, draft_seconds=HOUR)
    with served(replace(services, settings=settings)) as url:
        yield url


@pytest.fixture
def begun(services: Services, patient: str, repository: Path) -> Iterator[Story]:
    """A story that is told to the patient server."""
    api = Api(services, patient)
    with api.stack, ExitStack() as stack:
        story = Story(api, repository)
        story.client.timeout = httpx.Timeout(PATIENCE_SECONDS)
        stack.callback(story.client.close)
        yield story


def post(path: str, body: Any = None) -> Callable[[Story], httpx.Response]:
    return lambda story: story.client.post(path.format(run=story.run_id), json=body)


AT_THE_GATE: dict[str, Callable[[Story], httpx.Response]] = {
    "commit": post("/api/runs/{run}/commit"),
    "approve": post("/api/runs/{run}/review", {"approved": True}),
    "decline": post("/api/runs/{run}/review", {"approved": False}),
    "send back by review": post("/api/runs/{run}/review", {"approved": False, "request_changes": True}),
    "send back": post("/api/runs/{run}/request-changes", {"comment": "More."}),
    "approve the assembly": post("/api/runs/{run}/assembly/review", {"approved": True}),
    "decline the assembly": post("/api/runs/{run}/assembly/review", {"approved": False}),
    "cancel": post("/api/runs/{run}/cancel"),
    "stop": post("/api/runs/{run}/steer", {"kind": "stop"}),
    "delete": lambda story: story.client.delete(f"/api/runs/{story.run_id}"),
}


@pytest.mark.parametrize("name", AT_THE_GATE)
def test_a_decision_at_the_gate_is_answered_as_soon_as_it_is_carried_out(begun: Story, name: str) -> None:
    begun.to_gate()
    with machine(begun):
        assert AT_THE_GATE[name](begun).is_success


@pytest.mark.parametrize("name", ["commit", "approve"])
def test_a_merge_is_told_of_as_merged(begun: Story, name: str) -> None:
    begun.to_gate()
    with machine(begun):
        assert AT_THE_GATE[name](begun).json()["status"] == "merged"


def test_an_approval_that_was_carried_out_before_is_answered_again_at_once(begun: Story) -> None:
    begun.to_gate()
    with machine(begun):
        assert AT_THE_GATE["approve"](begun).json()["status"] == "merged"
    assert AT_THE_GATE["approve"](begun).json()["status"] == "merged"


def test_every_route_that_shows_something_shows_it_at_once(begun: Story) -> None:
    begun.to_gate()
    paths = {
        path
        for handler in ROUTES
        for path in handler.paths
        if isinstance(handler, HTTPRouteHandler) and "GET" in handler.http_methods
    }
    filling = {"run_id": begun.run_id, "project_id": begun.project_id, "name": "x", "directive": "x", "path": "README"}
    filling["webhook_id"] = "x"
    for path in sorted(paths - FEEDS):
        filled = re.sub(r"\{(\w+):\w+\}", lambda found: filling[found[1]], path)
        shown = begun.client.get(filled, headers=begun.api.settled())
        assert shown.status_code < 500 or shown.json()["error"] == "log_not_signed", path
