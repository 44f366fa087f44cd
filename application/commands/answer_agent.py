"""Answer what agents ask: through the coordinator's id or the child's, on any replica."""

from collections.abc import Sequence
from typing import Literal

import msgspec

from ...domain.event import Draft
from ...domain.facts.asking import Scope
from ...domain.facts.run import CoordinatorRun
from ...domain.work import answers
from ..writer.caller import Caller
from ..writer.run_log import Answering, RunLog


class Resolved(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a request, whoever decided it."""

    run_id: str
    request_id: str
    state: str


class WantedAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What somebody says to a request: whether a tool or a command may pass, or the answer to a question."""

    request_id: str
    state: Literal["approved", "denied", "answered"]
    #: The child run that they name; None when they name its coordinator.
    asked_by: str | None = None
    scope: Scope = "once"
    words: str = ""


def resolve_request(
    root: str, wanted: WantedAnswer, by: Caller, runs: RunLog, told: Answering | None = None
) -> Resolved:
    """
    Store what is said to a request; for an approval that was decided before, find out how.

    Raises:
        RequestUnknown, RunNotActive: there is no such request, or nobody waits for it.
        NoPendingQuestion, Invalid: the question does not wait, or the answer is none.
    """

    def decision(run: CoordinatorRun) -> Sequence[Draft]:
        if wanted.state == "answered":
            return answers.answer(run, wanted.request_id, wanted.words, by.principal, wanted.asked_by)
        answers.find_request(run, wanted.request_id, wanted.asked_by)
        approved = wanted.state == "approved"
        return answers.resolve(run, wanted.request_id, approved=approved, scope=wanted.scope, by=by.principal)

    runs.decide(root, decision, by, told)
    child, request = answers.find_request(runs.run(root), wanted.request_id)
    return Resolved(run_id=child.run_id, request_id=request.request_id, state=request.state)


def set_option(
    root: str,
    option: Literal["auto_approve_tools", "autopilot"],
    enabled: bool,
    by: Caller,
    runs: RunLog,
    told: Answering | None = None,
) -> CoordinatorRun:
    """Change what a run does by itself. Raises RunNotActive."""
    runs.decide(root, lambda run: answers.set_options(run, option, enabled), by, told)
    return runs.run(root)
