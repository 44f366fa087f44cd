"""Sign what is stored, in the transaction that stores it: the chain of MACs, and one checkpoint for each batch."""

import hmac
from collections.abc import Sequence
from threading import Lock
from typing import Protocol

import msgspec

from ...application.ports.log import LogRolledBack, LogUnavailable
from ..log_format.checkpoint_file import CheckpointFile
from ..log_format.head import Head, Signer
from ..log_format.keys import KeysRefused, LogKeys, Ring
from ..log_format.merkle import edge_root
from ..log_format.signed_note import Checkpoint, sign
from .numbering import Numbered

#: What ends it, for whoever meets a store that was put back.
REMEDY = (
    "If it was put back on purpose, stop the service, accept what is lost with `steersman audit accept-restore`, and start "
    "it again"
)


class Sealing(Protocol):
    """What stands between numbering a batch and writing it."""

    @property
    def ring(self) -> Ring | None:
        """The keys that are at hand: to check what is read, and, unless the store was put back, to sign what is asked for."""
        ...

    @property
    def rolled_back(self) -> str | None:
        """Why nothing is stored, and what to do, once the store was seen to be put back to an earlier state; else None."""
        ...

    def ready(self) -> None:
        """Return if more may be stored. Raises LogUnavailable."""
        ...

    def seal(self, numbered: Numbered) -> None:
        """Give the batch its MACs and the head its note. Raises LogUnavailable: then nothing may be stored."""
        ...

    def publish(self, head: Head) -> None:
        """On return the head's note is where a store that is put back cannot take it along. Raises LogUnavailable."""
        ...


class Unsealed:
    """Nobody writes a signed log through it: it is for readers, and for tests of other things. *ring* checks what is read."""

    rolled_back: str | None = None

    def __init__(self, ring: Ring | None = None) -> None:
        self.ring = ring

    def ready(self) -> None:
        """Everything may be stored."""

    def seal(self, numbered: Numbered) -> None:
        """Refuse to continue a log that somebody signs."""
        if numbered.head.signer is not None:
            raise LogUnavailable("this log is signed, and was opened without its keys")

    def publish(self, head: Head) -> None:
        """Nobody signed anything."""


UNSEALED = Unsealed()


class Sealed:
    """The keys that the head names, from the ring; when another process rotates them, the next batch takes the new."""

    def __init__(
        self, ring: Ring, signer: Signer, file: CheckpointFile | None = None, stored: Head | None = None
    ) -> None:
        self.ring: Ring | None = ring
        self._ring = ring
        self.file = file
        self._lock = Lock()
        self._signer = signer
        self._keys = ring.get(signer.signing_id, signer.hmac_id)
        #: The last head that this process saw stored.
        self._stored = stored or Head()
        self.rolled_back: str | None = None

    def ready(self) -> None:
        """Return if every checkpoint is on disk, and the store was not put back. Raises LogUnavailable."""
        if self.rolled_back is not None:
            raise LogRolledBack(self.rolled_back)
        if self.file is not None:
            self.file.ready()

    def seal(self, numbered: Numbered) -> None:
        """Sign by the keys that the head names. Raises LogUnavailable if they are not ours."""
        signer = numbered.head.signer
        with self._lock:
            self._refuse_second_history(numbered)
            if signer is None:
                raise LogUnavailable("this log is not signed, or its head was changed")
            if signer != self._signer:
                try:
                    self._keys = self._ring.get(signer.signing_id, signer.hmac_id)
                except KeysRefused as error:
                    raise LogUnavailable(str(error)) from error
                self._signer = signer
            seal(numbered, self._keys)

    def publish(self, head: Head) -> None:
        """On return the note is in the file."""
        self._stored = head
        if self.file is not None:
            self.file.publish(head)

    def _refuse_second_history(self, numbered: Numbered) -> None:
        """
        Raise LogRolledBack, now and from now on, if the store has lost what this process saw in it.

        So it is when a database is put back, or fails over to a copy that was behind, under a service that goes on. What
        others have stored there since hides it from us; the next start compares everything with the file.
        """
        size = numbered.head.edge.size - len(numbered.leaves)
        kept = self._stored.edge.size
        if size < kept or (size == kept and size and numbered.head.mac != self._stored.mac):
            self.rolled_back = _with_remedy(f"the store holds {size} facts, and {kept} were signed")
            raise LogRolledBack(self.rolled_back)


class RolledBack:
    """The store is not what was signed last: it may be read, and nothing is stored."""

    def __init__(self, reason: str, ring: Ring | None = None) -> None:
        self.rolled_back = _with_remedy(reason)
        self.ring = ring

    def ready(self) -> None:
        """Refuse. Raises LogRolledBack."""
        raise LogRolledBack(self.rolled_back)

    def seal(self, numbered: Numbered) -> None:
        """Refuse. Raises LogRolledBack."""
        raise LogRolledBack(self.rolled_back)

    def publish(self, head: Head) -> None:
        """There is nothing to publish."""


class Handover:
    """One batch that changes who signs: it opens the log, or takes new keys. Its checkpoint is signed by all of *keys*."""

    rolled_back: str | None = None
    ring: Ring | None = None

    def __init__(self, signer: Signer, *keys: LogKeys, after: Signer | None, file: CheckpointFile | None) -> None:
        self._signer = signer
        self._keys = keys
        self._after = after
        self._file = file

    def ready(self) -> None:
        """It is decided already."""

    def seal(self, numbered: Numbered) -> None:
        """Chain by the first key, sign by all. Raises LogUnavailable if somebody changed the signer before."""
        if numbered.head.signer != self._after:
            raise LogUnavailable("somebody else changed the log's keys at this moment")
        numbered.head = msgspec.structs.replace(numbered.head, signer=self._signer)
        seal(numbered, *self._keys)

    def publish(self, head: Head) -> None:
        """On return the note is in the file."""
        if self._file is not None:
            self._file.publish(head)


def _with_remedy(reason: str) -> str:
    return f"{reason}. {REMEDY}"


class OneKey:
    """A ring with one pair of keys, for as long as somebody holds it."""

    def __init__(self, keys: LogKeys) -> None:
        self.keys = keys

    def get(self, signing_id: str, hmac_id: str) -> LogKeys:
        """Return the keys if these are they. Raises KeysRefused."""
        if (signing_id, hmac_id) != (self.keys.signing_id, self.keys.hmac_id):
            raise KeysRefused(f"key {signing_id} is not here")
        return self.keys

    def all(self) -> Sequence[LogKeys]:
        """Return the one pair."""
        return [self.keys]


def signer_of(origin: str, keys: LogKeys) -> Signer:
    """Return these keys as the head names them."""
    return Signer(origin, keys.signing_id, keys.hmac_id, keys.public_text)


def seal(numbered: Numbered, *keys: LogKeys) -> None:
    """Give the batch its MACs by the first key, and the head a note that all of them signed."""
    signer, edge = numbered.head.signer, numbered.head.edge
    assert signer is not None
    numbered.macs = chain(numbered.head.mac, numbered.leaves, keys[0].hmac)
    checkpoint = Checkpoint(origin=signer.origin, size=edge.size, root=edge_root(edge))
    note = sign(checkpoint, *(each.signing for each in keys))
    mac = numbered.macs[-1] if numbered.macs else numbered.head.mac
    numbered.head = msgspec.structs.replace(numbered.head, mac=mac, note=note)


def chain(mac: bytes, leaves: Sequence[bytes], key: bytes) -> list[bytes]:
    """Return the MAC of each entry: it covers the one before, and the entry's leaf hash."""
    macs: list[bytes] = []
    for leaf in leaves:
        mac = hmac.digest(key, mac + leaf, "sha256")
        macs.append(mac)
    return macs
