"""Receipts as an auditor has them: taken from a store, or checked offline with the public key alone."""

from typing import Literal, Protocol

import msgspec

from ..application.receipt_detail import ReceiptDetail, receipt_detail
from ..application.verdict import Verdict
from ..domain.directive import SteeringReceived, directive_stream
from .audit_entry import Bad, Unreadable, bad
from .event_codec import Envelope, StoredRow
from .log_proofs import StoredProofs
from .merkle import leaf_hash, proves_inclusion
from .signed_note import (
    MAX_NOTE_CHARACTERS,
    NoteInvalid,
    bytes_of,
    key_hash,
    parse_checkpoint,
    parse_verifier_key,
    signers,
)

MAX_RECEIPT_BYTES = 32 * MAX_NOTE_CHARACTERS


class Streams(Protocol):
    """What is asked of a store for a receipt."""

    def rows(self, order: Literal["version"], name: str, after: int, limit: int) -> list[StoredRow]:
        """Return a stream's facts."""
        ...


def receipt_of_directive(proofs: StoredProofs, streams: Streams, directive_id: str) -> ReceiptDetail:
    """Return the receipt of a directive. Raises LookupError when there is none."""
    found = streams.rows("version", directive_stream(directive_id), 0, 1)
    if not found:
        raise LookupError(directive_id)
    payload = _payload(found[0].state)
    return receipt_detail(directive_id, str(payload.get("payloadHash")), proofs.evidence(found[0].position))


def check_receipt(document: bytes, verifier_key: str) -> Verdict:
    """Return `steered` for a receipt that holds, `tampered` for one that does not, `unchecked` for what is none."""
    try:
        size = _check(document, verifier_key)
    except Bad as error:
        return Verdict(verdict="tampered", finding=error.finding)
    except Unreadable as error:
        return Verdict(verdict="unchecked", finding=bad(str(error), None, "").finding)
    return Verdict(verdict="steered", facts=1, size=size, steering=1, pinned=True)


def _check(document: bytes, verifier_key: str) -> int:
    try:
        receipt = msgspec.json.decode(document[:MAX_RECEIPT_BYTES], type=ReceiptDetail)
        name, public = parse_verifier_key(verifier_key)
        envelope, proof = bytes_of(receipt.leaf), [bytes_of(step) for step in receipt.proof]
        signed = parse_checkpoint(receipt.checkpoint)
    except (msgspec.MsgspecError, NoteInvalid, RecursionError, UnicodeDecodeError) as error:
        raise Unreadable(f"that is no receipt with its key: {error}") from error
    position = receipt.position
    try:
        is_signed = signed.origin == name and signers(receipt.checkpoint, {key_hash(name, public): public})
    except NoteInvalid:
        is_signed = False
    if not is_signed:
        raise bad("the checkpoint is not signed by that key", position, "checkpoint", name, signed.origin)
    leaf = leaf_hash(envelope)
    if (receipt.leaf_hash, receipt.index, receipt.size) != (leaf.hex(), position - 1, signed.size):
        raise bad("the receipt contradicts itself", position, "leafHash", receipt.leaf_hash, leaf)
    if not proves_inclusion(leaf, receipt.index, signed.size, proof, signed.root):
        raise bad("the fact is not in the signed tree", position, "proof", signed.root, leaf)
    payload = _payload(envelope)
    found = (payload.get("directiveId"), payload.get("payloadHash"))
    if found != (receipt.directive_id, receipt.payload_hash):
        raise bad("the fact is the receipt of something else", position, "directiveId", receipt.directive_id, found[0])
    return signed.size


def _payload(state: bytes) -> dict[str, object]:
    try:
        envelope = msgspec.json.decode(state, type=Envelope)
        if envelope.topic != SteeringReceived.TOPIC:
            raise Unreadable(f"the fact is no receipt of a correction but {envelope.topic[:40]}")
        return msgspec.json.decode(envelope.payload, type=dict[str, object])
    except (msgspec.MsgspecError, RecursionError) as error:
        raise Unreadable(f"the fact cannot be decoded: {error}") from error
