"""
What the proofs of single leaves say about a smaller tree, which a larger one begins with.

A tree falls into perfect subtrees. Each is a subtree of every larger tree too, so a proof that a leaf is in the larger one
may name it; once all of them were named, the root of the smaller tree is known without a proof made for it.
"""

from collections.abc import Sequence

from ..log_format.merkle import Edge, edge_root, inclusion_path, node_hash


class PinnedPrefix:
    """The tree of the first *size* leaves, as far as it is known."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._parts = _perfect_parts(size)
        self._known: dict[tuple[int, int], bytes] = {}

    def take(self, leaf: bytes, index: int, size: int, proof: Sequence[bytes]) -> None:
        """Take in a proof, which holds, that the leaf is in the tree of *size* leaves."""
        found, start, end = leaf, index, index + 1
        self._learn(start, end, found)
        for (left, right), step in zip(inclusion_path(index, size), proof, strict=True):
            self._learn(left, right, step)
            found = node_hash(step, found) if left < start else node_hash(found, step)
            start, end = min(left, start), max(right, end)
            self._learn(start, end, found)

    def root(self) -> bytes | None:
        """Return the root of the smaller tree, None if it does not follow from what was taken in."""
        if len(self._known) < len(self._parts):
            return None
        return edge_root(Edge(self._size, tuple(self._known[part] for part in self._parts)))

    def _learn(self, start: int, end: int, found: bytes) -> None:
        if (start, end) in self._parts:
            self._known[start, end] = found


def _perfect_parts(size: int) -> dict[tuple[int, int], None]:
    """Return the perfect subtrees that a tree falls into, the largest first."""
    parts, start = dict[tuple[int, int], None](), 0
    for level in reversed(range(size.bit_length())):
        if size >> level & 1:
            parts[start, start + (1 << level)] = None
            start += 1 << level
    return parts
