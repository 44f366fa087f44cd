"""Verify a receipt, offline, with a verifier key."""

import json
from pathlib import Path
from typing import Any

from .facts import RECEIVED, Tampered, read_envelope
from .notes import Key, Unreadable, from_base64, read_checkpoint
from .tree import includes, leaf_hash
from .trust import Verdict

MEMBERS: dict[str, type] = {
    **dict.fromkeys(("directiveId", "leaf", "leafHash", "payloadHash", "receiptHash", "root", "checkpoint"), str),
    **dict.fromkeys(("position", "index", "size"), int),
    "proof": list,
}


def read_receipt(path: Path) -> dict[str, Any]:
    """The receipt in a file."""
    try:
        said = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise Unreadable("no receipt") from error
    if not isinstance(said, dict) or any(type(said.get(name)) is not kind for name, kind in MEMBERS.items()):
        raise Unreadable("no receipt")
    return said


def verify_receipt(path: Path, key: Key) -> Verdict:
    """Whether a receipt holds: then it says that the log was steered."""
    said = read_receipt(path)
    point, envelope = read_checkpoint(said["checkpoint"]), from_base64(said["leaf"])
    proof, leaf, position = [from_base64(step) for step in said["proof"]], leaf_hash(envelope), said["position"]
    if key.name != point.origin or key not in point.note.signers({key}):
        raise Tampered(position, "the checkpoint is not signed by the key")
    if (said["leafHash"], said["index"], said["size"]) != (leaf.hex(), position - 1, point.size):
        raise Tampered(position, "leaf hash, index or size are of something else")
    if from_base64(said["root"]) != point.root:
        raise Tampered(position, "the root is not that of the checkpoint")
    if not includes(point.root, point.size, said["index"], leaf, proof):
        raise Tampered(position, "the proof does not show the leaf")
    try:
        fact = read_envelope(envelope)
    except Unreadable as error:
        raise Tampered(position, str(error)) from error
    names = fact["payload"].get("directiveId"), fact["payload"].get("payloadHash")
    if (fact["topic"], fact["position"], *names) != (RECEIVED, position, said["directiveId"], said["payloadHash"]):
        raise Tampered(position, "the fact is not that of the receipt")
    return Verdict("steered", told=["the receipt hash takes the HMAC key and the log: it was not checked"])
