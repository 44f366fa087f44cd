"""Views that are gone when the process ends: the in-memory twin, and the scratch of a check."""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Lock

import msgspec

from ...application.ports.outside import ViewRow
from ...application.views.check_views import Snapshot
from ...application.views.project_views import Changes, GenerationRows, ViewHead
from .position_waiters import PositionWaiters


class MemoryGeneration(msgspec.Struct, frozen=True, kw_only=True):
    """A generation; its rows are replaced, never changed, so that whoever has it keeps it as it was."""

    head: ViewHead
    stored: Mapping[str, ViewRow] = {}

    def row(self, key: str) -> bytes | None:
        """Return a row's bytes."""
        found = self.stored.get(key)
        return None if found is None else found.body

    def group(self, name: str) -> Mapping[str, bytes]:
        """Return the bytes of every row of a group, by key."""
        return {key: row.body for key, row in self.stored.items() if row.group == name}

    def rows(self) -> Iterator[ViewRow]:
        """Return the rows by key."""
        return iter([self.stored[key] for key in sorted(self.stored)])


class NoGeneration:
    """A view that was never begun."""

    head = None

    def rows(self) -> Iterator[ViewRow]:
        """Return no row."""
        return iter(())


class MemoryViews:
    """The view store in memory."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._views: dict[str, tuple[MemoryGeneration, ...]] = {}
        self._waiters = PositionWaiters()

    @contextmanager
    def together(self) -> Generator[None]:
        """Do each step by itself: nothing here takes long."""
        yield

    def rest(self, seconds: float) -> None:
        """Return when the time is over, or as soon as somebody waits for a view."""
        self._waiters.rest(seconds)

    def get(self, view: str, key: str) -> bytes | None:
        """Return a row's bytes as they were stored."""
        active = self._active(view)
        return None if active is None else active.row(key)

    def list(self, view: str, group: str, *, before: int | None = None, limit: int = 100) -> Sequence[ViewRow]:
        """Return a group's rows, the highest order first, those below *before*."""
        active = self._active(view)
        rows = [] if active is None else [row for row in active.stored.values() if row.group == group]
        rows = [row for row in rows if before is None or row.order < before]
        return sorted(rows, key=lambda row: row.order, reverse=True)[: max(limit, 0)]

    def position(self, view: str) -> int:
        """Return the position up to which the view has folded the log."""
        active = self._active(view)
        return 0 if active is None else active.head.position

    def wait(self, view: str, position: int, timeout_seconds: float) -> bool:
        """Return True as soon as the view has reached *position*, False when the time is over before."""
        return self._waiters.wait(lambda: self.position(view), position, timeout_seconds)

    def heads(self, view: str) -> Sequence[ViewHead]:
        """Return the view's generations, the oldest first."""
        return [generation.head for generation in self._views.get(view, ())]

    def begin(self, view: str, version: int, *, beside: int | None) -> None:
        """Begin a generation at position 0; see ViewStore."""
        with self._lock:
            heads = self.heads(view)
            active = next((head.generation for head in heads if head.active), None)
            if active != beside or any(head.version == version and not head.active for head in heads):
                return
            number = max((head.generation for head in heads), default=0) + 1
            head = ViewHead(generation=number, version=version, position=0, active=active is None)
            self._views[view] = (*self._views.get(view, ()), MemoryGeneration(head=head))

    def extend(
        self,
        view: str,
        generation: int,
        *,
        after: int,
        upto: int,
        fold: Callable[[GenerationRows], Changes],
        forgets: bool = False,
    ) -> bool:
        """Take a generation from *after* to *upto*; see ViewStore."""
        with self._lock:
            found = next((g for g in self._views.get(view, ()) if g.head.generation == generation), None)
            if found is None or found.head.position != after:
                return False
            stored = dict(found.stored)
            for key, placed in fold(found).items():
                if placed is None:
                    stored.pop(key, None)
                else:
                    group, order, body = placed
                    stored[key] = ViewRow(key=key, group=group, order=order, body=body)
            head = msgspec.structs.replace(found.head, position=upto)
            self._put(view, generation, MemoryGeneration(head=head, stored=stored))
        self._waiters.progressed()
        return True

    def swap(self, view: str, generation: int) -> bool:
        """Make the generation the active one; see ViewStore."""
        with self._lock:
            found = next((g for g in self._views.get(view, ()) if g.head.generation == generation), None)
            active = self._active(view)
            if found is None or found.head.active or (active and found.head.position < active.head.position):
                return False
            head = msgspec.structs.replace(found.head, active=True)
            others = [g for g in self._views[view] if g not in (found, active)]
            self._views[view] = (*others, msgspec.structs.replace(found, head=head))
        self._waiters.progressed()
        return True

    def drop(self, view: str, generation: int) -> None:
        """Forget a generation."""
        with self._lock:
            kept = tuple(g for g in self._views.get(view, ()) if g.head.generation != generation)
            self._views[view] = kept

    def tidy(self) -> None:
        """Nothing: what is replaced is gone, once nobody reads it."""

    @contextmanager
    def snapshot(self, view: str) -> Generator[Snapshot]:
        """Hold the view as it is now."""
        yield self._active(view) or NoGeneration()

    def close(self) -> None:
        """Keep everything: whoever still holds the views may read them."""

    def _active(self, view: str) -> MemoryGeneration | None:
        return next((g for g in self._views.get(view, ()) if g.head.active), None)

    def _put(self, view: str, generation: int, new: MemoryGeneration) -> None:
        self._views[view] = tuple(new if g.head.generation == generation else g for g in self._views[view])
