"""Receipts as an auditor has them: taken from a store, or checked offline with the public key alone."""

from typing import Literal, Protocol

import msgspec

from ...application.ports.verdict import AuditVerdict, rests_on
from ...application.queries.receipt_detail import ReceiptDetail, receipt_detail
from ...domain.facts.directive import SteeringReceived, directive_stream
from ..log_format.entry import Bad, Unreadable, bad
from ..log_format.event_codec import Envelope, StoredRow
from ..log_format.merkle import leaf_hash, proves_inclusion
from ..log_format.signed_note import (
    MAX_NOTE_CHARACTERS,
    PROOF_HEADER,
    Checkpoint,
    NoteInvalid,
    base64_of,
    bytes_of,
    key_hash,
    parse_checkpoint,
    parse_note,
    parse_verifier_key,
    signers,
)
from .proofs import StoredProofs

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
    fact = _fact(found[0].state)
    if fact.topic != SteeringReceived.TOPIC:
        raise Unreadable(f"the fact is no receipt of a correction but {fact.topic[:40]}")
    payload = _payload(fact)
    return receipt_detail(directive_id, str(payload.get("payloadHash")), proofs.evidence(found[0].position))


def check_receipt(document: bytes, verifier_key: str) -> AuditVerdict:
    """
    Return `steered` for a receipt that holds, `tampered` for one that does not, `unchecked` for what is none.

    Its receipt hash is not checked, which the verdict says: that takes the HMAC key and the log.
    """
    try:
        size = _check(document, verifier_key)
    except Bad as error:
        return AuditVerdict(verdict="tampered", finding=error.finding)
    except Unreadable as error:
        return AuditVerdict(verdict="unchecked", finding=bad(str(error), None, "").finding)
    # A MAC covers the one before, which no receipt holds: its key alone would not do.
    return AuditVerdict(
        rests_on=rests_on(has_pin=False, has_key=True),
        verdict="steered",
        facts=1,
        size=size,
        steering=1,
        pinned=True,
        not_checked=("receiptHash",),
    )


def _check(document: bytes, verifier_key: str) -> int:
    try:
        name, public = parse_verifier_key(verifier_key)
    except NoteInvalid as error:
        raise Unreadable(f"{error}: --key takes the verifier_key of GET /api/log/key") from error
    receipt = _receipt(document)
    try:
        envelope, proof = bytes_of(receipt.leaf), [bytes_of(step) for step in receipt.proof]
        signed = parse_checkpoint(receipt.checkpoint)
    except NoteInvalid as error:
        raise Unreadable(f"that is no receipt: {error}") from error
    _check_signature(receipt, signed, name, public)
    leaf, position = leaf_hash(envelope), receipt.position
    for field, expected, actual in (
        ("leafHash", leaf.hex(), receipt.leaf_hash),
        ("index", position - 1, receipt.index),
        ("size", signed.size, receipt.size),
        ("root", base64_of(signed.root), receipt.root),
    ):
        if actual != expected:
            raise bad("the receipt contradicts itself", position, field, expected, actual)
    if not proves_inclusion(leaf, receipt.index, signed.size, proof, signed.root):
        raise bad("the fact is not in the signed tree", position, "proof", signed.root, leaf)
    try:
        fact = _fact(envelope)
        payload = _payload(fact)
    except Unreadable as error:
        raise bad("what was signed is no fact", position, "leaf", "an envelope", str(error)) from error
    for field, expected, actual in (
        ("topic", SteeringReceived.TOPIC, fact.topic),
        ("position", position, fact.position),
        ("directiveId", payload.get("directiveId"), receipt.directive_id),
        ("payloadHash", payload.get("payloadHash"), receipt.payload_hash),
    ):
        if actual != expected:
            raise bad("the fact is the receipt of something else", position, field, expected, actual)
    return signed.size


def _receipt(document: bytes) -> ReceiptDetail:
    """Return a receipt as it stands in a file. Raises Unreadable."""
    if document.startswith(PROOF_HEADER.encode()):
        raise Unreadable(
            "that is a tlog-proof, which proves an envelope and does not hold it: ask for the receipt as JSON"
            " (Accept: application/json), or give the proof and the JSON's `leaf` to a program for tlog-proofs"
        )
    try:
        return msgspec.json.decode(document[:MAX_RECEIPT_BYTES], type=ReceiptDetail)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise Unreadable(f"that is no receipt: {error}") from error


def _check_signature(receipt: ReceiptDetail, signed: Checkpoint, name: str, public: bytes) -> None:
    """Return if the log of that name signed the checkpoint with that key. Raises Bad."""
    if signed.origin != name:
        raise bad("the checkpoint is of another log than the key", receipt.position, "checkpoint", name, signed.origin)
    number = key_hash(name, public)
    try:
        is_signed, by = bool(signers(receipt.checkpoint, {number: public})), parse_note(receipt.checkpoint)[1]
    except NoteInvalid as error:
        raise bad("the checkpoint is not signed by that key", receipt.position, "checkpoint", "", str(error)) from error
    if not is_signed:
        actual = " ".join(line.key_hash.hex() for line in by)
        raise bad("the checkpoint is signed by another key", receipt.position, "checkpoint", number.hex(), actual)


def _fact(state: bytes) -> Envelope:
    try:
        return msgspec.json.decode(state, type=Envelope)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise Unreadable(f"the fact cannot be decoded: {error}") from error


def _payload(fact: Envelope) -> dict[str, object]:
    try:
        return msgspec.json.decode(fact.payload, type=dict[str, object])
    except (msgspec.MsgspecError, RecursionError) as error:
        raise Unreadable(f"the fact cannot be decoded: {error}") from error
