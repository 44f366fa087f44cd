"""
What people are told of who do not look: that something begins or ceases to wait for somebody, and that a run has ended.

One row for each notice, in the order of the log, and one for each run that remembers what waits in it. A notice has ids and
states and no words, so there is nothing in it to be forgotten.
"""

from collections.abc import Iterator, Mapping

import msgspec

from ..domain.event import Fact
from ..domain.facts.run import TERMINAL
from ..domain.projects.webhook_facts import WebhookTested
from . import waiting
from .view import Rows, View, deleted_run
from .waiting import WaitingDetail, WaitingItem, WaitingKind, WaitingRun, WaitsForWhom

#: What waits is what `waiting` says, so a change of that is one of this.
VERSION = 1 + 100 * waiting.VERSION
#: The group of all notices. Lists show the highest place first, and a notice's place is its number below zero: so whoever
#: lists this group is given the oldest first, and `before=-n` lists what comes after the notice with the number n.
GROUP = "notices"
#: A notice's number is its fact's position times this, and then its place among the notices of that fact.
NUMBERS_PER_FACT = 10_000


class Notice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing to be told. What says nothing about this kind is left out."""

    #: Without the prefix `io.steersman.`
    kind: str
    position: int
    number: int
    at: str
    #: The TOPIC of the fact that it follows from.
    topic: str
    project_id: str
    traceparent: str | None = None
    run_id: str | None = None
    child_run_id: str | None = None
    #: waiting.began, waiting.ended: what, its id in `GET /api/waiting`, for whom, and since when.
    item_kind: WaitingKind | None = None
    item_id: str | None = None
    waits_for: WaitsForWhom | None = None
    since: str | None = None
    #: run.ended: as what, and why.
    status: str | None = None
    reason: str | None = None
    #: webhook.test: the only one that is told.
    webhook_id: str | None = None


class NoticeRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A notice, or what waits in a run so far: one of both."""

    notice: Notice | None = None
    run: WaitingRun | None = None


def apply(rows: Rows[NoticeRow], fact: Fact) -> Mapping[str, NoticeRow | None]:
    """Fold one fact: what it begins and ends."""
    if isinstance(fact.event, WebhookTested):
        event = fact.event
        return _told(fact, [_notice(fact, "webhook.test", event.project_id, webhook_id=event.webhook_id)])
    if fact.event.OUTPUT:
        return {}
    deleted = deleted_run(fact)
    root = deleted or fact.root
    if root is None:
        return {}
    found = rows.get(root)
    before = found.run if found else None
    then = None if deleted else waiting.after_fact(before, fact)
    if then is not None:
        then = _without_words(then)
    if then == before:
        return {}
    return {root: None if then is None else NoticeRow(run=then), **_told(fact, list(_changes(fact, before, then)))}


def _changes(fact: Fact, before: WaitingRun | None, then: WaitingRun | None) -> Iterator[Notice]:
    """Give what a fact of a run's tree brings about: what ceases to wait, what begins to, and the run's end."""
    run = then or before
    assert run is not None
    was = {item.id: item for item in before.items} if before else {}
    now = {item.id: item for item in then.items} if then else {}
    for item_id, item in was.items():
        if item_id not in now:
            yield _of_item(fact, "waiting.ended", run, item)
    for item_id, item in now.items():
        if item_id not in was:
            yield _of_item(fact, "waiting.began", run, item)
    had_ended = before is not None and before.standing.status in TERMINAL
    if then is not None and then.standing.status in TERMINAL and not had_ended:
        standing = then.standing
        ended = _notice(fact, "run.ended", run.project_id, run_id=run.run_id)
        yield msgspec.structs.replace(ended, status=standing.status, reason=standing.reason)


def _of_item(fact: Fact, kind: str, run: WaitingRun, item: WaitingItem) -> Notice:
    return msgspec.structs.replace(
        _notice(fact, kind, run.project_id, run_id=run.run_id),
        child_run_id=item.child_run_id,
        item_kind=item.kind,
        item_id=item.id,
        waits_for=item.waits_for,
        since=item.since,
    )


def _notice(
    fact: Fact, kind: str, project_id: str, *, run_id: str | None = None, webhook_id: str | None = None
) -> Notice:
    return Notice(
        kind=kind,
        position=fact.position,
        number=0,
        at=fact.at.isoformat(),
        topic=fact.topic,
        project_id=project_id,
        traceparent=fact.traceparent,
        run_id=run_id,
        webhook_id=webhook_id,
    )


def _told(fact: Fact, notices: list[Notice]) -> dict[str, NoticeRow | None]:
    first = fact.position * NUMBERS_PER_FACT
    numbered = [
        msgspec.structs.replace(notice, number=first + place) for place, notice in enumerate(notices[:NUMBERS_PER_FACT])
    ]
    return {f"notice {notice.number}": NoticeRow(notice=notice) for notice in numbered}


def _without_words(run: WaitingRun) -> WaitingRun:
    replace = msgspec.structs.replace
    if run.task is None and all(item.detail == NOTHING for item in run.asked.values()):
        return run
    return replace(run, task=None, asked={key: replace(item, detail=NOTHING) for key, item in run.asked.items()})


NOTHING = WaitingDetail()


def _place(row: NoticeRow) -> tuple[str, int]:
    if row.notice is not None:
        return GROUP, -row.notice.number
    return "", row.run.position if row.run else 0


VIEW = View("notices", VERSION, NoticeRow, apply=apply, place=_place)
