"""Why a checkout could not follow its branch: found out by looking, before anything moves."""

import os
import stat
from collections.abc import Mapping
from contextlib import suppress

from dulwich.filters import FilterError
from dulwich.objects import ObjectID

from .checkout import Files, check_path, contents
from .filters import Filters
from .index import ASSUME_UNCHANGED, CheckoutIndex, UnreadableIndex
from .objects import Change, Entry, Objects, is_gitlink
from .worktrees import Checkout


def hindrance(checkout: Checkout, old: ObjectID, new: ObjectID) -> str | None:
    """Return why this checkout cannot follow its branch from one commit to another now; None if it can."""
    if checkout.operation():
        return "operation_in_progress"
    with checkout.open() as repo:
        objects = Objects(repo)
        before, after = objects.tree_of(old), objects.tree_of(new)
        changes = objects.changes(before, after)
        filters, files = Filters(repo, None), checkout.files(repo)
        try:
            index = CheckoutIndex(checkout.directory)
            if index.unmerged or _is_staged(index, dict(objects.files(before))):
                return "repository_dirty"
            if any(_is_changed(files, index, filters, path, changes) for path in index.entries):
                return "repository_dirty"
            if any(_is_taken(files, filters, path, changes) for path in changes):
                return "untracked_would_be_overwritten"
            written = {path: change for path, change in changes.items() if not _is_left_out(index, path)}
            _try_filters(files, objects, Filters(repo, before), Filters(repo, after), written)
        except UnreadableIndex:
            # Its state cannot be told, so it is not called clean.
            return "repository_dirty"
        except FilterError:
            return "filter_failed"
        finally:
            filters.close()
    return None


def _try_filters(
    files: Files, objects: Objects, old_filters: Filters, new_filters: Filters, changes: Mapping[bytes, Change]
) -> None:
    """Run and close the filters. What fails, a server of large files that is away, must fail before the branch moves."""
    try:
        for path, (before, after) in changes.items():
            check_path(path)
            files.holds(path, before, old_filters)
            files.holds(path, after, new_filters)
            if after is not None and stat.S_ISREG(after[0]):
                new_filters.to_checkout(path, objects.blob(after[1]))
    finally:
        old_filters.close()
        new_filters.close()


def _is_left_out(index: CheckoutIndex, path: bytes) -> bool:
    """Return whether a sparse checkout leaves the file out."""
    return path in index.entries and index.entries[path].skip_worktree


def _is_staged(index: CheckoutIndex, committed: Mapping[bytes, Entry]) -> bool:
    return {path: (entry.mode, entry.sha) for path, entry in index.entries.items()} != committed


def _is_changed(
    files: Files, index: CheckoutIndex, filters: Filters, path: bytes, changes: Mapping[bytes, Change]
) -> bool:
    """Return whether a tracked file is not what the index says. A submodule's own state is not looked at."""
    entry = index.entries[path]
    if is_gitlink(entry.mode) or entry.skip_worktree:
        return False
    if entry.flags & ASSUME_UNCHANGED and path not in changes:
        return False
    found = files.lstat(path)
    if found and files.is_current(index, entry, found):
        return False
    return not files.holds(path, (entry.mode, entry.sha), filters)


def _is_taken(files: Files, filters: Filters, path: bytes, changes: Mapping[bytes, Change]) -> bool:
    """Return whether something untracked, ignored or not, stands where the merge puts a new file."""
    before, after = changes[path]
    if after is None:
        return False
    parent = path
    while parent := parent.rpartition(b"/")[0]:
        if _bars(files, parent, changes):
            return True
    if before is not None and (is_gitlink(after[0]) or not is_gitlink(before[0])):
        return False
    found = files.lstat(path)
    if found is None or files.holds(path, after, filters):
        return False
    if is_gitlink(after[0]) or not stat.S_ISDIR(found.st_mode):
        return True
    return any(os.path.relpath(inner, files.root) not in changes for inner in contents(files.at(path)))


def _bars(files: Files, parent: bytes, changes: Mapping[bytes, Change]) -> bool:
    """Return whether what stands at *parent* neither is a directory to write in nor makes room for one."""
    found = _lstat(files, parent)
    if found is None:
        return False
    before = changes[parent][0] if parent in changes else None
    if before is not None and is_gitlink(before[0]):
        # A submodule's files are its own repository's, and git does not see ours among them.
        return not files.is_free(parent)
    return not stat.S_ISDIR(found.st_mode) and parent not in changes


def _lstat(files: Files, path: bytes) -> os.stat_result | None:
    with suppress(OSError):
        return os.lstat(files.at(path))
    return None
