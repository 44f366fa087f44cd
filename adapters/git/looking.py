"""A workplace as its files are now, beside a commit: staged in a box, taken into a scratch repository, and forgotten."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from dulwich.repo import Repo

from ...application.ports.git import WorktreeBusy, WorktreeGone
from .boxed import Boxed, Unable
from .configuration import written
from .inside.shell import make_git_directory
from .inspection import Opened
from .objects import Trees
from .program import GitFailed, Program
from .staging import CommitLimits, stage
from .workplaces import state_of

#: How often a workplace is looked at again because its agent moved files about meanwhile.
MAX_LOOKS = 4

T = TypeVar("T")


def look(
    boxed: Boxed,
    opened: Opened,
    workplace: Path,
    base: str,
    limits: CommitLimits,
    compare: Callable[[Program, Trees, str], T],
) -> T:
    """
    Return what *compare* says of the tree that a commit of the workplace's files, on top of *base*, would have now.

    Raises WorktreeGone, WorktreeBusy.
    """
    words = ""
    for _ in range(MAX_LOOKS):
        if state_of(workplace) != "whole":
            raise WorktreeGone
        with _scratch(boxed, opened) as (git, trees):
            try:
                staged = stage(boxed, opened, workplace, base, limits, git, strict=False)
            except (Unable, GitFailed) as error:
                # An agent at work removes a file between the look at its name and the look into it.
                words = str(error)
                continue
            return compare(git, trees, str(staged.said["tree"]))
    raise WorktreeBusy(words)


@contextmanager
def _scratch(boxed: Boxed, opened: Opened) -> Generator[tuple[Program, Trees]]:
    """Give a repository that borrows the project's objects; what is stored in it goes with it."""
    with boxed.room() as room:
        directory = room / "looked"
        config = {"config": written([("core.repositoryformatversion", "0"), ("core.bare", "true")])}
        make_git_directory(str(directory), config, opened.objects, "ref: refs/heads/none")
        with Repo(str(directory)) as repo:
            yield Program(str(directory)), Trees(repo)
