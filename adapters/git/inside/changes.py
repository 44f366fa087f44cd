"""What differs at a path, between two trees or a tree and an index, as git tells it."""

from __future__ import annotations

import os

from .shell import Failed, Git

LINK, NOTHING = b"160000", b"000000"


class Change:
    """One line of what git says of two trees: modes, names of objects, and the path."""

    def __init__(self, head: bytes, path: bytes) -> None:
        self.before, self.after, self.old, self.new, self.state = head[1:].split(b" ")
        self.path = path

    @property
    def is_link(self) -> bool:
        """Return whether it is, or was, a submodule."""
        return LINK in (self.before, self.after)


def differing(git: Git, *arguments: str) -> list[Change]:
    """Return what a call of git finds, one after the other. Raises Failed for a path that is not merged."""
    said = git.records(*arguments, "--raw", "-z", "--no-renames")
    found = [Change(head, path) for head, path in zip(said[::2], said[1::2], strict=True)]
    for change in found:
        if change.state.startswith(b"U"):
            raise Failed("git_failed", f"{os.fsdecode(change.path)!r} is not merged")
    return found
