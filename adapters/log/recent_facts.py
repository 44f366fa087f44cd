"""What this process has just stored, for its own followers: nobody reads, and decodes again, what was just written."""

from collections import deque
from collections.abc import Sequence
from itertools import islice
from threading import Lock

from ...domain.event import Fact

#: How many facts are kept: whoever is further behind reads the store.
MAX_RECENT = 4_096


class RecentFacts:
    """The newest facts of this process, without a gap."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._facts = deque[Fact]()

    def add(self, facts: Sequence[Fact]) -> None:
        """Keep the facts of a commit; those before them are forgotten if others stored something in between."""
        with self._lock:
            if self._facts and self._facts[-1].position + 1 != facts[0].position:
                self._facts.clear()
            self._facts.extend(facts)
            while len(self._facts) > MAX_RECENT:
                self._facts.popleft()

    def after(self, position: int, limit: int) -> Sequence[Fact]:
        """Return the facts behind a position; none if the next one is not kept."""
        with self._lock:
            if not self._facts or not self._facts[0].position <= position + 1 <= self._facts[-1].position:
                return ()
            first = position + 1 - self._facts[0].position
            return list(islice(self._facts, first, first + max(limit, 0)))

    def forget(self) -> None:
        """Keep nothing: words of it may have been erased."""
        with self._lock:
            self._facts.clear()
