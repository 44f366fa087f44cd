"""What the log shows to whoever does not trust it: receipts, checkpoints and proofs, read from what was stored."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Literal, Protocol, TypeVar, cast

import msgspec

from ...application.ports.log import Alarm, Forged, LogTampered, Undecodable
from ...application.ports.proofs import ConsistencyProof, Evidence, InclusionProof, LogKey, OutOfRange, Receipt
from ...application.ports.verdict import AuditVerdict
from ...domain.kinds.log import LogKeyRotated
from ..audit.log import audit
from ..audit.store import EntryRecorder, RunFacts
from ..audit.tree_ends import TreeEnds
from ..log_format.event_codec import Envelope, StoredRow
from ..log_format.head import Head
from ..log_format.keys import KeysRefused, Ring
from ..log_format.merkle import NoHash, consistency_path, inclusion_path, leaf_hash, proves_inclusion, subtree_root
from ..log_format.signed_note import NoteInvalid, Proof, base64_of, bytes_of, parse_checkpoint, proof_text, verifier_key
from ..log_format.tree_heads import sign_tree_head
from .sealing import UNSEALED, Sealing

#: How many alarms are kept in mind; one is too many already.
MAX_ALARMS = 1_000

Faulty = TypeVar("Faulty", Undecodable, LogTampered)


class ProofRecorder(EntryRecorder, Protocol):
    """What is asked of a store for proofs."""

    def rows(self, order: Literal["position"], name: str, after: int, limit: int) -> list[StoredRow]:
        """Return the facts of the log, ascending from *after*."""
        ...


class StoredProofs:
    """A LogProofs over a store. A proof takes as many look-ups as the tree is high."""

    def __init__(self, store: ProofRecorder, sealing: Sealing = UNSEALED) -> None:
        self._store = store
        self._sealing = sealing
        self._ends = TreeEnds()
        self._alarms: dict[int | str, Alarm] = {}

    @property
    def alarms(self) -> Sequence[Alarm]:
        """What a reader of this process found not to be what was written, and has not found in order since."""
        return list(self._alarms.values())

    def _alarmed(self, error: Faulty) -> Faulty:
        """Keep in mind what was found, and return it."""
        if len(self._alarms) < MAX_ALARMS:
            if isinstance(error, Forged):
                self._alarms[error.position] = Alarm(position=error.position, run=error.run, reason=error.reason)
            elif isinstance(error, LogTampered):
                self._alarms[str(error)] = Alarm(position=None, run=None, reason=str(error))
        return error

    def _sound(self, position: int) -> None:
        """A fact was found in order: somebody may have put back what was changed."""
        if self._alarms:
            self._alarms.pop(position, None)

    def receipts(self, positions: Sequence[int]) -> Mapping[int, Receipt]:
        """Return the receipts of these facts, by position. Raises LogTampered."""
        found = dict[int, Receipt]()
        for position, (leaf, mac) in self._store.receipts(positions).items():
            if not isinstance(cast("object", leaf), bytes) or not isinstance(cast("object", mac), bytes | None):
                raise self._alarmed(LogTampered(f"the hash or the MAC of position {position} is none"))
            found[position] = receipt_of(position, leaf, mac)
        return found

    def evidence(self, position: int) -> Evidence:
        """Return a fact and its proof in the newest checkpoint. Raises LogTampered, Forged."""
        head = self._tree_head()
        try:
            size = parse_checkpoint(head.note).size if head.note else head.edge.size
        except NoteInvalid as error:
            raise self._alarmed(LogTampered(f"the note of the head: {error}")) from error
        try:
            proof = self.inclusion(position - 1, size)
        except OutOfRange as error:
            raise self._alarmed(LogTampered(f"the head of the log ends before position {position}")) from error
        rows = self._store.rows("position", "", position - 1, 1)
        receipt = self.receipts([position]).get(position)
        if receipt is None or not rows or rows[0].position != position:
            raise self._alarmed(LogTampered(f"the fact at position {position} is gone"))
        (row,) = rows
        hashes = tuple(bytes_of(step) for step in proof.hashes)
        state = cast("object", row.state)
        if not isinstance(state, bytes) or not proves_inclusion(
            leaf_hash(state), position - 1, size, hashes, _root_of(head, size, proof)
        ):
            raise self._alarmed(Forged(position, row.run, "it is not in the tree that was signed"))
        return Evidence(
            receipt=receipt,
            envelope=row.state,
            proof=proof,
            checkpoint=head.note,
            tlog_proof=proof_text(Proof(index=position - 1, hashes=hashes, note=head.note)),
        )

    def checkpoint(self) -> str:
        """Return the newest checkpoint."""
        return self._tree_head().note

    def key(self) -> LogKey | None:
        """Return who signs the log."""
        signer = self._tree_head().signer
        if signer is None:
            return None
        return LogKey(
            endorsements=tuple(self._endorsements()),
            origin=signer.origin,
            signing_key_id=signer.signing_id,
            hmac_key_id=signer.hmac_id,
            verifier_key=verifier_key(signer.origin, bytes_of(signer.public_key)),
        )

    def inclusion(self, index: int, size: int) -> InclusionProof:
        """Return the proof that a leaf is in the tree of the first *size* leaves. Raises OutOfRange."""
        if not 0 <= index < size <= self._tree_head().edge.size:
            raise OutOfRange
        receipt = self.receipts([index + 1]).get(index + 1)
        if receipt is None:
            raise self._alarmed(LogTampered(f"the fact at position {index + 1} is gone"))
        return InclusionProof(
            index=index,
            size=size,
            leaf_hash=receipt.leaf_hash,
            root=self._root(0, size),
            hashes=tuple(self._root(*part) for part in inclusion_path(index, size)),
        )

    def consistency(self, old: int, new: int) -> ConsistencyProof:
        """Return the proof that the larger tree goes on from the smaller one. Raises OutOfRange."""
        if not 0 <= old <= new <= self._tree_head().edge.size:
            raise OutOfRange
        return ConsistencyProof(
            old=old,
            new=new,
            old_root=self._root(0, old),
            new_root=self._root(0, new),
            hashes=tuple(self._root(*part) for part in consistency_path(old, new)),
        )

    def audit(self, root: str) -> AuditVerdict:
        """Return what an auditor finds in the facts of a coordinator's tree; where the keys are, the chain too, and its end."""
        ring = self._sealing.ring
        source = RunFacts(self._store, root, ends=self._ends)
        verdict = audit(source, hmac_keys=hmac_keys_of(ring), needs_key=False)
        if verdict.verdict == "tampered" and verdict.finding is not None:
            self._alarmed(LogTampered(f"an audit of run {root} found: {verdict.finding.reason}"))
        if ring is None or self._sealing.rolled_back is not None or verdict.finding is not None:
            return verdict
        signed = sign_tree_head(ring, source.head, root, verdict.complete_to or 0)
        return msgspec.structs.replace(verdict, tree_head=signed)

    def _tree_head(self) -> Head:
        try:
            return self._store.tree_head()
        except LogTampered as error:
            raise self._alarmed(error) from error

    def _endorsements(self) -> Iterator[str]:
        """Give what each key signed when it handed the log over to the next one."""
        for entry in self._store.log_entries():
            with suppress(msgspec.MsgspecError, TypeError, ValueError):
                found = msgspec.json.decode(entry.state, type=Envelope)
                if found.topic == LogKeyRotated.TOPIC:
                    yield msgspec.json.decode(found.payload, type=LogKeyRotated).endorsement

    def _root(self, start: int, end: int) -> str:
        try:
            return base64_of(subtree_root(start, end, self._store.hashes))
        except (LookupError, NoHash) as error:
            raise self._alarmed(LogTampered(f"the tree of the log is not whole: {error}")) from error


def _root_of(head: Head, size: int, proof: InclusionProof) -> bytes:
    """Return the root that was signed for the size, or where nobody signs that of the stored tree."""
    return parse_checkpoint(head.note).root if head.note else bytes_of(proof.root)


def hmac_keys_of(ring: Ring | None) -> dict[str, bytes]:
    """Return the keys of the chain that are at hand, by their names."""
    try:
        return {} if ring is None else {keys.hmac_id: keys.hmac for keys in ring.all()}
    except (KeysRefused, OSError):
        return {}


def receipt_of(position: int, leaf: bytes, mac: bytes | None) -> Receipt:
    """Return a receipt as it is shown."""
    return Receipt(
        position=position,
        leaf_index=position - 1,
        leaf_hash=leaf.hex(),
        receipt_hash="" if mac is None else mac.hex(),
    )
