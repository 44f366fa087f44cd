"""The webhooks of all projects, for whoever sends what is to be told."""

from collections.abc import Mapping

from ..domain.event import Fact
from ..domain.projects.project_facts import ProjectDeleted
from ..domain.projects.webhook_facts import Webhook, evolve_webhooks
from .view import Rows, View

VERSION = 1
GROUP = "webhooks"


def apply(rows: Rows[Webhook], fact: Fact) -> Mapping[str, Webhook | None]:
    """Fold one fact of a project's own stream."""
    if isinstance(fact.event, ProjectDeleted):
        return {key: None for key, row in rows.group(GROUP).items() if row.project_id == fact.event.project_id}
    webhook_id: str | None = getattr(fact.event, "webhook_id", None)
    if webhook_id is None:
        return {}
    known = rows.get(webhook_id)
    then = evolve_webhooks({} if known is None else {webhook_id: known}, fact).get(webhook_id)
    return {} if then == known else {webhook_id: then}


VIEW = View("webhooks", VERSION, Webhook, apply=apply, place=lambda row: (GROUP, row.position))
