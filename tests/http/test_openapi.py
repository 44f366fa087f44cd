"""The description of the API holds: what it says is accepted is, what is answered is described, and nothing is a 500."""

from typing import Any, cast

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import Case
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

#: Every example is a request to a real server, so they are few, and the same ones each time.
EXAMPLES = 8
#: A feed does not end by itself.
FEED = "/stream"
WITHOUT_INPUT = {"/", "/health", "/api/health", "/api/server/info"}
#: A position that no fact has is answered 503; nothing else that a client sends is.
POSITION = "Steersman-Min-Position"
CHECKS = [status_code_conformance, content_type_conformance, response_schema_conformance]


@pytest.fixture
def document(api: Any) -> Any:
    """The description as the service gives it out."""
    return api.anonymous().get("/schema").raise_for_status().json()


def limited() -> Any:
    """How many requests are tried, and which."""
    return settings(
        max_examples=EXAMPLES,
        derandomize=True,
        database=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=["described", "not described"])
def test_no_request_is_a_500_or_answered_in_a_way_that_is_not_described(
    api: Any, story: Any, document: Any, mode: GenerationMode
) -> None:
    story.to_gate()
    ids = {"run_id": story.run_id, "project_id": story.project_id, "path": "README"}
    headers = {"Authorization": story.client.headers["authorization"]}
    tried: set[tuple[str, int]] = set()
    described = schemathesis.openapi.from_dict(document)
    described.config.update(base_url=api.url)
    for operation in (cast("Any", result).ok() for result in described.get_all_operations()):
        if operation.path.endswith(FEED) or (mode is GenerationMode.NEGATIVE and operation.path in WITHOUT_INPUT):
            continue

        @limited()
        @given(case=operation.as_strategy(generation_mode=mode))
        def try_out(case: Case) -> None:
            checks = [*CHECKS]
            if mode is GenerationMode.POSITIVE:
                # What is there is worth more than what is not: most of a route lies behind its ids.
                # What one request deletes, the others after it need.
                if case.method != "DELETE":
                    case.path_parameters.update({name: ids[name] for name in case.path_parameters if name in ids})
                case.headers.pop(POSITION, None)
            elif case.method == "POST":
                checks.append(negative_data_rejection)
            response = case.call(headers=headers)
            tried.add((case.operation.label, response.status_code))
            assert response.status_code < 500 or POSITION in case.headers, response.text
            case.validate_response(response, checks=checks)

        try_out()
    assert len(tried) > 20
    if mode is GenerationMode.POSITIVE:
        assert ("POST /api/projects/{project_id}/orchestrations", 201) in tried
        assert ("GET /api/runs/{run_id}", 200) in tried


def test_the_description_is_one_that_a_client_can_be_made_from(document: Any) -> None:
    assert document["openapi"].startswith("3.1")
    operations = [(path, op) for path, methods in document["paths"].items() for op in methods.values()]
    names = [op["operationId"] for _, op in operations]
    assert len(names) == len(set(names))
    assert {"createProject", "startRun", "reviewRun", "streamRun", "showRun"} <= set(names)
    for path, operation in operations:
        assert operation["description"], path
        assert (operation.get("security") == []) == (path in WITHOUT_INPUT), path
        refused = {s: r for s, r in operation["responses"].items() if s >= "400" and path not in WITHOUT_INPUT}
        for status, response in refused.items():
            schema = response["content"]["application/problem+json"]["schema"]
            assert schema == {"$ref": "#/components/schemas/Problem"}, (path, status)
    assert "internal" not in str(document["components"]["schemas"]).replace("internal_error", "")
    assert document["components"]["securitySchemes"]["bearer"]["scheme"] == "bearer"
    for name, schema in document["components"]["schemas"].items():
        if name.endswith("Request"):
            assert schema["additionalProperties"] is False, name


def test_every_feed_and_every_post_is_described(document: Any) -> None:
    feed = document["paths"]["/api/runs/{run_id}/stream"]["get"]
    assert "text/event-stream" in feed["responses"]["200"]["content"]
    for path, methods in document["paths"].items():
        assert "post" not in methods or "post" in keyed(methods), path
        for method, operation in keyed(methods).items():
            # The body is read for its digest, whatever the method, so any of them can be too large.
            assert {"413", "422"} <= set(operation["responses"]), (method, path)


def keyed(methods: Any) -> dict[str, Any]:
    """The operations of a path that take an idempotency key."""
    return {
        method: operation
        for method, operation in methods.items()
        if "Idempotency-Key" in [parameter["name"] for parameter in operation.get("parameters", ())]
    }
