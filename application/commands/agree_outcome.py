"""Confirm what a goal means, or send it back to the writer: through any replica, and once."""

from collections.abc import Sequence

from ...domain.event import Fact
from ...domain.runs import define_outcome
from ..writer.caller import Caller
from ..writer.run_log import Answering, RunLog


def confirm_outcome(root: str, by: Caller, runs: RunLog, told: Answering | None = None) -> Sequence[Fact]:
    """On return the outcome spec is confirmed, and planning begins. Raises RunNotActive, NoPendingGate."""
    return runs.decide(root, lambda run: define_outcome.confirm(run, by.principal), by, told)


def revise_outcome(root: str, feedback: str, by: Caller, runs: RunLog, told: Answering | None = None) -> Sequence[Fact]:
    """
    On return the writer is asked for another draft.

    Raises FeedbackRequired, RunNotActive, NoPendingGate, RevisedTooOften.
    """
    return runs.decide(root, lambda run: define_outcome.revise(run, feedback, by.principal), by, told)
