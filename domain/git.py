"""What the domain knows of git: names of commits, trees and branches, never their contents."""

import re

import msgspec

#: What the name of every branch that a run works on begins with.
RUN_BRANCHES = "steersman/"


class Commit(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A commit and its tree, both as hexadecimal object names."""

    commit: str
    tree: str


def child_branch(run_id: str) -> str:
    """Return the branch that a child run works on."""
    return f"{RUN_BRANCHES}{run_id}"


def integration_branch(run_id: str) -> str:
    """Return the branch on which a coordinator run assembles its children's work."""
    return f"{RUN_BRANCHES}integration/{run_id}"


#: What no part of a branch's name may hold; see git-check-ref-format(1).
_NOT_IN_NAMES = re.compile(r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{|//")


def may_be_begun_from(branch: str) -> bool:
    """Return whether a run may begin from a branch of this name: git can have one, and it is no run's own."""
    parts = branch.split("/")
    odd = any(part.startswith((".", "-")) or part.endswith((".lock", ".")) for part in parts) or not all(parts)
    return not (odd or _NOT_IN_NAMES.search(branch) or branch == "@" or branch.startswith(RUN_BRANCHES))
