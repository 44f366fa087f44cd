"""Prove that a view is what its facts fold into: build it anew elsewhere and compare byte for byte."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from heapq import merge
from itertools import groupby, islice
from operator import itemgetter
from typing import Protocol, TypeGuard

import msgspec

from ..ports.log import EventLog
from ..ports.outside import ViewRow
from .project_views import Batches, ReadModel, ViewHead, ViewStore, extend

#: How many differences are reported; one is too many already.
MAX_DIFFERENCES = 1_000


class Snapshot(Protocol):
    """The active generation of a view at one moment, however much it is changed while this is read."""

    @property
    def head(self) -> ViewHead | None:
        """Which generation it is and how far; None if there is none."""
        ...

    def rows(self) -> Iterator[ViewRow]:
        """Return its rows by key, ascending by code point."""
        ...


class CheckableStore(ViewStore, Protocol):
    """A store whose rows can be read as of one moment."""

    def snapshot(self, view: str) -> AbstractContextManager[Snapshot]:
        """Hold the view as it is now for reading; nobody is kept from changing it."""
        ...


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """A row that is not what its facts fold into. None: there is no such row on that side."""

    key: str
    stored: ViewRow | None
    rebuilt: ViewRow | None


class ViewCheck(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome for one view. `version` is the stored one: another than ours cannot be compared by us."""

    view: str
    version: int
    position: int
    differences: Sequence[Difference]
    comparable: bool

    @property
    def sound(self) -> bool:
        """Whether the view was compared and every row found right."""
        return self.comparable and not self.differences


def check(
    store: CheckableStore,
    log: EventLog,
    views: Sequence[ReadModel],
    scratch: CheckableStore,
    progress: Callable[[int], object] = lambda position: None,
) -> list[ViewCheck]:
    """
    Compare the active generation of each view, where it is now, with what the same facts fold into today.

    *scratch* is an empty store that the caller throws away; what it keeps outside the memory, no check of a long log
    holds there. Nothing is written to *store*, so that a check may run beside a serving process. The log is read once
    for all views, and *progress* is told how far.
    """
    with ExitStack() as stack:
        stored = [(view, stack.enter_context(store.snapshot(view.name))) for view in views]
        ends = [(view, found.head.position) for view, found in stored if _is_ours(found.head, view)]
        _build(scratch, log, ends, progress)
        return [_compare(view, found, scratch) for view, found in stored]


def _is_ours(head: ViewHead | None, view: ReadModel) -> TypeGuard[ViewHead]:
    return head is not None and head.version == view.version


def _compare(view: ReadModel, stored: Snapshot, scratch: CheckableStore) -> ViewCheck:
    head = stored.head
    if not _is_ours(head, view):
        version, position = (head.version, head.position) if head else (0, 0)
        return ViewCheck(view=view.name, version=version, position=position, differences=(), comparable=False)
    with scratch.snapshot(view.name) as rebuilt:
        differences = tuple(islice(_differences(stored.rows(), rebuilt.rows()), MAX_DIFFERENCES))
    return ViewCheck(
        view=view.name, version=head.version, position=head.position, differences=differences, comparable=True
    )


def _build(
    scratch: ViewStore, log: EventLog, ends: Sequence[tuple[ReadModel, int]], progress: Callable[[int], object]
) -> None:
    """Fold every view up to its end, all of them a batch further at a time."""
    batches, left = Batches(log), list(ends)
    for view, _ in ends:
        scratch.begin(view.name, view.version, beside=None)
    while left:  # ends: each round takes a view further, or leaves it
        reached = [(view, end, _further(scratch, batches, view, end)) for view, end in left]
        left = [(view, end) for view, end, position in reached if position]
        if left:
            progress(max(position for _, _, position in reached))


def _further(scratch: ViewStore, batches: Batches, view: ReadModel, end: int) -> int:
    """Return how far the view is after another batch, 0 when there was none."""
    (head,) = scratch.heads(view.name)
    if head.position >= end or not extend(scratch, batches, view, head, limit=end).facts:
        return 0
    return scratch.position(view.name)


def _differences(stored: Iterable[ViewRow], rebuilt: Iterable[ViewRow]) -> Iterator[Difference]:
    sides = merge(
        ((row.key, "stored", row) for row in stored),
        ((row.key, "rebuilt", row) for row in rebuilt),
        key=itemgetter(0),
    )
    for key, found in groupby(sides, key=itemgetter(0)):
        rows = {side: row for _, side, row in found}
        if rows.get("stored") != rows.get("rebuilt"):
            yield Difference(key=key, stored=rows.get("stored"), rebuilt=rows.get("rebuilt"))
