"""
What a process that has the keys can say of every row that it reads: whether the log wrote it there.

An entry's MAC covers its bytes and the MAC before it. Who can write the store and has no key cannot make one, so a row with
the right MAC stands where it was written. That costs a hash for each row; that nothing was left out an audit tells.
"""

import hmac
from collections.abc import Sequence
from threading import Lock
from typing import Literal, Protocol, cast

import msgspec

from ...domain.kinds.log import LOG_STREAM, LogKeyRotated, LogOpened
from ..log_format.event_codec import Envelope, StoredRow
from ..log_format.head import FIRST_MAC
from ..log_format.keys import KeysRefused, Ring
from ..log_format.merkle import leaf_hash

PAGE = 500


class ChainRecorder(Protocol):
    """What is asked of a store to know which key chains what."""

    def rows(self, order: Literal["version"], name: str, after: int, limit: int) -> list[StoredRow]:
        """Return the facts of a stream."""
        ...

    def receipts(self, positions: Sequence[int]) -> dict[int, tuple[bytes, bytes | None]]:
        """Return the leaf hash and the MAC of these facts."""
        ...


class KeySpan(msgspec.Struct, frozen=True):
    """From a position on, entries are chained by this key; None: we do not have it."""

    first: int
    key: bytes | None


class ChainCheck:
    """The MACs of rows by the keys of a ring. A row whose key is not there passes: nobody can tell."""

    def __init__(self, recorder: ChainRecorder, ring: Ring) -> None:
        self._recorder = recorder
        self._ring = ring
        self._lock = Lock()
        self._spans: tuple[KeySpan, ...] = ()

    def fault(self, row: StoredRow) -> str | None:
        """Return what is wrong with a row, None if nothing is."""
        if self._holds(row):
            return None
        with self._lock:
            self._spans = self._read()  # another process may have rotated the keys
        return None if self._holds(row) else "its MAC is not that of the log's chain"

    def _holds(self, row: StoredRow) -> bool:
        for span in reversed(self._spans):
            if span.first <= row.position:
                return span.key is None or _is_chained(row, span.key)
        return False

    def _read(self) -> tuple[KeySpan, ...]:
        """
        Return the spans that the log's own facts make, each proved by the key before it.

        One that is not, and all behind it, says nothing: else a row that somebody put there would bring back an old key.
        """
        keys = self._keys()
        spans, after = list[KeySpan](), 0
        while rows := self._recorder.rows("version", LOG_STREAM, after, PAGE):
            for row in rows:
                after += 1
                span = _span_of(row, keys)
                if span is None:
                    continue
                if not spans and span.first != 1:
                    return ()
                by = spans[-1] if spans else span
                if by.key is not None and not _is_chained(row, by.key):
                    return tuple(spans)
                spans.append(span)
        return tuple(spans)

    def _keys(self) -> dict[str, bytes]:
        try:
            return {keys.hmac_id: keys.hmac for keys in self._ring.all()}
        except (KeysRefused, OSError):
            return {}


def with_macs(recorder: ChainRecorder, rows: Sequence[StoredRow]) -> list[StoredRow]:
    """Return rows that were found in another way with their MACs and those before them."""
    wanted = {position for row in rows for position in (row.position, row.position - 1) if position > 0}
    macs = {position: mac for position, (_, mac) in recorder.receipts(sorted(wanted)).items()}
    return [
        msgspec.structs.replace(row, mac=macs.get(row.position), previous_mac=macs.get(row.position - 1))
        for row in rows
    ]


def _span_of(row: StoredRow, keys: dict[str, bytes]) -> KeySpan | None:
    """Return the key that a fact of the log names, and from where on; None for another fact."""
    try:
        found = msgspec.json.decode(row.state, type=Envelope)
        if found.topic == LogOpened.TOPIC:
            return KeySpan(row.position, keys.get(msgspec.json.decode(found.payload, type=LogOpened).hmac_key_id))
        if found.topic == LogKeyRotated.TOPIC:
            rotated = msgspec.json.decode(found.payload, type=LogKeyRotated)
            return KeySpan(row.position + 1, keys.get(rotated.hmac_key_id))
    except (msgspec.MsgspecError, RecursionError, TypeError, ValueError):
        pass
    return None


def _is_chained(row: StoredRow, key: bytes) -> bool:
    mac, state = cast("object", row.mac), cast("object", row.state)
    before: object = FIRST_MAC if row.position == 1 else row.previous_mac
    if not isinstance(mac, bytes) or not isinstance(state, bytes) or not isinstance(before, bytes):
        return False
    return hmac.compare_digest(hmac.digest(key, before + leaf_hash(state), "sha256"), mac)
