"""
A witness: it keeps the newest checkpoint of a log that others keep, and lets nothing pass that does not go on from it.

What it checks is what C2SP `tlog-witness` asks for at `add-checkpoint`; but it goes to the log instead of waiting for it.
"""

import os
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from datetime import datetime
from fcntl import LOCK_EX, flock
from pathlib import Path
from typing import Protocol

import msgspec
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from ..log_format.checkpoint_file import read_notes
from ..log_format.cosignature import Witness, cosign
from ..log_format.merkle import proves_consistency
from ..log_format.signed_note import (
    Checkpoint,
    NoteInvalid,
    bytes_of,
    endorsement,
    key_hash,
    parse_checkpoint,
    parse_note,
    parse_verifier_key,
    public_bytes,
    signers,
    verifier_key,
)

PINS, LOG_KEY, WITNESS_KEY, EVIDENCE = "pins.log", "log.key", "witness.pem", "evidence.log"


class Alarming(Exception):
    """The log showed what no honest log shows. The checkpoint is kept as evidence, and is not cosigned."""


class Unusable(Exception):
    """What the witness keeps, or what it was shown, cannot be used: nothing is said about the log."""


class RemoteLog(Protocol):
    """A log as somebody sees it who has nothing of it. Its answers are not trusted."""

    def checkpoint(self) -> str:
        """Return the newest checkpoint."""
        ...

    def verifier_key(self) -> tuple[str, Sequence[str]]:
        """Return the key that the log names, and what earlier keys signed when each handed over to the next."""
        ...

    def consistency(self, old: int, new: int) -> Sequence[str]:
        """Return the hashes that prove it, in base64."""
        ...


class Visit(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a visit."""

    origin: str
    size: int
    #: How many facts came since the visit before; None: it was the first.
    grown: int | None
    #: The checkpoint with the cosignature under it, if the witness cosigns; it is the newest line of the pins.
    note: str
    #: The key that the log has to be signed by at the next visit.
    key: str


class Watcher:
    """A directory with what a witness knows of one log. Nobody else may write it: it is what the log is held against."""

    def __init__(self, folder: Path, name: str | None = None) -> None:
        self._folder = folder
        self._name = name

    @property
    def witness(self) -> Witness | None:
        """The witness as others know it, None for one that does not cosign. Its key is made when it is first asked for."""
        return None if self._name is None else Witness(self._name, public_bytes(self._key().public_key()))

    def visit(self, log: RemoteLog, now: Callable[[], datetime], trusted: str | None = None) -> Visit:
        """
        Look at the log, and on return keep what it showed; *trusted* is its key, else the first one that it names is.

        Raises:
            Alarming: it is not what it was; the checkpoint is kept as evidence.
            Unusable: it shows nothing that could be checked.
        """
        note = log.checkpoint()
        with self._alone():
            try:
                found = parse_checkpoint(note)
                key = self._followed(log, trusted)
                self._check_signature(note, found, key)
                last = self._last()
                self._check_growth(log, last, found)
                return self._keep(note, found, key, last, now)
            except NoteInvalid as error:
                raise Unusable(f"what the log shows cannot be read: {error}") from error
            except Alarming:
                self._append(EVIDENCE, note)
                raise

    def _keep(self, note: str, found: Checkpoint, key: str, last: str | None, now: Callable[[], datetime]) -> Visit:
        old = None if last is None else parse_checkpoint(last)
        if last is not None and old is not None and old.size == found.size:
            note = last
        else:
            # What others put under it is theirs to vouch for.
            name, public = parse_verifier_key(key)
            note = _only_by(note, key_hash(name, public))
            if self._name is not None:
                note += cosign(note, self._name, self._key(), now())
            # Kept before anybody is told: whoever has the cosignature finds it here, whatever happens to us.
            self._write(LOG_KEY, key)
            self._append(PINS, note)
        grown = None if old is None else found.size - old.size
        return Visit(origin=found.origin, size=found.size, grown=grown, note=note, key=key)

    def _followed(self, log: RemoteLog, trusted: str | None) -> str:
        """Return the key in force, as the trusted one handed over to it. Raises NoteInvalid."""
        named, endorsements = log.verifier_key()
        kept = self._folder / LOG_KEY
        key = kept.read_text(encoding="utf-8").strip() if kept.exists() else trusted or named
        if kept.exists() and trusted is not None and parse_verifier_key(trusted)[0] != parse_verifier_key(key)[0]:
            raise Unusable(f"{self._folder} holds what is known of another log than the key's")
        name, public = parse_verifier_key(key)
        for note in endorsements:
            public = _endorsed(note, name, public) or public
        return verifier_key(name, public)

    def _check_signature(self, note: str, found: Checkpoint, key: str) -> None:
        name, public = parse_verifier_key(key)
        try:
            is_signed = found.origin == name and bool(signers(note, {key_hash(name, public): public}))
        except NoteInvalid:
            is_signed = False
        if not is_signed:
            raise Alarming(
                f"the checkpoint of {found.size} facts is not signed by {key}, nor by a key that it handed over to"
            )

    def _check_growth(self, log: RemoteLog, last: str | None, found: Checkpoint) -> None:
        if last is None:
            return
        old = parse_checkpoint(last)
        if found.size < old.size:
            raise Alarming(f"the log was cut: it had {old.size} facts, and says that it has {found.size}")
        if found.size == old.size:
            if found.root != old.root:
                raise Alarming(f"the log was told twice: its {old.size} facts are not those of the last visit")
            return
        proof = [bytes_of(step) for step in log.consistency(old.size, found.size)]
        if not proves_consistency(old.size, found.size, proof, old.root, found.root):
            raise Alarming(
                f"the log was changed: its {found.size} facts do not begin with the {old.size} of the last visit"
            )

    def _last(self) -> str | None:
        path = self._folder / PINS
        last = None
        for note in read_notes(path):
            last = note
        if last is None and path.exists() and path.stat().st_size:
            raise Unusable(
                f"{path} holds no checkpoint: what is known of the log is lost, so begin with another directory"
            )
        return last

    def _key(self) -> Ed25519PrivateKey:
        path = self._folder / WITNESS_KEY
        try:
            if not path.exists():
                made = Ed25519PrivateKey.generate()
                pem = made.private_bytes(
                    serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
                )
                self._write(WITNESS_KEY, pem.decode())
            key = serialization.load_pem_private_key(path.read_bytes(), password=None)
        except (OSError, ValueError, TypeError) as error:
            raise Unusable(f"{path} cannot be used as a key: {error}") from error
        if not isinstance(key, Ed25519PrivateKey):
            raise Unusable(f"{path} is no Ed25519 key")
        return key

    @contextmanager
    def _alone(self) -> Generator[None]:
        """Of two visits at once one comes after the other: else the later could put back what the earlier has seen."""
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with (self._folder / ".lock").open("w") as lock:
                flock(lock, LOCK_EX)
                yield
        except OSError as error:
            raise Unusable(f"{self._folder} cannot be used: {error.strerror}") from error

    def _append(self, name: str, note: str) -> None:
        """On return the note is on disk, behind all others; a half line that somebody left is ended first."""
        path = self._folder / name
        with open(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "ab") as file:
            file.write((b"\n" if file.tell() else b"") + msgspec.json.encode(note) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self._sync()

    def _write(self, name: str, text: str) -> None:
        """On return the file holds the text, whole."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        beside = self._folder / f".{name}.new"
        with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            file.write(text.strip() + "\n")
            file.flush()
            os.fsync(file.fileno())
        beside.rename(self._folder / name)
        self._sync()

    def _sync(self) -> None:
        folder = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _endorsed(note: str, name: str, public: bytes) -> bytes | None:
    """Return the key that this one handed the log over to by a note; None for another note."""
    try:
        text, _ = parse_note(note)
        named = text.removesuffix("\n").rpartition("\n")[2]
        if text == endorsement(name, named) and signers(note, {key_hash(name, public): public}):
            return bytes_of(named)
    except NoteInvalid:
        pass
    return None


def _only_by(note: str, number: bytes) -> str:
    """Return a note with the lines of one key alone."""
    text, lines = parse_note(note)
    kept = [
        line
        for line, found in zip(note.removesuffix("\n").split("\n")[-len(lines) :], lines, strict=True)
        if found.key_hash == number
    ]
    return f"{text}\n" + "".join(f"{line}\n" for line in kept)
