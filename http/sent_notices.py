"""What the service sends to webhooks, as the API's description tells it: OpenAPI has a place of its own for that."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from ..application.notifying.cloud_event import MEDIA_TYPE
from ..projections.waiting import WaitingKind, WaitsForWhom

Moment = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]
HEADERS = {
    "webhook-id": "The event's id, the same whenever it is sent again.",
    "webhook-timestamp": "When this attempt was made, in seconds since 1970.",
    "webhook-signature": "`v1,` and the base64 of HMAC-SHA256 over `id.timestamp.body`; one or two, a blank between them.",
}


class NoticeLinks(msgspec.Struct, frozen=True, kw_only=True):
    """Where more is read, by whoever may."""

    run: str
    explain: str
    waiting: str


class NoticeData(msgspec.Struct, frozen=True, kw_only=True):
    """What happened: ids and states, and no words. What says nothing about this type of event is left out."""

    project_id: str
    run_id: str | UnsetType = UNSET
    child_run_id: str | UnsetType = UNSET
    item_kind: WaitingKind | UnsetType = UNSET
    item_id: str | UnsetType = UNSET
    waits_for: WaitsForWhom | UnsetType = UNSET
    since: Moment | UnsetType = UNSET
    status: str | UnsetType = UNSET
    reason: str | UnsetType = UNSET
    webhook_id: str | UnsetType = UNSET
    position: int
    topic: str
    links: NoticeLinks | UnsetType = UNSET


class NoticeEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A CloudEvent: something begins or ceases to wait for somebody, or a run has ended."""

    specversion: Literal["1.0"]
    id: str
    source: str
    type: Literal[
        "io.steersman.waiting.began",
        "io.steersman.waiting.ended",
        "io.steersman.run.ended",
        "io.steersman.webhook.test",
    ]
    subject: str
    time: Moment
    datacontenttype: Literal["application/json"]
    sequence: str
    traceparent: str | UnsetType = UNSET
    data: NoticeData


def notice_schemas() -> dict[str, Any]:
    """Return the schemas of what is sent, by name."""
    _, schemas = msgspec.json.schema_components([NoticeEvent], ref_template="#/components/schemas/{name}")
    return schemas


def sent_notices() -> dict[str, Any]:
    """Return the description of the requests that a webhook gets."""
    operation = {
        "operationId": "receiveNotice",
        "summary": "Receive notice",
        "description": "Sent to the webhooks of a project, in order and at least once, until it is answered with 2xx.",
        "security": [],
        "parameters": [
            {"name": name, "in": "header", "required": True, "description": words, "schema": {"type": "string"}}
            for name, words in HEADERS.items()
        ],
        "requestBody": {
            "required": True,
            "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/NoticeEvent"}}},
        },
        "responses": {
            "2XX": {"description": "It is heard."},
            "410": {"description": "Nothing more is wanted: the webhook is disabled."},
            "default": {"description": "It is sent again later."},
        },
    }
    return {"notice": {"post": operation}}
