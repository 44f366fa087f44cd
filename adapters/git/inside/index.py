"""
git's index as a file: what of it can be believed, of one that whoever made the working tree has written.

The format is git's own, `gitformat-index(5)`; versions 2 and 3 are understood here, others are left to git.
"""

from __future__ import annotations

import os
import stat
import struct

HEADER_BYTES = 12
#: Of an entry before its flags: what `lstat` said, the mode and the object's name.
FLAGS_AT = 60
_MODE_AND_FLAGS = struct.Struct(">24xI32xH")
ASSUMED, EXTENDED, NAME_BYTES = 0x8000, 0x4000, 0x0FFF
SKIPPED = 0x4000
LINK = 0o160000
DIGEST_BYTES = 20
#: What is read of an index, with all its parts: that of a million files is a fifth of it.
MOST_BYTES = 1 << 30


class Plain:
    """An index without what only speeds git up, and what is unusual about its entries."""

    def __init__(self, content: bytes, assumed: list[bytes], skipped: list[bytes], links: set[bytes]) -> None:
        self.content = content
        self.assumed = assumed
        self.skipped = skipped
        self.links = links


class IndexFile:
    """An index as a file, with its time, by which git knows which files may have changed unseen."""

    def __init__(self, content: bytes, times: tuple[int, int]) -> None:
        self.content = content
        self.times = times

    def write(self, path: str, content: bytes | None = None) -> None:
        """Write it, or what has become of it, with its time."""
        with open(path, "wb") as file:
            file.write(self.content if content is None else content)
        os.utime(path, ns=self.times)


def read(path: str, most: int = MOST_BYTES) -> IndexFile:
    """Read an index. Raises OSError if it has more bytes than *most*, or is no file."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_size > most:
            raise OSError("it is no file, or too large", path)
        return IndexFile(file.read(most), (found.st_atime_ns, found.st_mtime_ns))


def plain(found: bytes) -> Plain | None:
    """
    Return the index without its optional parts: git believes whatever they say about trees and untracked files.

    None: it is of another version, has a part that cannot be left out, or is broken.
    """
    version, count = int.from_bytes(found[4:8]), int.from_bytes(found[8:HEADER_BYTES])
    end = len(found) - DIGEST_BYTES
    if found[:4] != b"DIRC" or version not in (2, 3) or end < HEADER_BYTES:
        return None
    assumed, skipped, links = list[bytes](), list[bytes](), set[bytes]()
    at, look = HEADER_BYTES, _MODE_AND_FLAGS.unpack_from
    try:
        for _ in range(count):
            mode, flags = look(found, at)
            if flags < NAME_BYTES and mode != LINK:
                # As nearly all are, of which there may be very many.
                at += flags + FLAGS_AT + 10 & ~7
                continue
            begin = at + FLAGS_AT + (4 if flags & EXTENDED else 2)
            size = flags & NAME_BYTES
            # A longer name than the flags can tell ends where the first NUL is.
            stop = begin + size if size < NAME_BYTES else found.index(b"\0", begin + size, end)
            if flags & ASSUMED:
                assumed.append(found[begin:stop])
            if flags & EXTENDED and found[at + FLAGS_AT + 2] << 8 & SKIPPED:
                skipped.append(found[begin:stop])
            if mode == LINK:
                links.add(found[begin:stop])
            at += stop - at + 8 & ~7
    except (struct.error, ValueError):
        return None
    if at > end or not _can_be_left_out(found[at:end]):
        return None
    # The digest is left out: git looks at it in `fsck` alone.
    return Plain(found[:at] + b"\0" * DIGEST_BYTES, assumed, skipped, links)


def is_whole(found: bytes) -> bool:
    """Return whether nothing of an index is missing: git itself reads on where it is cut off."""
    import hashlib  # It takes longer than all else here, and is seldom needed.

    digest = hashlib.sha1(memoryview(found)[:-DIGEST_BYTES], usedforsecurity=False).digest()
    return found[-DIGEST_BYTES:] in (digest, b"\0" * DIGEST_BYTES)


def _can_be_left_out(parts: bytes) -> bool:
    """Return whether these are whole parts, of which git does without each: such a one's name has a capital letter."""
    while parts:
        size = int.from_bytes(parts[4:8])
        if len(parts) < 8 + size or not parts[:1].isupper():
            return False
        parts = parts[8 + size :]
    return True
