"""Move a branch together with the clean checkout of it. What a crash leaves half done is known by its journal."""

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import cast

import msgspec
from dulwich.file import FileLocked
from dulwich.index import IndexEntry
from dulwich.objects import ObjectID
from dulwich.reflog import format_reflog_line
from dulwich.refs import Ref
from dulwich.repo import Repo

from ..application.git_port import MergeOutcome
from .git_checkout import Files
from .git_filters import Filters
from .git_index import ASSUME_UNCHANGED, CheckoutIndex, IndexLock, UnreadableIndex, index_lock, unknown_entry
from .git_objects import Change, Entry, Objects, is_gitlink
from .git_refs import IDENTITY, read_ref, swap_ref
from .git_worktrees import Checkout, checkouts

JOURNAL = "steersman-landing"
REASON = "merge: Steersman"


class Landing(msgspec.Struct, frozen=True, kw_only=True):
    """A move of a branch that a checkout follows."""

    ref: Ref
    old: ObjectID
    new: ObjectID

    def merged(self) -> MergeOutcome:
        """The branch is at the new commit, and every checkout of it with it."""
        return MergeOutcome(state="merged", commit=self.new.decode(), old=self.old.decode())

    def blocked(self, reason: str) -> MergeOutcome:
        """Nothing moved, for this reason."""
        return MergeOutcome(state="blocked", old=self.old.decode(), reason=reason)


def land(repo: Repo, landing: Landing, may_move: Callable[[], None]) -> MergeOutcome:
    """
    Move the branch and every checkout of it, or nothing. See `Repositories.merge`.

    The order is: lock the index, check, write the journal, swap the ref, then files, index, and the journal away.
    Up to the swap nothing is changed. A crash after it leaves the journal, and git's index lock, which keeps the
    user from committing the half-moved files; the next call goes on where it ended.
    """
    try:
        with ExitStack() as held:
            where: list[tuple[Checkout, IndexLock]] = []
            for checkout in checkouts(repo):
                if _rebases(checkout, landing.ref):
                    return landing.blocked("operation_in_progress")
                if checkout.head() == landing.ref and os.path.isdir(checkout.root):
                    where.append((checkout, held.enter_context(index_lock(checkout.directory, is_ours=False))))
            return _land(repo, landing, where, may_move)
    except FileLocked:
        return landing.blocked("operation_in_progress")


def obstacle(repo: Repo, ref: Ref) -> str | None:
    """Return why no commit can land on the branch now. A move of ours that a crash cut short is no obstacle."""
    tip = read_ref(repo, ref)
    for checkout in checkouts(repo):
        if _rebases(checkout, ref):
            return "operation_in_progress"
        if tip is None or checkout.head() != ref or not os.path.isdir(checkout.root):
            continue
        journal = _read_journal(checkout)
        unfinished = journal is not None and journal.new == tip
        if not unfinished and (reason := _hindrance(checkout, Landing(ref=ref, old=tip, new=tip))):
            return reason
    return None


def _land(
    repo: Repo, landing: Landing, where: Sequence[tuple[Checkout, IndexLock]], may_move: Callable[[], None]
) -> MergeOutcome:
    for checkout, lock in where:
        _finish(checkout, lock, read_ref(repo, landing.ref))
    present = read_ref(repo, landing.ref)
    if present == landing.new:
        return landing.merged()
    if present != landing.old:
        return landing.blocked("head_moved")
    for checkout, _ in where:
        if reason := _hindrance(checkout, landing):
            return landing.blocked(reason)
    for checkout, _ in where:
        _write_journal(checkout, landing)
    may_move()
    # If we crash before the swap, the journal names a move that never was and is thrown away.
    moved = swap_ref(repo, landing.ref, landing.old, landing.new, REASON)
    for checkout, lock in where:
        _finish(checkout, lock, landing.new if moved else None)
    return landing.merged() if moved else landing.blocked("head_moved")


def _rebases(checkout: Checkout, ref: Ref) -> bool:
    """Return whether the branch is being rebased here; HEAD is detached meanwhile."""
    for operation in ("rebase-merge", "rebase-apply"):
        with suppress(OSError), open(os.path.join(checkout.directory, operation, "head-name"), "rb") as file:
            if file.read().strip() == ref:
                return True
    return False


def _write_journal(checkout: Checkout, landing: Landing) -> None:
    path = os.path.join(checkout.directory, JOURNAL)
    with open(path + ".new", "w") as file:
        json.dump([landing.ref.decode(errors="surrogateescape"), landing.old.decode(), landing.new.decode()], file)
        file.flush()
        os.fsync(file.fileno())
    os.rename(path + ".new", path)


def _read_journal(checkout: Checkout) -> Landing | None:
    with suppress(OSError, ValueError), open(os.path.join(checkout.directory, JOURNAL)) as file:
        ref, old, new = (text.encode(errors="surrogateescape") for text in cast("list[str]", json.load(file)))
        return Landing(ref=Ref(ref), old=ObjectID(old), new=ObjectID(new))
    return None


def _finish(checkout: Checkout, lock: IndexLock, present: ObjectID | None) -> None:
    """Bring files and index to where the branch is, if it was we who moved it; on return there is no journal."""
    journal = _read_journal(checkout)
    if journal and journal.new == present:
        with checkout.open() as repo:
            _follow(checkout, repo, lock, journal)
            _log_head(checkout, journal)
    with suppress(FileNotFoundError):
        os.unlink(os.path.join(checkout.directory, JOURNAL))


def _hindrance(checkout: Checkout, landing: Landing) -> str | None:
    """Return why this checkout cannot follow the branch now."""
    if checkout.operation():
        return "operation_in_progress"
    with checkout.open() as repo:
        objects = Objects(repo)
        old = objects.tree_of(landing.old)
        changes = objects.changes(old, objects.tree_of(landing.new))
        filters, files = Filters(repo, None), checkout.files(repo)
        try:
            index = CheckoutIndex(checkout.directory)
            if index.unmerged or _is_staged(index, dict(objects.files(old))):
                return "repository_dirty"
            if any(_is_changed(files, index, filters, path, changes) for path in index.entries):
                return "repository_dirty"
            if any(_is_taken(files, filters, path, changes) for path in changes):
                return "untracked_would_be_overwritten"
        except UnreadableIndex:
            # Its state cannot be told, so it is not called clean.
            return "repository_dirty"
        finally:
            filters.close()
    return None


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
    parent = path.rpartition(b"/")[0]
    while parent:
        above = _lstat(files, parent)
        if above and not os.path.isdir(files.at(parent)) and parent not in changes:
            return True
        if above and os.path.islink(files.at(parent)) and parent not in changes:
            return True
        parent = parent.rpartition(b"/")[0]
    if before is not None or files.lstat(path) is None or files.holds(path, after, filters):
        return False
    if not os.path.isdir(files.at(path)):
        return True
    inner = (
        os.path.relpath(os.path.join(directory, name), files.root)
        for directory, _, names in os.walk(files.at(path))
        for name in names
    )
    return is_gitlink(after[0]) or any(name not in changes for name in inner)


def _lstat(files: Files, path: bytes) -> os.stat_result | None:
    with suppress(OSError):
        return os.lstat(files.at(path))
    return None


def _follow(checkout: Checkout, repo: Repo, lock: IndexLock, landing: Landing) -> None:
    """
    Move the files that differ between the two commits, and the index with them.

    A file that is neither the old nor the new one was edited after the move began: it stays, as a change.
    """
    objects = Objects(repo)
    old, new = objects.tree_of(landing.old), objects.tree_of(landing.new)
    changes = objects.changes(old, new)
    files = checkout.files(repo, staged=True)
    old_filters, new_filters = Filters(repo, old), Filters(repo, new)
    try:
        index = CheckoutIndex(checkout.directory)
        entries = dict(index.entries)
        # Deletions first: a file may have to make room for a directory.
        for path, (before, after) in sorted(changes.items(), key=lambda change: change[1][1] is not None):
            known = entries.get(path)
            if known and known.skip_worktree:
                _take(entries, path, after, known, None)
                continue
            written = None
            if after is not None and files.holds(path, after, new_filters):
                written = files.refreshed(path, after)
            elif files.holds(path, before, old_filters) or files.lstat(path) is None:
                if after is None:
                    files.remove(path)
                else:
                    written = files.write(path, after, objects, new_filters, clear=False)
            if known is None or (known.mode, known.sha) in (before, after):
                _take(entries, path, after, known, written)
        lock.write(entries)
    finally:
        old_filters.close()
        new_filters.close()


def _take(
    entries: dict[bytes, IndexEntry],
    path: bytes,
    after: Entry | None,
    known: IndexEntry | None,
    written: IndexEntry | None,
) -> None:
    """Record a path's new state in the index."""
    if after is None:
        entries.pop(path, None)
        return
    entries[path] = written or unknown_entry(*after)
    if known and known.skip_worktree:
        entries[path].set_skip_worktree()


def _log_head(checkout: Checkout, landing: Landing) -> None:
    """Tell `git reflog` of the move, once, if this checkout keeps a log of HEAD."""
    path = os.path.join(checkout.directory, "logs", "HEAD")
    line = format_reflog_line(landing.old, landing.new, IDENTITY, int(time.time()), 0, REASON.encode())
    with suppress(OSError), open(path, "r+b") as file:
        last = file.read().rstrip(b"\n").rpartition(b"\n")[2]
        if not last.startswith(landing.old + b" " + landing.new):
            file.write(line + b"\n")
