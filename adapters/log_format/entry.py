"""One fact as an auditor sees it: everything that is stored about it, none of it trusted."""

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any, Final, cast

import msgspec

from ...application.ports.verdict import Finding
from ...domain.kinds.catalogue import CATALOGUE
from .event_codec import ENVELOPE_VERSION, Envelope, StoredText
from .merkle import NoHash, leaf_hash

#: How deep a payload may be for its texts to be found; decoding refuses what is deeper than a few hundred.
MAX_SHOWN = 200
_ENVELOPES = msgspec.json.Decoder(Envelope)
_PAYLOADS = msgspec.json.Decoder(dict[str, Any])
#: The columns of the events table, in the order of an Entry's fields.
ENTRY_COLUMNS: Final = (
    "position, stream, version, topic, run, run_sequence, root, root_sequence, is_output, command_id, at, state,"
    " leaf_hash, mac"
)
#: The columns that repeat what the envelope says.
COLUMNS = (
    "position",
    "stream",
    "version",
    "topic",
    "run",
    "run_sequence",
    "root",
    "root_sequence",
    "command_id",
    "at",
)


class Unreadable(Exception):
    """What was to be audited cannot be read at all: nothing is said about it."""


class Bad(Exception):
    """Something is not as it was signed."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.reason)
        self.finding = finding


class Entry(msgspec.Struct):
    """A row of the store or a line of a bundle. An attacker may have put anything into it, of any type."""

    position: Any
    stream: Any
    version: Any
    topic: Any
    run: Any
    run_sequence: Any
    root: Any
    root_sequence: Any
    is_output: Any
    command_id: Any
    at: Any
    state: Any
    leaf_hash: Any
    mac: Any
    texts: tuple[StoredText, ...] = ()
    #: For a fact out of its order: the MAC of the entry before, and the proof that it is in the signed tree.
    previous_mac: Any = None
    proof: tuple[bytes, ...] | None = None


class CheckedEntry(msgspec.Struct, frozen=True, kw_only=True):
    """An entry whose columns, texts and leaf hash agree with its envelope."""

    position: int
    envelope: Envelope
    payload: dict[str, Any]
    leaf: bytes
    erased: int


def entry_of(row: Sequence[Any], texts: Sequence[StoredText]) -> Entry:
    """Return a row of ENTRY_COLUMNS, with its texts."""
    return Entry(*row, texts=tuple(texts))


def bad(
    reason: str, position: int | None, field: str, expected: object = "", actual: object = "", last: int | None = None
) -> Bad:
    """Return the error that names what is not as it was signed."""
    finding = Finding(
        reason=reason, position=position, last=last, field=field, expected=shown(expected), actual=shown(actual)
    )
    return Bad(finding)


def no_hash(error: NoHash) -> Bad:
    """Return the error that names what is stored in the place of a hash of the tree."""
    return bad("a hash of the stored tree is none", error.size, "nodes" if error.level else "leaf_hash", "32 bytes")


def shown(value: object) -> str:
    """Return a value of any type as text of a bearable length."""
    text = value.hex() if isinstance(value, bytes) else value if isinstance(value, str) else repr(value)
    return text.encode("utf-8", "backslashreplace").decode()[:MAX_SHOWN]


def check_entry(entry: Entry, position: int) -> CheckedEntry:
    """
    Return what the entry says, once nothing in it contradicts its envelope. *position* is where it has to stand.

    Raises:
        Bad: it stands elsewhere; its leaf hash is not that of its bytes; a column or a text is not what they say.
    """
    if entry.position != position or isinstance(entry.position, bool):
        raise bad("a fact is missing, or stands where another should", position, "position", position, entry.position)
    if not isinstance(entry.state, bytes):
        raise bad("the envelope is no bytes", position, "envelope", "bytes", entry.state)
    leaf = leaf_hash(entry.state)
    if leaf != entry.leaf_hash:
        raise bad("the envelope is not what was hashed", position, "leaf_hash", entry.leaf_hash, leaf)
    try:
        envelope = _ENVELOPES.decode(entry.state)
        payload = _PAYLOADS.decode(envelope.payload)
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise bad("the envelope cannot be decoded", position, "envelope", "an envelope", str(error)) from error
    _check_columns(entry, envelope, position)
    return CheckedEntry(
        position=position,
        envelope=envelope,
        payload=payload,
        leaf=leaf,
        erased=_check_texts(entry, payload, position),
    )


def _check_columns(entry: Entry, envelope: Envelope, position: int) -> None:
    if envelope.v != ENVELOPE_VERSION:
        raise bad("the envelope is of another version", position, "v", ENVELOPE_VERSION, envelope.v)
    for name in COLUMNS:
        expected, actual = getattr(envelope, name), getattr(entry, name)
        if expected != actual:
            raise bad("a column is not what the envelope says", position, name, expected, actual)
    kind = CATALOGUE.get(envelope.topic)
    if kind is not None and entry.is_output != kind.OUTPUT:
        raise bad("a column is not what the topic says", position, "is_output", kind.OUTPUT, entry.is_output)


def _check_texts(entry: Entry, payload: dict[str, Any], position: int) -> int:
    """Return how many of the texts that the payload names were erased."""
    named = dict(_digests(payload))
    left = set(named)
    for text in entry.texts:
        if not isinstance(cast("object", text.salt), bytes) or not isinstance(cast("object", text.words), bytes):
            raise bad("a text is no bytes", position, "texts", "bytes", f"{type(text.salt)}, {type(text.words)}")
        digest = hashlib.sha256(text.salt + text.words).hexdigest()
        if text.digest not in named or digest != text.digest:
            raise bad("a text is not the one that was stored", position, "texts", text.digest, digest)
        if len(text.words) != named[text.digest]:
            raise bad("a text has another length", position, "texts", named[text.digest], len(text.words))
        left.discard(text.digest)
    return len(left)


def _digests(payload: dict[str, Any]) -> Iterator[tuple[str, int]]:
    """Give every text that a payload names: its digest and its length."""
    left: list[Any] = [payload]
    while left:  # ends: a payload is a tree
        found = left.pop()
        if isinstance(found, dict):
            members = cast("dict[str, Any]", found)
            digest, length = members.get("digest"), members.get("length")
            if members.keys() == {"digest", "length"} and isinstance(digest, str) and isinstance(length, int):
                yield digest, length
            left.extend(members.values())
        elif isinstance(found, list):
            left.extend(cast("list[Any]", found))
