"""Files that LFS keeps beside git's objects: taken in under the digest that their pointers name, and only if it is theirs."""

import hashlib
import os
import re
import tempfile
from collections.abc import Sequence
from typing import IO, Any

from ..processes.watched import CHUNK_BYTES
from .program import GitFailed

NAME = re.compile(r"[0-9a-f]{64}")


def take_large(pipe: IO[bytes], listed: Sequence[Any], directory: str, limit_bytes: int) -> None:
    """
    Store the files that come out of a pipe one after the other, each with its name and size; the limit is for all of
    them. Raises GitFailed.
    """
    for name, size in listed:
        if not (isinstance(name, str) and NAME.fullmatch(name) and isinstance(size, int) and 0 <= size <= limit_bytes):
            raise GitFailed("lfs", "a large file has no name, or there are too many bytes")
        limit_bytes -= size
        _take(pipe, name, size, os.path.join(directory, "objects", name[:2], name[2:4]))


def _take(pipe: IO[bytes], name: str, size: int, directory: str) -> None:
    os.makedirs(directory, exist_ok=True)
    digest, left = hashlib.sha256(), size
    descriptor, temporary = tempfile.mkstemp(prefix="steersman-", dir=directory)
    try:
        with open(descriptor, "wb") as file:
            while left and (chunk := pipe.read(min(CHUNK_BYTES, left))):
                digest.update(chunk)
                file.write(chunk)
                left -= len(chunk)
            file.flush()
            os.fsync(file.fileno())
        if left or digest.hexdigest() != name:
            raise GitFailed("lfs", f"{name} is not what it is named after")
        os.chmod(temporary, 0o644)
        os.rename(temporary, os.path.join(directory, name))
    except BaseException:
        os.unlink(temporary)
        raise
