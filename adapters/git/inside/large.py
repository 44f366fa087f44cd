"""The large files that new pointers of LFS name, where they lie beside an agent's objects or ours."""

import os
import re
import stat
import sys
from collections.abc import Iterator, Sequence

from .shell import Git

POINTER = re.compile(rb"version https://[^\n]*\n(?:ext-[^\n]*\n)*oid sha256:([0-9a-f]{64})\nsize ([0-9]+)\n")
POINTER_BYTES = 1024


def found(git: Git, before: str, after: str, places: Sequence[str], known: Sequence[str]) -> list[tuple[str, int, str]]:
    """Return name, size and place of each large file that *after* names and *before* does not, and that is not known."""
    said = git.records("diff-tree", "-r", "-z", "--raw", "--no-renames", "--diff-filter=AMT", before, after)
    names = {head.split(b" ")[3] for head in said[::2] if head.split(b" ")[1].startswith(b"100")}
    large = dict[str, tuple[str, int, str]]()
    for name, size in _pointers(git, names):
        path = next((path for path in _at(places, name) if _is_file(path, size)), None)
        if path is not None and not any(os.path.exists(path) for path in _at(known, name)):
            large[name] = (name, size, path)
    return list(large.values())


def _pointers(git: Git, blobs: set[bytes]) -> Iterator[tuple[str, int]]:
    given = b"".join(name + b"\n" for name in blobs)
    sizes = git.output("cat-file", "--batch-check=%(objectname) %(objectsize)", given=given).splitlines()
    small = [line.split(b" ")[0] for line in sizes if int(line.split(b" ")[1]) <= POINTER_BYTES]
    said, at = git.output("cat-file", "--batch", given=b"".join(name + b"\n" for name in small)), 0
    for _ in small:
        end = said.index(b"\n", at)
        size = int(said[at:end].split(b" ")[2])
        match = POINTER.fullmatch(said[end + 1 : end + 1 + size])
        at = end + 1 + size + 1
        if match is not None:
            yield match[1].decode(), int(match[2])


def _at(places: Sequence[str], name: str) -> list[str]:
    return [os.path.join(place, "objects", name[:2], name[2:4], name) for place in places]


def _is_file(path: str, size: int) -> bool:
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and found.st_size == size


def hand_over(large: Sequence[tuple[str, int, str]]) -> None:
    """Write the files to standard output, one after the other, each as long as was said."""
    sys.stdout.flush()
    for _, size, path in large:
        with open(path, "rb") as file:
            left = size
            while left and (chunk := file.read(min(1 << 20, left))):
                sys.stdout.buffer.write(chunk)
                left -= len(chunk)
    sys.stdout.buffer.flush()
