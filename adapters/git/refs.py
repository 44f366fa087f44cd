"""Refs move by compare-and-swap and nothing else; a lock that nobody holds any more does not block them for ever."""

import glob
import os
import random
import time
import traceback
import uuid
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar

from dulwich.file import FileLocked
from dulwich.objects import ZERO_SHA, ObjectID
from dulwich.refs import Ref, check_ref_format
from dulwich.repo import Repo

from ...application.ports.git import GitConflict

#: The author and committer of every commit that is made here.
IDENTITY = b"Steersman <steersman@localhost>"

#: A lock file that is older and that no process holds open was left behind by a crash.
STALE_LOCK_SECONDS = 15.0
#: How long a caller waits for a lock: longer than a stale one may stand.
PATIENCE_SECONDS = 25.0
LONGEST_PAUSE_SECONDS = 0.25
#: How often a ref that is set meets somebody who sets it, too.
SET_ATTEMPTS = 8

HEADS = b"refs/heads/"
CONFLICTS = "refs/steersman/conflicts/"
#: Hold what was brought together for a run, until the run needs it no longer.
MERGED = b"refs/steersman/merged/"
#: Hold what a workplace began with, and what was taken in from it last.
BASES = b"refs/steersman/bases/"
TAKEN = b"refs/steersman/taken/"

T = TypeVar("T")

#: Asked right before something is changed. Raises where somebody else may be at work there by now.
MayMove = Callable[[], None]


def always() -> None:
    """Return: nobody else is ever at work there."""


def is_held(path: str) -> bool:
    """Return whether a process of this machine has the file open. Without /proc nobody is seen."""
    for link in glob.iglob("/proc/[0-9]*/fd/*"):
        with suppress(OSError):
            if os.readlink(link) == path:
                return True
    return False


def break_stale_lock(path: str, stale_seconds: float = STALE_LOCK_SECONDS) -> bool:
    """Remove the lock if a crash left it behind; return whether it is gone."""
    path = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
    try:
        before = os.lstat(path)
        if time.time() - before.st_mtime < stale_seconds or is_held(path):
            return False
        aside = f"{path}.{uuid.uuid4().hex}"
        os.rename(path, aside)
    except FileNotFoundError:
        return True
    # Somebody else may have broken it and taken a new one in between: that one is given back.
    if not os.path.samestat(os.lstat(aside), before):
        with suppress(FileExistsError):
            os.link(aside, path)
    os.unlink(aside)
    return True


def patiently(action: Callable[[], T]) -> T:
    """
    Do what may meet a lock, again and again until the lock is free or broken. Raises FileLocked.

    What may meet a `git pack-refs` (every `git gc` is one), too: it removes the directories that it leaves empty, also
    from under whoever is about to make a lock there.
    """
    deadline = time.monotonic() + PATIENCE_SECONDS
    pause = 0.002
    vanished = 0
    while True:
        try:
            return action()
        except FileNotFoundError:
            vanished += 1
            if vanished == SET_ATTEMPTS:
                raise
        except FileLocked as locked:
            if time.monotonic() > deadline:
                raise
            name = os.fsdecode(locked.lockfilename)
            if not name or not break_stale_lock(name):
                time.sleep(pause * random.uniform(0.5, 1.5))
                pause = min(pause * 2, LONGEST_PAUSE_SECONDS)
        except OSError as error:
            # A lock that could not be written, on a full disk say, is open in what the failure remembers: it would look held.
            traceback.clear_frames(error.__traceback__)
            raise


def branch_ref(branch: str) -> Ref:
    """Return a branch's full name. Raises GitConflict for a name that git would refuse."""
    ref = Ref(HEADS + branch.encode(errors="surrogateescape"))
    if not check_ref_format(ref):
        raise GitConflict(f"{branch!r} is no name for a branch")
    return ref


def read_ref(repo: Repo, ref: Ref) -> ObjectID | None:
    """Return the commit that a ref is at, None if there is no such ref."""
    try:
        return repo.refs[ref]
    except KeyError:
        return None


def followed(repo: Repo, ref: Ref) -> Ref:
    """Return the ref that a name stands for: another one's, where it is no more than a second name of that."""
    try:
        return repo.refs.follow(ref)[0][-1]
    except (KeyError, IndexError):
        return ref


def swap_ref(
    repo: Repo, ref: Ref, old: ObjectID | None, new: ObjectID, why: str = "", may_move: MayMove = always
) -> bool:
    """
    Move *ref* from *old* (None: it does not exist) to *new*; return whether it is there now.

    With a reason the move is written to the ref's log, as git does for a branch of the user's. Raises KeyError where
    there is no *new*: a ref to nothing would keep git from every `gc` of the repository.
    """

    message = why.encode() or None

    def attempt() -> bool:
        # Each time anew: the ref's lock may have been waited for longer than a lease lasts.
        may_move()
        if read_ref(repo, ref) == old and new not in repo.object_store:
            raise KeyError(new)
        if old is None:
            return repo.refs.add_if_new(ref, new, committer=IDENTITY, message=message)
        return repo.refs.set_if_equals(ref, old, new, committer=IDENTITY, message=message)

    try:
        # A swap that was done already, by a call that died after it, is done.
        return read_ref(repo, ref) == new or patiently(attempt) or read_ref(repo, ref) == new
    except (NotADirectoryError, FileExistsError, IsADirectoryError):
        return False  # A ref of the name of a directory of this one, or the reverse.


def set_ref(repo: Repo, ref: Ref, new: str, may_move: MayMove = always) -> None:
    """Have a ref of ours at *new*, wherever it was. Raises GitConflict where it cannot be made."""
    for _ in range(SET_ATTEMPTS):
        if swap_ref(repo, ref, read_ref(repo, ref), ObjectID(new.encode()), may_move=may_move):
            return
    raise GitConflict(f"{ref.decode(errors='replace')} cannot be made")


def delete_ref(repo: Repo, ref: Ref, may_move: MayMove = always) -> None:
    """Remove a ref and its log, wherever it is. An absent one is no fault."""

    def attempt(expected: ObjectID) -> bool:
        may_move()
        return repo.refs.remove_if_equals(ref, expected)

    while present := read_ref(repo, ref):
        patiently(partial(attempt, present))
    if os.path.lexists(os.path.join(repo.commondir(), os.fsdecode(ref) + ".lock")):
        # A call that died after the removal left its lock, which would stop whoever makes the branch again.
        patiently(partial(attempt, ZERO_SHA))
    with suppress(OSError):
        os.unlink(os.path.join(repo.commondir(), "logs", os.fsdecode(ref)))
