"""The files of a commit, or of a worktree as they are now, beside another commit: looked at, never changed or left."""

import os
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from dulwich.file import FileLocked
from dulwich.filters import FilterError
from dulwich.objects import ObjectID
from dulwich.refs import Ref
from dulwich.repo import Repo

from ...application.git_port import Branch, TreeEntry, WorktreeBusy, WorktreeGone
from . import commits as git_commits
from . import worktrees as git_worktrees
from .checkout import ForbiddenPath
from .diff import content_of, count_lines, find_shown, shown, status_of
from .objects import Change, Objects
from .refs import HEADS, read_ref

#: How often a worktree is looked at again because its agent moved files about meanwhile.
MAX_LOOKS = 4

T = TypeVar("T")


def look(repo: Repo, worktree: Path, base: ObjectID, compare: Callable[[Objects, ObjectID], T]) -> T:
    """
    Return what *compare* says of the tree that a commit of the worktree's files, on top of *base*, would have now.

    Raises WorktreeGone, WorktreeBusy.
    """
    found = git_worktrees.find_worktree(repo, worktree)
    if found is None:
        raise WorktreeGone
    for _ in range(MAX_LOOKS):
        if not os.path.isdir(found.root):
            raise WorktreeGone
        try:
            with _tree_now(found, base) as (objects, tree):
                return compare(objects, tree)
        except (OSError, FilterError, FileLocked):
            # An agent at work removes a file between the look at its name and the look into it.
            continue
        except ForbiddenPath as forbidden:
            raise WorktreeBusy("The worktree holds a name that no git tree may hold.") from forbidden
    raise WorktreeBusy


@contextmanager
def _tree_now(checkout: git_worktrees.Checkout, base: ObjectID) -> Generator[tuple[Objects, ObjectID]]:
    with checkout.open() as repo:
        objects = Objects(repo)
        yield objects, git_commits.staged_tree(checkout, repo, objects, base)


def entries(objects: Objects, old: ObjectID, new: ObjectID) -> list[TreeEntry]:
    """Return every folder and file of *new*, and the files of *old* that it lacks, each as it differs; by path."""
    changes = objects.changes(old, new)
    files: dict[bytes, Change | None] = dict.fromkeys((path for path, _ in objects.files(new)), None)
    files |= changes
    found = {path: _file(objects, path, change) for path, change in files.items()}
    found |= {path: TreeEntry(path=shown(path), is_folder=True) for path in _folders(files)}
    return [entry for _, entry in sorted(found.items())]


def _file(objects: Objects, path: bytes, change: Change | None) -> TreeEntry:
    if change is None:
        return TreeEntry(path=shown(path), is_folder=False)
    added, removed, _ = count_lines(objects, change)
    return TreeEntry(
        path=shown(path), is_folder=False, status=status_of(change), added_lines=added, removed_lines=removed
    )


def _folders(paths: dict[bytes, Change | None]) -> Iterator[bytes]:
    for path in paths:
        while path := path.rpartition(b"/")[0]:
            yield path


def content(objects: Objects, tree: ObjectID, path: str) -> bytes | None:
    """Return a file's bytes, of a link its target; None where the tree has no such file."""
    name = find_shown(objects, tree, path)
    return None if name is None else content_of(objects, objects.find(tree, name))


def branches(repo: Repo) -> list[Branch]:
    """Return the repository's branches by name, those that runs work on last."""
    found: list[Branch] = []
    for ref in sorted(repo.refs.keys(Ref(HEADS))):
        tip = read_ref(repo, Ref(HEADS + ref))
        if tip is not None:
            found.append(Branch(name=ref.decode(errors="surrogateescape"), commit=tip.decode()))
    return sorted(found, key=lambda branch: (branch.name.startswith("steersman/"), branch.name))
