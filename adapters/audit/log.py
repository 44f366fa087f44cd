"""Audit a log, or one run of it, as one function: read everything once, trust nothing, remember little."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

import msgspec

from ...application.ports.log import LogUnavailable
from ...application.ports.verdict import CHAIN, AuditVerdict, Finding, Label, rests_on
from ..log_format.entry import Bad, CheckedEntry, Entry, Unreadable, bad, check_entry, no_hash
from ..log_format.merkle import Edge, NoHash, edge_root, grow, proves_consistency, proves_inclusion
from ..log_format.signed_note import Checkpoint, NoteInvalid, bytes_of, parse_checkpoint, parse_verifier_key
from ..log_format.tree_heads import parse_tree_head
from .pinned_prefix import PinnedPrefix
from .signers import Signers
from .steering import Steering

#: Told after every so many facts how many there were.
PROGRESS_EVERY = 500

#: What is said of a part of a log that nobody vouches for as a whole.
OPEN = "open at its end: nobody vouches that the run has no more facts than these"

Progress = Callable[[int], object]


class SourceOpening(msgspec.Struct, frozen=True, kw_only=True):
    """What a source says of itself before its facts."""

    #: The coordinator run whose facts these are, with those that the log holds about itself; None: every fact.
    run: str | None
    #: The checkpoint that everything is proved in, signed.
    checkpoint: str
    #: From a smaller tree to that one, for a pin: its size, and hashes in base64.
    consistent_from: int | None = None
    consistency: tuple[str, ...] = ()
    #: How many facts the run has in the tree of that checkpoint, signed. None: nobody vouches for where it ends.
    tree_head: str | None = None


class SourceEnd(msgspec.Struct, frozen=True, kw_only=True):
    """What a source knows once everything it gave was found to be what was signed."""

    #: How many facts the run has, learnt from every fact of the log. None: the source does not have them.
    length: int | None = None
    #: How many lines of the file of checkpoints nobody signed who may.
    ignored: int = 0


class FactSource(Protocol):
    """Where facts come from: a store, or a bundle."""

    def opening(self) -> SourceOpening:
        """Return what comes before the facts. Raises Unreadable."""
        ...

    def items(self) -> Iterator[Entry | str]:
        """Give the facts in their order, and between them signed checkpoints at their sizes. Raises Unreadable, Bad."""
        ...

    def end(self) -> SourceEnd:
        """Look at what is left, after all else was found right. Raises Unreadable, Bad."""
        ...


def audit(
    source: FactSource,
    *,
    pins: Sequence[str] = (),
    keys: Sequence[str] = (),
    hmac_keys: Mapping[str, bytes] | None = None,
    needs_key: bool = True,
    progress: Progress = lambda facts: None,
) -> AuditVerdict:
    """
    Return what can be said about the facts of *source*; nothing it holds makes this raise.

    *pins* are checkpoints that the auditor kept: what is wrong lies behind the last of them that still holds.
    *keys* are verifier keys that the auditor trusts: the log has to be signed by each, or by one that it handed over to.
    *hmac_keys* are keys of the chain by their names; unless *needs_key*, they may be of another log.
    """
    auditor = Auditor(source, pins, keys, Signers(hmac_keys or {}, needs_key=needs_key), progress)
    try:
        auditor.run()
    except Bad as error:
        return auditor.verdict("tampered", error.finding)
    except NoHash as error:
        return auditor.verdict("tampered", no_hash(error).finding)
    except (Unreadable, LogUnavailable) as error:
        return auditor.verdict("unchecked", Finding(reason=str(error)))
    if auditor.steering.count:
        return auditor.verdict("steered", None)
    return (
        auditor.verdict("open", Finding(reason=auditor.open_at)) if auditor.open_at else auditor.verdict("clean", None)
    )


class Auditor:
    """One audit, as far as it is."""

    def __init__(
        self,
        source: FactSource,
        pins: Sequence[str],
        keys: Sequence[str],
        signers: Signers,
        progress: Progress,
    ) -> None:
        self.steering = Steering()
        self.signers = signers
        self._source = source
        self._keys = keys
        self._pins = sorted(pins, key=_pinned_size)
        #: By size: what a run's own proofs tell of the trees that were pinned.
        self._prefixes = {size: PinnedPrefix(size) for size in map(_pinned_size, self._pins)}
        self._progress = progress
        self._opening = SourceOpening(run=None, checkpoint="")
        self._end = Checkpoint(origin="", size=0, root=b"")
        self._edge = Edge()
        #: The largest size whose root was compared with a signed one.
        self._vouched = 0
        self._facts = 0
        self._erased = 0
        self._last = 0
        self._complete_to = 0
        #: The size of the last pin that held.
        self._pinned = 0
        #: Why nobody can tell where the run ends; empty for a whole log, and for a run whose end is proved.
        self.open_at = ""
        self._ignored = 0

    def run(self) -> None:
        """Look at everything. Raises Bad, Unreadable."""
        self._opening = self._source.opening()
        try:
            self._end = parse_checkpoint(self._opening.checkpoint)
        except NoteInvalid as error:
            raise bad("what is kept as the signed checkpoint is none", None, "checkpoint", "", str(error)) from error
        for item in self._source.items():
            if isinstance(item, str):
                self._take_note(item)
            else:
                self._take(item)
        self._progress(self._facts)
        self._finish()

    def verdict(self, label: Label, finding: Finding | None) -> AuditVerdict:
        """Return the verdict as far as the audit came."""
        return AuditVerdict(
            rests_on=rests_on(self._pinned > 0, bool(self._keys)),
            verdict=label,
            run=self._opening.run,
            facts=self._facts,
            size=self._end.size,
            complete_to=None if self._opening.run is None else self._complete_to,
            erased=self._erased,
            origin=self.signers.origin,
            signing_key_ids=tuple(self.signers.signing_key_ids),
            pinned=self._pinned > 0 or bool(self._keys),
            open_at_end=bool(self.open_at),
            ignored_checkpoints=self._ignored,
            chained=self.signers.chained,
            not_checked=() if self.signers.chained else (CHAIN,),
            steering=self.steering.count,
            steps=self.steering.steps,
            finding=finding,
        )

    def _take(self, entry: Entry) -> None:
        whole = self._opening.run is None
        position = (
            self._last + 1 if whole or not isinstance(entry.position, int) else max(entry.position, self._last + 1)
        )
        if position > self._end.size:
            raise bad("a fact that nobody signed", position, "position", self._end.size, position)
        fact = check_entry(entry, position)
        if whole:
            self._edge, _ = grow(self._edge, [fact.leaf])
        else:
            self._prove(fact, entry)
        self.signers.chain(fact, entry.mac, None if whole else entry.previous_mac)
        if not self.signers.origin:
            raise bad("the log does not begin with who signs it", position, "topic", "log.opened", fact.envelope.topic)
        self.steering.follow(fact, entry.mac.hex() if isinstance(entry.mac, bytes) else "")
        self._facts, self._erased, self._last = self._facts + 1, self._erased + fact.erased, position
        if whole and self._pins and _pinned_size(self._pins[0]) == position:
            self._check_pins(position)
        if self._facts % PROGRESS_EVERY == 0:
            self._progress(self._facts)

    def _prove(self, fact: CheckedEntry, entry: Entry) -> None:
        """A fact of a run: it is in the signed tree, and it is the run's next, or one about the log itself."""
        proof, end, envelope = entry.proof or (), self._end, fact.envelope
        if not proves_inclusion(fact.leaf, fact.position - 1, end.size, proof, end.root):
            raise bad("the fact is not in the signed tree", fact.position, "proof", end.root, fact.leaf)
        for size, prefix in self._prefixes.items():
            if size < end.size:
                prefix.take(fact.leaf, fact.position - 1, end.size, proof)
        if envelope.root is None:
            return
        if envelope.root != self._opening.run or envelope.root_sequence != self._complete_to + 1:
            expected = f"{self._opening.run} {self._complete_to + 1}"
            actual = f"{envelope.root} {envelope.root_sequence}"
            raise bad("a fact of the run was left out", fact.position, "root_sequence", expected, actual)
        self._complete_to += 1

    def _take_note(self, note: str) -> None:
        try:
            found = parse_checkpoint(note)
        except NoteInvalid as error:
            raise Unreadable(f"a checkpoint: {error}") from error
        if found.origin != self.signers.origin or found.size != self._edge.size:
            return  # of a history that was given up, or of another place: it says nothing here
        if not self.signers.is_signed(note):
            self._ignored += 1  # anybody can write such a line: it neither accuses nor vouches
            return
        self._compare(found, "the facts are not those that were signed", "root", self._vouched)
        self._vouched = found.size

    def _finish(self) -> None:
        if self._opening.run is None and self._last < self._end.size:
            missing = self._last + 1
            raise bad("facts that were signed are missing", missing, "size", self._end.size, self._last, self._end.size)
        if self._opening.run is not None and not self._complete_to:
            self._check_end(self._source.end().length or 0)
            raise Unreadable("there are no facts of the run")
        if not self.signers.origin:
            raise Unreadable("there are no facts")
        self.signers.check_note(self._opening.checkpoint, self._end.size)
        if self._opening.run is None:
            self._compare(self._end, "the facts are not those that were signed", "root", self._vouched)
        self._check_keys()
        self._check_pins(None)
        self.signers.end()
        end = self._source.end()
        self._ignored += end.ignored
        if self._opening.run is not None:
            self._check_end(end.length)

    def _check_keys(self) -> None:
        for key in self._keys:
            try:
                name, public = parse_verifier_key(key)
            except NoteInvalid as error:
                raise Unreadable(f"{error}: --key takes the verifier_key of GET /api/log/key") from error
            if not self.signers.names(name, public):
                raise bad("the log was never signed by the key that you trust", None, "key", key, self.signers.current)

    def _check_end(self, length: int | None) -> None:
        """Whether the run's facts end where the audited ones do: as the log as a whole shows, or as its signer says."""
        if length is None:
            length = self._signed_length()
        if length is not None and length != self._complete_to:
            raise bad("facts of the run are missing at its end", None, "root_sequence", length, self._complete_to)

    def _signed_length(self) -> int | None:
        note, run, end = self._opening.tree_head, self._opening.run, self._end
        if note is None:
            self.open_at = self.open_at or OPEN
            return None
        try:
            found = parse_tree_head(note)
        except NoteInvalid as error:
            raise bad(
                "what is kept as the head of the run's tree is none", None, "tree_head", "", str(error)
            ) from error
        if not self.signers.is_signed(note) or found.origin != self.signers.origin:
            raise bad(
                "the head of the run's tree is not signed by the log", None, "tree_head", self.signers.origin, note
            )
        if (found.run, found.size, found.root) != (run, end.size, end.root):
            self.open_at = self.open_at or OPEN
            return None
        return found.length

    def _compare(self, signed: Checkpoint, reason: str, field: str, sound: int) -> None:
        root = edge_root(self._edge)
        if root != signed.root:
            # Hashes say no more than between which two checkpoints it is.
            raise bad(reason, sound + 1, field, signed.root, root, signed.size)

    def _check_pins(self, upto: int | None) -> None:
        """Compare with the pins: those of a whole log when it is as large, all others at the end."""
        while self._pins and (upto is None or _pinned_size(self._pins[0]) <= upto):
            pin = self.signers.check_pin(self._pins.pop(0))
            kept = self.signers.kept.get(pin.origin, self._end.size)
            if pin.size > kept and self._opening.run is not None and pin.origin == self.signers.origin:
                # The bundle is older than the pin: no lie, but what the run did since it does not hold.
                self.open_at = f"{OPEN}: the pin is of {pin.size} facts, and what is proved here ends at {kept}"
                continue
            if pin.size > kept:
                # Also when somebody accepted the loss: whoever pinned those facts has to hear of it.
                raise bad("facts that were pinned are missing", kept + 1, "size", pin.size, kept, pin.size)
            if self._opening.run is not None:
                self._check_consistency(pin)
            else:
                self._compare(pin, "the facts are not those of the pinned checkpoint", "pin", self._pinned)
            self._pinned = pin.size

    def _check_consistency(self, pin: Checkpoint) -> None:
        """A run's bundle has no other leaves: it brings the proof, unless it follows from those that it has."""
        end, hashes = self._end, self._opening.consistency
        if pin.size == end.size or self._opening.consistent_from == pin.size:
            try:
                proof = () if pin.size == end.size else tuple(bytes_of(step) for step in hashes)
            except NoteInvalid as error:
                raise Unreadable(f"the proof of consistency: {error}") from error
            is_same, root = proves_consistency(pin.size, end.size, proof, pin.root, end.root), end.root
        elif (root := self._prefixes[pin.size].root()) is not None:
            is_same = root == pin.root
        else:
            raise Unreadable(
                f"the bundle does not prove how the log grew from the pinned size {pin.size} to {end.size}: export it"
                " once more with --pin and that checkpoint, or verify the data directory with it"
            )
        if not is_same:
            raise bad("the log is not the one of the pinned checkpoint", None, "pin", pin.root, root, pin.size)


def _pinned(pin: str) -> Checkpoint:
    try:
        return parse_checkpoint(pin)
    except NoteInvalid:
        return Checkpoint(origin="", size=0, root=b"")


def _pinned_size(pin: str) -> int:
    return _pinned(pin).size
