"""Take the answers to what agents ask: a person's, or what need not wait for one."""

from collections.abc import Sequence
from typing import Literal

from ..event import Draft, Text
from ..facts.asking import (
    MAX_ANSWER_BYTES,
    MAX_AUTOPILOT_FAILURES,
    ApprovalResolved,
    AutoApproved,
    AutopilotAnswered,
    AutopilotFailed,
    ChildApprovalResolved,
    OptionsSet,
    QuestionAnswered,
    Request,
    Scope,
)
from ..facts.child_run import ENDED, ChildRun
from ..facts.run import CoordinatorRun
from ..rejected import Invalid, Rejected, RunNotActive
from ..steering.expiry import expire_requests
from .agent_requests import RequestUnknown, granted


class NoPendingQuestion(Rejected):
    """No question with this id waits for an answer: it was answered, its time is over, or it was never asked."""

    code = "no_pending_question"


def find_request(run: CoordinatorRun, request_id: str, asked_by: str | None = None) -> tuple[ChildRun, Request]:
    """Return the child that asked, and what it asked; with *asked_by* only if it was that one. Raises RequestUnknown."""
    for child in run.children.values():
        if request_id in child.requests and asked_by in (None, child.run_id):
            return child, child.requests[request_id]
    raise RequestUnknown(state="unknown")


def find_question(run: CoordinatorRun, request_id: str, asked_by: str | None = None) -> tuple[ChildRun, Request]:
    """Return the child that asked a question, and the question. Raises NoPendingQuestion."""
    try:
        child, request = find_request(run, request_id, asked_by)
    except RequestUnknown as unknown:
        raise NoPendingQuestion from unknown
    if request.kind != "question":
        raise NoPendingQuestion
    return child, request


def find_command(run: CoordinatorRun, digest: str, asked_by: str | None = None) -> tuple[ChildRun, Request]:
    """Return the newest request for a command with this digest, the oldest pending one first. Raises RequestUnknown."""
    found = [
        (child, request)
        for child in run.children.values()
        if asked_by in (None, child.run_id)
        for request in child.requests.values()
        if request.kind == "shell" and digest in (request.command_hash, request.command_hash.removeprefix("sha256:"))
    ]
    if not found:
        raise RequestUnknown(state="unknown")
    return next((pair for pair in found if pair[1].state == "pending"), found[-1])


def resolve(run: CoordinatorRun, request_id: str, *, approved: bool, scope: Scope, by: str) -> Sequence[Draft]:
    """
    Decide about a tool or a command; the first decision stands, and deciding again stores nothing.

    Raises RequestUnknown, RunNotActive.
    """
    child, request = find_request(run, request_id)
    if request.kind == "question":
        raise RequestUnknown("That is a question. Answer it instead.", state="unknown")
    if request.state != "pending":
        return ()
    if run.ended:
        raise RunNotActive
    # A destructive command is allowed as often as somebody says so, and nothing else with it.
    scope = scope if request.kind == "tool" else "once"
    return _resolved(run, child, request, approved=approved, expired=False, scope=scope, by=by)


def answer(run: CoordinatorRun, request_id: str, words: str, by: str, asked_by: str | None = None) -> Sequence[Draft]:
    """Answer a question; with *asked_by* only one of that child. Raises NoPendingQuestion, Invalid."""
    if not words.strip() or len(words.encode(errors="replace")) > MAX_ANSWER_BYTES:
        raise Invalid(f"`answer` must have 1 to {MAX_ANSWER_BYTES} bytes and cannot be blank.")
    child, request = find_question(run, request_id, asked_by)
    if request.state != "pending" or run.ended:
        raise NoPendingQuestion
    answered = QuestionAnswered(request_id=request_id, answer=Text(words), timed_out=False, answered_by=by)
    return (run.on_child(child.run_id, answered),)


def answer_by_autopilot(run: CoordinatorRun, request_id: str, words: str) -> Sequence[Draft]:
    """The coordinator's own answer to a child's question. Raises NoPendingQuestion when a person was faster."""
    child, request = find_request(run, request_id)
    said = AutopilotAnswered(
        run_id=run.run_id,
        child_run_id=child.run_id,
        request_id=request_id,
        question=request.subject,
        answer=Text(words),
    )
    return (*answer(run, request_id, words, "autopilot"), run.coordinator(said))


def fail_autopilot(run: CoordinatorRun, request_id: str, error_code: str, message: str) -> Sequence[Draft]:
    """The coordinator's agent could not answer a child's question. Raises NoPendingQuestion when somebody else has."""
    child, request = find_request(run, request_id)
    if request.state != "pending":
        raise NoPendingQuestion
    attempt = request.autopilot_failures + 1
    failed = AutopilotFailed(
        run_id=run.run_id,
        child_run_id=child.run_id,
        request_id=request_id,
        attempt=attempt,
        state="retrying" if attempt < MAX_AUTOPILOT_FAILURES else "needs_attention",
        error_code=error_code,
        message=Text(message),
    )
    return (run.coordinator(failed),)


def set_options(
    run: CoordinatorRun, option: Literal["auto_approve_tools", "autopilot"], enabled: bool
) -> Sequence[Draft]:
    """
    Change what the run does by itself; setting what is set stores nothing. Raises RunNotActive.

    Turning auto-approval off takes back what was granted for more than one call, too.
    """
    if run.status != "in_progress":
        raise RunNotActive
    options = {"auto_approve_tools": run.auto_approve_tools, "autopilot": run.autopilot}
    granted = run.grants or any(child.grants for child in run.children.values())
    revokes = option == "auto_approve_tools" and not enabled and bool(granted)
    if options[option] == enabled and not revokes:
        return ()
    return (run.coordinator(OptionsSet(**{**options, option: enabled}, grants_revoked=revokes)),)


def tend(run: CoordinatorRun) -> Sequence[Draft]:
    """Settle what need not wait for a person any more: its turn is over, or somebody has turned auto-approval on."""
    drafts: list[Draft] = []
    for child in run.children.values():
        asking = child.turn is not None and child.turn.stop_reason is None and child.status not in ENDED
        if not asking:
            # What is left of older releases: since then it is closed together with the turn.
            drafts.extend(expire_requests(run, child))
    return drafts or _grant_pending(run)


def _grant_pending(run: CoordinatorRun) -> Sequence[Draft]:
    drafts: list[Draft] = []
    for child in run.children.values():
        for request in child.requests.values() if child.requests else ():
            if request.kind != "tool" or request.state != "pending":
                continue
            source = granted(run, child, request.grant_key, request.tool_key)
            if source is not None:
                said = AutoApproved(request_id=request.request_id, tool_name=request.subject, approval_source=source)
                drafts.append(run.on_child(child.run_id, said))
                drafts.extend(_resolved(run, child, request, approved=True, expired=False, scope="once", by=None))
    return drafts


# Parts


def _resolved(
    run: CoordinatorRun,
    child: ChildRun,
    request: Request,
    *,
    approved: bool,
    expired: bool,
    scope: Scope,
    by: str | None,
) -> Sequence[Draft]:
    resolved = ApprovalResolved(
        request_id=request.request_id,
        run_id=child.run_id,
        approved=approved,
        expired=expired,
        scope=scope,
        resolved_by=by,
    )
    shown = ChildApprovalResolved(
        child_run_id=child.run_id,
        subtask_id=child.subtask_id,
        request_id=request.request_id,
        approved=approved,
        expired=expired,
    )
    return (run.on_child(child.run_id, resolved), run.coordinator(shown))
