"""
What people are told of who do not look: that something begins or ceases to wait for somebody, and that a run has ended.

One row for each notice, in the order of the log, and one for each run that remembers what waits in it. A notice has ids and
states and no words. Nobody is told anything of a run that is deleted, not even what was still to be told.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice

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
    """A notice; or what waits in a run so far, and how many notices it has had."""

    notice: Notice | None = None
    run: WaitingRun | None = None
    count: int = 0


def apply(rows: Rows[NoticeRow], fact: Fact) -> Mapping[str, NoticeRow | None]:
    """Fold one fact: what it begins and ends."""
    if isinstance(fact.event, WebhookTested):
        event = fact.event
        test = _notice(fact, "webhook.test", event.project_id, webhook_id=event.webhook_id)
        return _rows(_numbered(fact, [test]), f"test {fact.position}", 0)
    if (deleted := deleted_run(fact)) is not None:
        row = rows.get(deleted)
        return {deleted: None, **{_key(deleted, place): None for place in range(row.count if row else 0)}}
    if fact.root is None or fact.event.OUTPUT:
        return {}
    row = rows.get(fact.root)
    before, count = (row.run, row.count) if row else (None, 0)
    then = waiting.after_fact(before, fact)
    if then is None:
        return {}
    then = _without_words(then)
    if then == before:
        return {}
    notices = _numbered(fact, _changes(fact, before, then))
    return {
        fact.root: NoticeRow(run=then, count=count + len(notices)),
        **_rows(notices, fact.root, count),
    }


def _changes(fact: Fact, before: WaitingRun | None, then: WaitingRun) -> Iterator[Notice]:
    """Give what a fact of a run's tree brings about: what ceases to wait, what begins to, and the run's end."""
    was = {item.id: item for item in before.items} if before else {}
    now = {item.id: item for item in then.items}
    for item_id, item in was.items():
        if item_id not in now:
            yield _of_item(fact, "waiting.ended", then, item)
    for item_id, item in now.items():
        if item_id not in was:
            yield _of_item(fact, "waiting.began", then, item)
    had_ended = before is not None and before.standing.status in TERMINAL
    if then.standing.status in TERMINAL and not had_ended:
        ended = _notice(fact, "run.ended", then.project_id, run_id=then.run_id)
        yield msgspec.structs.replace(ended, status=then.standing.status, reason=then.standing.reason)


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


def _numbered(fact: Fact, notices: Iterable[Notice]) -> list[Notice]:
    first = fact.position * NUMBERS_PER_FACT
    return [
        msgspec.structs.replace(notice, number=first + place)
        for place, notice in enumerate(islice(notices, NUMBERS_PER_FACT))
    ]


def _rows(notices: Sequence[Notice], owner: str, count: int) -> dict[str, NoticeRow | None]:
    return {_key(owner, count + place): NoticeRow(notice=notice) for place, notice in enumerate(notices)}


def _key(owner: str, place: int) -> str:
    return f"{owner} {place}"


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
