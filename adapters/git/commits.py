"""Commit a worktree: its files, whatever the agent did to its git, become the one commit that follows the parent."""

from collections.abc import Callable
from datetime import datetime
from functools import partial

from dulwich.index import IndexEntry
from dulwich.objects import Commit as MadeCommit
from dulwich.objects import ObjectID
from dulwich.refs import Ref
from dulwich.repo import Repo

from ...application.git_port import GitConflict
from ...domain.git import Commit
from .checkout import tree_entries
from .filters import Filters, Ignored
from .index import CheckoutIndex, index_lock, unknown_entry
from .objects import Objects, new_commit
from .refs import HEADS, IDENTITY, MayMove, read_ref, swap_ref
from .staging import Staging
from .worktrees import Checkout, set_head


def commit(checkout: Checkout, ref: Ref, parent: ObjectID, at: datetime, message: str, may_move: MayMove) -> Commit:
    """
    Commit the files as they are on *parent*; on return branch, HEAD and index say so. Raises GitConflict.

    If a call that died made the commit and moved the branch to it, that one is returned, whatever the files are now.
    """
    make = partial(new_commit, parents=[parent], at=at, message=message)
    with checkout.open() as repo, index_lock(checkout.directory) as lock:
        objects = Objects(repo)
        before = objects.tree_of(parent)
        entries = _stage(checkout, repo, objects, before, before)
        tree = objects.tree({path: (entry.mode, entry.sha) for path, entry in entries.items()})
        made = parent if tree == before else objects.add(make(tree))
        # Durable before the branch may point to it. If we crash from here on, the redo makes the same commit.
        objects.flush()
        # Also where the branch need not move: HEAD and index are written.
        may_move()
        present = read_ref(repo, ref)
        earlier = _made_before(repo, objects, ref, present, parent, make)
        if earlier is not None and earlier != made:
            # Something wrote a file since: a server that the agent left running. It is a change for the next commit.
            made, entries = earlier, _as_committed(entries, objects, earlier)
        if not swap_ref(repo, ref, present, made, may_move=may_move):
            raise GitConflict(f"{ref.decode()} moved meanwhile")
        set_head(checkout, ref)
        lock.write(entries)
        return Commit(commit=made.decode(), tree=objects.tree_of(made).decode())


def tree_now(checkout: Checkout) -> str:
    """Return the tree that a commit of the files as they are would have; branch, HEAD and index stay as they are."""
    with checkout.open() as repo:
        return staged_tree(checkout, repo, Objects(repo)).decode()


def staged_tree(checkout: Checkout, repo: Repo, objects: Objects, base: ObjectID | None = None) -> ObjectID:
    """
    Return the tree that the files make; it and what is new in it wait in *objects* and are not stored.

    What was a submodule in *base*, by default in HEAD, is one.
    """
    entries: dict[bytes, IndexEntry] = {}
    if head := read_ref(repo, Ref(b"HEAD")):
        entries = _stage(checkout, repo, objects, objects.tree_of(head), objects.tree_of(base or head))
    return objects.tree({path: (entry.mode, entry.sha) for path, entry in entries.items()})


def _stage(
    checkout: Checkout, repo: Repo, objects: Objects, before: ObjectID, recorded: ObjectID
) -> dict[bytes, IndexEntry]:
    index = CheckoutIndex.of(checkout.directory)
    if not index.exists:
        # What the parent has is tracked, whatever .gitignore says of it.
        entries = tree_entries(objects, before).items()
        index.entries = {path: unknown_entry(*entry) for path, entry in entries}
    filters = Filters(repo, None)
    try:
        ignored = Ignored(repo, checkout.root)
        return Staging(checkout.files(repo), index, objects, filters, ignored, recorded).stage()
    finally:
        filters.close()


def _made_before(
    repo: Repo,
    objects: Objects,
    ref: Ref,
    present: ObjectID | None,
    parent: ObjectID,
    make: Callable[[ObjectID], MadeCommit],
) -> ObjectID | None:
    """
    Return the commit on *parent* that *make* makes of some tree and that the branch holds, None if it holds none.

    Raises GitConflict where another commit of ours is there, or where a branch of the user's is anywhere else.
    """
    if present is None or present == parent:
        return None
    ours = [
        entry.commit
        for entry in repo.get_walker(include=[present], exclude=[parent])
        if entry.commit.committer == IDENTITY
    ]
    first = [commit for commit in ours if commit.parents[:1] == [parent]]
    if not first and ref.startswith(HEADS + b"steersman/"):
        return None  # Whatever the agent committed is in its files.
    names = {make(commit.tree).id for commit in first}
    if {commit.id for commit in first} != names or len(names) != 1:
        raise GitConflict(f"{ref.decode()} is not at {parent.decode()}, nor at what follows it here")
    [name] = names
    continued = any(commit.parents[:1] == [name] for commit in ours)
    if continued or not (present == name or ref.startswith(HEADS + b"steersman/")):
        raise GitConflict(f"{ref.decode()} goes on from {name.decode()} already")
    return name


def _as_committed(entries: dict[bytes, IndexEntry], objects: Objects, made: ObjectID) -> dict[bytes, IndexEntry]:
    """Return the index that says what the commit holds, and of the files that differ nothing."""
    index: dict[bytes, IndexEntry] = {}
    for path, (mode, name) in objects.files(objects.tree_of(made)):
        staged = entries.get(path)
        if staged is None or (staged.mode, staged.sha) != (mode, name):
            staged = unknown_entry(mode, name)
        index[path] = staged
    return index
