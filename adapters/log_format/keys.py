"""The keys of the log: a directory outside the data, where nobody else may look. Every key that was ever made stays."""

import hashlib
import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import msgspec
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from .signed_note import base64_of, public_bytes

HMAC_KEY_BYTES = 32
KEY_ID_DIGITS = 32
OTHERS = 0o077
SIGNING_SUFFIX = ".pem"
HMAC_SUFFIX = ".hmac"


class KeysRefused(Exception):
    """The keys cannot be used as they are."""


class LogKeys(msgspec.Struct, frozen=True):
    """A pair of keys: one whose signatures everybody can check, one for the chain."""

    signing: Ed25519PrivateKey
    hmac: bytes

    @property
    def public(self) -> bytes:
        """The 32 bytes of the public key."""
        return public_bytes(self.signing.public_key())

    @property
    def public_text(self) -> str:
        """The public key in base64, as the log's own facts name it."""
        return base64_of(self.public)

    @property
    def signing_id(self) -> str:
        """The name of the signing key."""
        return key_id(self.public)

    @property
    def hmac_id(self) -> str:
        """The name of the HMAC key; it tells nothing of it."""
        return key_id(self.hmac)


def key_id(key: bytes) -> str:
    """Return the name of a key: a digest."""
    return hashlib.sha256(b"steersman key\n" + key).hexdigest()[:KEY_ID_DIGITS]


def new_keys() -> LogKeys:
    """Return keys that nobody has seen."""
    return LogKeys(Ed25519PrivateKey.generate(), secrets.token_bytes(HMAC_KEY_BYTES))


class Keyring:
    """The keys in a directory, by name."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def get(self, signing_id: str, hmac_id: str) -> LogKeys:
        """Return a pair of keys by its ids. Raises KeysRefused, also when it is not here."""
        if not self.directory.exists() or not self._file(signing_id, SIGNING_SUFFIX).exists():
            raise KeysRefused(
                f"The log is signed by key {signing_id}, which is not in {self.directory}. "
                "Set STEERSMAN_KEYS to the directory that holds it."
            )
        keys = self._read(signing_id)
        if keys.hmac_id != hmac_id:
            raise KeysRefused(f"{self._file(signing_id, HMAC_SUFFIX)} is not the HMAC key {hmac_id} of the log.")
        return keys

    def newest(self) -> LogKeys | None:
        """Return the keys that were made last, None if there are none. Raises KeysRefused."""
        last = max(self._made(), key=lambda made: made[:2], default=None)
        return last[2] if last else None

    def make(self) -> LogKeys:
        """Return new keys; on return they are on disk, for this user alone. Raises KeysRefused."""
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._refuse_open(self.directory)
            keys = new_keys()
            # If we die between the two, the chain's key lies there unused: a pair is there when its signing key is.
            self._write(keys.signing_id + HMAC_SUFFIX, keys.hmac.hex().encode() + b"\n")
            self._write(keys.signing_id + SIGNING_SUFFIX, _pem(keys.signing))
        except OSError as error:
            raise KeysRefused(f"No keys can be made in {self.directory}: {error.strerror}.") from error
        return keys

    def forget(self, keys: LogKeys) -> None:
        """Delete keys that never signed anything."""
        for suffix in (SIGNING_SUFFIX, HMAC_SUFFIX):
            self._file(keys.signing_id, suffix).unlink(missing_ok=True)

    def all(self) -> list[LogKeys]:
        """Return every pair of keys that is here. Raises KeysRefused."""
        return [keys for _, _, keys in self._made()]

    def _made(self) -> list[tuple[int, str, LogKeys]]:
        """Return when each pair of keys was made, its id and itself. Raises KeysRefused."""
        if not self.directory.exists():
            return []
        self._refuse_open(self.directory)
        found: list[tuple[int, str, LogKeys]] = []
        for file in sorted(self.directory.glob(f"*{SIGNING_SUFFIX}")):
            try:
                keys = self._read(file.stem)
                found.append((file.stat().st_mtime_ns, file.stem, keys))
            except (KeysRefused, FileNotFoundError):
                # Another process that begins the log at this moment, too, was too late and forgets its keys.
                if file.exists():
                    raise
        return found

    def _read(self, signing_id: str) -> LogKeys:
        self._refuse_open(self.directory)
        try:
            signing = serialization.load_pem_private_key(self._secret(signing_id, SIGNING_SUFFIX), password=None)
            chain = bytes.fromhex(self._secret(signing_id, HMAC_SUFFIX).decode())
        except (OSError, ValueError, TypeError) as error:
            raise KeysRefused(f"The keys {signing_id} in {self.directory} cannot be read: {error}") from error
        if not isinstance(signing, Ed25519PrivateKey) or len(chain) != HMAC_KEY_BYTES:
            raise KeysRefused(f"{signing_id} in {self.directory} is not a pair of Ed25519 and HMAC keys.")
        keys = LogKeys(signing, chain)
        if keys.signing_id != signing_id:
            raise KeysRefused(f"{self._file(signing_id, SIGNING_SUFFIX)} holds another key than its name says.")
        return keys

    def _secret(self, signing_id: str, suffix: str) -> bytes:
        file = self._file(signing_id, suffix)
        self._refuse_open(file)
        return file.read_bytes()

    def _refuse_open(self, path: Path) -> None:
        if path.stat().st_mode & OTHERS:
            raise KeysRefused(f"{path} can be read or changed by others. Close it with: chmod go= {path}")

    def _file(self, signing_id: str, suffix: str) -> Path:
        return self.directory / f"{signing_id}{suffix}"

    def _write(self, name: str, content: bytes) -> None:
        """On return the file is there as a whole, and survives a power failure."""
        made = self.directory / f".{name}.{os.getpid()}"
        with open(os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        made.rename(self.directory / name)
        folder = os.open(self.directory, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _pem(key: Ed25519PrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


class Ring(Protocol):
    """Where keys are kept."""

    def get(self, signing_id: str, hmac_id: str) -> LogKeys:
        """Return a pair of keys by its ids. Raises KeysRefused."""
        ...

    def all(self) -> Sequence[LogKeys]:
        """Return every pair of keys that is here. Raises KeysRefused."""
        ...
