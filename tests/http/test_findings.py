"""What one surface knows of a log that is not whole, /health knows, too."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import httpx
import pytest

from steersman.application.ports.log import Undecodable
from steersman.application.ports.proofs import OutOfRange
from steersman.application.ports.verdict import AuditVerdict, Finding
from steersman.http.request.findings import Findings
from steersman.http.request.given import Services
from steersman.tests.http.conftest import served


class Damaged:
    """A log one of whose methods fails."""

    def __init__(self, log: Any, method: str, how: Callable[..., Any]) -> None:
        self._log = log
        self._method = method
        self._how = how

    def __getattr__(self, name: str) -> Any:
        return self._how if name == self._method else getattr(self._log, name)


def raising(error: Exception) -> Callable[..., Any]:
    def fails(*_: Any, **__: Any) -> Any:
        raise error

    return fails


def asked(services: Services, story: Any, method: str, how: Callable[..., Any], path: str) -> tuple[Any, Any]:
    """Ask for something that cannot be shown; return that answer, and what /health says then; /metrics counts the same."""
    log = Damaged(services.log, method, how)
    with (
        served(replace(services, log=log, findings=Findings())) as url,
        httpx.Client(base_url=url, headers=story.client.headers, timeout=60) as client,
    ):
        assert method == "read" or client.get("/health").json()["log"] == "ok"
        refused, health = client.get(path), client.get("/health").json()
        assert f"\nsteersman_log_damages {len(health['damages'])}.0\n" in client.get("/metrics").text
        return refused, health


def steered(story: Any) -> str:
    story.start()
    told = story.client.post(f"/api/runs/{story.run_id}/steer", json={"kind": "stop"}).raise_for_status()
    directive_id: str = told.json()["directiveId"]
    return directive_id


def test_a_correction_whose_receipt_is_gone_is_told_by_health(services: Services, story: Any) -> None:
    directive = steered(story)
    for path in (f"/api/runs/{story.run_id}/steering", f"/api/runs/{story.run_id}/steering/{directive}"):
        refused, health = asked(services, story, "receipts", lambda _: {}, path)
        assert (refused.status_code, refused.json()["error"]) == (503, "log_damaged")
        position = services.log.read_stream(f"directive/{directive}")[0].position
        assert [one["position"] for one in health["damages"]] == [position]


def test_a_log_whose_newest_fact_is_gone_says_so_by_itself(services: Services, story: Any) -> None:
    steered(story)
    _, health = asked(services, story, "read", lambda *_: [], "/api/health")
    assert (health["status"], health["log"]) == ("degraded", "damaged")
    assert health["damages"] == [{"reason": "A stored fact is gone", "position": health["position"]}]


@pytest.mark.parametrize("error", [OutOfRange(), LookupError("no such hash"), ValueError("no hash at level 1")])
def test_a_receipt_that_a_cut_log_cannot_prove_is_told_by_health(
    services: Services, story: Any, error: Exception
) -> None:
    directive = steered(story)
    refused, health = asked(services, story, "evidence", raising(error), f"/api/receipts/{directive}")
    assert (refused.status_code, refused.json()["error"]) == (503, "log_damaged")
    assert (health["status"], health["log"]) == ("degraded", "damaged")
    assert health["damages"][0]["position"] == services.log.read_stream(f"directive/{directive}")[0].position


def test_a_fact_that_a_request_cannot_read_is_told_by_health_and_metrics(services: Services, story: Any) -> None:
    steered(story)
    poisoned = raising(Undecodable(7, story.run_id, "of no known shape"))
    refused, health = asked(services, story, "read_run", poisoned, f"/api/runs/{story.run_id}/events")
    assert (refused.status_code, refused.json()["error"]) == (503, "run_quarantined")
    assert health["status"] == "degraded"
    assert [(one["name"], one["position"]) for one in health["quarantined"]] == [(story.run_id, 7)]


def test_an_audit_that_finds_tampering_is_told_by_health(services: Services, story: Any) -> None:
    steered(story)
    bad = AuditVerdict(verdict="tampered", finding=Finding(reason="leaf_mismatch", position=3))
    told, health = asked(services, story, "audit", lambda _: bad, f"/api/runs/{story.run_id}/audit")
    assert told.json()["verdict"] == "tampered"
    assert (health["status"], health["log"]) == ("degraded", "damaged")
    assert health["damages"] == [{"reason": "leaf_mismatch", "position": 3}]
