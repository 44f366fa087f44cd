"""Worktrees in git's own layout, each with an admin entry of its own, made and removed so that a repetition finishes."""

import hashlib
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
from dulwich.objects import ObjectID
from dulwich.refs import Ref
from dulwich.repo import Repo

from ...application.git_port import GitConflict
from .checkout import Files, remove_all_but, remove_tree, tree_entries, write_all
from .filters import Filters
from .index import CheckoutIndex, index_lock, unknown_entry
from .objects import Objects
from .refs import MayMove, branch_ref, delete_ref, read_ref, swap_ref

#: git prunes no entry that says why it must not be pruned; ours says so until its files are there.
INITIALIZING = b"initializing\n"

#: What git and its tools leave in a git directory while something is going on there.
OPERATIONS = (
    "MERGE_HEAD",
    "CHERRY_PICK_HEAD",
    "REVERT_HEAD",
    "BISECT_LOG",
    "rebase-merge",
    "rebase-apply",
    "sequencer",
)
OPERATION_REMAINS = (
    *OPERATIONS,
    "MERGE_MSG",
    "MERGE_MODE",
    "BISECT_START",
    "BISECT_NAMES",
    "BISECT_TERMS",
    "AUTO_MERGE",
)


class Checkout(msgspec.Struct, frozen=True, kw_only=True):
    """A directory with files of a repository, and the git directory that belongs to it alone."""

    root: str
    directory: str

    def head(self) -> Ref | None:
        """Return the ref that is checked out, None for a detached one."""
        with suppress(OSError), open(os.path.join(self.directory, "HEAD"), "rb") as file:
            content = file.read().strip()
            if content.startswith(b"ref: "):
                return Ref(content[5:].strip())
        return None

    def open(self) -> Repo:
        """Open the repository as this checkout sees it, whatever `.git` in it has become."""
        return Repo(self.root, controldir=self.directory, worktree=self.root)

    def files(self, repo: Repo, *, staged: bool = False) -> Files:
        """Return its files; *staged*: each written aside first, where the file systems allow it."""
        modes = repo.get_config_stack().get_boolean((b"core",), b"filemode", True)
        aside = staged and os.stat(self.directory).st_dev == os.stat(self.root).st_dev
        return Files(
            self.root,
            os.path.join(self.directory, "steersman-file") if aside else None,
            trusts_modes=modes is not False,
        )

    def operation(self) -> str | None:
        """Return what is going on here: the first of git's marks that is found."""
        return next((name for name in OPERATIONS if os.path.exists(os.path.join(self.directory, name))), None)


def checkouts(repo: Repo) -> Iterator[Checkout]:
    """Yield every checkout of the repository: the one that was opened, the main one and the linked ones."""
    common = os.path.realpath(repo.commondir())
    own = os.path.realpath(repo.controldir())
    if own == common:
        yield Checkout(root=os.path.realpath(repo.path), directory=common)
    elif os.path.basename(common) == ".git":
        yield Checkout(root=os.path.dirname(common), directory=common)
    for directory in _admin_entries(common):
        if root := _root_of(directory):
            yield Checkout(root=root, directory=directory)


def _admin_entries(common: str) -> list[str]:
    base = os.path.join(common, "worktrees")
    with suppress(OSError):
        return [os.path.join(base, name) for name in sorted(os.listdir(base))]
    return []


def _root_of(directory: str) -> str | None:
    """Return the worktree that an admin entry says it belongs to."""
    try:
        with open(os.path.join(directory, "gitdir"), "rb") as file:
            gitfile = os.fsdecode(file.read().rstrip(b"\n"))
    except OSError:
        return None
    return os.path.realpath(os.path.dirname(os.path.join(directory, gitfile)))


def find_worktree(repo: Repo, worktree: Path) -> Checkout | None:
    """Return the linked checkout at this path, by its admin entry and not by what stands in the worktree."""
    root = os.path.realpath(worktree)
    for directory in _admin_entries(os.path.realpath(repo.commondir())):
        if _root_of(directory) == root:
            return Checkout(root=root, directory=directory)
    return None


def ensure(repo: Repo, worktree: Path, branch: str, base: ObjectID, may_move: MayMove) -> None:
    """See `Repositories.ensure_worktree`."""
    ref = branch_ref(branch)
    # Where it exists, also since a moment ago, it stays as it is.
    if read_ref(repo, ref) is None:
        made = swap_ref(repo, ref, None, base, may_move=may_move)
        if not made and read_ref(repo, ref) is None:
            raise GitConflict(f"{branch} cannot be made")
    found = find_worktree(repo, worktree)
    if found and os.path.isdir(found.root) and not _is_unfinished(found):
        _link(found)
        return
    root = os.path.realpath(worktree)
    if found is None and os.path.isdir(root) and os.listdir(root):
        if not os.path.isfile(os.path.join(root, ".git")):
            raise GitConflict(f"{worktree} is not empty and is no worktree")
        _adopt(repo, _add_admin_entry(repo, root, ref), ref, may_move)
        return
    checkout = found or _add_admin_entry(repo, root, ref)
    _write(os.path.join(checkout.directory, "locked"), INITIALIZING)
    os.makedirs(root, exist_ok=True)
    reset(checkout, ref, may_move)
    os.unlink(os.path.join(checkout.directory, "locked"))


def _is_unfinished(checkout: Checkout) -> bool:
    with suppress(OSError), open(os.path.join(checkout.directory, "locked"), "rb") as file:
        return file.read() == INITIALIZING
    return False


def _add_admin_entry(repo: Repo, root: str, ref: Ref) -> Checkout:
    """Make the admin entry, under a name that no other worktree has. If we crash here, the next call finds it."""
    base = os.path.join(os.path.realpath(repo.commondir()), "worktrees")
    os.makedirs(base, exist_ok=True)
    name = os.path.basename(root)
    digest = hashlib.sha256(os.fsencode(root)).hexdigest()[:12]
    # Filled aside and renamed: an entry without its files would be pruned by git at once.
    prepared = os.path.join(base, f"{name}.{digest}.new")
    remove_tree(prepared)
    os.mkdir(prepared)
    _write(os.path.join(prepared, "locked"), INITIALIZING)
    _write(os.path.join(prepared, "commondir"), b"../..\n")
    _write(os.path.join(prepared, "HEAD"), b"ref: " + ref + b"\n")
    _write(os.path.join(prepared, "gitdir"), os.fsencode(os.path.join(root, ".git")) + b"\n")
    for candidate in (name, f"{name}-{digest}"):
        directory = os.path.join(base, candidate)
        if not os.path.exists(directory):
            with suppress(OSError):  # Taken in this moment by another worktree of the same name.
                os.rename(prepared, directory)
                return Checkout(root=root, directory=directory)
    raise GitConflict(f"both admin entries for {root} are taken")


def _link(checkout: Checkout) -> None:
    gitfile = os.path.join(checkout.root, ".git")
    content = b"gitdir: " + os.fsencode(checkout.directory) + b"\n"
    with suppress(OSError), open(gitfile, "rb") as file:
        if file.read() == content:
            return
    if os.path.isdir(gitfile) and not os.path.islink(gitfile):
        return  # The agent made a repository of its own here; its files are staged all the same.
    _write(gitfile, content)


def _write(path: str, content: bytes) -> None:
    """Write a small file so that it is there whole or not at all."""
    prepared = f"{path}.steersman"
    with open(prepared, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.rename(prepared, path)


def _adopt(repo: Repo, checkout: Checkout, ref: Ref, may_move: MayMove) -> None:
    """Take files whose admin entry was pruned back as they are: what was not committed is changed, not lost."""
    objects = Objects(repo)
    _link(checkout)
    with index_lock(checkout.directory) as lock:
        may_move()
        tree = objects.tree_of(repo.refs[ref])
        lock.write({path: unknown_entry(*entry) for path, entry in tree_entries(objects, tree).items()})
    os.unlink(os.path.join(checkout.directory, "locked"))


def reset(checkout: Checkout, ref: Ref, may_move: MayMove) -> None:
    """Make HEAD, index and files what *ref* says; on return nothing else is in the worktree."""
    with checkout.open() as repo, index_lock(checkout.directory) as lock:
        # The lock may have been waited for longer than a lease lasts: what is here now may be the next owner's work.
        may_move()
        set_head(checkout, ref)
        remove_tree(os.path.join(checkout.root, ".git"))  # a repository that the agent made in its place
        _link(checkout)
        objects = Objects(repo)
        tree = objects.tree_of(repo.refs[ref])
        wanted = tree_entries(objects, tree)
        index = CheckoutIndex.of(checkout.directory)
        files = checkout.files(repo)
        filters = Filters(repo, tree)
        try:
            # First out of the way, so that no directory or link of the agent's stands where a file belongs.
            remove_all_but(files, wanted, may_move)
            lock.write(write_all(files, wanted.items(), objects, filters, index, may_move))
        finally:
            filters.close()


def set_head(checkout: Checkout, ref: Ref) -> None:
    """Have *ref* checked out, and nothing going on. No other branch is touched, also where one was checked out."""
    if checkout.head() != ref:
        _write(os.path.join(checkout.directory, "HEAD"), b"ref: " + ref + b"\n")
    for name in OPERATION_REMAINS:
        path = os.path.join(checkout.directory, name)
        remove_tree(path)
        with suppress(OSError):
            os.unlink(path)


def remove(repo: Repo, worktree: Path, branch: str | None, may_move: MayMove) -> None:
    """See `Repositories.remove_worktree`."""
    found = find_worktree(repo, worktree)
    remove_directory(worktree, may_move, is_ours=found is not None)
    if found:
        may_move()
        remove_tree(found.directory)
    if branch:
        delete_ref(repo, branch_ref(branch), may_move)


def remove_directory(worktree: Path, may_move: MayMove, *, is_ours: bool) -> None:
    """Remove a worktree's files. Raises GitConflict for a directory that is a repository itself."""
    root = os.path.realpath(worktree)
    if not is_ours and os.path.isdir(os.path.join(root, ".git")):
        raise GitConflict(f"{worktree} is a repository, no worktree")
    # Renamed first: half a worktree is never found under the name of a whole one.
    aside = os.path.join(os.path.dirname(root), f".{os.path.basename(root)}.removed")
    if os.path.isdir(root):
        remove_tree(aside)
        may_move()
        os.rename(root, aside)
    remove_tree(aside)
