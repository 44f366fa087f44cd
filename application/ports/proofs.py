"""What the log shows to whoever does not trust it."""

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from .verdict import AuditVerdict


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """What a fact is known by to whoever does not trust the store. Digests are 64 hex digits."""

    position: int
    #: The fact's index in the RFC 6962 tree over the log: its position less one.
    leaf_index: int
    leaf_hash: str
    #: The MAC of the fact's entry in the chain, which covers every entry before it; empty in a log that nobody signs.
    receipt_hash: str


class LogKey(msgspec.Struct, frozen=True, kw_only=True):
    """Who signs the log now."""

    origin: str
    signing_key_id: str
    hmac_key_id: str
    #: `origin+hash+base64`, as tools for signed notes take it; empty when the key is not to be known from here.
    verifier_key: str
    #: What each key signed, a signed note, when it handed the log over to the next one: whoever kept an earlier key follows.
    endorsements: tuple[str, ...] = ()


class InclusionProof(msgspec.Struct, frozen=True, kw_only=True):
    """That a leaf is in the tree of `size` leaves: hashes in base64, the leaf's sibling first."""

    index: int
    size: int
    leaf_hash: str
    root: str
    hashes: tuple[str, ...]


class ConsistencyProof(msgspec.Struct, frozen=True, kw_only=True):
    """That a smaller tree is what a larger one begins with: hashes in base64, as RFC 6962 orders them."""

    old: int
    new: int
    old_root: str
    new_root: str
    hashes: tuple[str, ...]


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """A fact with everything that shows, to somebody who has nothing of ours but the public key, that it is in the log."""

    receipt: Receipt
    #: The stored bytes, whose leaf hash is in the tree.
    envelope: bytes
    proof: InclusionProof
    #: The signed checkpoint that the proof is for; empty in a log that nobody signs.
    checkpoint: str
    #: The same as a tlog-proof@v1 file.
    tlog_proof: str


class OutOfRange(Exception):
    """The log has no tree of that size, or no leaf there."""


class LogProofs(Protocol):
    """What the log shows to whoever does not trust it. None of it is secret."""

    def receipts(self, positions: Sequence[int]) -> Mapping[int, Receipt]:
        """Return the receipts of these facts, by position; there is none for a position that has no fact."""
        ...

    def evidence(self, position: int) -> Evidence:
        """Return a fact and its proof in the newest checkpoint. Raises LogTampered, Forged where the store holds none."""
        ...

    def checkpoint(self) -> str:
        """Return the newest checkpoint, a signed note; empty in a log that nobody signs."""
        ...

    def key(self) -> LogKey | None:
        """Return who signs the log, None if nobody does."""
        ...

    def inclusion(self, index: int, size: int) -> InclusionProof:
        """Return the proof that leaf *index* is in the tree of the first *size* leaves. Raises OutOfRange."""
        ...

    def consistency(self, old: int, new: int) -> ConsistencyProof:
        """Return the proof that the tree of *old* leaves is what the one of *new* leaves begins with. Raises OutOfRange."""
        ...

    def audit(self, root: str) -> AuditVerdict:
        """Return what an auditor finds in the facts of a coordinator's tree."""
        ...
