"""A store as an auditor reads it: page by page, up to the head that it had when the audit began."""

from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from functools import lru_cache
from pathlib import Path
from typing import Protocol

import msgspec

from ...application.ports.log import LogTampered
from ...domain.kinds.log import LogKeyRotated, LogOpened
from ..log_format.checkpoint_file import read_notes
from ..log_format.entry import Entry, Unreadable, bad
from ..log_format.event_codec import Envelope
from ..log_format.head import FIRST_MAC, Head, Signer
from ..log_format.keys import Ring
from ..log_format.merkle import STORED_LEVELS, Edge, consistency_path, edge_root, grow, inclusion_path, subtree_root
from ..log_format.signed_note import Checkpoint, NoteInvalid, base64_of, bytes_of, key_hash, parse_checkpoint, signers
from ..log_format.tree_heads import sign_tree_head
from .log import SourceEnd, SourceOpening
from .tree_ends import RowRecorder, TreeEnds

PAGE = 500
KEPT_HASHES = 4_096
#: No tree is higher: a position has no more bits.
MOST_LEVELS = 64
#: How many places ahead of the tree are looked at on each level.
REACH = 1 << 40


class EntryRecorder(RowRecorder, Protocol):
    """What is asked of a store for an audit."""

    def tree_head(self) -> Head:
        """Return the head of the log."""
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
    """
    Every fact of a store, and the checkpoints that were signed on the way; the store's own tree and head are checked too.

    *keys* are public keys that the auditor has beside those that the log names: a checkpoint that one of them signed counts,
    whatever the log says of itself by now.
    """

    def __init__(self, recorder: EntryRecorder, checkpoints: Path | None, keys: Iterable[bytes] = ()) -> None:
        self._recorder = recorder
        self._checkpoints = checkpoints
        self._keys = frozenset(keys)
        self._head = Head()
        self._notes: list[str] = []
        self._ignored = 0

    def opening(self) -> SourceOpening:
        """Return the newest checkpoint: the larger one of the store's and the file's. What was given up is none."""
        # The file first: what is in it was stored before, whoever writes at this moment. The key that signed it is on the log
        # by then; where it is not, because the store was put back, it may be one that the auditor has.
        self._notes = sorted(read_notes(self._checkpoints), key=_size) if self._checkpoints is not None else []
        own = self._recorder.log_entries()
        self._head = read_head_of(self._recorder)
        named = [found for _, found in _named(own)]
        public = self._keys | {_public(found) for found in named}
        opened = [found for found in named if isinstance(found, LogOpened)]
        newest, known = self._head.note, {found.origin for found in opened} | {found.prior_origin for found in opened}
        for origin in {parse_checkpoint(note).origin for note in self._notes}:
            largest = self._largest(origin, public)
            if largest and origin not in known:
                raise bad("a key of the log's signed another log than the store holds", None, "origin", origin, largest)
            if origin not in {found.prior_origin for found in opened}:
                newest = max(newest, largest, key=_size)
        if not newest:
            raise Unreadable("nobody signed this log")
        return SourceOpening(run=None, checkpoint=newest)

    def end(self) -> SourceEnd:
        """Check the head, now that the facts are known to be those that were signed."""
        check_head(self._head, self._recorder.log_entries())
        return SourceEnd(ignored=self._ignored)

    def _largest(self, origin: str, public: AbstractSet[bytes]) -> str:
        """Return the largest checkpoint of the file under this name that anybody signed who may; pass over those above it."""
        for at in reversed(range(len(self._notes))):
            note = self._notes[at]
            if parse_checkpoint(note).origin == origin:
                if _is_signed(note, origin, public):
                    return note
                self._ignored += 1
                del self._notes[at]
        return ""

    def items(self) -> Iterator[Entry | str]:
        """Give every row, and every checkpoint behind the row that it ends with."""
        notes, after, edge, mac = iter(self._notes), 0, Edge(), self._head.mac
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
        self._check_beyond(edge.size)

    def _check_beyond(self, size: int) -> None:
        """No node stands at a place that the tree has not reached: the log would find it taken, and store nothing more."""
        for level in range(STORED_LEVELS, MOST_LEVELS, STORED_LEVELS):
            beyond = len(self._recorder.hashes(level, size >> level, REACH))
            # Whoever appends at this moment makes nodes; the head is read behind them, so it counts all of those.
            if beyond and beyond > (self._recorder.tree_head().edge.size >> level) - (size >> level):
                raise bad("a node of the stored tree stands where the tree has none yet", None, "nodes")


class RunFacts:
    """
    The facts of one coordinator's tree, each with its proof, and those that the log holds about itself.

    *ends* is what is known of the log as a whole already. With *ring* the opening says how many facts the tree has, signed:
    so that a bundle is complete for somebody who does not have the log.
    """

    def __init__(
        self,
        recorder: EntryRecorder,
        root: str,
        pin: str | None = None,
        *,
        ends: TreeEnds | None = None,
        ring: Ring | None = None,
    ) -> None:
        self._recorder = recorder
        self._root = root
        self._pin = pin
        self._ends = ends or TreeEnds()
        self._ring = ring
        #: The head that the facts were read up to.
        self.head = Head()
        self._tree_head: str | None = None
        self._size = 0
        # Facts that follow each other share most of their proofs.
        self._subtree = lru_cache(KEPT_HASHES)(self._read_subtree)

    def opening(self) -> SourceOpening:
        """Return the store's newest checkpoint, how the pin leads to it, and where the run ends. Raises Bad with a ring."""
        self.head = head = read_head_of(self._recorder)
        if not head.note:
            raise Unreadable("nobody signed this log")
        self._size = _size(head.note)
        self._tree_head = self._signed_end()
        opening = SourceOpening(run=self._root, checkpoint=head.note, tree_head=self._tree_head)
        old = 0 if self._pin is None else _size(self._pin)
        if not 0 < old < self._size:
            return opening
        hashes = tuple(base64_of(self._subtree(*part)) for part in consistency_path(old, self._size))
        return msgspec.structs.replace(opening, consistent_from=old, consistency=hashes)

    @property
    def is_ended(self) -> bool:
        """Whether the opening that was given says, signed, where the run ends."""
        return self._tree_head is not None

    def end(self) -> SourceEnd:
        """Return how many facts the run has, now that its own are known to be those that were signed. Raises Bad."""
        check_head(self.head, self._recorder.log_entries())
        size = self.head.edge.size
        _, mac = self._recorder.receipts([size]).get(size, (b"", None))
        if mac != self.head.mac:
            raise bad("the chain goes on from another MAC than the last fact's", size, "head", mac, self.head.mac)
        return SourceEnd(length=self._ends.length(self._recorder, self.head, self._root))

    def _signed_end(self) -> str | None:
        if self._ring is None:
            return None
        check_head(self.head, self._recorder.log_entries())
        length = self._ends.length(self._recorder, self.head, self._root)
        return sign_tree_head(self._ring, self.head, self._root, length)

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
            # Where the first fact is that is gone, only a look at all of them tells.
            self._ends.length(self._recorder, self.head, self._root)
            raise bad("a node of the stored tree is gone", None, "nodes", "", str(error)) from error


def read_head_of(recorder: EntryRecorder) -> Head:
    """Return the head as it is stored. Raises Bad when somebody made something else of it."""
    try:
        head = recorder.tree_head()
        if head.note:
            parse_checkpoint(head.note)
        return head
    except (LogTampered, IndexError, NoteInvalid) as error:
        raise bad("the head of the store is gone or was changed", None, "head", "", str(error)) from error


def check_bounds(recorder: EntryRecorder) -> None:
    """Raise Bad for a fact that stands where the head vouches for none: whoever reads the log would take it for one."""
    head, first, last = recorder.bounds()
    if first < 1:
        raise bad("a fact stands before the first one of the log", first, "position", 1, first)
    if last != head:
        raise bad("the last fact is not where the head of the log says", last, "position", head, last)


def check_head(head: Head, own: Iterable[Entry]) -> None:
    """
    Raise Bad unless the head names who signs, as the log's *own* facts do, and its note is that signer's on all it holds.

    Whoever appends next goes on from it: what stands there is as much part of the log as a fact.
    """
    expected: Signer | None = None
    for position, named in _named(own):
        if position <= head.edge.size:
            origin = named.origin if isinstance(named, LogOpened) else expected.origin if expected else ""
            expected = Signer(origin, named.signing_key_id, named.hmac_key_id, named.public_key)
    if expected is None or head.signer != expected:
        raise bad("the head names another signer than the log's own facts", None, "signer", expected, head.signer)
    signed = Checkpoint(origin=expected.origin, size=head.edge.size, root=edge_root(head.edge))
    try:
        is_whole = parse_checkpoint(head.note) == signed
    except NoteInvalid as error:
        raise bad("the note of the head is no checkpoint", None, "note", signed.text, str(error)) from error
    if not is_whole:
        raise bad("the note of the head is not on what the head holds", None, "note", signed.text, head.note)
    if not _is_signed(head.note, signed.origin, {bytes_of(expected.public_key)}):
        raise bad("the note of the head is not signed by the log", None, "note", signed.origin, head.note)


def _named(own: Iterable[Entry]) -> Iterator[tuple[int, LogOpened | LogKeyRotated]]:
    """Give what the log's own facts say of who signs; whether they may say so, their signatures tell later."""
    for entry in own:
        try:
            found = msgspec.json.decode(entry.state, type=Envelope)
            if found.topic in (LogOpened.TOPIC, LogKeyRotated.TOPIC):
                kind = LogOpened if found.topic == LogOpened.TOPIC else LogKeyRotated
                named = msgspec.json.decode(found.payload, type=kind)
                bytes_of(named.public_key)
                yield found.position, named
        except (msgspec.MsgspecError, RecursionError, TypeError, ValueError):
            continue


def _public(named: LogOpened | LogKeyRotated) -> bytes:
    return bytes_of(named.public_key)


def _is_signed(note: str, origin: str, public: Iterable[bytes]) -> bool:
    """Whether one of these keys signed a note in the log's name."""
    for key in public:
        try:
            if signers(note, {key_hash(origin, key): key}):
                return True
        except NoteInvalid:
            continue
    return False


def _size(note: str) -> int:
    try:
        return parse_checkpoint(note).size if note else 0
    except NoteInvalid:
        return 0
