"""Commit a worktree: its files, whatever the agent did to its git, become the one commit that follows the parent."""

from datetime import datetime

from dulwich.index import IndexEntry
from dulwich.objects import ObjectID
from dulwich.refs import Ref
from dulwich.repo import Repo

from ..application.git_port import GitConflict
from ..domain.git import Commit
from .git_checkout import tree_entries
from .git_filters import Filters, Ignored
from .git_index import CheckoutIndex, index_lock, unknown_entry
from .git_objects import Objects, new_commit
from .git_refs import HEADS, IDENTITY, MayMove, read_ref, swap_ref
from .git_staging import Staging
from .git_worktrees import Checkout, set_head


def commit(checkout: Checkout, ref: Ref, parent: ObjectID, at: datetime, message: str, may_move: MayMove) -> Commit:
    """Commit the files as they are on *parent*; on return branch, HEAD and index say so. Raises GitConflict."""
    with checkout.open() as repo, index_lock(checkout.directory) as lock:
        objects = Objects(repo)
        before = objects.tree_of(parent)
        entries = _stage(checkout, repo, objects, before)
        tree = objects.tree({path: (entry.mode, entry.sha) for path, entry in entries.items()})
        made = parent if tree == before else objects.add(new_commit(tree, [parent], at, message))
        # Durable before the branch may point to it. If we crash from here on, the redo makes the same commit.
        objects.flush()
        # Also where the branch need not move: HEAD and index are written.
        may_move()
        _move_from_anywhere(repo, ref, parent, made, may_move)
        set_head(checkout, ref)
        lock.write(entries)
        return Commit(commit=made.decode(), tree=tree.decode())


def tree_now(checkout: Checkout) -> str:
    """Return the tree that a commit of the files as they are would have; branch, HEAD and index stay as they are."""
    with checkout.open() as repo:
        return staged_tree(checkout, repo, Objects(repo)).decode()


def staged_tree(checkout: Checkout, repo: Repo, objects: Objects) -> ObjectID:
    """Return the tree that the files make; it and what is new in it wait in *objects* and are not stored."""
    head = read_ref(repo, Ref(b"HEAD"))
    entries = _stage(checkout, repo, objects, objects.tree_of(head)) if head else {}
    return objects.tree({path: (entry.mode, entry.sha) for path, entry in entries.items()})


def _stage(checkout: Checkout, repo: Repo, objects: Objects, before: ObjectID) -> dict[bytes, IndexEntry]:
    index = CheckoutIndex.of(checkout.directory)
    if not index.exists:
        # What the parent has is tracked, whatever .gitignore says of it.
        entries = tree_entries(objects, before).items()
        index.entries = {path: unknown_entry(*entry) for path, entry in entries}
    filters = Filters(repo, None)
    try:
        return Staging(checkout.files(repo), index, objects, filters, Ignored(repo, checkout.root)).stage()
    finally:
        filters.close()


def _move_from_anywhere(repo: Repo, ref: Ref, parent: ObjectID, made: ObjectID, may_move: MayMove) -> None:
    present = read_ref(repo, ref)
    if present not in (parent, made) and present is not None:
        if not ref.startswith(HEADS + b"steersman/"):
            raise GitConflict(f"{ref.decode()} is not at {parent.decode()}")
        if _is_ours_on(repo, parent, present):
            raise GitConflict(f"{ref.decode()} already has another commit of ours on {parent.decode()}")
    if not swap_ref(repo, ref, present, made, may_move=may_move):
        raise GitConflict(f"{ref.decode()} moved meanwhile")


def _is_ours_on(repo: Repo, parent: ObjectID, tip: ObjectID) -> bool:
    """Return whether a commit of ours that continues *parent* is part of *tip*."""
    for entry in repo.get_walker(include=[tip], exclude=[parent]):
        commit = entry.commit
        if commit.committer == IDENTITY and commit.parents[:1] == [parent]:
            return True
    return False
