"""Our tree is RFC 6962's: other people's implementations agree on every root, and verify every proof."""

from collections.abc import Sequence

import proofbundle
import pytest
from pymerkle import InmemoryTree

from steersman.adapters.audit.pinned_prefix import PinnedPrefix
from steersman.adapters.log_format.merkle import (
    EMPTY_ROOT,
    Edge,
    consistency_path,
    edge_root,
    grow,
    inclusion_path,
    leaf_hash,
    proves_consistency,
    proves_inclusion,
    subtree_root,
)

LARGEST = 260
ENTRIES = [b"entry %d" % n for n in range(LARGEST)]


class Grown:
    """The tree of the first entries, kept as the log keeps it: leaves, every fourth level, and the right edge."""

    def __init__(self) -> None:
        self.hashes: dict[int, list[bytes]] = {0: []}
        self.roots = [EMPTY_ROOT]
        edge = Edge()
        for entry in ENTRIES:
            leaf = leaf_hash(entry)
            edge, nodes = grow(edge, [leaf])
            self.hashes[0].append(leaf)
            for node in nodes:
                assert node.index == len(self.hashes.setdefault(node.level, []))
                self.hashes[node.level].append(node.hash)
            self.roots.append(edge_root(edge))
        self.known: dict[tuple[int, int], bytes] = {}

    def read(self, level: int, first: int, count: int) -> Sequence[bytes]:
        return self.hashes[level][first : first + count]

    def proof(self, path: Sequence[tuple[int, int]]) -> list[bytes]:
        for part in path:
            if part not in self.known:
                self.known[part] = subtree_root(*part, self.read)
        return [self.known[part] for part in path]


@pytest.fixture(scope="module")
def tree() -> Grown:
    return Grown()


def test_every_root_is_that_of_an_independent_implementation(tree: Grown) -> None:
    other = InmemoryTree()
    for size, entry in enumerate(ENTRIES, 1):
        other.append_entry(entry)
        assert tree.roots[size] == other.get_root() == subtree_root(0, size, tree.read), size
    assert set(tree.hashes) == {0, 4, 8}


def test_every_inclusion_proof_is_the_one_of_an_independent_implementation(tree: Grown) -> None:
    other = InmemoryTree()
    other.append_entries(ENTRIES)
    for size in (1, 2, 3, 7, 8, 9, 64, 129, LARGEST):
        for index in range(size):
            theirs = other.prove_inclusion(index + 1, size)
            assert theirs.path[1:] == tree.proof(inclusion_path(index, size)), (index, size)


def test_every_inclusion_proof_verifies_elsewhere_and_here(tree: Grown) -> None:
    for size in range(1, LARGEST + 1):
        root = tree.roots[size]
        for index in range(size):
            proof = tree.proof(inclusion_path(index, size))
            assert proofbundle.verify_inclusion(ENTRIES[index], index, size, proof, root), (index, size)
            assert proves_inclusion(tree.hashes[0][index], index, size, proof, root), (index, size)


def test_every_consistency_proof_verifies_elsewhere_and_here(tree: Grown) -> None:
    for new in range(1, LARGEST + 1):
        for old in range(1, new + 1):
            proof = tree.proof(consistency_path(old, new))
            roots = tree.roots[old], tree.roots[new]
            assert proofbundle.verify_consistency(old, new, proof, *roots), (old, new)
            assert proves_consistency(old, new, proof, *roots), (old, new)


def test_no_proof_verifies_with_anything_of_it_changed(tree: Grown) -> None:
    for size in range(2, 40):
        root = tree.roots[size]
        for index in range(size):
            proof, leaf = tree.proof(inclusion_path(index, size)), tree.hashes[0][index]
            wrong = [*proof[:-1], proof[-1][::-1]]
            assert not proves_inclusion(leaf, index, size, wrong, root)
            assert not proves_inclusion(leaf, index, size, proof[:-1], root)
            assert not proves_inclusion(leaf, index, size, [*proof, leaf], root)
            assert not proves_inclusion(leaf[::-1], index, size, proof, root)
            assert not proves_inclusion(leaf, size + index, size, proof, root)
            others = [i for i in range(size) if proves_inclusion(leaf, i, size, proof, root)]
            assert others == [index]
        for old in range(1, size):
            proof = tree.proof(consistency_path(old, size))
            assert not proves_consistency(old, size, [], tree.roots[old], root)
            assert not proves_consistency(old, size, [*proof, root], tree.roots[old], root)
            assert not proves_consistency(old, size, proof, tree.roots[old], tree.roots[size - 1])
            assert not proves_consistency(old, size, proof, tree.roots[old][::-1], root)


def test_an_empty_tree_is_what_every_tree_begins_with(tree: Grown) -> None:
    assert consistency_path(0, 5) == []
    assert proves_consistency(0, 5, [], EMPTY_ROOT, tree.roots[5])
    assert not proves_consistency(0, 5, [], tree.roots[1], tree.roots[5])
    assert proves_consistency(5, 5, [], tree.roots[5], tree.roots[5])


def test_a_proof_reads_as_many_hashes_as_the_tree_is_high() -> None:
    """Every stored level is a perfect one, so a tree of millions can be asked without being there."""
    reads: list[int] = []

    def read(level: int, first: int, count: int) -> Sequence[bytes]:
        reads.append(count)
        return [leaf_hash(b"%d %d" % (level, first + at)) for at in range(count)]

    for path in (inclusion_path(0, 5_000_000), inclusion_path(4_999_999, 5_000_000), consistency_path(3, 5_000_000)):
        reads.clear()
        for part in path:
            subtree_root(*part, read)
        assert len(reads) <= 2 * 23
        assert max(reads) <= 8


def test_a_smaller_tree_follows_from_the_proof_of_its_last_leaf_and_never_from_too_little(tree: Grown) -> None:
    for size in (1, 2, 7, 64, 100, 129):
        for index in range(size):
            proof = tree.proof(inclusion_path(index, size))
            for smaller in range(1, size):
                prefix = PinnedPrefix(smaller)
                prefix.take(tree.hashes[0][index], index, size, proof)
                root = prefix.root()
                assert root in (None, tree.roots[smaller])
                assert root is not None or smaller != index + 1
