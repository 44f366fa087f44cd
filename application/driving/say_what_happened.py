"""One line of the service's log for each thing that happens to a run which this process drives, failures with their cause."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal

import structlog

from ...domain.event import Event, Fact
from ...domain.facts.assembly import (
    AssemblyBlocked,
    AssemblyDeclined,
    AssemblyFailed,
    MergeBlocked,
    MergeCompleted,
    MergeFailed,
    ReviewRequested,
)
from ...domain.facts.child_run import RunCancelled, RunFailed
from ...domain.facts.run import CoordinatorStarted
from ...domain.facts.work_plan import SubtaskFailed
from ...projections.one_line import in_one_line

log = structlog.get_logger(__name__)

#: How much of an agent's last words stands in a line.
MAX_WORDS = 500
#: How many files a line names.
MAX_FILES = 10

Level = Literal["info", "warning"]
Line = tuple[Level, str, Mapping[str, Any]]


def say_what_happened(facts: Iterable[Fact], drives: Callable[[str], bool]) -> None:
    """On return each of these facts that is news has its line, where this process drives its run."""
    for fact in facts:
        line = _line(fact.event)
        if line is None or fact.root is None or not drives(fact.root):
            continue
        level, words, fields = line
        child = {} if fact.run == fact.root else {"child_run": fact.run}
        (log.warning if level == "warning" else log.info)(words, run=fact.root, **child, **fields)


def failed_turns(facts: Iterable[Fact], drives: Callable[[str], bool]) -> Iterator[str]:
    """Give, for each run of an agent that failed with one of these facts where this process drives it, its cause in a word."""
    for fact in facts:
        if isinstance(fact.event, RunFailed) and fact.root not in (None, fact.run) and drives(fact.root or ""):
            yield fact.event.error_code or "unknown"


def _line(event: Event) -> Line | None:
    match event:
        case RunFailed():
            return (
                "warning",
                "a run failed",
                {"error_code": event.error_code, "error": in_one_line(str(event.message), MAX_WORDS)},
            )
        case SubtaskFailed():
            fields = {"subtask": event.subtask_id, "agent": event.assigned_agent, "error_code": event.cause}
            return (
                "warning",
                "a part of a plan has no result",
                fields | {"error": in_one_line(str(event.reason or ""), MAX_WORDS)},
            )
        case AssemblyBlocked():
            fields = {"reason": event.reason, "subtasks": list(event.ineligible_subtask_ids)}
            return "warning", "a plan stands still until a person steers it", fields
        case AssemblyFailed():
            return (
                "warning",
                "an assembly failed",
                {"error_code": event.reason, "error": in_one_line(str(event.message), MAX_WORDS)},
            )
        case MergeFailed():
            files = [str(path) for path in event.conflicting_files[:MAX_FILES]]
            return "warning", "a merge failed", {"error_code": event.reason, "files": files}
        case MergeBlocked():
            return "warning", "a merge is blocked", {"error_code": event.reason}
        case _:
            return _went_well(event)


def _went_well(event: Event) -> Line | None:
    match event:
        case CoordinatorStarted():
            return "info", "a run has begun", {"project": event.project_id, "by": event.submitting_user}
        case ReviewRequested():
            return "info", "a run waits for a review", {"tree": event.tree_hash, "reason": event.reason}
        case MergeCompleted():
            return "info", "a run is merged", {"commit": event.commit_hash}
        case AssemblyDeclined():
            return "info", "a run is declined", {"by": event.reviewer}
        case RunCancelled():
            return "info", "a run is stopped", {"reason": event.reason}
        case _:
            return None
