"""Move a branch together with the clean checkout of it. What a crash leaves half done is known by its journal."""

import json
import os
import time
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import cast

import msgspec
from dulwich.file import FileLocked
from dulwich.index import IndexEntry
from dulwich.objects import ObjectID
from dulwich.reflog import format_reflog_line
from dulwich.refs import Ref
from dulwich.repo import Repo

from ...application.git_port import MergeOutcome
from .filters import Filters
from .hindrances import hindrance
from .index import CheckoutIndex, IndexLock, index_lock, unknown_entry
from .objects import Entry, Objects
from .refs import IDENTITY, MayMove, read_ref, swap_ref
from .worktrees import Checkout, checkouts

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


def land(repo: Repo, landing: Landing, may_move: MayMove) -> MergeOutcome:
    """
    Move the branch and every checkout of it, or nothing. See `Repositories.merge`.

    The order is: lock the index, check, write the journal, swap the ref, then files, index, and the journal away.
    Up to the swap nothing is changed. A crash after it, or a failure, leaves the journal, and git's index lock, which
    keeps the user from committing the half-moved files; the next call goes on where it ended.
    """
    try:
        with ExitStack() as held:
            where: list[tuple[Checkout, IndexLock]] = []
            for checkout in checkouts(repo):
                if _rebases(checkout, landing.ref):
                    return landing.blocked("operation_in_progress")
                if checkout.head() == landing.ref and os.path.isdir(checkout.root):
                    where.append((checkout, held.enter_context(_held(repo, checkout, landing.ref))))
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
        if not unfinished and (reason := hindrance(checkout, tip, tip)):
            return reason
    return None


@contextmanager
def _held(repo: Repo, checkout: Checkout, ref: Ref) -> Generator[IndexLock]:
    """Hold the checkout's index lock. Where the block ends after the branch moved and before this did, it is kept."""
    with index_lock(checkout.directory, is_ours=False) as lock:
        try:
            yield lock
        finally:
            # Kept also if it cannot be told. Without it the user's next commit would undo the move.
            lock.is_kept = True
            journal = _read_journal(checkout)
            lock.is_kept = journal is not None and journal.new == read_ref(repo, ref)


def _land(repo: Repo, landing: Landing, where: Sequence[tuple[Checkout, IndexLock]], may_move: MayMove) -> MergeOutcome:
    for checkout, lock in where:
        _finish(checkout, lock, read_ref(repo, landing.ref))
    present = read_ref(repo, landing.ref)
    if present == landing.new:
        return landing.merged()
    if present != landing.old:
        return landing.blocked("head_moved")
    for checkout, _ in where:
        if reason := hindrance(checkout, landing.old, landing.new):
            return landing.blocked(reason)
    for checkout, _ in where:
        _write_journal(checkout, landing)
    # If we crash before the swap, the journal names a move that never was and is thrown away.
    moved = swap_ref(repo, landing.ref, landing.old, landing.new, REASON, may_move)
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
            elif files.holds(path, before, old_filters) or files.is_free(path):
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
