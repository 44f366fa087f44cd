"""Trees, blobs and commits: read by path, changed by a set of edits, on disk before a ref may point to them."""

import os
import stat
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime

from dulwich.file import adjust_shared_perm
from dulwich.objects import S_ISGITLINK as is_gitlink
from dulwich.objects import Blob, Commit, ObjectID, ShaFile, Tree
from dulwich.repo import Repo

from .refs import IDENTITY, patiently

#: Up to so many new objects are written loose, more as one pack: each loose one costs an fsync.
LOOSE_OBJECTS = 100
#: What waits in memory before a pack is written.
PENDING_BYTES = 64 * 1024 * 1024

#: A mode and an object: what a tree says about one name.
Entry = tuple[int, ObjectID]

__all__ = ["IDENTITY", "Change", "Entry", "Objects", "is_gitlink", "is_tree", "new_commit", "plain_mode"]


def is_tree(entry: Entry | None) -> bool:
    """Return whether the entry is a directory."""
    return entry is not None and stat.S_ISDIR(entry[0])


def plain_mode(mode: int) -> int:
    """Return the mode without what old versions of git recorded of a file's permissions."""
    return stat.S_IFREG | (0o755 if mode & 0o100 else 0o644) if stat.S_ISREG(mode) else mode


#: What one side and the other side have at a path.
Change = tuple[Entry | None, Entry | None]


class Objects:
    """One repository's objects, with those that were made here and are not yet stored."""

    def __init__(self, repo: Repo) -> None:
        self._store = repo.object_store
        self._directory = os.path.join(repo.commondir(), "objects")
        self._shared = repo.object_store.shared_perm if hasattr(repo.object_store, "shared_perm") else None
        # Packs are fsynced only if the store is told so.
        setattr(repo.object_store, "fsync_object_files", True)  # noqa: B010
        self._pending: dict[ObjectID, ShaFile] = {}
        self._pending_bytes = 0
        self._trees: dict[ObjectID, dict[bytes, Entry]] = {}

    def get(self, name: ObjectID) -> ShaFile:
        """Return an object, stored or not. Raises KeyError."""
        pending = self._pending.get(name)
        return self._store[name] if pending is None else pending

    def blob(self, name: ObjectID) -> bytes:
        """Return a file's content."""
        found = self.get(name)
        if not isinstance(found, Blob):
            raise KeyError(name)
        return found.data

    def commit(self, name: ObjectID) -> Commit:
        """Return a commit. Raises KeyError for anything else."""
        found = self.get(name)
        if not isinstance(found, Commit):
            raise KeyError(name)
        return found

    def tree_of(self, name: ObjectID) -> ObjectID:
        """Return a commit's tree."""
        return self.commit(name).tree

    def names(self, tree: ObjectID | None) -> Mapping[bytes, Entry]:
        """Return what a directory holds; of None, nothing."""
        if tree is None:
            return {}
        if tree not in self._trees:
            found = self.get(tree)
            if not isinstance(found, Tree):
                raise KeyError(tree)
            self._trees[tree] = {entry.path: (plain_mode(entry.mode), entry.sha) for entry in found.iteritems()}
        return self._trees[tree]

    def find(self, tree: ObjectID, path: bytes) -> Entry | None:
        """Return what is at a path, a directory too."""
        entry: Entry | None = (stat.S_IFDIR, tree)
        for name in path.split(b"/"):
            if entry is None or not is_tree(entry):
                return None
            entry = self.names(entry[1]).get(name)
        return entry

    def files(self, tree: ObjectID | None, prefix: bytes = b"") -> Iterator[tuple[bytes, Entry]]:
        """Yield every path that is not a directory, ordered as git orders a tree."""
        for name, entry in self.names(tree).items():
            path = prefix + name
            if is_tree(entry):
                yield from self.files(entry[1], path + b"/")
            else:
                yield path, entry

    def changes(self, old: ObjectID | None, new: ObjectID | None, prefix: bytes = b"") -> dict[bytes, Change]:
        """Return every path, no directory, at which two trees differ. Equal subtrees are not read."""
        changed: dict[bytes, Change] = {}
        if old == new:
            return changed
        before, after = self.names(old), self.names(new)
        for name in sorted({*before, *after}):
            left, right, path = before.get(name), after.get(name), prefix + name
            if left == right:
                continue
            left_tree = left[1] if left and is_tree(left) else None
            right_tree = right[1] if right and is_tree(right) else None
            if not (left_tree and left_tree == right_tree):
                changed.update(self.changes(left_tree, right_tree, path + b"/"))
            leaf = (None if left_tree else left, None if right_tree else right)
            if leaf != (None, None):
                changed[path] = leaf
        return changed

    def add(self, made: ShaFile) -> ObjectID:
        """Keep a new object until `flush`; return its name."""
        name = made.id
        if name not in self._pending:
            self._pending[name] = made
            self._pending_bytes += made.raw_length()
            if self._pending_bytes > PENDING_BYTES:
                self.flush()
        return name

    def add_blob(self, content: bytes) -> ObjectID:
        """Keep a new file; return its name."""
        return self.add(Blob.from_string(content))

    def edited(self, tree: ObjectID | None, edits: Mapping[bytes, Entry | None]) -> ObjectID | None:
        """
        Return the tree with the edits applied (None deletes), or None if nothing is left in it.

        An edit wins over what stands in its way: a file over a directory, a directory over a file.
        """
        if not edits:
            return tree
        names = dict(self.names(tree))
        below: dict[bytes, dict[bytes, Entry | None]] = {}
        # Deletions first: of a file that becomes a directory, the directory must be what remains.
        for path, entry in sorted(edits.items(), key=lambda edit: edit[1] is not None):
            name, _, rest = path.partition(b"/")
            if rest:
                below.setdefault(name, {})[rest] = entry
            elif entry is not None:
                names[name] = entry
            elif not is_tree(names.get(name)):
                names.pop(name, None)
        for name, inner in below.items():
            self._edit_below(names, name, inner, is_file=edits.get(name) is not None)
        return self._add_tree(names) if names else None

    def _edit_below(
        self, names: dict[bytes, Entry], name: bytes, inner: Mapping[bytes, Entry | None], *, is_file: bool
    ) -> None:
        """Apply edits to a directory of *names*; one that becomes a file, or empty, is gone."""
        present = names.get(name)
        if is_file or (present and not is_tree(present) and not any(inner.values())):
            return
        subtree = self.edited(present[1] if present and is_tree(present) else None, inner)
        if subtree is None:
            names.pop(name, None)
        else:
            names[name] = (stat.S_IFDIR, subtree)

    def _add_tree(self, names: Mapping[bytes, Entry]) -> ObjectID:
        tree = Tree()
        for name, (mode, sha) in names.items():
            tree.add(name, mode, sha)
        return self.add(tree)

    def tree(self, edits: Mapping[bytes, Entry | None]) -> ObjectID:
        """Return the tree that holds exactly these files."""
        return self.edited(None, edits) or self.add(Tree())

    def flush(self) -> None:
        """Put every new object on disk; on return each survives a power cut."""
        pending, self._pending, self._pending_bytes = self._pending, {}, 0
        if len(pending) > LOOSE_OBJECTS:
            missing = [(made, None) for name, made in pending.items() if name not in self._store]
            # Two writers of the same pack meet at its .idx.lock.
            patiently(lambda: self._store.add_objects(missing))
            _sync_directory(os.path.join(self._directory, "pack"))
        elif pending:
            # Names too must last: each directory's once, then those of new directories.
            for directory in {self._write_loose(made) for made in pending.values()}:
                _sync_directory(directory)
            _sync_directory(self._directory)

    def _write_loose(self, made: ShaFile) -> str:
        """
        Write one object through a file of its own and a rename; return the directory.

        The library's own way takes `<object>.lock`: two writers of the same object collide, and a crash blocks it.
        """
        directory = os.path.join(self._directory, made.id[:2].decode())
        path = os.path.join(directory, made.id[2:].decode())
        os.makedirs(directory, exist_ok=True)
        adjust_shared_perm(directory, self._shared)
        try:
            os.utime(path)  # `git gc` prunes unreachable objects by age; this one is about to be reachable.
            return directory
        except OSError:
            pass
        if made.id in self._store:
            return directory
        descriptor, temporary = tempfile.mkstemp(prefix="tmp_obj_", dir=directory)
        with os.fdopen(descriptor, "wb") as file:
            file.write(made.as_legacy_object())
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o444)
        adjust_shared_perm(temporary, self._shared)
        os.rename(temporary, path)
        return directory


def _sync_directory(directory: str) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def new_commit(tree: ObjectID, parents: Iterable[ObjectID], at: datetime, message: str) -> Commit:
    """Make the commit that these four, and nothing else, determine."""
    commit = Commit()
    commit.tree = tree
    commit.parents = list(parents)
    commit.author = commit.committer = IDENTITY
    commit.author_time = commit.commit_time = int(at.timestamp())
    commit.author_timezone = commit.commit_timezone = 0
    text = message.replace("\0", "").rstrip("\n") + "\n"
    commit.message = text.encode(errors="replace")
    return commit
