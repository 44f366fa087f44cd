"""A bundle: facts with everything that proves them, in one file of JSON lines that needs no service and no store."""

from collections.abc import Iterator
from pathlib import Path
from typing import IO, TypeVar

import msgspec

from ..log_format.entry import Bad, Entry, Unreadable, bad
from ..log_format.event_codec import StoredText
from ..log_format.merkle import NoHash
from .log import FactSource, Progress, SourceEnd, SourceOpening

FORMAT = "steersman-audit@v1"
#: The longest line that is read: an envelope and its texts, many times over.
MAX_LINE_BYTES = 32 * 1024 * 1024

Line = TypeVar("Line")


class BundleHeader(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The first line."""

    format: str
    opening: SourceOpening


class BundleText(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A text that was not erased. Bytes are base64 here and below."""

    digest: str
    salt: bytes
    words: bytes


class BundleEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A line with a fact: the columns as they are stored, the envelope's bytes, and the proof for a run's facts."""

    position: int
    stream: str | None
    version: int | None
    topic: str | None
    run: str | None
    run_sequence: int | None
    root: str | None
    root_sequence: int | None
    is_output: bool
    command_id: str | None
    at: str | None
    envelope: bytes
    leaf_hash: bytes
    mac: bytes | None
    texts: tuple[BundleText, ...] = ()
    previous_mac: bytes | None = None
    proof: tuple[bytes, ...] | None = None


class BundleNote(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A line with a signed checkpoint over the facts before it."""

    checkpoint: str


class BundleEnd(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The last line: how many facts there are. Without it the file was cut off."""

    facts: int


def write_bundle(source: FactSource, file: IO[bytes], progress: Progress = lambda facts: None) -> int:
    """Write everything that *source* gives, looked at by nobody, and return how many facts that was. Raises Unreadable."""
    facts = 0
    try:
        _write(file, BundleHeader(format=FORMAT, opening=source.opening()))
        for item in source.items():
            if isinstance(item, str):
                _write(file, BundleNote(checkpoint=item))
                continue
            _write(file, _line(item))
            facts += 1
            progress(facts)
    except (Bad, NoHash) as error:
        raise Unreadable(f"the store is not what was signed, so audit it: {error}") from error
    _write(file, BundleEnd(facts=facts))
    return facts


class Bundle:
    """A bundle in a file, read line by line. What an attacker wrote there ends in Unreadable or Bad, nothing else."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def opening(self) -> SourceOpening:
        """Return the first line. Raises Unreadable."""
        with self._open() as file:
            header = _decoded(_read(file), BundleHeader)
        if header.format != FORMAT:
            raise Unreadable(f"the bundle is of the format {header.format[:40]!r}, not {FORMAT}")
        return header.opening

    def items(self) -> Iterator[Entry | str]:
        """Give what stands on the lines between the first and the last. Raises Unreadable, Bad."""
        facts, last = 0, 0
        with self._open() as file:
            _read(file)
            while line := _read(file):
                if line.startswith(b'{"checkpoint":'):
                    yield _decoded(line, BundleNote).checkpoint
                elif line.startswith(b'{"facts":'):
                    if _decoded(line, BundleEnd).facts != facts or file.read(1):
                        raise bad("the bundle does not hold as many facts as it says", last + 1, "facts", "", facts)
                    return
                else:
                    entry = _entry(_decoded(line, BundleEntry))
                    yield entry
                    facts, last = facts + 1, entry.position
        raise bad("the bundle was cut off", last + 1, "facts", "a last line", facts)

    def end(self) -> SourceEnd:
        """Nothing is known but what was given."""
        return SourceEnd()

    def _open(self) -> IO[bytes]:
        try:
            return self._path.open("rb")
        except OSError as error:
            raise Unreadable(f"{self._path} cannot be read: {error.strerror}") from error


def _write(file: IO[bytes], line: msgspec.Struct) -> None:
    file.write(msgspec.json.encode(line) + b"\n")


def _read(file: IO[bytes]) -> bytes:
    try:
        line = file.readline(MAX_LINE_BYTES)
    except OSError as error:
        raise Unreadable(f"the bundle cannot be read: {error.strerror}") from error
    if len(line) == MAX_LINE_BYTES:
        raise Unreadable("a line of the bundle is too long")
    return line


def _decoded(line: bytes, kind: type[Line]) -> Line:
    try:
        return msgspec.json.decode(line, type=kind)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise Unreadable(f"the bundle is no bundle of ours: {error}") from error


def _line(entry: Entry) -> BundleEntry:
    try:
        return msgspec.convert(
            {
                **{name: getattr(entry, name) for name in _SAME},
                "is_output": bool(entry.is_output) if entry.is_output in (0, 1) else entry.is_output,
                "envelope": entry.state,
                "texts": [{"digest": text.digest, "salt": text.salt, "words": text.words} for text in entry.texts],
            },
            BundleEntry,
            # Else a str would pass for the bytes that it may be the base64 of.
            builtin_types=(bytes,),
        )
    except msgspec.ValidationError as error:
        # What somebody put into the store does not fit; an audit of the store itself says where.
        raise Unreadable(f"the row at position {entry.position!r} cannot be exported: {error}") from error


_SAME = tuple(name for name in BundleEntry.__struct_fields__ if name not in ("is_output", "envelope", "texts"))


def _entry(line: BundleEntry) -> Entry:
    texts = tuple(StoredText(text.digest, text.salt, text.words) for text in line.texts)
    return Entry(
        state=line.envelope, is_output=line.is_output, texts=texts, **{name: getattr(line, name) for name in _SAME}
    )
