"""A store as an auditor reads it: page by page, up to the head that it had when the audit began."""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Protocol

import msgspec

from ...domain.log import LogOpened
from ..log.checkpoint_file import read_notes
from ..log.event_codec import Envelope
from ..log.head import FIRST_MAC, Head
from ..log.merkle import Edge, consistency_path, edge_root, grow, inclusion_path, subtree_root
from ..log.signed_note import NoteInvalid, base64_of, parse_checkpoint
from .entry import Entry, Unreadable, bad
from .log import Opening

PAGE = 500
#: How many checkpoints may stand in the file in another order than the log's: one for each process that writes.
DISORDER = 64
KEPT_HASHES = 4_096


class EntryRecorder(Protocol):
    """What is asked of a store for an audit."""

    def tree_head(self) -> Head:
        """Return the head of the log."""
        ...

    def hashes(self, level: int, first: int, count: int) -> list[bytes]:
        """Return stored hashes of the tree."""
        ...

    def entries(self, root: str | None, after: int, limit: int) -> list[Entry]:
        """
        Return rows as they are, with their texts, ascending.

        Without *root* those of the log by position, else those of a coordinator's tree by root_sequence, output and all.
        """
        ...

    def log_entries(self) -> list[Entry]:
        """Return the rows of the facts that the log holds about itself."""
        ...

    def receipts(self, positions: Sequence[int]) -> dict[int, tuple[bytes, bytes | None]]:
        """Return the leaf hash and the MAC of these facts."""
        ...

    def bounds(self) -> tuple[int, int, int]:
        """Return the head's position, and the first and the last one that a row has, all of the same moment."""
        ...


class WholeLog:
    """Every fact of a store, and the checkpoints that were signed on the way; the store's own tree is checked too."""

    def __init__(self, recorder: EntryRecorder, checkpoints: Path | None) -> None:
        self._recorder = recorder
        self._checkpoints = checkpoints
        self._head = Head()

    def opening(self) -> Opening:
        """Return the newest checkpoint: the larger one of the store's and the file's. What was given up is none."""
        # The file first: what is in it was stored before, whoever writes at this moment.
        largest: dict[str, str] = {}
        for note in self._notes():
            origin = parse_checkpoint(note).origin
            largest[origin] = max(note, largest.get(origin, ""), key=_size)
        self._head = read_head_of(self._recorder)
        given_up = set(_given_up(self._recorder.log_entries()))
        kept = (note for origin, note in largest.items() if origin not in given_up)
        newest = max((self._head.note, *kept), key=_size)
        if not newest:
            raise Unreadable("nobody signed this log")
        return Opening(run=None, checkpoint=newest)

    def items(self) -> Iterator[Entry | str]:
        """Give every row, and every checkpoint behind the row that it ends with."""
        notes, after, edge, mac = self._sorted_notes(), 0, Edge(), self._head.mac
        note = next(notes, None)
        # Ends: every page is read behind the last, up to the head that was read first.
        while after < self._head.edge.size and (page := self._recorder.entries(None, after, PAGE)):
            for entry in page:
                if not isinstance(entry.position, int) or entry.position > self._head.edge.size:
                    break
                yield entry
                after, mac = entry.position, entry.mac
                edge = self._grown(edge, entry)
                while note is not None and _size(note) <= after:
                    if _size(note) == after:
                        yield note
                    note = next(notes, None)
            else:
                continue
            break
        self._check_head(edge, mac)
        check_bounds(self._recorder)

    def _grown(self, edge: Edge, entry: Entry) -> Edge:
        """Return the tree as the rows have it; each inner node that is stored has to be the one that they make."""
        edge, nodes = grow(edge, [entry.leaf_hash])
        for node in nodes:
            if self._recorder.hashes(node.level, node.index, 1) != [node.hash]:
                raise bad("a node of the stored tree is not what its leaves make", edge.size, "nodes", node.hash)
        return edge

    def _check_head(self, edge: Edge, mac: object) -> None:
        if edge.size != self._head.edge.size:
            return  # rows are missing, which is said where they are missed
        if edge_root(edge) != edge_root(self._head.edge):
            raise bad("the edge of the stored tree is not what its leaves make", None, "head", edge_root(edge))
        if self._head.signer is not None and mac != self._head.mac:
            raise bad("the chain goes on from another MAC than the last fact's", edge.size, "head", mac, self._head.mac)

    def _notes(self) -> Iterator[str]:
        return iter(()) if self._checkpoints is None else read_notes(self._checkpoints)

    def _sorted_notes(self) -> Iterator[str]:
        """Give the notes by their sizes, as far as several processes can have mixed them up."""
        waiting: list[str] = []
        for note in self._notes():
            waiting.append(note)
            if len(waiting) >= 2 * DISORDER:
                waiting.sort(key=_size)
                yield from waiting[:DISORDER]
                del waiting[:DISORDER]
        yield from sorted(waiting, key=_size)


class RunFacts:
    """The facts of one coordinator's tree, each with its proof, and those that the log holds about itself."""

    def __init__(self, recorder: EntryRecorder, root: str, pin: str | None = None) -> None:
        self._recorder = recorder
        self._root = root
        self._pin = pin
        self._size = 0
        # Facts that follow each other share most of their proofs.
        self._subtree = lru_cache(KEPT_HASHES)(self._read_subtree)

    def opening(self) -> Opening:
        """Return the store's newest checkpoint, and how the pin leads to it."""
        head = read_head_of(self._recorder)
        if not head.note:
            raise Unreadable("nobody signed this log")
        self._size = _size(head.note)
        old = 0 if self._pin is None else _size(self._pin)
        if not 0 < old < self._size:
            return Opening(run=self._root, checkpoint=head.note)
        hashes = tuple(base64_of(self._subtree(*part)) for part in consistency_path(old, self._size))
        return Opening(run=self._root, checkpoint=head.note, consistent_from=old, consistency=hashes)

    def items(self) -> Iterator[Entry | str]:
        """Give the rows by position; those that came after the checkpoint are left out."""
        own, is_there = [entry for entry in self._recorder.log_entries() if self._is_covered(entry)], False
        for entry in self._covered():
            is_there = True
            while own and own[0].position < entry.position:
                yield self._proved(own.pop(0))
            yield self._proved(entry)
        # Who signs the checkpoint may have been said behind the last that the run has to say.
        for entry in own if is_there else ():
            yield self._proved(entry)
        check_bounds(self._recorder)

    def _covered(self) -> Iterator[Entry]:
        after = 0
        while page := self._recorder.entries(self._root, after, PAGE):
            for entry in page:
                if not self._is_covered(entry):
                    return
                yield entry
                after = max(after + 1, entry.root_sequence)

    def _is_covered(self, entry: Entry) -> bool:
        return isinstance(entry.position, int) and entry.position <= self._size

    def _proved(self, entry: Entry) -> Entry:
        before = self._recorder.receipts([entry.position - 1])
        path = inclusion_path(entry.position - 1, self._size)
        return msgspec.structs.replace(
            entry,
            previous_mac=before[entry.position - 1][1] if before else FIRST_MAC,
            proof=tuple(self._subtree(*part) for part in path),
        )

    def _read_subtree(self, start: int, end: int) -> bytes:
        try:
            return subtree_root(start, end, self._recorder.hashes)
        except LookupError as error:
            raise Unreadable(f"the store holds no whole tree: {error}") from error


def read_head_of(recorder: EntryRecorder) -> Head:
    """Return the head as it is stored. Raises Bad when somebody made something else of it."""
    try:
        head = recorder.tree_head()
        if head.note:
            parse_checkpoint(head.note)
        return head
    except (IndexError, TypeError, ValueError, msgspec.MsgspecError) as error:
        raise bad("the head of the store is gone or was changed", None, "head", "", str(error)) from error


def check_bounds(recorder: EntryRecorder) -> None:
    """Raise Bad for a fact that stands where the head vouches for none: whoever reads the log would take it for one."""
    head, first, last = recorder.bounds()
    if first < 1:
        raise bad("a fact stands before the first one of the log", first, "position", 1, first)
    if last != head:
        raise bad("the last fact is not where the head of the log says", last, "position", head, last)


def _given_up(entries: Sequence[Entry]) -> Iterator[str]:
    """Give the origins that the log says it left behind; whether it may say so, its signatures tell later."""
    for entry in entries:
        try:
            found = msgspec.json.decode(entry.state, type=Envelope)
            prior = msgspec.json.decode(found.payload, type=LogOpened).prior_origin
        except (msgspec.MsgspecError, RecursionError, TypeError, ValueError):
            continue
        if found.topic == LogOpened.TOPIC and prior is not None:
            yield prior


def _size(note: str) -> int:
    try:
        return parse_checkpoint(note).size if note else 0
    except NoteInvalid:
        return 0
