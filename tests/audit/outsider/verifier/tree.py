"""The tree of the log: RFC 6962, with the proofs verified as in RFC 9162."""

from hashlib import sha256


def leaf_hash(envelope: bytes) -> bytes:
    """The hash of one leaf."""
    return sha256(b"\x00" + envelope).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """The hash of a node over its two children."""
    return sha256(b"\x01" + left + right).digest()


class Tree:
    """All perfect subtrees of the leaves so far: `levels[k][i]` is the root of the i-th one of 2**k leaves."""

    def __init__(self) -> None:
        self.levels: list[list[bytes]] = [[]]

    @property
    def size(self) -> int:
        """How many leaves there are."""
        return len(self.levels[0])

    def append(self, leaf: bytes) -> None:
        """Add a leaf, and each perfect subtree that it completes."""
        level = 0
        while True:
            if level == len(self.levels):
                self.levels.append([])
            row = self.levels[level]
            row.append(leaf)
            if len(row) % 2:
                return
            leaf = node_hash(row[-2], row[-1])
            level += 1

    def edge(self, size: int) -> list[bytes]:
        """The roots of the perfect subtrees that the first `size` leaves fall into, the largest first."""
        roots: list[bytes] = []
        start = 0
        for level in reversed(range(size.bit_length())):
            if size >> level & 1:
                roots.append(self.levels[level][start >> level])
                start += 1 << level
        return roots

    def root(self, size: int) -> bytes:
        """The root over the first `size` leaves."""
        edge = self.edge(size)
        if not edge:
            return sha256(b"").digest()
        root = edge.pop()
        while edge:
            root = node_hash(edge.pop(), root)
        return root

    def nodes(self) -> dict[tuple[int, int], bytes]:
        """The roots of the perfect subtrees of 16, 256, ... leaves, by level and number."""
        return {
            (level, number): root
            for level in range(4, len(self.levels), 4)
            for number, root in enumerate(self.levels[level])
        }


def includes(root: bytes, size: int, index: int, leaf: bytes, proof: list[bytes]) -> bool:
    """Whether the proof shows the leaf at that index (RFC 9162, 2.1.3.2)."""
    if not 0 <= index < size:
        return False
    at, last, seen = index, size - 1, leaf
    for step in proof:
        if last == 0:
            return False
        if at % 2 or at == last:
            seen = node_hash(step, seen)
            while at % 2 == 0 and at:
                at, last = at >> 1, last >> 1
        else:
            seen = node_hash(seen, step)
        at, last = at >> 1, last >> 1
    return last == 0 and seen == root


def goes_on(first: int, first_root: bytes, second: int, second_root: bytes, proof: list[bytes]) -> bool:
    """Whether the proof shows that the second tree goes on from the first (RFC 9162, 2.1.4.2)."""
    if first == second:
        return not proof and first_root == second_root
    if first == 0:
        return not proof and first_root == sha256(b"").digest()
    if first > second or not proof:
        return False
    path = [first_root, *proof] if first & (first - 1) == 0 else proof
    at, last = first - 1, second - 1
    while at % 2:
        at, last = at >> 1, last >> 1
    old = new = path[0]
    for step in path[1:]:
        if last == 0:
            return False
        if at % 2 or at == last:
            old, new = node_hash(step, old), node_hash(step, new)
            while at % 2 == 0 and at:
                at, last = at >> 1, last >> 1
        else:
            new = node_hash(new, step)
        at, last = at >> 1, last >> 1
    return last == 0 and old == first_root and new == second_root
