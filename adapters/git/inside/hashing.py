"""A digest over every file below a directory, ignored ones too, in one pass and however deep it is."""

import hashlib
import os
import stat
from collections.abc import Iterator

CHUNK_BYTES = 1024 * 1024
OPENED = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def workspace_hash(directory: str) -> str:
    """
    Return SHA-256, in hex, over the sorted lines "relative POSIX path, NUL, SHA-256 of the content in hex, LF".

    `.git` is left out, as are links and what cannot be read. Empty if there is no such directory.
    """
    if not os.path.isdir(directory):
        return ""
    return hashlib.sha256(b"".join(sorted(_lines(os.fsencode(directory))))).hexdigest()


def _lines(root: bytes) -> Iterator[bytes]:
    left = [b""]
    while left:
        below = left.pop()
        try:
            names = os.listdir(os.path.join(root, below))
        except OSError:
            continue
        for name in names:
            path = os.path.join(below, name)
            try:
                mode = os.lstat(os.path.join(root, path)).st_mode
            except OSError:
                continue
            if name == b".git":
                continue
            if stat.S_ISDIR(mode):
                left.append(path)
            elif stat.S_ISREG(mode) and (digest := _digest(os.path.join(root, path))) is not None:
                yield path + b"\0" + digest.encode() + b"\n"


def _digest(path: bytes) -> str | None:
    digest = hashlib.sha256()
    try:
        with open(os.open(path, OPENED), "rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                digest.update(chunk)
    except OSError:
        return None
    return digest.hexdigest()
