"""Add a webhook to a project: its address and its secret are kept first, and then the fact says that it is told."""

from collections.abc import Sequence

import msgspec

from ...domain.event import Fact
from ...domain.projects.webhook_facts import NoticeKind
from ...domain.projects.webhooks import add_webhook as decide
from ..ports.log import EventLog
from ..ports.notices import Receiver, Receivers, SigningSecret
from ..ports.outside import Clock
from ..writer.caller import Answer, Caller
from .change_project import change_project


class NewWebhook(msgspec.Struct, frozen=True, kw_only=True):
    """Whom to tell of what."""

    webhook_id: str
    url: str
    #: What of its address may be shown.
    receiver: str
    secret: str
    kinds: tuple[NoticeKind, ...]


def add_webhook(
    project_id: str,
    wanted: NewWebhook,
    receivers: Receivers,
    by: Caller,
    log: EventLog,
    clock: Clock,
    answer: Answer | None = None,
) -> Sequence[Fact]:
    """On return the receiver is told from now on. Raises ProjectNotFound, ProjectDeleting, TooManyWebhooks, Busy."""
    receivers.add(
        Receiver(
            id=wanted.webhook_id,
            url=wanted.url,
            secrets=(SigningSecret(secret=wanted.secret),),
            created_at=clock.now().timestamp(),
        )
    )
    # If we crash here, or it is refused, the receiver is of no webhook: whoever sends forgets it after a while.
    return change_project(
        project_id,
        lambda project: decide(project, wanted.webhook_id, wanted.receiver, wanted.kinds),
        by,
        log,
        clock,
        answer,
    )
