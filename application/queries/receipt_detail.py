"""A receipt in one piece: what the API answers, what the command line prints, and what anybody can check offline."""

import base64

import msgspec

from ..ports.proofs import Evidence


class ReceiptDetail(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A correction's receipt with all that shows, to somebody who has only the public key, that it is on the log."""

    directive_id: str
    position: int
    #: The envelope's bytes in base64; their RFC 6962 leaf hash is `leafHash`.
    leaf: str
    index: int
    leaf_hash: str
    payload_hash: str
    receipt_hash: str
    #: Base64, the leaf's sibling first.
    proof: tuple[str, ...]
    size: int
    root: str
    #: A signed note.
    checkpoint: str


def receipt_detail(directive_id: str, payload_hash: str, evidence: Evidence) -> ReceiptDetail:
    """Return the receipt of a directive, from the evidence of the fact that received it."""
    receipt, proof = evidence.receipt, evidence.proof
    return ReceiptDetail(
        directive_id=directive_id,
        position=receipt.position,
        leaf=base64.b64encode(evidence.envelope).decode(),
        index=receipt.leaf_index,
        leaf_hash=receipt.leaf_hash,
        payload_hash=payload_hash,
        receipt_hash=receipt.receipt_hash,
        proof=proof.hashes,
        size=proof.size,
        root=proof.root,
        checkpoint=evidence.checkpoint,
    )
