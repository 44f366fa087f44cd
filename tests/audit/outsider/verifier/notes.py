"""Signed notes (C2SP signed-note, Ed25519), and the three texts that a log signs."""

import base64
import re
from binascii import Error
from dataclasses import dataclass
from hashlib import sha256

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

ED25519 = b"\x01"
TREE_HEAD = "/tree-head@v1"
SIGNATURE_LINE = re.compile(r"— ([^\s+]+) (\S+)")
SIZE = re.compile(r"0|[1-9][0-9]{0,18}")


class Unreadable(Exception):
    """What is not of the form that the format asks for."""


def from_base64(text: object) -> bytes:
    """The bytes of a base64 text (RFC 4648 section 4, padded)."""
    if not isinstance(text, str):
        raise Unreadable("no base64")
    try:
        return base64.b64decode(text, validate=True)
    except (Error, ValueError) as error:
        raise Unreadable("no base64") from error


def key_id(key: bytes) -> str:
    """The id of a public key or of an HMAC key."""
    return sha256(b"steersman key\n" + key).hexdigest()[:32]


@dataclass(frozen=True)
class Key:
    """A public key under the name of the log that it signs for."""

    name: str
    public: bytes

    @property
    def hash(self) -> bytes:
        """The four bytes by which a signature names its key."""
        return sha256(self.name.encode() + b"\n" + ED25519 + self.public).digest()[:4]

    def signed(self, message: bytes, signature: bytes) -> bool:
        """Whether that is this key's signature of the message."""
        try:
            Ed25519PublicKey.from_public_bytes(self.public).verify(signature, message)
        except (InvalidSignature, ValueError):
            return False
        return True


def verifier_key(text: str) -> Key:
    """The key of `name+hash+key`."""
    name, _, rest = text.strip().partition("+")
    given_hash, _, encoded = rest.partition("+")
    data = from_base64(encoded)
    if not name or len(data) != 33 or data[:1] != ED25519:
        raise Unreadable("no Ed25519 verifier key")
    key = Key(name, data[1:])
    if key.hash.hex() != given_hash:
        raise Unreadable("a verifier key whose hash is of another key")
    return key


@dataclass(frozen=True)
class Note:
    """A text and its signatures: name, key hash and signature."""

    text: str
    signatures: tuple[tuple[str, bytes, bytes], ...]

    def signers(self, known: set[Key]) -> set[Key]:
        """Those of the known keys that signed; none if any of their signatures is wrong."""
        found: set[Key] = set()
        for name, given_hash, signature in self.signatures:
            for key in known:
                if (key.name, key.hash) == (name, given_hash):
                    if not key.signed(self.text.encode(), signature):
                        return set()
                    found.add(key)
        return found

    @property
    def lines(self) -> list[str]:
        """The lines that were signed."""
        return self.text.split("\n")[:-1]


def read_note(text: object) -> Note:
    """The note of that text."""
    if not isinstance(text, str) or any(ord(c) < 0x20 and c != "\n" for c in text):
        raise Unreadable("no signed note")
    body, gap, signed = text.rpartition("\n\n")
    if not gap or not signed.endswith("\n"):
        raise Unreadable("no signed note")
    signatures: list[tuple[str, bytes, bytes]] = []
    for line in signed[:-1].split("\n"):
        parts = SIGNATURE_LINE.fullmatch(line)
        if not parts:
            raise Unreadable("no signature line")
        data = from_base64(parts[2])
        if len(data) < 5:
            raise Unreadable("no signature")
        signatures.append((parts[1], data[:4], data[4:]))
    return Note(body + "\n", tuple(signatures))


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint says: so many facts have that root. A tree head adds a run and its number of facts."""

    note: Note
    origin: str
    size: int
    root: bytes
    run: str = ""
    facts: int = 0


def number(text: str) -> int:
    """A decimal without a sign and without a leading zero."""
    if not SIZE.fullmatch(text):
        raise Unreadable("no size")
    return int(text)


def read_root(text: str) -> bytes:
    """A root hash."""
    root = from_base64(text)
    if len(root) != 32:
        raise Unreadable("no root hash")
    return root


def read_checkpoint(text: object) -> Checkpoint:
    """The checkpoint of that note. Lines behind the third are extensions, which say nothing here."""
    note = read_note(text)
    if len(note.lines) < 3 or not note.lines[0]:
        raise Unreadable("a checkpoint has three lines")
    origin, size, root = note.lines[:3]
    return Checkpoint(note, origin, number(size), read_root(root))


def read_tree_head(text: object) -> Checkpoint:
    """The tree head of that note: how many facts the tree of a run has at a size and root."""
    note = read_note(text)
    if len(note.lines) != 5 or not note.lines[0].endswith(TREE_HEAD):
        raise Unreadable("no tree head")
    title, run, facts, size, root = note.lines
    return Checkpoint(note, title.removesuffix(TREE_HEAD), number(size), read_root(root), run, number(facts))


def hands_over(text: object, giver: Key, public: bytes) -> bool:
    """Whether that note hands the log of the giver over to the new public key."""
    note = read_note(text)
    said = f"{giver.name}\nis signed from here on by\n{base64.b64encode(public).decode()}\n"
    return note.text == said and giver in note.signers({giver})
