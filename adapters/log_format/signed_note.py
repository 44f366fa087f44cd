"""C2SP signed notes, checkpoints and inclusion proofs as text: what is written here, other people's tools verify."""

import base64
import binascii
import hashlib
from collections.abc import Mapping
from functools import lru_cache

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from .merkle import HASH_BYTES

PROOF_HEADER = "c2sp.org/tlog-proof@v1"
ED25519 = b"\x01"
KEY_HASH_BYTES = 4
#: More signatures than a note of ours ever has; beyond them nobody looks.
MAX_SIGNATURES = 100
#: The longest note that is read at all.
MAX_NOTE_CHARACTERS = 100_000
DASH = "\u2014 "


class NoteInvalid(ValueError):
    """The text is no signed note, no checkpoint or no proof, or a signature in it by a known key is wrong."""


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """What a log says it holds."""

    origin: str
    size: int
    root: bytes

    @property
    def text(self) -> str:
        """The lines that are signed."""
        return f"{self.origin}\n{self.size}\n{base64_of(self.root)}\n"


class Signature(msgspec.Struct, frozen=True):
    """One line under a note."""

    name: str
    key_hash: bytes
    signature: bytes


class Proof(msgspec.Struct, frozen=True, kw_only=True):
    """That an entry is in a log, in one piece; `note` is the checkpoint, signed."""

    index: int
    hashes: tuple[bytes, ...]
    note: str


def public_bytes(key: Ed25519PublicKey) -> bytes:
    """Return the 32 bytes of a public key."""
    return key.public_bytes_raw()


def key_hash(name: str, public: bytes) -> bytes:
    """Return the id by which a note names the key of a signature."""
    return hashlib.sha256(name.encode() + b"\n" + ED25519 + public).digest()[:KEY_HASH_BYTES]


def verifier_key(name: str, public: bytes) -> str:
    """Return a public key as one word, as Go's note package and other tools take it."""
    return f"{name}+{key_hash(name, public).hex()}+{base64_of(ED25519 + public)}"


def parse_verifier_key(word: str) -> tuple[str, bytes]:
    """Return the name and the public key. Raises NoteInvalid."""
    name, _, rest = word.strip().partition("+")
    known, _, encoded = rest.partition("+")
    found = bytes_of(encoded)
    if len(found) != 1 + HASH_BYTES or found[:1] != ED25519 or key_hash(name, found[1:]).hex() != known:
        raise NoteInvalid("that is no Ed25519 verifier key")
    return name, found[1:]


def sign(checkpoint: Checkpoint, *keys: Ed25519PrivateKey) -> str:
    """Return the checkpoint as a note with a signature by each key, under the log's own name."""
    return sign_text(checkpoint.text, checkpoint.origin, *keys)


def endorsement(origin: str, public: str) -> str:
    """Return what a key signs when it hands the log over to the next one."""
    return f"{origin}\nis signed from here on by\n{public}\n"


def sign_text(text: str, name: str, *keys: Ed25519PrivateKey) -> str:
    """Return a note with a signature by each key."""
    signed = text.encode()
    lines = (f"{DASH}{name} {base64_of(_key_hash_of(name, key) + key.sign(signed))}\n" for key in keys)
    return f"{text}\n{''.join(lines)}"


@lru_cache(maxsize=8)
def _key_hash_of(name: str, key: Ed25519PrivateKey) -> bytes:
    """Return the key's id. Remembered: to find a key's public half takes half as long as to sign."""
    return key_hash(name, public_bytes(key.public_key()))


def parse_note(note: str) -> tuple[str, tuple[Signature, ...]]:
    """Return the signed text and the signatures, nothing of it verified. Raises NoteInvalid."""
    if len(note) > MAX_NOTE_CHARACTERS or not note.endswith("\n"):
        raise NoteInvalid("a note is short and ends with a new line")
    text, separator, lines = note.rpartition("\n\n")
    if not separator or not lines:
        raise NoteInvalid("a note has signatures behind an empty line")
    signatures = [_signature(line) for line in lines.removesuffix("\n").split("\n")]
    if len(signatures) > MAX_SIGNATURES:
        raise NoteInvalid("too many signatures")
    return text + "\n", tuple(signatures)


def parse_checkpoint(note: str) -> Checkpoint:
    """Return the checkpoint of a signed note, nothing of it verified. Raises NoteInvalid."""
    text, _ = parse_note(note)
    lines = text.split("\n")
    if len(lines) < 4 or not lines[0]:
        raise NoteInvalid("a checkpoint has three lines")
    root = bytes_of(lines[2])
    if len(root) != HASH_BYTES:
        raise NoteInvalid("a root has 32 bytes")
    return Checkpoint(origin=lines[0], size=decimal(lines[1]), root=root)


def signers(note: str, keys: Mapping[bytes, bytes]) -> frozenset[bytes]:
    """
    Return which of the *keys*, public keys by their hash, signed the note; unknown signatures are passed over.

    Raises:
        NoteInvalid: it is no note, or the signature of a known key is wrong.
    """
    text, signatures = parse_note(note)
    found = set[bytes]()
    for line in signatures:
        public = keys.get(line.key_hash)
        if public is None or key_hash(line.name, public) != line.key_hash:
            continue
        try:
            Ed25519PublicKey.from_public_bytes(public).verify(line.signature, text.encode())
        except (InvalidSignature, ValueError) as error:
            raise NoteInvalid(f"the signature of {line.name} is wrong") from error
        found.add(line.key_hash)
    return frozenset(found)


def proof_text(proof: Proof) -> str:
    """Return the proof as a tlog-proof@v1 file."""
    hashes = "".join(f"{base64_of(step)}\n" for step in proof.hashes)
    return f"{PROOF_HEADER}\nindex {proof.index}\n{hashes}\n{proof.note}"


def _signature(line: str) -> Signature:
    name, separator, encoded = line.removeprefix(DASH).partition(" ")
    found = bytes_of(encoded)
    if not line.startswith(DASH) or not separator or not name or len(found) < KEY_HASH_BYTES + 1:
        raise NoteInvalid("a line of signatures is none")
    return Signature(name, found[:KEY_HASH_BYTES], found[KEY_HASH_BYTES:])


def decimal(text: str) -> int:
    """Return a number as these formats write it. Raises NoteInvalid."""
    if not text.isascii() or not text.isdigit() or len(text) > 18 or (text != "0" and text.startswith("0")):
        raise NoteInvalid(f"{text[:20]!r} is no number")
    return int(text)


def base64_of(value: bytes) -> str:
    """Return bytes as these formats write them."""
    return base64.b64encode(value).decode()


def bytes_of(text: str) -> bytes:
    """Return the bytes of strict base64. Raises NoteInvalid."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise NoteInvalid("that is no base64") from error
