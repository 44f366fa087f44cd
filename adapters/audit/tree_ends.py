"""
How many facts each coordinator's tree has, learnt from every fact of the log up to its signed head.

That a tree goes on nobody can see in its own facts: whoever cuts it off at its end leaves no hole. So before anybody says
where a tree ends, the whole log is compared with what was signed, once, and from then on what came since.
"""

from threading import Lock
from typing import Literal, Protocol, cast

import msgspec

from ..log_format.entry import bad
from ..log_format.event_codec import StoredRow
from ..log_format.head import Head
from ..log_format.merkle import Edge, edge_root, grow, leaf_hash

PAGE = 500


class RowRecorder(Protocol):
    """What is asked of a store to look at all of its facts."""

    def rows(self, order: Literal["position"], name: str, after: int, limit: int) -> list[StoredRow]:
        """Return the facts of the log, ascending from *after*."""
        ...

    def hashes(self, level: int, first: int, count: int) -> list[bytes]:
        """Return stored hashes of the tree."""
        ...


class PlaceInTree(msgspec.Struct, frozen=True):
    """What an envelope says of its place, and nothing else of it."""

    position: int
    root: str | None
    root_sequence: int | None


_PLACES = msgspec.json.Decoder(PlaceInTree)


class TreeEnds:
    """The ends of all trees, as far as the log was looked at. One serves every audit of a process; it grows with the runs."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._forget()

    def _forget(self) -> None:
        self._edge = Edge()
        self._ends: dict[str, int] = {}

    def length(self, recorder: RowRecorder, head: Head, root: str) -> int:
        """
        Return how many facts the tree of *root* has at the log's *head*, whose note somebody has checked.

        Raises:
            Bad: the log does not hold what was signed; where the run ends nobody can tell then.
        """
        with self._lock:
            if self._edge.size > head.edge.size:
                self._forget()  # the store was put back; an accepted restore leaves a shorter log that is sound
            known = self._edge.size
            try:
                self._read(recorder, head)
                self._compare(head)
            except Exception:
                # What was learnt may be of a store that was put back since: whatever it is, it has to be so from the first fact.
                self._forget()
                if not known:
                    raise
                self._read(recorder, head)
                self._compare(head)
            return self._ends.get(root, 0)

    def _compare(self, head: Head) -> None:
        if edge_root(self._edge) != edge_root(head.edge):
            found, signed = edge_root(self._edge), edge_root(head.edge)
            self._forget()
            raise bad("the facts are not those that were signed", None, "root", signed, found, head.edge.size)

    def _read(self, recorder: RowRecorder, head: Head) -> None:
        while (after := self._edge.size) < head.edge.size:  # ends: every page is read behind the last, or refused
            count = min(PAGE, head.edge.size - after)
            rows, leaves = recorder.rows("position", "", after, count), recorder.hashes(0, after, count)
            if not rows:
                raise bad(
                    "facts that were signed are missing", after + 1, "size", head.edge.size, after, head.edge.size
                )
            for at, row in enumerate(rows):
                self._take(row, after + 1 + at, leaves[at] if at < len(leaves) else None)

    def _take(self, row: StoredRow, position: int, stored: object) -> None:
        if row.position != position:
            raise bad("a fact is missing, or stands where another should", position, "position", position, row.position)
        state = row.state
        if not isinstance(cast("object", state), bytes):
            raise bad("the envelope is no bytes", position, "envelope", "bytes", state)
        leaf = leaf_hash(state)
        if leaf != stored:
            raise bad("the envelope is not what was hashed", position, "leaf_hash", stored, leaf)
        try:
            place = _PLACES.decode(state)
        except (msgspec.MsgspecError, RecursionError, ValueError) as error:
            raise bad("the envelope cannot be decoded", position, "envelope", "an envelope", str(error)) from error
        if place.position != position:
            raise bad("a fact stands where another should", position, "position", position, place.position)
        if place.root is not None:
            expected = self._ends.get(place.root, 0) + 1
            if place.root_sequence != expected:
                raise bad("a fact of a run is missing", position, "root_sequence", expected, place.root_sequence)
            self._ends[place.root] = expected
        self._edge, _ = grow(self._edge, [leaf])
