"""A digest over every file below a directory, ignored ones too."""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

CHUNK_BYTES = 1024 * 1024


def workspace_hash(directory: Path) -> str:
    """
    Return SHA-256, in hex, over the sorted lines "relative POSIX path, NUL, SHA-256 of the content in hex, LF".

    `.git` is left out, as are links and what cannot be read. Empty if there is no such directory.
    """
    if not directory.is_dir():
        return ""
    root = os.fsencode(directory)
    lines = [
        os.path.relpath(path, root).replace(os.fsencode(os.sep), b"/") + b"\0" + digest.encode() + b"\n"
        for path, digest in _digests(root)
    ]
    return hashlib.sha256(b"".join(sorted(lines))).hexdigest()


def _digests(directory: bytes) -> Iterator[tuple[bytes, str]]:
    with os.scandir(directory) as found:
        for item in found:
            if item.name == b".git" or item.is_symlink():
                continue
            if item.is_dir(follow_symlinks=False):
                yield from _digests(item.path)
            elif item.is_file(follow_symlinks=False):
                digest = _digest(item.path)
                if digest is not None:
                    yield item.path, digest


def _digest(path: bytes) -> str | None:
    digest = hashlib.sha256()
    try:
        with open(path, "rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                digest.update(chunk)
    except OSError:
        return None
    return digest.hexdigest()
