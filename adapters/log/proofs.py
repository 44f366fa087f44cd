"""What the log shows to whoever does not trust it: receipts, checkpoints and proofs, read from what was stored."""

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

from ...application.proofs_port import ConsistencyProof, Evidence, InclusionProof, LogKey, OutOfRange, Receipt
from ...application.verdict import Verdict
from ..audit.log import audit
from ..audit.store import EntryRecorder, RunFacts
from .event_codec import StoredRow
from .merkle import consistency_path, inclusion_path, subtree_root
from .signed_note import Proof, base64_of, bytes_of, parse_checkpoint, proof_text, verifier_key


class ProofRecorder(EntryRecorder, Protocol):
    """What is asked of a store for proofs."""

    def rows(self, order: Literal["position"], name: str, after: int, limit: int) -> list[StoredRow]:
        """Return the facts of the log, ascending from *after*."""
        ...


class StoredProofs:
    """A LogProofs over a store. A proof takes as many look-ups as the tree is high."""

    def __init__(self, store: ProofRecorder) -> None:
        self._store = store

    def receipts(self, positions: Sequence[int]) -> Mapping[int, Receipt]:
        """Return the receipts of these facts, by position."""
        return {
            position: receipt_of(position, leaf, mac)
            for position, (leaf, mac) in self._store.receipts(positions).items()
        }

    def evidence(self, position: int) -> Evidence:
        """Return a fact and its proof in the newest checkpoint. Raises OutOfRange."""
        head = self._store.tree_head()
        size = parse_checkpoint(head.note).size if head.note else head.edge.size
        proof = self.inclusion(position - 1, size)
        (row,) = self._store.rows("position", "", position - 1, 1)
        hashes = tuple(bytes_of(step) for step in proof.hashes)
        return Evidence(
            receipt=self.receipts([position])[position],
            envelope=row.state,
            proof=proof,
            checkpoint=head.note,
            tlog_proof=proof_text(Proof(index=position - 1, hashes=hashes, note=head.note)),
        )

    def checkpoint(self) -> str:
        """Return the newest checkpoint."""
        return self._store.tree_head().note

    def key(self) -> LogKey | None:
        """Return who signs the log."""
        signer = self._store.tree_head().signer
        if signer is None:
            return None
        return LogKey(
            origin=signer.origin,
            signing_key_id=signer.signing_id,
            hmac_key_id=signer.hmac_id,
            verifier_key=verifier_key(signer.origin, bytes_of(signer.public_key)),
        )

    def inclusion(self, index: int, size: int) -> InclusionProof:
        """Return the proof that a leaf is in the tree of the first *size* leaves. Raises OutOfRange."""
        if not 0 <= index < size <= self._store.tree_head().edge.size:
            raise OutOfRange
        return InclusionProof(
            index=index,
            size=size,
            leaf_hash=self._store.receipts([index + 1])[index + 1][0].hex(),
            root=self._root(0, size),
            hashes=tuple(self._root(*part) for part in inclusion_path(index, size)),
        )

    def consistency(self, old: int, new: int) -> ConsistencyProof:
        """Return the proof that the larger tree goes on from the smaller one. Raises OutOfRange."""
        if not 0 <= old <= new <= self._store.tree_head().edge.size:
            raise OutOfRange
        return ConsistencyProof(
            old=old,
            new=new,
            old_root=self._root(0, old),
            new_root=self._root(0, new),
            hashes=tuple(self._root(*part) for part in consistency_path(old, new)),
        )

    def audit(self, root: str) -> Verdict:
        """Return what an auditor finds in the facts of a coordinator's tree."""
        return audit(RunFacts(self._store, root))

    def _root(self, start: int, end: int) -> str:
        return base64_of(subtree_root(start, end, self._store.hashes))


def receipt_of(position: int, leaf: bytes, mac: bytes | None) -> Receipt:
    """Return a receipt as it is shown."""
    return Receipt(
        position=position,
        leaf_index=position - 1,
        leaf_hash=leaf.hex(),
        receipt_hash="" if mac is None else mac.hex(),
    )
