"""Whom a project tells what waits and what ended: the facts about its webhooks, and what stands of each. No secret is a fact."""

from collections.abc import Mapping
from typing import ClassVar, Literal

import msgspec

from ..event import Event, Fact, Text

#: What a receiver can be told of; the types of its events are these behind `io.steersman.`.
NoticeKind = Literal["waiting.began", "waiting.ended", "run.ended"]
#: Why nothing is sent to a receiver any more: it said 410, nothing reached it for days, or somebody asked for it.
DisabledReason = Literal["gone", "gave_up", "requested"]


class WebhookAdded(Event, frozen=True, kw_only=True):
    """From now on a receiver is told. Its whole address and the secret may open doors: they stand beside the tokens."""

    TOPIC: ClassVar[str] = "project.webhook_added"

    project_id: str
    webhook_id: str
    #: Scheme, host and port of the receiver.
    receiver: Text
    #: What it is told of.
    kinds: tuple[NoticeKind, ...]


class WebhookEnabled(Event, frozen=True, kw_only=True):
    """The receiver is told again: from where it stopped, or, with `skip`, from this fact on."""

    TOPIC: ClassVar[str] = "project.webhook_enabled"

    project_id: str
    webhook_id: str
    skip: bool


class WebhookDisabled(Event, frozen=True, kw_only=True):
    """The receiver is told no more, until somebody enables it again; what it misses is kept for then."""

    TOPIC: ClassVar[str] = "project.webhook_disabled"

    project_id: str
    webhook_id: str
    reason: DisabledReason
    #: How the last try failed, in a word: `status_500`, `unreachable`, `timed_out`, ...
    failure: str | None


class WebhookSecretReplaced(Event, frozen=True, kw_only=True):
    """What is sent to the receiver is signed with another secret; for a day with the one before as well."""

    TOPIC: ClassVar[str] = "project.webhook_secret_replaced"

    project_id: str
    webhook_id: str


class WebhookTested(Event, frozen=True, kw_only=True):
    """Somebody wants to see whether the receiver hears: it is sent a `webhook.test`, in its turn."""

    TOPIC: ClassVar[str] = "project.webhook_tested"

    project_id: str
    webhook_id: str


class WebhookRemoved(Event, frozen=True, kw_only=True):
    """The receiver is told no more, and its address and secret are forgotten."""

    TOPIC: ClassVar[str] = "project.webhook_removed"

    project_id: str
    webhook_id: str


class Webhook(msgspec.Struct, frozen=True, kw_only=True):
    """A receiver, as the log has it."""

    webhook_id: str
    project_id: str
    receiver: str | None
    kinds: tuple[NoticeKind, ...]
    created_at: str
    #: The position of the fact that added it.
    position: int
    enabled: bool = True
    #: The position of the fact that enabled it last, and whether what came before is left out.
    enabled_position: int
    skip: bool = True
    disabled_at: str | None = None
    disabled_reason: DisabledReason | None = None
    failure: str | None = None


Webhooks = Mapping[str, Webhook]


def evolve_webhooks(webhooks: Webhooks, fact: Fact) -> Webhooks:
    """Add one fact to what stands of a project's webhooks; the same mapping if it says nothing about them."""
    match fact.event:
        case WebhookAdded() as event:
            return {**webhooks, event.webhook_id: _added(event, fact)}
        case WebhookEnabled() as event:
            changes = {"enabled": True, "enabled_position": fact.position, "skip": event.skip}
            return _changed(webhooks, event.webhook_id, **changes, disabled_at=None, disabled_reason=None, failure=None)
        case WebhookDisabled() as event:
            changes = {"disabled_at": fact.at.isoformat(), "disabled_reason": event.reason, "failure": event.failure}
            return _changed(webhooks, event.webhook_id, enabled=False, **changes)
        case WebhookRemoved() as event:
            return {name: webhook for name, webhook in webhooks.items() if name != event.webhook_id}
        case _:
            return webhooks


def _added(event: WebhookAdded, fact: Fact) -> Webhook:
    return Webhook(
        webhook_id=event.webhook_id,
        project_id=event.project_id,
        receiver=event.receiver.value,
        kinds=event.kinds,
        created_at=fact.at.isoformat(),
        position=fact.position,
        enabled_position=fact.position,
    )


def _changed(webhooks: Webhooks, webhook_id: str, **changes: object) -> Webhooks:
    known = webhooks.get(webhook_id)
    return webhooks if known is None else {**webhooks, webhook_id: msgspec.structs.replace(known, **changes)}
