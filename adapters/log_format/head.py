"""Where the log ends, and what proves it: the one row that every writer locks."""

from typing import Any

import msgspec

from .merkle import HASH_BYTES, Edge

#: What the first entry's MAC covers in place of an earlier one.
FIRST_MAC = bytes(HASH_BYTES)


class Signer(msgspec.Struct, frozen=True):
    """The name under which a log signs, and which keys it uses."""

    origin: str
    signing_id: str
    hmac_id: str
    #: The public key in base64, for whoever asks the store.
    public_key: str


class Head(msgspec.Struct, frozen=True):
    """The end of the log. Without a signer nobody signs it: so it is in tests of other things, and nowhere else."""

    edge: Edge = Edge()
    mac: bytes = FIRST_MAC
    signer: Signer | None = None
    #: The newest checkpoint, signed.
    note: str = ""


def edge_bytes(edge: Edge) -> bytes:
    """Return the hashes of an edge as they are stored."""
    return b"".join(edge.hashes)


def read_head(position: Any, edge: Any, mac: Any, signer: Any, note: Any) -> Head:
    """Return the head that these columns hold. Raises TypeError, ValueError: SQLite keeps any type in any column."""
    kinds = {"position": (position, int), "edge": (edge, bytes), "mac": (mac, bytes), "signer": (signer, str)}
    for name, (value, kind) in {**kinds, "note": (note, str)}.items():
        if not isinstance(value, kind):
            raise TypeError(f"{name} is no {kind.__name__}")
    if len(mac) != HASH_BYTES or len(edge) % HASH_BYTES:
        raise ValueError(f"mac and edge are not made of {HASH_BYTES} bytes each")
    hashes = tuple(edge[at : at + HASH_BYTES] for at in range(0, len(edge), HASH_BYTES))
    found = msgspec.json.decode(signer, type=Signer) if signer else None
    return Head(Edge(position, hashes), mac, found, note)


def signer_text(signer: Signer | None) -> str:
    """Return the signer as its column holds it."""
    return msgspec.json.encode(signer).decode() if signer else ""
