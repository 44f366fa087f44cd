"""What the domain knows of git: names of commits, trees and branches, never their contents."""

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
