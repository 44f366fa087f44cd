"""Move a branch together with the clean checkouts of it. What a crash leaves half done is known by its journal."""

import json
import os
import time
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import cast

import msgspec
from dulwich.objects import ObjectID
from dulwich.reflog import format_reflog_line
from dulwich.refs import Ref

from ...application.ports.git import MergeOutcome
from ..processes.box import Mount
from ..stores.crash_points import reached
from .boxed import Boxed, Unable
from .configuration import behaviour, content, written
from .index_lock import IndexLock, LockHeld
from .inside.land import HALF_WAY
from .inspection import Opened, checkouts
from .refs import IDENTITY, MayMove, followed, read_ref, swap_ref
from .workplaces import sync_directory

JOURNAL = "steersman-landing"
COPY = "steersman-landing.index"
REASON = "merge: Steersman"
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
#: Why a checkout cannot follow, as the program inside says it and as it is told.
HINDRANCES = frozenset(
    {"repository_dirty", "untracked_would_be_overwritten", "filter_failed", "files_missing", "files_not_written"}
)


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """A checkout: its top, and the git directory that belongs to it alone."""

    root: str
    control: str

    def head(self) -> Ref | None:
        """Return the ref that is checked out, None for a detached one."""
        said = (content(os.path.join(self.control, "HEAD")) or b"").strip()
        return Ref(said[5:].strip()) if said.startswith(b"ref: ") else None

    def operation(self) -> bool:
        """Return whether something is going on here."""
        return any(os.path.exists(os.path.join(self.control, name)) for name in OPERATIONS)

    def rebases(self) -> Ref | None:
        """Return the branch that is being rebased here; HEAD is detached meanwhile."""
        heads = (content(os.path.join(self.control, name, "head-name")) for name in ("rebase-merge", "rebase-apply"))
        return next((Ref(head.strip()) for head in heads if head), None)

    def is_there(self) -> bool:
        """Return whether its files are where git was told last."""
        return os.path.isdir(self.root)


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

    def back(self) -> "Landing":
        """Return the way back."""
        return Landing(ref=self.ref, old=self.new, new=self.old)


def obstacle(boxed: Boxed, opened: Opened, ref: Ref) -> str | None:
    """Return why no commit can land on the branch now. A move of ours that a crash cut short is no obstacle."""
    tip, ref = read_ref(opened.repo, ref), followed(opened.repo, ref)
    for place in _places(opened):
        if _leads(opened, place.rebases(), ref):
            return "operation_in_progress"
        if tip is None or not _leads(opened, place.head(), ref) or _read_journal(opened, place) is not None:
            continue
        if not place.is_there():
            return "checkout_missing"
        if place.operation():
            return "operation_in_progress"
        if reason := _work(boxed, opened, place, Landing(ref=ref, old=tip, new=tip), "check"):
            return reason
    return None


def land(boxed: Boxed, opened: Opened, landing: Landing, may_move: MayMove) -> MergeOutcome:
    """
    Move the branch and every checkout of it, or nothing. See `Repositories.merge`.

    The order is: lock the index, write the journal, look, move the files beside a copy of the index, swap the ref, put
    the copy in the index's place, and the journal away. A crash, or a failure, leaves the journal, and git's index lock,
    which keeps the user from committing half-moved files. The next call brings that to its end if the branch has moved,
    else back, and begins anew: the user may have changed something meanwhile.
    """
    landing = msgspec.structs.replace(landing, ref=followed(opened.repo, landing.ref))
    try:
        with ExitStack() as held:
            where: dict[Place, IndexLock] = {}
            for place in _places(opened):
                if _leads(opened, place.rebases(), landing.ref):
                    return landing.blocked("operation_in_progress")
                if _leads(opened, place.head(), landing.ref):
                    if not place.is_there():
                        # It may have been moved, or be on a disk that is not mounted: its index would not follow.
                        return landing.blocked("checkout_missing")
                    where[place] = held.enter_context(_held(place))
            reached("landing.locked")
            for place, lock in where.items():
                _settle(boxed, opened, place, has_stood=lock.is_inherited)
            return _land(boxed, opened, landing, list(where), may_move)
    except LockHeld:
        return landing.blocked("operation_in_progress")


def _places(opened: Opened) -> Sequence[Place]:
    return [Place(root=root, control=control) for root, control in checkouts(opened)]


def _leads(opened: Opened, named: Ref | None, ref: Ref) -> bool:
    """Return whether a name is the branch's, or another one of the same branch."""
    return named is not None and followed(opened.repo, named) == ref


@contextmanager
def _held(place: Place) -> Generator[IndexLock]:
    """Hold the checkout's index lock. Where the block leaves a journal behind, it is kept."""
    lock = IndexLock(place.control)
    try:
        yield lock
    finally:
        # Without it the user's next commit would undo the move, or be made of half of it.
        lock.is_kept = os.path.lexists(os.path.join(place.control, JOURNAL))
        lock.release()


def _land(boxed: Boxed, opened: Opened, landing: Landing, where: Sequence[Place], may_move: MayMove) -> MergeOutcome:
    present = read_ref(opened.repo, landing.ref)
    if present == landing.new:
        return landing.merged()
    if present != landing.old:
        return landing.blocked("head_moved")
    for place in where:
        if place.operation():
            return landing.blocked("operation_in_progress")
        if len(where) > 1 and (reason := _work(boxed, opened, place, landing, "check")):
            return landing.blocked(reason)
    may_move()
    for place in where:
        _write_journal(place, landing)
    reached("landing.written")
    for number, place in enumerate(where):
        if reason := _work(boxed, opened, place, landing, "move"):
            is_half_way = reason.endswith(HALF_WAY)
            _put_back(boxed, opened, where[: number + is_half_way], where[number + is_half_way :], landing)
            return landing.blocked(reason.removesuffix(HALF_WAY))
    reached("landing.moved")
    if not swap_ref(opened.repo, landing.ref, landing.old, landing.new, REASON, may_move):
        _put_back(boxed, opened, where, (), landing)
        return landing.blocked("head_moved")
    reached("landing.swapped")
    for place in where:
        _finish(place, landing)
    return landing.merged()


def _settle(boxed: Boxed, opened: Opened, place: Place, *, has_stood: bool) -> None:
    """Bring an earlier move to its end, or back. *has_stood*: whether its lock has kept the user's git away since."""
    journal = _read_journal(opened, place)
    if journal is not None:
        present = read_ref(opened.repo, journal.ref)
        if present == journal.new:
            _must(boxed, opened, place, journal)
            _finish(place, journal)
        elif os.path.exists(os.path.join(place.control, COPY)) and (present == journal.old or has_stood):
            _must(boxed, opened, place, journal.back())
            _finish(place, None)
    # Else nothing has moved yet, or the user has gone on without the lock: what is in the files is theirs to see.
    _throw_away(place)


def _put_back(boxed: Boxed, opened: Opened, moved: Sequence[Place], others: Sequence[Place], landing: Landing) -> None:
    """Undo what was moved of the files: the branch does not follow."""
    for place in moved:
        _must(boxed, opened, place, landing.back())
        _finish(place, None)
    for place in others:
        _throw_away(place)


def _must(boxed: Boxed, opened: Opened, place: Place, landing: Landing) -> None:
    reason = _work(boxed, opened, place, landing, "finish")
    if reason is not None:
        raise Unable(reason, f"{place.root} is half moved, and cannot be moved on: {reason}")


def _work(boxed: Boxed, opened: Opened, place: Place, landing: Landing, mode: str) -> str | None:
    """Have the files moved, or looked at; return what stands in the way. Raises Unable."""
    users = behaviour(place.control, opened.common)
    with boxed.room(Path(place.root)) as room:
        (room / "users").write_bytes(written(users.settings))
        copy = room / "index" if mode == "check" else Path(place.control) / COPY
        question = {
            "root": place.root,
            "control": place.control,
            "copy": str(copy),
            "users": str(room / "users"),
            "room": str(room),
            "old": landing.old.decode(),
            "new": landing.new.decode(),
            "mode": mode,
        }
        moves = mode != "check"
        # What its git directory shares with other checkouts is only read, unless it is one and the same.
        own = {Path(opened.common): False, Path(place.root): moves, Path(place.control): moves}
        mounts = [Mount(source=path, writable=writable) for path, writable in own.items()]
        mounts += [Mount(source=room, writable=True), *(Mount(source=Path(path)) for path in opened.objects)]
        try:
            boxed.ask("land", question, mounts, Path(place.root), as_owner=True)
        except Unable as unable:
            if unable.code.removesuffix(HALF_WAY) in HINDRANCES:
                return unable.code
            if unable.code == "took_too_long":
                return "filter_failed" + HALF_WAY
            raise
    return None


def _write_journal(place: Place, landing: Landing) -> None:
    path = os.path.join(place.control, JOURNAL)
    with open(path + ".new", "w") as file:
        json.dump([landing.ref.decode(errors="surrogateescape"), landing.old.decode(), landing.new.decode()], file)
        file.flush()
        os.fsync(file.fileno())
    os.rename(path + ".new", path)
    sync_directory(place.control)


def _read_journal(opened: Opened, place: Place) -> Landing | None:
    """Return the move that was begun here, None if there is none, or something else was checked out since."""
    with suppress(OSError, ValueError), open(os.path.join(place.control, JOURNAL)) as file:
        ref, old, new = (text.encode(errors="surrogateescape") for text in cast("list[str]", json.load(file)))
        if _leads(opened, place.head(), followed(opened.repo, Ref(ref))):
            return Landing(ref=Ref(ref), old=ObjectID(old), new=ObjectID(new))
    return None


def _finish(place: Place, landing: Landing | None) -> None:
    """Put the copy in the index's place, tell the log of HEAD, and on return there is no journal."""
    copy = os.path.join(place.control, COPY)
    with suppress(FileNotFoundError):
        with open(copy, "rb") as file:
            os.fsync(file.fileno())
        os.rename(copy, os.path.join(place.control, "index"))
        sync_directory(place.control)
    reached("landing.indexed")
    if landing is not None:
        _log_head(place, landing)
    _throw_away(place)


def _throw_away(place: Place) -> None:
    for name in (COPY, JOURNAL):
        with suppress(FileNotFoundError):
            os.unlink(os.path.join(place.control, name))


def _log_head(place: Place, landing: Landing) -> None:
    """Tell `git reflog` of the move, once, if this checkout keeps a log of HEAD."""
    path = os.path.join(place.control, "logs", "HEAD")
    line = format_reflog_line(landing.old, landing.new, IDENTITY, int(time.time()), 0, REASON.encode())
    with suppress(OSError), open(path, "r+b") as file:
        last = file.read().rstrip(b"\n").rpartition(b"\n")[2]
        if not last.startswith(landing.old + b" " + landing.new):
            file.write(line + b"\n")
