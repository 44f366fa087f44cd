"""Decide about a project's webhooks: add, enable, disable, test and remove a receiver. What it is sent is no decision."""

from collections.abc import Sequence

from ..event import Draft, Event, Text
from ..rejected import NotFound, Rejected
from .project import Project, ProjectDeleting, project_stream
from .webhook_facts import (
    DisabledReason,
    NoticeKind,
    Webhook,
    WebhookAdded,
    WebhookDisabled,
    WebhookEnabled,
    WebhookRemoved,
    WebhookSecretReplaced,
    WebhookTested,
)

#: Our choice: each is a line of deliveries of its own.
MAX_WEBHOOKS = 20


class WebhookNotFound(NotFound):
    """The project has no such webhook."""

    code = "webhook_not_found"


class TooManyWebhooks(Rejected):
    """The project has as many webhooks as a project can have."""

    code = "too_many_webhooks"


class WebhookIsDisabled(Rejected):
    """Nothing is sent to this webhook now. Enable it first."""

    code = "webhook_disabled"


def add_webhook(project: Project, webhook_id: str, receiver: str, kinds: Sequence[NoticeKind]) -> Sequence[Draft]:
    """Tell a receiver from now on. Raises TooManyWebhooks, ProjectDeleting."""
    if len(project.webhooks) >= MAX_WEBHOOKS:
        raise TooManyWebhooks
    event = WebhookAdded(
        project_id=project.project_id, webhook_id=webhook_id, receiver=Text(receiver), kinds=tuple(kinds)
    )
    return _decided(project, event)


def enable_webhook(project: Project, webhook_id: str, *, skip: bool) -> Sequence[Draft]:
    """Tell the receiver again; nothing to store if it is told. Raises WebhookNotFound, ProjectDeleting."""
    if webhook_of(project, webhook_id).enabled:
        return ()
    return _decided(project, WebhookEnabled(project_id=project.project_id, webhook_id=webhook_id, skip=skip))


def disable_webhook(
    project: Project, webhook_id: str, reason: DisabledReason, failure: str | None = None
) -> Sequence[Draft]:
    """Tell the receiver no more; nothing to store if it is not told. Raises WebhookNotFound, ProjectDeleting."""
    if not webhook_of(project, webhook_id).enabled:
        return ()
    event = WebhookDisabled(project_id=project.project_id, webhook_id=webhook_id, reason=reason, failure=failure)
    return _decided(project, event)


def replace_webhook_secret(project: Project, webhook_id: str) -> Sequence[Draft]:
    """Sign with another secret. Raises WebhookNotFound, ProjectDeleting."""
    webhook_of(project, webhook_id)
    return _decided(project, WebhookSecretReplaced(project_id=project.project_id, webhook_id=webhook_id))


def send_test(project: Project, webhook_id: str) -> Sequence[Draft]:
    """Send the receiver a test, in its turn. Raises WebhookNotFound, WebhookIsDisabled, ProjectDeleting."""
    if not webhook_of(project, webhook_id).enabled:
        raise WebhookIsDisabled
    return _decided(project, WebhookTested(project_id=project.project_id, webhook_id=webhook_id))


def remove_webhook(project: Project, webhook_id: str) -> Sequence[Draft]:
    """Tell the receiver no more, and forget it. Raises WebhookNotFound, ProjectDeleting."""
    webhook_of(project, webhook_id)
    return _decided(project, WebhookRemoved(project_id=project.project_id, webhook_id=webhook_id))


def webhook_of(project: Project, webhook_id: str) -> Webhook:
    """Return a webhook of the project. Raises WebhookNotFound."""
    found = project.webhooks.get(webhook_id)
    if found is None:
        raise WebhookNotFound
    return found


def _decided(project: Project, event: Event) -> Sequence[Draft]:
    if project.state != "active":
        raise ProjectDeleting
    return (Draft(stream=project_stream(project.project_id), event=event),)
