"""A receipt comes as JSON or as a proof in text, as the client's `Accept` wants it."""

from typing import Any

import pytest

TEXT, JSON = "text/plain", "application/json"


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("", JSON),
        ("*/*", JSON),
        ("image/png", JSON),
        (TEXT, TEXT),
        ("TEXT/Plain ; Q=1", TEXT),
        ("text/*", TEXT),
        ("text/plain;q=0", JSON),
        ("text/plain;q=0.000, */*", JSON),
        ("*/*;q=0", JSON),
        ("application/json;q=0, */*;q=0.1", TEXT),
        ("application/json, text/plain, */*", JSON),
        ("text/plain, application/json", TEXT),
        ("text/plain;q=0.5, application/json;q=0.6", JSON),
        ("*/*, text/plain;q=0.1", JSON),
        ("text/plain;q=nonsense", TEXT),
        ("text/plain;q=inf", TEXT),
        (",;,", JSON),
    ],
)
def test_a_receipt_comes_as_what_is_accepted_and_never_as_what_is_refused(story: Any, accept: str, kind: str) -> None:
    story.start()
    body = {"kind": "stop"}
    directive = story.client.post(f"/api/runs/{story.run_id}/steer", json=body).raise_for_status().json()["directiveId"]
    response = story.client.get(f"/api/receipts/{directive}", headers={"Accept": accept})
    assert (response.status_code, response.headers["content-type"].partition(";")[0]) == (200, kind)
