"""One RFC 6962 tree over the log: hashes, the right edge that lets it grow, proofs and how they are verified. Pure."""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from functools import reduce

import msgspec

HASH_BYTES = 32
#: What an empty tree hashes to.
EMPTY_ROOT = hashlib.sha256(b"").digest()
#: Every how many levels the inner nodes are stored; those between are at most this many levels of hashing away.
STORED_LEVELS = 4

#: Return *count* stored hashes of a level, from an index on; level 0 are the leaves.
Read = Callable[[int, int, int], Sequence[bytes]]


class Edge(msgspec.Struct, frozen=True):
    """A tree as its right edge: the roots of the perfect subtrees that it falls into, the largest first."""

    size: int = 0
    hashes: tuple[bytes, ...] = ()


class Node(msgspec.Struct, frozen=True):
    """The root of a perfect subtree of 2**level leaves, the *index*-th of its level."""

    level: int
    index: int
    hash: bytes


class NoHash(ValueError):
    """What is stored as a hash of this level is none. *size* is how many leaves there are up to the last one below it."""

    def __init__(self, level: int, size: int) -> None:
        super().__init__(f"what is stored as a hash at level {level}, over the leaves up to {size}, is none")
        self.level = level
        self.size = size


def leaf_hash(entry: bytes) -> bytes:
    """Return the hash of an entry of the log."""
    return hashlib.sha256(b"\x00" + entry).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """Return the hash of an inner node."""
    return hashlib.sha256(b"\x01" + left + right).digest()


def grow(edge: Edge, leaves: Iterable[bytes]) -> tuple[Edge, list[Node]]:
    """Return the edge with these leaf hashes added, and the nodes to be stored that this completed. Raises NoHash."""
    size, hashes, nodes = edge.size, list(edge.hashes), list[Node]()
    for leaf in leaves:
        size += 1
        hashes.append(_hash(leaf, 0, size))
        level, index = 0, size
        while index % 2 == 0:  # ends: a level for each bit of the size
            right = hashes.pop()
            hashes[-1] = node_hash(hashes[-1], right)
            level, index = level + 1, index // 2
            if level % STORED_LEVELS == 0:
                nodes.append(Node(level, index - 1, hashes[-1]))
    return Edge(size, tuple(hashes)), nodes


def edge_root(edge: Edge) -> bytes:
    """Return the root of the tree."""
    if not edge.hashes:
        return EMPTY_ROOT
    return reduce(lambda right, left: node_hash(left, right), reversed(edge.hashes))


def subtree_root(start: int, end: int, read: Read) -> bytes:
    """
    Return the root over the leaves from *start* up to *end*, a subtree as RFC 6962 splits them, from stored hashes.

    Raises:
        LookupError: some of them are not there.
        NoHash: one of them is of another type or length.
    """
    size = end - start
    if size == 0:
        return EMPTY_ROOT
    if size & (size - 1):
        split = start + _left_size(size)
        return node_hash(subtree_root(start, split, read), subtree_root(split, end, read))
    level = size.bit_length() - 1
    above = level % STORED_LEVELS
    below = level - above
    stored = read(below, start >> below, 1 << above)
    if len(stored) != 1 << above:
        raise LookupError(f"the tree has no complete subtree over leaves {start} to {end}")
    hashes = [_hash(found, below, start + (at << below)) for at, found in enumerate(stored, 1)]
    while len(hashes) > 1:
        hashes = [node_hash(left, right) for left, right in zip(hashes[::2], hashes[1::2], strict=True)]
    return hashes[0]


def inclusion_path(index: int, size: int) -> list[tuple[int, int]]:
    """Return the subtrees whose roots prove that leaf *index* is in the tree of *size* leaves, its sibling first."""
    start, end, path = 0, size, list[tuple[int, int]]()
    while end - start > 1:
        split = start + _left_size(end - start)
        if index < split:
            path.append((split, end))
            end = split
        else:
            path.append((start, split))
            start = split
    return path[::-1]


def consistency_path(old: int, new: int) -> list[tuple[int, int]]:
    """Return the subtrees whose roots prove that the tree of *old* leaves is what the tree of *new* leaves begins with."""
    start, end, path = 0, new, list[tuple[int, int]]()
    if old == 0:
        return path
    while old != end:
        split = start + _left_size(end - start)
        if old <= split:
            path.append((split, end))
            end = split
        else:
            path.append((start, split))
            start = split
    if start > 0:
        path.append((start, end))
    return path[::-1]


def proves_inclusion(leaf: bytes, index: int, size: int, proof: Sequence[bytes], root: bytes) -> bool:
    """Whether *proof* shows that the tree of *size* leaves with this root has this leaf hash at *index* (RFC 9162)."""
    if not 0 <= index < size:
        return False
    place, last, found = index, size - 1, leaf
    for step in proof:
        if last == 0:
            return False
        if place % 2 or place == last:
            found = node_hash(step, found)
            while place % 2 == 0 and place:
                place, last = place // 2, last // 2
        else:
            found = node_hash(found, step)
        place, last = place // 2, last // 2
    return last == 0 and found == root


def proves_consistency(old: int, new: int, proof: Sequence[bytes], old_root: bytes, new_root: bytes) -> bool:
    """Whether *proof* shows that the tree with *old_root* is what the tree with *new_root* begins with (RFC 9162)."""
    if not 0 <= old <= new:
        return False
    if old in (0, new):
        return not proof and old_root == (new_root if old == new else EMPTY_ROOT)
    steps = list(proof)
    if old & (old - 1) == 0:
        steps.insert(0, old_root)
    if not steps:
        return False
    place, last = old - 1, new - 1
    while place % 2:
        place, last = place // 2, last // 2
    older = newer = steps[0]
    for step in steps[1:]:
        if last == 0:
            return False
        if place % 2 or place == last:
            older, newer = node_hash(step, older), node_hash(step, newer)
            while place % 2 == 0 and place:
                place, last = place // 2, last // 2
        else:
            newer = node_hash(newer, step)
        place, last = place // 2, last // 2
    return last == 0 and (older, newer) == (old_root, new_root)


def _hash(stored: object, level: int, size: int) -> bytes:
    """Return what is stored, if it is a hash: SQLite keeps any type in any column. Raises NoHash."""
    if not isinstance(stored, bytes) or len(stored) != HASH_BYTES:
        raise NoHash(level, size)
    return stored


def _left_size(size: int) -> int:
    """Return the largest power of two below *size*."""
    return 1 << ((size - 1).bit_length() - 1)
