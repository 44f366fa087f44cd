"""Merge commits in a box, in a scratch repository that borrows the project's objects: no checkout, no driver, no dirty file."""

from collections.abc import Sequence
from datetime import datetime

import msgspec

from ..crash_points import reached
from ..processes.box import Mount
from .boxed import Answered, Boxed
from .configuration import content, written
from .inspection import Opened
from .objects import new_commit, shown
from .program import GitFailed
from .staging import lent

PACK_BYTES = 8 * 1024 * 1024 * 1024


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One merge commit: of which of the commits, what it followed, and the paths that conflicted."""

    number: int
    commit: str
    before: str
    paths: tuple[str, ...]


class Merged(msgspec.Struct, frozen=True, kw_only=True):
    """What the merges ended in, and how."""

    commit: str
    steps: tuple[Step, ...] = ()


def contains(opened: Opened, newer: str, older: str) -> bool:
    """Return whether a commit is another one, or comes after it. Raises GitFailed."""
    return opened.git.ask("merge-base", "--is-ancestor", older, newer, ok=(0, 1)).code == 0


def are_related(opened: Opened, one: str, other: str) -> bool:
    """Return whether two commits have an ancestor in common."""
    return opened.git.ask("merge-base", one, other, ok=(0, 1)).code == 0


def merge(
    boxed: Boxed, opened: Opened, onto: str, commits: Sequence[str], at: datetime, message: str, *, resolves: bool
) -> Merged:
    """
    Merge the commits, one after the other, onto one. Without *resolves* the first conflict ends it, with no commit.

    What is contained adds nothing; what continues is taken as it is. Raises Unable, GitFailed.
    """
    # What needs no merge needs no box.
    skipped = len(commits)
    while commits and (contains(opened, onto, commits[0]) or contains(opened, commits[0], onto)):
        onto = onto if contains(opened, onto, commits[0]) else commits[0]
        commits = commits[1:]
    if not commits:
        return Merged(commit=onto)
    skipped -= len(commits)
    merged = _boxed(boxed, opened, onto, commits, at, message, resolves=resolves)
    steps = (msgspec.structs.replace(step, number=step.number + skipped) for step in merged.steps)
    return msgspec.structs.replace(merged, steps=tuple(steps))


def _boxed(
    boxed: Boxed, opened: Opened, onto: str, commits: Sequence[str], at: datetime, message: str, *, resolves: bool
) -> Merged:
    files = {
        "config": written([("core.repositoryformatversion", "0"), ("core.bare", "false")]),
        "info/attributes": content(f"{opened.common}/info/attributes") or b"",
    }
    if (shallow := content(f"{opened.common}/shallow")) is not None:
        files["shallow"] = shallow
    # All of a commit that does not depend on what is merged.
    rest = new_commit("0" * 40, [], at, message).as_raw_string().partition(b"\n")[2]
    with boxed.room() as room:
        question = {
            "room": str(room),
            "files": {name: text.decode("latin-1") for name, text in files.items()},
            "lends": list(opened.objects),
            "onto": onto,
            "commits": list(commits),
            "rest": rest.decode("latin-1"),
            "resolves": resolves,
        }
        mounts = [Mount(source=room, writable=True), *lent(opened)]
        answered = boxed.ask("merge", question, mounts, room, opened.git, PACK_BYTES)
    reached("merge.stored")
    return _read(opened, answered)


def _read(opened: Opened, answered: Answered) -> Merged:
    merged = msgspec.convert(answered.said, Merged)
    steps = tuple(
        msgspec.structs.replace(step, paths=tuple(shown(path.encode("latin-1")) for path in step.paths))
        for step in merged.steps
    )
    # Nothing leads to it yet; from here on it is the caller's, who names it by a ref, or asks again.
    answered.release()
    if merged.commit and opened.git.ask("cat-file", "-e", merged.commit, ok=(0, 1, 128)).code:
        raise GitFailed("merge", f"{merged.commit} was swept away")
    return Merged(commit=merged.commit, steps=steps)
