"""What agents did beside the log: never two at work in one worktree, and nobody left behind."""

from collections.abc import Iterable, Mapping
from typing import Any

from .facts import Violation


def one_agent_in_each_worktree(journal: Iterable[Mapping[str, Any]]) -> list[Violation]:
    """No agent found another live one in its worktree (see agent.py, which looks)."""
    return [
        Violation(
            invariant="one agent a worktree",
            message=f"the agent {line['pid']} began in {line['worktree']} while the agent {line['other']} was at work there",
            about=(str(line["worktree"]),),
        )
        for line in journal
        if line["event"] == "shared"
    ]


def nobody_is_left(processes: Mapping[int, str]) -> list[Violation]:
    """Once the service has ended, nothing that it started works in a worktree."""
    return [
        Violation(invariant="nobody is left", message=f"the process {pid} still works in {worktree}")
        for pid, worktree in processes.items()
    ]
