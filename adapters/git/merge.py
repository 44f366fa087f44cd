"""Merge two commits by their paths: clean hunks of both sides are kept, a path that conflicts is decided as a whole."""

import stat
from collections.abc import Sequence
from difflib import SequenceMatcher
from itertools import pairwise

import merge3
import msgspec
from dulwich.graph import find_merge_base
from dulwich.objects import ObjectID
from dulwich.repo import Repo

from .objects import Change, Entry, Objects, is_tree

#: Longer texts, in lines that differ, are not merged line by line: the matcher's time is not bounded by them.
MERGED_LINES = 50_000
#: From here on the matcher skips lines that stand everywhere.
THOROUGH_LINES = 2_000


class Merged(msgspec.Struct, frozen=True, kw_only=True):
    """A merged tree, with their side on every path that conflicts, and those paths in order."""

    tree: ObjectID
    conflicts: tuple[bytes, ...]


def split_lines(content: bytes) -> list[bytes]:
    """Return the lines with their ends; only a line feed ends one, as in git."""
    lines = [line + b"\n" for line in content.split(b"\n")]
    last = lines.pop()[:-1]
    return [*lines, last] if last else lines


class LineMatcher:
    """difflib's matcher, behind what both texts have in common at their start and end."""

    def __init__(
        self, isjunk: object = None, a: Sequence[bytes] = (), b: Sequence[bytes] = (), autojunk: bool = True
    ) -> None:
        shortest = min(len(a), len(b))
        start = 0
        while start < shortest and a[start] == b[start]:
            start += 1
        end = 0
        while end < shortest - start and a[-1 - end] == b[-1 - end]:
            end += 1
        self._start, self._end = start, end
        self._a, self._b = a, b
        self._inner_a, self._inner_b = a[start : len(a) - end], b[start : len(b) - end]

    @property
    def differing_lines(self) -> int:
        """How many lines are left to match."""
        return len(self._inner_a) + len(self._inner_b)

    def outer_blocks(self) -> list[tuple[int, int, int]]:
        """Return only the common start and end, as blocks: what can be had in linear time."""
        whole = len(self._a), len(self._b)
        return [(0, 0, self._start), (whole[0] - self._end, whole[1] - self._end, self._end), (*whole, 0)]

    def get_matching_blocks(self) -> list[tuple[int, int, int]]:
        """Return (a, b, length) of every run of equal lines, in order, and an empty one at the end."""
        blocks = self.outer_blocks()
        if self._inner_a and self._inner_b:
            thorough = self.differing_lines <= THOROUGH_LINES
            found = SequenceMatcher(None, self._inner_a, self._inner_b, autojunk=not thorough).get_matching_blocks()
            blocks[1:1] = [(a + self._start, b + self._start, length) for a, b, length in found[:-1]]
        return [block for block in blocks[:-1] if block[2]] + blocks[-1:]


def merge_texts(base: bytes, ours: bytes, theirs: bytes) -> bytes | None:
    """Return the text with the hunks of both sides, None if hunks meet or a side is no text."""
    if any(b"\0" in content for content in (base, ours, theirs)):
        return None
    old, left, right = (split_lines(content) for content in (base, ours, theirs))
    if any(LineMatcher(None, old, side).differing_lines > MERGED_LINES for side in (left, right)):
        return None
    merge = merge3.Merge3(old, left, right, sequence_matcher=LineMatcher)
    merged: list[bytes] = []
    for group in merge.merge_groups():
        if group[0] == "conflict":
            return None
        merged.extend(group[1])
    return b"".join(merged)


def merge_entries(objects: Objects, base: Entry | None, ours: Entry | None, theirs: Entry | None) -> Entry | None:
    """Return the entry that both sides' changes to a file make. Raises ValueError where they conflict."""
    if base is None or ours is None or theirs is None:
        raise ValueError("added on both sides, or deleted on one")
    if not all(stat.S_ISREG(entry[0]) for entry in (base, ours, theirs)):
        raise ValueError("a link, a submodule or another type of file")
    mode = theirs[0] if ours[0] == base[0] else ours[0]
    if ours[1] == theirs[1] or theirs[1] == base[1]:
        return mode, ours[1]
    if ours[1] == base[1]:
        return mode, theirs[1]
    merged = merge_texts(*(objects.blob(entry[1]) for entry in (base, ours, theirs)))
    if merged is None:
        raise ValueError("hunks that meet, or no texts")
    return mode, objects.add_blob(merged)


def merge_trees(objects: Objects, base: ObjectID | None, ours: ObjectID, theirs: ObjectID) -> Merged:
    """Merge what both sides changed since *base*. Renames are a deletion and an addition."""
    our_changes, their_changes = objects.changes(base, ours), objects.changes(base, theirs)
    edits: dict[bytes, Entry | None] = {}
    conflicts: set[bytes] = set()
    for path, (before, after) in their_changes.items():
        present = our_changes[path][1] if path in our_changes else before
        if present == after:
            continue
        edits[path] = after
        if path in our_changes:
            try:
                edits[path] = merge_entries(objects, before, present, after)
            except ValueError:
                conflicts.add(path)
    conflicts |= _in_the_way(objects, ours, edits, our_changes)
    tree = objects.edited(ours, edits) or objects.tree({})
    return Merged(tree=tree, conflicts=tuple(sorted(conflicts)))


def _in_the_way(
    objects: Objects, ours: ObjectID, edits: dict[bytes, Entry | None], our_changes: dict[bytes, Change]
) -> set[bytes]:
    """Return our files that an edit displaces although it does not name them: a file against a directory."""
    displaced: set[bytes] = set()
    for path, entry in edits.items():
        if entry is None:
            continue
        present = objects.find(ours, path)
        if present and is_tree(present):
            below = (found for found, _ in objects.files(present[1], path + b"/"))
            displaced.update(found for found in below if edits.get(found, present) is not None)
        parent = path.rpartition(b"/")[0]
        while parent:
            if parent in our_changes and parent not in edits and our_changes[parent][1] is not None:
                displaced.add(parent)
            parent = parent.rpartition(b"/")[0]
    return displaced


def merge_bases(repo: Repo, ours: ObjectID, theirs: ObjectID) -> list[ObjectID]:
    """Return the best common ancestors, in an order that does not depend on the clone."""
    found = find_merge_base(repo, [ours, theirs])
    if len(found) > 1:
        # With clocks that went backwards the walk may report ancestors of ancestors.
        found = [one for one in found if not any(other != one and is_ancestor(repo, one, other) for other in found)]
    return sorted(found)


def is_ancestor(repo: Repo, older: ObjectID, newer: ObjectID) -> bool:
    """Return whether *older* is *newer* or one of its ancestors, whatever their clocks said."""
    return older in find_merge_base(repo, [older, newer])


def base_tree(repo: Repo, objects: Objects, bases: Sequence[ObjectID]) -> ObjectID | None:
    """
    Return the tree to compare with: of several bases (a criss-cross) what they agree on, merged.

    Where they conflict it keeps the older common content, so that at worst a later merge conflicts as well.
    """
    if not bases:
        return None
    tree = objects.tree_of(bases[0])
    for earlier, later in pairwise(bases):
        shared = merge_bases(repo, earlier, later)
        root = objects.tree_of(shared[0]) if shared else None
        merged = merge_trees(objects, root, tree, objects.tree_of(later))
        kept = {path: objects.find(root, path) if root else None for path in merged.conflicts}
        tree = objects.edited(merged.tree, {path: None if is_tree(old) else old for path, old in kept.items()})
        tree = tree or objects.tree({})
    return tree


def merge_commits(repo: Repo, objects: Objects, ours: ObjectID, theirs: ObjectID) -> Merged:
    """Merge two commits' trees from their best common ancestors, or from nothing."""
    base = base_tree(repo, objects, merge_bases(repo, ours, theirs))
    return merge_trees(objects, base, objects.tree_of(ours), objects.tree_of(theirs))
