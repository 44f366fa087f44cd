"""What the files of a workplace are worth: staged in a box, and taken into the project as one checked pack."""

import os
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from dulwich.refs import Ref

from ...application.ports.git import CommitFailed
from ...domain.git import Commit
from ..processes.box import Mount
from ..stores.crash_points import reached
from .boxed import Boxed, BoxedResult, Unable, missing
from .configuration import behaviour
from .faults import agents_doing
from .inspection import Opened
from .objects import Trees, new_commit, without_tree
from .program import GitFailed, Program
from .refs import IDENTITY, TAKEN, MayMove, set_ref

#: How often what a `git gc` of the user's swept away meanwhile is taken in again.
TAKE_ATTEMPTS = 3
#: When a commit was made that only holds a tree.
EPOCH = datetime.fromtimestamp(0, UTC)


class CommitLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How much one commit of an agent's may hold, with the settings that say so."""

    file_bytes: int = 500 * 1024 * 1024
    commit_bytes: int = 2 * 1024 * 1024 * 1024
    file_name: str = "STEERSMAN_MAX_FILE_MIB"
    commit_name: str = "STEERSMAN_MAX_COMMIT_MIB"


def stage(
    boxed: Boxed,
    opened: Opened,
    workplace: Path,
    parent: str,
    limits: CommitLimits,
    into: Program | None,
    *,
    strict: bool = True,
    hashes: bool = False,
    ignored: bool = False,
    at: datetime = EPOCH,
    message: str = "",
    author: bytes = IDENTITY,
) -> BoxedResult:
    """
    Return the tree that the workplace's files make on *parent*; *into* stores it, and the commit of it that *at*,
    *message* and *author* determine, unless it is the parent's. Raises Unable, GitFailed.
    """
    found = behaviour(opened.control, opened.common)
    with boxed.room() as room:
        files = found.files(room / "git", ("index.sparse", "false"))
        question: dict[str, Any] = {
            "workplace": str(workplace),
            "room": str(room),
            "files": {name: text for name, text in files.items() if name != "shallow"},
            "lends": list(opened.objects),
            "parent": parent,
            "parent_tree": Trees(opened.repo).tree_of(parent),
            "limits": msgspec.to_builtins(limits),
            "strict": strict,
            "hashes": hashes,
            "ignored": ignored,
            "hands_over": into is not None,
            "rest": without_tree(at, message, author),
            "large": os.path.join(opened.common, "lfs") if _uses_lfs(found.settings) else None,
        }
        mounts = [Mount(source=workplace), Mount(source=room, writable=True), *lent(opened)]
        return boxed.ask("stage", question, mounts, workplace, into, limits.commit_bytes * 2)


def _uses_lfs(settings: Sequence[tuple[str, str]]) -> bool:
    return any(name.startswith("filter.lfs.") for name, _ in settings)


def lent(opened: Opened) -> list[Mount]:
    """Return what of a project can be seen in a box: its objects, and those of its large files."""
    large = os.path.join(opened.common, "lfs")
    return [Mount(source=Path(path)) for path in (*opened.objects, *([large] if os.path.isdir(large) else []))]


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """A workplace, the commit that its files follow, and what else determines their commit."""

    workplace: Path
    parent: str
    at: datetime
    message: str
    author: bytes = IDENTITY


def _staged(boxed: Boxed, opened: Opened, work: Work, limits: CommitLimits) -> BoxedResult:
    """Stage a workplace's files; those that their author may not even read itself are made readable first."""

    def staged() -> BoxedResult:
        return stage(
            boxed,
            opened,
            work.workplace,
            work.parent,
            limits,
            opened.git,
            at=work.at,
            message=work.message,
            author=work.author,
        )

    try:
        return staged()
    except Unable as unable:
        if unable.code != "unreadable":
            raise
        mounts = [Mount(source=work.workplace, writable=True)]
        boxed.ask("permit", {"workplace": str(work.workplace)}, mounts, work.workplace)
        return staged()


def commit(boxed: Boxed, opened: Opened, work: Work, limits: CommitLimits, may_move: MayMove) -> Commit:
    """See `Repositories.commit_workplace`. Raises CommitFailed, and Unable or GitFailed for what is not the agent's doing."""
    taken = Ref(TAKEN + os.fsencode(work.workplace.name))
    words = ""
    for _ in range(TAKE_ATTEMPTS):
        try:
            staged = _staged(boxed, opened, work, limits)
        except (Unable, GitFailed) as error:
            if not agents_doing(error):
                raise
            raise CommitFailed(f"{work.workplace} could not be committed: {error}") from error
        reached("workplace.staged")
        tree = str(staged.said["tree"])
        if tree == Trees(opened.repo).tree_of(work.parent):
            return Commit(commit=work.parent, tree=tree)
        made = new_commit(tree, [work.parent], work.at, work.message, work.author).id.decode()
        # A `git gc` of the user's may sweep it away, or some of it, before the ref leads to it.
        with suppress(KeyError):
            set_ref(opened.repo, taken, made, may_move)
        reached("workplace.taken")
        staged.release()
        words = missing(opened.git, made, [work.parent])
        if not words:
            return Commit(commit=made, tree=tree)
    raise CommitFailed(f"{work.workplace} could not be committed: what it made is swept away each time: {words}")
