"""A notice as it is sent: a CloudEvent in JSON, signed as Standard Webhooks has it."""

import base64
import hashlib
import hmac
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from ...projections.notices import NUMBERS_PER_FACT, Notice
from ..ports.notices import SigningSecret

TYPE_PREFIX = "io.steersman."
MEDIA_TYPE = "application/cloudevents+json"
#: What every secret begins with, in Standard Webhooks; the rest is base64.
SECRET_PREFIX = "whsec_"
SECRET_BYTES = 32
#: What Standard Webhooks asks of a secret.
LEAST_SECRET_BYTES, MOST_SECRET_BYTES = 24, 64
#: Members of `data`; the others are the event's own.
DATA = (
    "project_id",
    "run_id",
    "child_run_id",
    "item_kind",
    "item_id",
    "waits_for",
    "since",
    "status",
    "reason",
    "webhook_id",
    "position",
    "topic",
)


def event_id(notice: Notice) -> str:
    """Return what a receiver knows a notice by, however often it is sent."""
    return f"{notice.position}-{notice.number % NUMBERS_PER_FACT + 1}"


def cloud_event(notice: Notice, origin: str) -> bytes:
    """Return the body that tells a notice of the log with this origin: ids, states and links, and no words."""
    data: dict[str, Any] = {name: value for name in DATA if (value := getattr(notice, name)) is not None}
    if notice.run_id is not None:
        data["links"] = {
            "run": f"/api/runs/{notice.run_id}",
            "explain": f"/api/runs/{notice.run_id}/explain",
            "waiting": f"/api/waiting?run_id={notice.run_id}",
        }
    event: dict[str, Any] = {
        "specversion": "1.0",
        "id": event_id(notice),
        "source": f"urn:steersman:{origin}",
        "type": f"{TYPE_PREFIX}{notice.kind}",
        "subject": notice.run_id or notice.project_id,
        "time": notice.at,
        "datacontenttype": "application/json",
        "sequence": f"{notice.number:020}",
        "data": data,
    }
    if notice.traceparent is not None:
        event["traceparent"] = notice.traceparent
    return msgspec.json.encode(event)


def headers(notice: Notice, body: bytes, secrets: Iterable[SigningSecret], at: float) -> Mapping[str, str]:
    """Return the headers of one attempt at this moment, signed with every secret that holds then."""
    timestamp = str(int(at))
    valid = [one.secret for one in secrets if one.until is None or one.until > at]
    return {
        "content-type": MEDIA_TYPE,
        "webhook-id": event_id(notice),
        "webhook-timestamp": timestamp,
        "webhook-signature": " ".join(signature(secret, event_id(notice), timestamp, body) for secret in valid),
    }


def signature(secret: str, message_id: str, timestamp: str, body: bytes) -> str:
    """Return the signature of one attempt, as Standard Webhooks 1.0 has it."""
    key = base64.b64decode(secret.removeprefix(SECRET_PREFIX))
    signed = f"{message_id}.{timestamp}.".encode() + body
    return f"v1,{base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()}"


def make_secret(random: bytes) -> str:
    """Return a secret of these random bytes."""
    return SECRET_PREFIX + base64.b64encode(random).decode()


def is_secret(given: str) -> bool:
    """Return whether this is a secret as Standard Webhooks has it."""
    try:
        found = base64.b64decode(given.removeprefix(SECRET_PREFIX), validate=True)
    except ValueError:
        return False
    return given.startswith(SECRET_PREFIX) and LEAST_SECRET_BYTES <= len(found) <= MOST_SECRET_BYTES
