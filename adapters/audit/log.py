"""Audit a log, or one run of it, as one function: read everything once, trust nothing, remember little."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

import msgspec

from ...application.log_port import LogUnavailable
from ...application.verdict import Finding, Label, Verdict
from ..log.merkle import Edge, NoHash, edge_root, grow, proves_consistency, proves_inclusion
from ..log.signed_note import Checkpoint, NoteInvalid, bytes_of, parse_checkpoint
from .entry import Bad, Checked, Entry, Unreadable, bad, check_entry, no_hash
from .pinned_prefix import PinnedPrefix
from .signers import Signers
from .steering import Steering

#: Told after every so many facts how many there were.
PROGRESS_EVERY = 500

Progress = Callable[[int], object]


class Opening(msgspec.Struct, frozen=True, kw_only=True):
    """What a source says of itself before its facts."""

    #: The coordinator run whose facts these are, with those that the log holds about itself; None: every fact.
    run: str | None
    #: The checkpoint that everything is proved in, signed.
    checkpoint: str
    #: From a smaller tree to that one, for a pin: its size, and hashes in base64.
    consistent_from: int | None = None
    consistency: tuple[str, ...] = ()


class Source(Protocol):
    """Where facts come from: a store, or a bundle."""

    def opening(self) -> Opening:
        """Return what comes before the facts. Raises Unreadable."""
        ...

    def items(self) -> Iterator[Entry | str]:
        """Give the facts in their order, and between them signed checkpoints at their sizes. Raises Unreadable, Bad."""
        ...


def audit(
    source: Source,
    *,
    pins: Sequence[str] = (),
    hmac_keys: Mapping[str, bytes] | None = None,
    progress: Progress = lambda facts: None,
) -> Verdict:
    """
    Return what can be said about the facts of *source*; nothing it holds makes this raise.

    *pins* are checkpoints that the auditor kept: what is wrong lies behind the last of them that still holds.
    *hmac_keys* are keys of the chain by their names.
    """
    auditor = Auditor(source, pins, hmac_keys or {}, progress)
    try:
        auditor.run()
    except Bad as error:
        return auditor.verdict("tampered", error.finding)
    except NoHash as error:
        return auditor.verdict("tampered", no_hash(error).finding)
    except (Unreadable, LogUnavailable) as error:
        return auditor.verdict("unchecked", Finding(reason=str(error)))
    return auditor.verdict("steered" if auditor.steering.count else "clean", None)


class Auditor:
    """One audit, as far as it is."""

    def __init__(self, source: Source, pins: Sequence[str], hmac_keys: Mapping[str, bytes], progress: Progress) -> None:
        self.steering = Steering()
        self.signers = Signers(hmac_keys)
        self._source = source
        self._pins = sorted(pins, key=_pinned_size)
        #: By size: what a run's own proofs tell of the trees that were pinned.
        self._prefixes = {size: PinnedPrefix(size) for size in map(_pinned_size, self._pins)}
        self._progress = progress
        self._opening = Opening(run=None, checkpoint="")
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

    def verdict(self, label: Label, finding: Finding | None) -> Verdict:
        """Return the verdict as far as the audit came."""
        return Verdict(
            verdict=label,
            run=self._opening.run,
            facts=self._facts,
            size=self._end.size,
            complete_to=None if self._opening.run is None else self._complete_to,
            erased=self._erased,
            origin=self.signers.origin,
            signing_key_ids=tuple(self.signers.signing_key_ids),
            pinned=self._pinned > 0,
            chained=self.signers.chained,
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

    def _prove(self, fact: Checked, entry: Entry) -> None:
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
        if found.root != edge_root(self._edge):
            self.signers.check_note(note, found.size)
            self._compare(found, "the facts are not those that were signed", "root", self._vouched)
        self._vouched = found.size

    def _finish(self) -> None:
        if self._opening.run is None and self._last < self._end.size:
            missing = self._last + 1
            raise bad("facts that were signed are missing", missing, "size", self._end.size, self._last, self._end.size)
        if self._opening.run is not None and not self._complete_to:
            raise Unreadable("there are no facts of the run")
        if not self.signers.origin:
            raise Unreadable("there are no facts")
        self.signers.check_note(self._opening.checkpoint, self._end.size)
        if self._opening.run is None:
            self._compare(self._end, "the facts are not those that were signed", "root", self._vouched)
        self._check_pins(None)
        self.signers.end()

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
