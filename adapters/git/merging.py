"""Merge commits in a box, in a scratch repository that borrows the project's objects: no checkout, no driver, no dirty file."""

from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime

import msgspec
from dulwich.refs import Ref

from ..processes.box import Mount
from ..stores.crash_points import reached
from .boxed import Boxed, BoxedResult, missing
from .configuration import PLAIN, content, written
from .inspection import Opened
from .objects import new_commit, shown, without_tree
from .program import GitFailed
from .refs import IDENTITY, MERGED, MayMove, set_ref
from .staging import TAKE_ATTEMPTS, lent

PACK_BYTES = 8 * 1024 * 1024 * 1024


class MergeStep(msgspec.Struct, frozen=True, kw_only=True):
    """One merge commit: of which of the commits, what it followed, and the paths that conflicted."""

    number: int
    commit: str
    before: str
    paths: tuple[str, ...]


class Making(msgspec.Struct, frozen=True, kw_only=True):
    """For which run commits are merged, and what else determines the merge commits."""

    run_id: str
    at: datetime
    message: str
    #: Whether the later side's version stands where they conflict. Else the first conflict ends it, with no commit.
    resolves: bool = False
    author: bytes = IDENTITY


class Merged(msgspec.Struct, frozen=True, kw_only=True):
    """What the merges ended in, and how."""

    commit: str
    steps: tuple[MergeStep, ...] = ()


def contains(opened: Opened, newer: str, older: str) -> bool:
    """Return whether a commit is another one, or comes after it. Raises GitFailed."""
    return opened.git.ask("merge-base", "--is-ancestor", older, newer, ok=(0, 1)).code == 0


def are_related(opened: Opened, one: str, other: str) -> bool:
    """Return whether two commits have an ancestor in common."""
    return opened.git.ask("merge-base", one, other, ok=(0, 1)).code == 0


def merge(boxed: Boxed, opened: Opened, onto: str, commits: Sequence[str], making: Making, may_move: MayMove) -> Merged:
    """
    Merge the commits, one after the other, onto one.

    What is contained adds nothing; what continues is taken as it is. What was made is held by a ref of the run's, and
    all of it is there. Raises Unable, GitFailed, GitConflict.
    """
    # What needs no merge needs no box.
    skipped = len(commits)
    while commits and (contains(opened, onto, commits[0]) or contains(opened, commits[0], onto)):
        onto = onto if contains(opened, onto, commits[0]) else commits[0]
        commits = commits[1:]
    if not commits:
        return Merged(commit=onto)
    skipped -= len(commits)
    words = ""
    for _ in range(TAKE_ATTEMPTS):
        answered = _boxed(boxed, opened, onto, commits, making)
        reached("merge.stored")
        merged = _read(answered, skipped)
        if not merged.commit:
            return merged
        # Branches, facts and workplaces name it later: until then a `git gc` of the user's would take it away.
        name = f"{making.run_id}/{merged.commit}".encode()
        with suppress(KeyError):
            set_ref(opened.repo, Ref(MERGED + name), merged.commit, may_move)
        reached("merge.held")
        answered.release()
        # It may have swept it away, or some of it, before the ref led to it.
        words = missing(opened.git, merged.commit, [onto, *commits])
        if not words:
            return merged
    raise GitFailed("merge", f"what it made is swept away each time: {words}")


def seal(opened: Opened, onto: str, approved: str, tree: str, making: Making, may_move: MayMove) -> str:
    """
    Return a merge commit of two commits that has exactly the tree of the second; it is held by a ref of the run's. Raises
    GitFailed.
    """
    made = new_commit(tree, [onto, approved], making.at, making.message, making.author)
    for _ in range(TAKE_ATTEMPTS):
        text = made.as_raw_string()
        stored = opened.git.output("hash-object", "-t", "commit", "-w", "--stdin", given=text).decode().strip()
        if stored != made.id.decode():
            raise GitFailed("hash-object", f"it made {stored} of what is {made.id.decode()}")
        set_ref(opened.repo, Ref(MERGED + f"{making.run_id}/{stored}".encode()), stored, may_move)
        # A `git gc` of the user's may have swept it away before the ref led to it.
        if not missing(opened.git, stored, [onto, approved]):
            return stored
    raise GitFailed("hash-object", "what it made is swept away each time")


def _boxed(boxed: Boxed, opened: Opened, onto: str, commits: Sequence[str], making: Making) -> BoxedResult:
    files = {
        "config": written(PLAIN),
        "info/attributes": content(f"{opened.common}/info/attributes") or b"",
    }
    if (shallow := content(f"{opened.common}/shallow")) is not None:
        files["shallow"] = shallow
    with boxed.room() as room:
        question = {
            "room": str(room),
            "files": files,
            "lends": list(opened.objects),
            "onto": onto,
            "commits": list(commits),
            "rest": without_tree(making.at, making.message, making.author),
            "resolves": making.resolves,
        }
        mounts = [Mount(source=room, writable=True), *lent(opened)]
        return boxed.ask("merge", question, mounts, room, opened.git, PACK_BYTES)


def _read(answered: BoxedResult, skipped: int) -> Merged:
    """Return what was answered, with paths as text, and numbers as if nothing had been skipped."""
    merged = msgspec.convert(answered.said, Merged)
    steps = tuple(
        msgspec.structs.replace(
            step,
            number=step.number + skipped,
            paths=tuple(shown(path.encode("latin-1")) for path in step.paths),
        )
        for step in merged.steps
    )
    return Merged(commit=merged.commit, steps=steps)
