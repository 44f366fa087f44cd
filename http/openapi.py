"""The description of the API: OpenAPI 3.1 as JSON at /schema, exact enough to make a client, or a fuzzer, from."""

import re
from copy import deepcopy
from typing import Any

import msgspec
from litestar import Request
from litestar.openapi import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin, OpenAPIRenderPlugin
from litestar.openapi.spec import Components, SecurityScheme

from .event_catalogue import CATALOGUE_NAME, event_schemas
from .sent_notices import notice_schemas, sent_notices
from .steering.fleet_batch import FleetSteerRequest
from .steering.worker_steering import WorkerSteerRequest

PUBLIC_PATHS = frozenset({"/", "/health", "/api/health", "/api/server/info"})
PROOF_PATH = "/api/receipts/{directive}"
#: Rows of views remember things under this name, and no client is shown them.
PRIVATE = "internal"
#: What a request may hold is closed; answers may grow.
CLOSED = ("ProposedSubtask",)
#: What has an event's payload.
EVENTS = ("EventBody", "LogEventBody")
#: What an operation is called where its handler's name, read alone, says too little. Clients are made from these.
NAMES = {
    "banner": "showBanner",
    "health": "showHealth",
    "apiHealth": "showApiHealth",
    "serverInfo": "showServerInfo",
    "confirm": "confirmOutcomeSpec",
    "revise": "reviseOutcomeSpec",
    "listFiles": "listAssemblyFiles",
    "showFile": "showAssemblyFile",
    "showAssembly": "listAssemblyWorkspace",
    "showContent": "showAssemblyContent",
    "showWorkspace": "listRunWorkspace",
    "reviewRun": "reviewAssembly",
    "review": "reviewRun",
    "commit": "commitRun",
    "sendBack": "requestChanges",
    "cancel": "cancelRun",
    "archive": "archiveRun",
    "retry": "retryRun",
    "deleteOne": "deleteRun",
    "steer": "steerRun",
    "resolve": "resolveDirective",
    "answer": "answerQuestion",
    "autoApprove": "setAutoApprove",
    "autopilot": "setAutopilot",
}
#: These doors look at who may knock before they look at the body, so litestar knows nothing of it.
BODIES: dict[str, type[WorkerSteerRequest]] = {
    "/tasks/{task_id}/steer": WorkerSteerRequest,
    "/api/fleet/steer": FleetSteerRequest,
}
EXAMPLES: dict[str, Any] = {
    "ProjectRequest": {"name": "my-project", "origin": "blank", "working_directory": "/srv/repositories/my-project"},
    "MemberRequest": {"role_id": "software-engineer"},
    "OrchestrationRequest": {
        "goal": "Make the onboarding flow resumable across sessions",
        "start_mode": "direct",
        "plan": {
            "subtasks": [
                {"title": "Persist sessions", "scope": "The session store", "files": ["src/sessions.py"]},
                {"title": "Resume the wizard", "dependsOn": [0]},
            ]
        },
    },
    "ReviewRequest": {"approved": True},
    "Problem": {
        "type": "urn:steersman:problem:no_team",
        "title": "No team",
        "status": 409,
        "detail": "This project has no team. Add a member before starting an orchestration.",
        "instance": "/api/projects/a1b2c3d4-f2f8-418c-958e-aae3e4921ba6/orchestrations",
        "error": "no_team",
        "message": "This project has no team. Add a member before starting an orchestration.",
        "retryable": False,
    },
}
POSITION = {"Steersman-Position": {"description": "The log's position with it.", "schema": {"type": "string"}}}
REPLAYED = {"Idempotent-Replayed": {"description": "`true`: the first answer again.", "schema": {"type": "string"}}}
LOCATION = {"Location": {"description": "What was created.", "schema": {"type": "string"}}}
ETAG = {"ETag": {"description": "Moves with the run; for `If-Match`.", "schema": {"type": "string"}}}
RETRY_AFTER = {"Retry-After": {"description": "Seconds to wait.", "schema": {"type": "string"}}}


class Description(JsonRenderPlugin):
    """The description as litestar makes it, put right where litestar cannot know better. It is made once."""

    _document: bytes | None = None

    def render(self, request: Request[Any, Any, Any], openapi_schema: dict[str, Any]) -> bytes:
        """Return the document."""
        if self._document is None:
            self._document = super().render(request, described(openapi_schema))  # pyright: ignore[reportUnknownMemberType]
        return self._document


def config(version: str, *more: OpenAPIRenderPlugin) -> OpenAPIConfig:
    """Return how the description is made, and what else shows it."""
    bearer = SecurityScheme(type="http", scheme="bearer", description="A token from `steersman token issue`.")
    return OpenAPIConfig(
        title="Steersman",
        version=version,
        description="An event-sourced control plane that runs and steers fleets of coding agents.",
        path="/schema",
        render_plugins=[Description(path=["/openapi.json", "/"]), *more],
        components=Components(security_schemes={"bearer": bearer}),
        security=[{"bearer": []}],
        use_handler_docstrings=True,
    )


def described(generated: dict[str, Any]) -> dict[str, Any]:
    """Return the generated document, put right."""
    document = deepcopy(generated)
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            _describe(path, method, operation)
    schemas = document["components"]["schemas"]
    for path, body in BODIES.items():
        (content,), named = msgspec.json.schema_components([body], ref_template="#/components/schemas/{name}")
        schemas |= named
        document["paths"][path]["post"]["requestBody"] = {
            "content": {"application/json": {"schema": content}},
            "required": True,
        }
    for name, schema in schemas.items():
        schema.get("properties", {}).pop(PRIVATE, None)
        if name.endswith("Request") or name in CLOSED:
            schema["additionalProperties"] = False
        if name in EXAMPLES:
            schema["examples"] = [EXAMPLES[name]]
    used = _used(document["paths"], schemas)
    document["components"]["schemas"] = {name: schema for name, schema in schemas.items() if name in used}
    document["components"]["schemas"] |= event_schemas() | notice_schemas()
    document["webhooks"] = sent_notices()
    for name in EVENTS:
        payload = document["components"]["schemas"][name]["properties"]["payload"]
        payload["description"] = f"What the event says: the member of `{CATALOGUE_NAME}` that its `type` names."
    _whole_numbers(document)
    return document


def _describe(path: str, method: str, operation: dict[str, Any]) -> None:
    handler: str = operation["summary"]
    handler = handler[0].lower() + handler[1:]
    operation["operationId"] = name = NAMES.get(handler, handler)
    operation["summary"] = re.sub("(?=[A-Z])", " ", name).capitalize()
    operation["tags"] = [_tag(path)]
    if path in PUBLIC_PATHS:
        operation["security"] = []
    for parameter in operation.get("parameters", ()):
        if parameter["name"] in ("run_id", "project_id"):
            parameter["schema"] = {"type": "string", "format": "uuid"}
        if parameter["name"] == "path":
            parameter["schema"] = {"type": "string", "minLength": 1}
            parameter["description"] = "A path within the repository; its slashes are sent as they are."
        # A header or a query parameter is there or it is not: neither can be null.
        if "null" in [kind.get("type") for kind in parameter["schema"].get("oneOf", ())]:
            kinds = [kind for kind in parameter["schema"].pop("oneOf") if kind.get("type") != "null"]
            parameter["schema"] |= kinds[0]
    for content in (response.get("content", {}) for response in operation["responses"].values()):
        if file := content.get("application/octet-stream"):
            file["schema"] = {"type": "string", "format": "binary"}
    if path == PROOF_PATH:
        # Whoever wants the proof as a file asks for text.
        operation["responses"]["200"]["content"]["text/plain"] = {"schema": {"type": "string"}}
    for status, response in operation["responses"].items():
        response["headers"] = response.get("headers", {}) | _headers(path, method, status)


def _tag(path: str) -> str:
    first, *more = path.strip("/").split("/")
    return more[0] if first == "api" else first if more else "service"


def _headers(path: str, method: str, status: str) -> dict[str, Any]:
    if not status.startswith("2"):
        return RETRY_AFTER if status in ("409", "503") else {}
    if method == "post":
        return POSITION | REPLAYED | (LOCATION if status == "201" else {})
    if path == "/api/events":
        return POSITION
    return ETAG if path == "/api/runs/{run_id}" else {}


def _used(node: Any, schemas: dict[str, Any]) -> set[str]:
    """Return the names of the schemas that are referred to from here, directly or not."""
    used: set[str] = set()
    left: list[Any] = [node]
    while left:
        found = left.pop()
        if isinstance(found, dict):
            values: list[Any] = list(found.values())  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
            name = str(found.get("$ref", "")).rpartition("/")[2]  # pyright: ignore[reportUnknownArgumentType, reportUnknownMemberType]
            if name and name not in used:
                used.add(name)
                values.append(schemas[name])
            left.extend(values)
        elif isinstance(found, list):
            left.extend(found)  # pyright: ignore[reportUnknownArgumentType]
    return used


def _whole_numbers(node: Any) -> None:
    """Write the limits of integers as integers."""
    left: list[Any] = [node]
    while left:
        found = left.pop()
        if isinstance(found, dict):
            for key, value in found.items():  # pyright: ignore[reportUnknownVariableType]
                if isinstance(value, float) and value.is_integer():
                    found[key] = int(value)
                left.append(value)
        elif isinstance(found, list):
            left.extend(found)  # pyright: ignore[reportUnknownArgumentType]
