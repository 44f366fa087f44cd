"""Commits and trees of a repository: read by path, and made so that what goes in is all that they depend on."""

import stat
from collections.abc import Iterable, Mapping
from datetime import datetime

from dulwich.objects import S_ISGITLINK as is_gitlink
from dulwich.objects import Commit, ObjectID, Tree
from dulwich.repo import Repo

from .refs import IDENTITY

#: A mode and an object: what a tree says about one name.
Entry = tuple[int, ObjectID]

__all__ = ["Entry", "Trees", "hexadecimal", "is_gitlink", "is_tree", "new_commit", "shown", "without_tree"]


def hexadecimal(name: str) -> ObjectID:
    """Return a commit's name as the library wants it."""
    return ObjectID(name.encode())


def shown(path: bytes) -> str:
    """Return a path as text: bytes that are no UTF-8 appear as `\\xNN`."""
    return path.decode(errors="backslashreplace")


def is_tree(entry: Entry | None) -> bool:
    """Return whether the entry is a directory."""
    return entry is not None and stat.S_ISDIR(entry[0])


class Trees:
    """One repository's commits and trees, as they are stored."""

    def __init__(self, repo: Repo) -> None:
        self._store = repo.object_store

    def commit(self, name: str) -> Commit:
        """Return a commit. Raises KeyError for anything else."""
        found = self._store[hexadecimal(name)]
        if not isinstance(found, Commit):
            raise KeyError(name)
        return found

    def tree_of(self, commit: str) -> str:
        """Return a commit's tree. Raises KeyError."""
        return self.commit(commit).tree.decode()

    def names(self, tree: ObjectID) -> Mapping[bytes, Entry]:
        """Return what a directory holds. Raises KeyError."""
        found = self._store[tree]
        if not isinstance(found, Tree):
            raise KeyError(tree)
        return {entry.path: (entry.mode, entry.sha) for entry in found.iteritems()}

    def find(self, tree: str, path: str) -> tuple[bytes, Entry] | None:
        """Return the file that is shown as *path*, with its real one; a directory, or a way out of the tree, is none."""
        found: list[bytes] = []
        entry: Entry = (stat.S_IFDIR, hexadecimal(tree))
        for wanted in path.split("/"):
            if not is_tree(entry):
                return None
            names = self.names(entry[1])
            exact = wanted.encode(errors="replace")
            name = exact if exact in names else next((name for name in names if shown(name) == wanted), None)
            if name is None:
                return None
            found.append(name)
            entry = names[name]
        return None if is_tree(entry) else (b"/".join(found), entry)


def new_commit(tree: str, parents: Iterable[str], at: datetime, message: str, author: bytes = IDENTITY) -> Commit:
    """Make the commit that these five, and nothing else, determine."""
    commit = Commit()
    commit.tree = hexadecimal(tree)
    commit.parents = [hexadecimal(parent) for parent in parents]
    commit.author = commit.committer = author
    commit.author_time = commit.commit_time = int(at.timestamp())
    commit.author_timezone = commit.commit_timezone = 0
    text = message.replace("\0", "").rstrip("\n") + "\n"
    commit.message = text.encode(errors="replace")
    return commit


def without_tree(at: datetime, message: str, author: bytes = IDENTITY) -> bytes:
    """Return all of a commit that follows its tree and parents."""
    return new_commit("0" * 40, [], at, message, author).as_raw_string().partition(b"\n")[2]
