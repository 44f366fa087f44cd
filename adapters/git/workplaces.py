"""
Workplaces: repositories of their own that borrow a project's objects, made whole or known to be unfinished.

What a workplace is stands beside it, out of its agent's reach: `.made/<name>` names the directory's device and inode and
its base, and is written last. Nothing below a workplace is opened here once its agent may have been in it.
"""

import os
import uuid
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec
from dulwich.refs import Ref

from ...application.ports.git import GitConflict, WorkplaceLost, WorkplaceState, WorkplaceUnmade
from ..processes.box import Mount
from ..removal import remove_tree
from ..stores.crash_points import reached
from .boxed import Boxed, Unable
from .configuration import Behaviour, behaviour, origin
from .faults import is_the_machines
from .inside.shell import make_git_directory
from .inspection import Opened, admin_entries, is_directory, root_of
from .refs import BASES, TAKEN, MayMove, branch_ref, delete_ref, read_ref, set_ref
from .staging import lent

MADE = ".made"
#: Marks the directory itself, where its file system can: a new one may get an old one's number.
MARK = "user.steersman"


class Made(msgspec.Struct, frozen=True, kw_only=True):
    """What stands beside a workplace. Without an inode it was begun and not finished."""

    base: str
    device: int = 0
    inode: int = 0
    mark: str = ""

    @staticmethod
    def of(workplace: Path) -> "Made | None":
        """Return what was noted of a workplace, None if nothing was, or nothing that can be read."""
        with suppress(OSError, msgspec.DecodeError):
            return msgspec.json.decode(_note(workplace).read_bytes(), type=Made)
        return None

    def store(self, workplace: Path) -> None:
        """Note it; on return it is on disk."""
        note = _note(workplace)
        note.parent.mkdir(parents=True, exist_ok=True)
        prepared = note.with_name(f".{note.name}.new")
        with open(prepared, "wb") as file:
            file.write(msgspec.json.encode(self))
            file.flush()
            os.fsync(file.fileno())
        os.replace(prepared, note)
        sync_directory(note.parent)


def _note(workplace: Path) -> Path:
    return workplace.parent / MADE / workplace.name


def sync_directory(path: Path | str) -> None:
    """On return the names in a directory are on disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def state_of(workplace: Path) -> WorkplaceState:
    """Return what stands at the path, beside what was noted of it."""
    made = Made.of(workplace)
    try:
        found = os.lstat(workplace)
    except FileNotFoundError:
        return "vanished"
    if made is None or not made.inode:
        return "unfinished"
    # A file system may have another number after the next start of the machine: a mark tells more.
    same = found.st_ino == made.inode and (bool(made.mark) or found.st_dev == made.device)
    return "whole" if same and is_directory(str(workplace)) and _mark(workplace) == made.mark else "replaced"


def _mark(workplace: Path) -> str:
    with suppress(OSError):
        return os.getxattr(workplace, MARK, follow_symlinks=False).decode(errors="replace")
    return ""


def finish(workplace: Path, base: str) -> None:
    """Note that the directory that stands there is the whole workplace."""
    with suppress(OSError):
        os.setxattr(workplace, MARK, uuid.uuid4().hex.encode(), follow_symlinks=False)
    found = os.lstat(workplace)
    Made(base=base, device=found.st_dev, inode=found.st_ino, mark=_mark(workplace)).store(workplace)


def make(boxed: Boxed, opened: Opened, workplace: Path, base: str, may_move: MayMove) -> None:
    """See `Repositories.make_workplace`. Raises WorkplaceUnmade; Unable and OSError where the machine is in the way."""
    try:
        clear(opened, workplace, may_move)
        reached("workplace.cleared")
        # Before anything borrows it: else a `git gc` of the user's could take it away from under the workplace.
        set_ref(opened.repo, Ref(BASES + os.fsencode(workplace.name)), base, may_move)
        reached("workplace.held")
        Made(base=base).store(workplace)
        _begin(opened, workplace, base)
        boxed.box.give(workplace)
        reached("workplace.begun")
        question = {"workplace": str(workplace), "base": base}
        mounts = [Mount(source=workplace, writable=True), *lent(opened)]
        boxed.ask("checkout", question, mounts, workplace)
        reached("workplace.filled")
        finish(workplace, base)
    except Unable as unable:
        if is_the_machines(str(unable)):
            raise
        raise WorkplaceUnmade(unable.code, f"{workplace} could not be made: {unable}") from unable
    except GitConflict as error:
        raise WorkplaceUnmade("workplace_unmade", f"{workplace} could not be made: {error}") from error


def _begin(opened: Opened, workplace: Path, base: str) -> None:
    """Make the directory with the repository in it, and no file yet."""
    found = behaviour(opened.control, opened.common)
    workplace.mkdir(parents=True)
    make_git_directory(str(workplace / ".git"), files_of(found, opened, workplace), opened.objects, base)


def files_of(found: Behaviour, opened: Opened, workplace: Path) -> Mapping[str, bytes]:
    """Return what stands in a workplace's git directory so that git behaves there as for the project's user."""
    url = origin(opened.settings)
    remote = [("remote.origin.url", url)] if url else []
    return found.files(workplace / ".git", ("core.logallrefupdates", "true"), ("gc.auto", "0"), *remote)


def clear(opened: Opened | None, workplace: Path, may_move: MayMove) -> None:
    """On return nothing stands at the path, and nothing is noted of it. Raises GitConflict for what is not ours."""
    remove_tree(_aside(workplace))
    if os.path.lexists(workplace):
        _check_ours(opened, workplace)
        may_move()
        # Renamed first: half a workplace is never found under the name of a whole one.
        os.rename(workplace, _aside(workplace))
        reached("workplace.set_aside")
    with suppress(FileNotFoundError):
        _note(workplace).unlink()
    reached("workplace.removed")
    remove_tree(_aside(workplace))


def _aside(workplace: Path) -> Path:
    return workplace.with_name(f".{workplace.name}.removed")


def _check_ours(opened: Opened | None, workplace: Path) -> None:
    """Raise GitConflict if a repository stands there that we have not made."""
    if Made.of(workplace) is not None or not is_directory(str(workplace / ".git")):
        return
    if opened is None or read_ref(opened.repo, Ref(BASES + os.fsencode(workplace.name))) is None:
        raise GitConflict(f"{workplace} is a repository, no workplace")


def remove(opened: Opened | None, workplace: Path, branch: str | None, may_move: MayMove) -> None:
    """See `Repositories.remove_workplace`."""
    clear(opened, workplace, may_move)
    if opened is None:
        return
    if directory := linked_entry(opened, workplace):
        may_move()
        remove_tree(directory)
    for prefix in (TAKEN, BASES):
        delete_ref(opened.repo, Ref(prefix + os.fsencode(workplace.name)), may_move)
    if branch:
        delete_ref(opened.repo, branch_ref(branch), may_move)


def linked_entry(opened: Opened, workplace: Path) -> str | None:
    """Return git's own directory for a linked worktree of an earlier release at this path."""
    root = os.path.realpath(workplace)
    return next((entry for entry in admin_entries(opened.common) if root_of(entry) == root), None)


def last_commit(opened: Opened, workplace: Path) -> str:
    """Return what was taken in from a whole workplace last, or what it began with; the user may have removed its refs."""
    taken = read_ref(opened.repo, Ref(TAKEN + os.fsencode(workplace.name)))
    if taken is not None:
        return taken.decode()
    made = Made.of(workplace)
    if made is None:
        raise WorkplaceLost("vanished", f"{workplace} was removed")
    return made.base
