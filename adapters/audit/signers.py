"""Who may sign and chain a log at each of its places, as its own facts say; and whether they did."""

import hmac
from collections.abc import Iterable, Mapping
from typing import TypeVar

import msgspec

from ...domain.kinds.log import LOG_STREAM, LogKeyRotated, LogOpened
from ..log_format.entry import CheckedEntry, Unreadable, bad
from ..log_format.head import FIRST_MAC
from ..log_format.keys import key_id
from ..log_format.signed_note import (
    Checkpoint,
    NoteInvalid,
    bytes_of,
    endorsement,
    key_hash,
    parse_checkpoint,
    parse_note,
    signers,
    verifier_key,
)

Named = TypeVar("Named", LogOpened, LogKeyRotated)


class Signers:
    """The keys by the facts that were read so far. *hmac_keys* are those that the auditor was given, by their names."""

    def __init__(self, hmac_keys: Mapping[str, bytes], *, needs_key: bool = True) -> None:
        self.origin = ""
        self.signing_key_ids: list[str] = []
        self.chained = 0
        self.mac = FIRST_MAC
        #: Origins that were left behind when a restored backup was accepted, and how many facts of each were kept.
        self.kept: dict[str, int] = {}
        self._opened_at = 0
        self._hmac_keys = hmac_keys
        self._needs_key = needs_key
        self._public: dict[tuple[str, bytes], bytes] = {}
        self._current = b""
        self._chain: bytes | None = None
        self._chain_id = ""

    def chain(self, fact: CheckedEntry, mac: object, previous: object) -> None:
        """
        Check an entry of the chain, if its key is at hand, and take in what the fact says of keys.

        *previous* is the MAC before for an entry whose predecessor was not seen; it is covered all the same.
        """
        if fact.envelope.topic == LogOpened.TOPIC and fact.envelope.stream == LOG_STREAM:
            self._open(fact)
        covered = previous if isinstance(previous, bytes) else self.mac
        if self._chain is not None:
            expected = hmac.digest(self._chain, covered + fact.leaf, "sha256")
            if not isinstance(mac, bytes) or not hmac.compare_digest(expected, mac):
                raise bad("the chain breaks here", fact.position, "mac", expected, mac)
            self.chained += 1
        if not isinstance(mac, bytes) or len(mac) != len(FIRST_MAC):
            raise bad("an entry of the chain has no MAC", fact.position, "mac", "32 bytes", mac)
        self.mac = mac
        if fact.envelope.topic == LogKeyRotated.TOPIC and fact.envelope.stream == LOG_STREAM:
            self._rotate(fact)

    def check_note(self, note: str, position: int) -> Checkpoint:
        """Return the checkpoint of a note that the key in force signed. Raises Bad."""
        try:
            found = parse_checkpoint(note)
            known = {key_hash(self.origin, self._current): self._current}
            signed = found.origin == self.origin and bool(signers(note, known))
        except NoteInvalid as error:
            raise bad("the checkpoint is not signed as it should be", None, "checkpoint", "", str(error)) from error
        if not signed:
            raise bad(
                f"the checkpoint over {position} facts is not signed by the log", None, "checkpoint", self.origin, note
            )
        return found

    def is_signed(self, note: str) -> bool:
        """Whether the key in force signed a note, of whatever kind."""
        try:
            return bool(signers(note, {key_hash(self.origin, self._current): self._current}))
        except NoteInvalid:
            return False

    def names(self, name: str, public: bytes) -> bool:
        """Whether the log of that name was signed by that key; each later one has it from the one before."""
        return self._public.get((name, key_hash(name, public))) == public

    @property
    def current(self) -> str:
        """The key in force, as programs for signed notes take it."""
        return verifier_key(self.origin, self._current)

    def check_pin(self, pin: str) -> Checkpoint:
        """Return the checkpoint that the auditor brought, once a key of the log signed it. Raises Bad, Unreadable."""
        try:
            found = parse_checkpoint(pin)
            # Every key, by whatever name it signed first: what a restore lost may have been signed by a later one.
            known = {key_hash(found.origin, key): key for key in self._public.values()}
            is_ours = bool(signers(pin, known))
            by = _hashes(line.key_hash for line in parse_note(pin)[1])
        except NoteInvalid as error:
            raise Unreadable(f"the pinned checkpoint: {error}") from error
        if found.origin not in {name for name, _ in self._public} | self.kept.keys():
            raise bad("the pinned checkpoint is of another log", None, "pin", found.origin, self.origin)
        if not is_ours:
            raise bad("the pinned checkpoint is signed by no key that the log names", None, "pin", _hashes(known), by)
        return found

    def end(self) -> None:
        """Nothing more is read. Raises Unreadable when keys were given and none of them was of use."""
        if self._needs_key and self._hmac_keys and not self.chained:
            raise Unreadable(f"the HMAC key is not the one that the log names ({self._chain_id})")

    def _open(self, fact: CheckedEntry) -> None:
        opened = _as(fact, LogOpened)
        if self._current and _bytes(opened.public_key, fact) != self._current:
            # An earlier key neither: it may have leaked, and been given up for that reason. Where a restored backup lost a
            # rotation, the key that the backup has in force opens the log again, and endorses the newer one once more.
            expected = key_id(self._current)
            raise bad(
                "a key that is not in force took the log over",
                fact.position,
                "publicKey",
                expected,
                opened.signing_key_id,
            )
        if self._chain_id and opened.hmac_key_id != self._chain_id:
            # Else a name that nobody has the key of would end what the auditor's key checks, without a word.
            expected = self._chain_id
            raise bad("another key goes on with the chain", fact.position, "hmacKeyId", expected, opened.hmac_key_id)
        if opened.origin != self.origin:
            # Several facts open a log under one name where several histories end: each keeps what is before the first.
            self.origin, self._opened_at = opened.origin, fact.position
        if opened.prior_origin is not None:
            self.kept[opened.prior_origin] = self._opened_at - 1
        self._take(fact, opened)

    def _rotate(self, fact: CheckedEntry) -> None:
        rotated = _as(fact, LogKeyRotated)
        if rotated.prior_signing_key_id not in self.signing_key_ids[-1:]:
            raise bad("a key was rotated that did not sign", fact.position, "priorSigningKeyId")
        try:
            text, _ = parse_note(rotated.endorsement)
            known = {key_hash(self.origin, self._current): self._current}
            is_endorsed = text == endorsement(self.origin, rotated.public_key) and signers(rotated.endorsement, known)
        except NoteInvalid:
            is_endorsed = False
        if not is_endorsed:
            raise bad("the old key did not hand over to the new one", fact.position, "endorsement")
        self._take(fact, rotated)

    def _take(self, fact: CheckedEntry, named: LogOpened | LogKeyRotated) -> None:
        self._current = _bytes(named.public_key, fact)
        if key_id(self._current) != named.signing_key_id:
            raise bad("a key is not the one that its name says", fact.position, "signingKeyId", key_id(self._current))
        self._public[self.origin, key_hash(self.origin, self._current)] = self._current
        self.signing_key_ids.append(named.signing_key_id)
        self._chain_id = named.hmac_key_id
        self._chain = self._hmac_keys.get(named.hmac_key_id)


def _hashes(keys: Iterable[bytes]) -> str:
    """Return the hashes by which notes name keys, for people."""
    return " ".join(key.hex() for key in keys)


def _as(fact: CheckedEntry, kind: type[Named]) -> Named:
    try:
        return msgspec.convert(fact.payload, kind)
    except msgspec.ValidationError as error:
        raise bad("a fact about the log's keys is malformed", fact.position, "payload", "", str(error)) from error


def _bytes(text: str, fact: CheckedEntry) -> bytes:
    try:
        return bytes_of(text)
    except NoteInvalid as error:
        raise bad("a fact about the log's keys is malformed", fact.position, "payload", "", str(error)) from error
