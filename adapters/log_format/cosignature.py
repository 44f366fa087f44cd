"""C2SP cosignatures (`cosignature/v1`, Ed25519): what a witness says of a checkpoint, and the line that says it."""

import hashlib
from datetime import datetime

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from .merkle import HASH_BYTES
from .signed_note import DASH, KEY_HASH_BYTES, NoteInvalid, base64_of, bytes_of, parse_note, public_bytes

#: The byte that tells a witness's key from a log's in key ids and verifier keys.
COSIGNATURE = b"\x04"
TIMESTAMP_BYTES = 8


class Witness(msgspec.Struct, frozen=True):
    """A witness as others know it: a name like a URL without its scheme, and a public key."""

    name: str
    public: bytes

    @property
    def key_hash(self) -> bytes:
        """The id by which its lines name its key."""
        return hashlib.sha256(self.name.encode() + b"\n" + COSIGNATURE + self.public).digest()[:KEY_HASH_BYTES]

    @property
    def verifier_key(self) -> str:
        """It in one word, as programs for signed notes take it."""
        return f"{self.name}+{self.key_hash.hex()}+{base64_of(COSIGNATURE + self.public)}"


def parse_witness(word: str) -> Witness:
    """Return the witness of a verifier key. Raises NoteInvalid."""
    name, _, rest = word.strip().partition("+")
    known, _, encoded = rest.partition("+")
    found = bytes_of(encoded)
    if len(found) != 1 + HASH_BYTES or found[:1] != COSIGNATURE:
        raise NoteInvalid("that is no verifier key of an Ed25519 witness")
    witness = Witness(name, found[1:])
    if not name or witness.key_hash.hex() != known:
        raise NoteInvalid("that is no verifier key: its parts contradict each other")
    return witness


def cosign(note: str, name: str, key: Ed25519PrivateKey, at: datetime) -> str:
    """Return the line of signature that a witness puts under a checkpoint. Raises NoteInvalid."""
    seconds = int(at.timestamp())
    witness = Witness(name, public_bytes(key.public_key()))
    signature = key.sign(_message(note, seconds))
    return f"{DASH}{name} {base64_of(witness.key_hash + seconds.to_bytes(TIMESTAMP_BYTES) + signature)}\n"


def cosigned_at(note: str, witness: Witness) -> int | None:
    """
    Return when the witness cosigned a checkpoint, in seconds since 1970; None if it did not.

    Raises:
        NoteInvalid: it is no note, or a signature in the witness's name and by its key is wrong.
    """
    for line in parse_note(note)[1]:
        if line.name == witness.name and line.key_hash == witness.key_hash:
            seconds = int.from_bytes(line.signature[:TIMESTAMP_BYTES])
            try:
                public = Ed25519PublicKey.from_public_bytes(witness.public)
                public.verify(line.signature[TIMESTAMP_BYTES:], _message(note, seconds))
            except (InvalidSignature, ValueError) as error:
                raise NoteInvalid(f"the cosignature of {witness.name} is wrong") from error
            return seconds
    return None


def _message(note: str, seconds: int) -> bytes:
    return f"cosignature/v1\ntime {seconds}\n{parse_note(note)[0]}".encode()
