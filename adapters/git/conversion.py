"""A linked worktree of an earlier release becomes a workplace: its files stay as they are, its git is made beside and put in."""

import os
import shutil
from contextlib import suppress
from pathlib import Path

from dulwich.refs import Ref

from ..removal import remove_tree
from ..stores.crash_points import reached
from .boxed import Boxed
from .configuration import behaviour, content
from .inside.shell import make_git_directory
from .inspection import Opened, is_directory
from .refs import BASES, MayMove, read_ref, set_ref
from .workplaces import Made, files_of, finish, linked_entry


def convert(boxed: Boxed, opened: Opened, workplace: Path, may_move: MayMove) -> None:
    """
    Make a linked worktree, if one stands here, a workplace. Done in part already, it goes on from there.

    git's own entry of it in the project goes last: as long as it is there, the next call finds what is to be done.
    """
    entry = linked_entry(opened, workplace)
    if entry is None or Made.of(workplace) is not None or not is_directory(str(workplace)):
        return
    base = _base(opened, entry)
    if base is None:
        return
    set_ref(opened.repo, Ref(BASES + os.fsencode(workplace.name)), base, may_move)
    git_dir = workplace / ".git"
    if not is_directory(str(git_dir)):
        prepared = workplace.with_name(f".{workplace.name}.git")
        remove_tree(prepared)
        files = files_of(behaviour(opened.control, opened.common), opened, workplace)
        make_git_directory(str(prepared), files, opened.objects, base)
        for name in os.listdir(entry):
            if name == "index" or name.startswith("sharedindex."):
                # With its time, by which git knows which files may have changed unseen.
                shutil.copy2(os.path.join(entry, name), prepared / name, follow_symlinks=False)
        may_move()
        with suppress(FileNotFoundError):
            os.unlink(git_dir)
        reached("workplace.converted")
        os.rename(prepared, git_dir)
    boxed.box.give(workplace)
    finish(workplace, base)
    remove_tree(entry)


def _base(opened: Opened, entry: str) -> str | None:
    """Return the commit that the worktree has checked out."""
    head = (content(os.path.join(entry, "HEAD")) or b"").strip()
    if head.startswith(b"ref: "):
        found = read_ref(opened.repo, Ref(head.removeprefix(b"ref: ").strip()))
        return found.decode() if found else None
    return head.decode(errors="replace") if len(head) == 40 else None
