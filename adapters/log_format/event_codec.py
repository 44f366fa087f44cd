"""Turn a decided fact into the bytes that are stored for ever, and stored bytes back into a fact."""

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from threading import local
from typing import Any, cast

import msgspec

from ...application.ports.log import Forged, Undecodable
from ...application.writer.randomness import RANDOMNESS
from ...domain.event import Draft, Event, Fact, Text, Unknown, map_texts
from ...domain.redaction.secret_shapes import redact

ENVELOPE_VERSION = 1
SALT_BYTES = 16
#: The largest whole number that every JSON reader keeps exact.
LARGEST_INT = 2**53 - 1

#: The kinds of plain data that every JSON reader gives back as they were.
_EXACT = frozenset({str, bool, type(None)})
_NESTED = frozenset({dict, list, tuple})

LONE_SURROGATE = re.compile("[\ud800-\udfff]")

Upcast = Callable[[dict[str, Any]], dict[str, Any]]

#: For each topic whose payload once had another shape: the function that gives the payload today's shape.
UPCASTS: Mapping[str, Upcast] = {}


class Envelope(msgspec.Struct, frozen=True, kw_only=True):
    """The stored bytes, as data. The fields stand in the order of their names: that is how the keys are sorted."""

    at: str
    command_id: str
    payload: msgspec.Raw
    position: int
    principal: str
    root: str | None
    root_sequence: int | None
    run: str | None
    run_sequence: int | None
    stream: str
    topic: str
    traceparent: str | msgspec.UnsetType = msgspec.UNSET
    v: int
    version: int


class StoredText(msgspec.Struct, frozen=True):
    """Erasable words: what the envelope names by digest only."""

    digest: str
    salt: bytes
    words: bytes


class Encoded(msgspec.Struct, frozen=True):
    """A draft whose payload is bytes already: all of a fact but its place in the log. `event` is what it reads back as."""

    stream: str
    topic: str
    run: str | None
    root: str | None
    is_output: bool
    payload: msgspec.Raw
    texts: tuple[StoredText, ...]
    event: Event


class StoredRow(msgspec.Struct, frozen=True):
    """A fact as the store holds it. `run` is the column: it is known even when the envelope is not readable."""

    position: int
    run: str | None
    state: bytes
    #: The entry's MAC, and that of the entry before it; None: nobody asked for them.
    mac: bytes | None = None
    previous_mac: bytes | None = None


class WordsForged(ValueError):
    """The words beside a fact are not those that its envelope names."""


class AtHand(local):
    """The words of the fact that a thread decodes."""

    words: Mapping[str, StoredText] = {}


class EventCodec:
    """The one place that knows the stored form of every fact, today's and earlier ones."""

    def __init__(
        self,
        catalogue: Mapping[str, type[Event]],
        *,
        salt: Callable[[], bytes] = lambda: RANDOMNESS.take(SALT_BYTES),
        upcasts: Mapping[str, Upcast] = UPCASTS,
    ) -> None:
        for topic, kind in catalogue.items():
            if vars(kind).get("TOPIC") != topic:
                raise TypeError(f"{kind.__name__} is listed as {topic!r} and does not set that TOPIC itself")
        self._catalogue = dict(catalogue)
        self._salt = salt
        self._upcasts = dict(upcasts)
        self._envelopes = msgspec.json.Decoder(Envelope)
        self._payloads = msgspec.json.Decoder(dict[str, Any])
        #: By topic, made when it is met first.
        self._events: dict[str, msgspec.json.Decoder[Event]] = {}
        self._at_hand = AtHand()

    def encode(self, draft: Draft) -> Encoded:
        """
        Return the draft with its payload as bytes, its words redacted and set apart.

        Raises:
            TypeError, ValueError, msgspec.ValidationError: the log could not give the fact back as it is.
        """
        kind = type(draft.event)
        if self._catalogue.get(kind.TOPIC) is not kind:
            raise TypeError(f"{kind.__name__} is not in the catalogue, so nobody could read it back")
        for name in (draft.stream, draft.run, draft.root):
            refuse_unstorable(name)
        texts: dict[str, StoredText] = {}
        payload = map_texts(draft.event, lambda text: self._set_apart(text, texts))
        _refuse_inexact(payload)
        # What is refused here is in no store yet; what only its first reader met would stop its run for good.
        event = self._converted(kind, payload, texts)
        return Encoded(
            stream=draft.stream,
            topic=kind.TOPIC,
            run=draft.run,
            root=draft.root,
            is_output=kind.OUTPUT,
            payload=msgspec.Raw(msgspec.json.encode(payload, order="sorted")),
            texts=tuple(texts.values()),
            event=event,
        )

    def decode(self, row: StoredRow, words: Mapping[str, StoredText]) -> Fact:
        """
        Return the stored fact; a text whose digest *words* does not know was erased and is `Text(None)`.

        Raises:
            Forged: words are not those that the envelope names.
            Undecodable: the bytes are not an envelope, or not the payload that their topic promises.
        """
        try:
            envelope = self._envelopes.decode(row.state)
            if envelope.v != ENVELOPE_VERSION:
                raise ValueError(f"envelope version {envelope.v}")
            for text in words.values():
                _check_words(text)
            return _fact(envelope, self._event(envelope.topic, envelope.payload, words))
        except WordsForged as error:
            raise Forged(row.position, row.run, str(error)) from error
        except Exception as error:  # an upcast may fail in any way; the fault stays this one fact's
            raise Undecodable(row.position, row.run, f"{type(error).__name__}: {error}") from error

    def _event(self, topic: str, stored: msgspec.Raw, words: Mapping[str, StoredText]) -> Event:
        kind = self._catalogue.get(topic)
        if kind is None:
            return Unknown(topic=topic, payload=self._payloads.decode(stored))
        upcast = self._upcasts.get(topic)
        if upcast is not None:
            return self._converted(kind, upcast(self._payloads.decode(stored)), words)
        decoder = self._events.get(topic)
        if decoder is None:
            decoder = self._events[topic] = msgspec.json.Decoder(kind, dec_hook=self._put_back)
        self._at_hand.words = words
        try:
            return decoder.decode(stored)
        finally:
            self._at_hand.words = {}  # or the last ones would be kept in memory after they are erased

    def _put_back(self, wanted: type, found: Any) -> Text:
        return _put_back(wanted, found, self._at_hand.words)

    def _converted(self, kind: type[Event], payload: Any, words: Mapping[str, StoredText]) -> Event:
        return msgspec.convert(payload, kind, dec_hook=lambda wanted, found: _put_back(wanted, found, words))

    def _set_apart(self, text: Text, texts: dict[str, StoredText]) -> dict[str, str | int | None]:
        if text.value is None:  # words that were erased before they were repeated here
            return {"digest": None, "length": 0}
        # A file name that is not UTF-8 reaches us with lone surrogates, which UTF-8 cannot hold.
        words = redact(LONE_SURROGATE.sub("\ufffd", text.value)).encode()
        salt = self._salt()
        digest = hashlib.sha256(salt + words).hexdigest()
        texts[digest] = StoredText(digest, salt, words)
        return {"digest": digest, "length": len(words)}


def stored_time(at: datetime) -> str:
    """Return *at* as the log writes it: RFC 3339 in UTC with microseconds, so that text order is time order."""
    if at.tzinfo is None:
        raise ValueError("a time without a zone has no place in the log")
    return at.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def refuse_unstorable(name: str | None) -> None:
    """Raise ValueError for a name that a text column cannot hold: a NUL, or a lone surrogate."""
    if name is not None and ("\0" in name or (not name.isascii() and LONE_SURROGATE.search(name))):
        raise ValueError(f"{name!r} cannot be stored as a name")


def _refuse_inexact(value: Any) -> None:
    left: list[Any] = [(value,)]
    while left:  # ends: a fact is a tree
        for item in _items(left.pop()):
            kind: type[object] = item.__class__
            if kind in _EXACT:
                continue
            if kind in _NESTED:
                left.append(item)
            elif kind is not int:
                raise TypeError(f"a fact cannot hold a {kind.__name__}")
            elif not -LARGEST_INT <= item <= LARGEST_INT:
                raise ValueError(f"{item} is more than a JSON number keeps exact")


def _items(found: Any) -> Iterable[Any]:
    if type(found) is not dict:
        return found
    for key in found:  # pyright: ignore[reportUnknownVariableType]
        if not isinstance(key, str):
            raise TypeError(f"a fact's map has texts as keys, not {type(key).__name__}")  # pyright: ignore[reportUnknownArgumentType]
    return found.values()  # pyright: ignore[reportUnknownVariableType]


def _put_back(wanted: type, found: Any, words: Mapping[str, StoredText]) -> Text:
    if wanted is not Text:
        raise TypeError(f"a fact cannot hold a {wanted.__name__}")
    digest: object = found["digest"]
    if digest is None:  # repeated after it was erased
        return Text(None)
    if not isinstance(digest, str):
        raise TypeError("a text's digest is a string")
    stored = words.get(digest)
    return Text(None if stored is None else stored.words.decode())


def _check_words(text: StoredText) -> None:
    """Raise WordsForged for words that are not those of their digest: SQLite keeps any type in any column."""
    salt, words = cast("object", text.salt), cast("object", text.words)
    if not isinstance(salt, bytes) or not isinstance(words, bytes):
        raise WordsForged("words or their salt are no bytes")
    if hashlib.sha256(salt + words).hexdigest() != text.digest:
        raise WordsForged("the words are not those of their digest")


def _fact(envelope: Envelope, event: Event) -> Fact:
    return Fact(
        position=envelope.position,
        stream=envelope.stream,
        version=envelope.version,
        topic=envelope.topic,
        run=envelope.run,
        run_sequence=envelope.run_sequence,
        root=envelope.root,
        root_sequence=envelope.root_sequence,
        at=datetime.fromisoformat(envelope.at),
        principal=envelope.principal,
        command_id=envelope.command_id,
        traceparent=None if envelope.traceparent is msgspec.UNSET else envelope.traceparent,
        event=event,
    )
