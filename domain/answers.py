"""Decide about what agents ask: grant, ask a person, take the answer, and bring it back once."""

from collections.abc import Sequence
from typing import Literal

import msgspec

from .asking import (
    ALWAYS,
    MAX_ANSWER_BYTES,
    MAX_AUTOPILOT_FAILURES,
    AnswerDelivered,
    ApprovalResolved,
    AutoApproved,
    AutopilotAnswered,
    AutopilotFailed,
    ChildApprovalRequired,
    ChildApprovalResolved,
    ChildQuestion,
    OptionsSet,
    QuestionAnswered,
    QuestionAsked,
    Request,
    Scope,
    ShellApprovalRequired,
    ToolApprovalRequired,
    call_digest,
    command_hash,
    next_request_id,
)
from .child_run import ENDED, ChildRun
from .event import Draft, Text
from .expiry import expire_requests
from .rejected import Invalid, NotFound, Rejected, RunNotActive
from .run import Run
from .turns import Overtaken, child_at_work, is_cut_short

MAX_SHOWN = 2_000
#: Who resolved a request that the project's policy forbids.
SANDBOX_POLICY = "sandbox_policy"


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A tool that an agent wants to use."""

    tool_name: str
    tool_input: str
    #: The command, if the tool runs one in a shell.
    command: str | None = None
    url: str | None = None


class RequestUnknown(NotFound):
    """No run here has asked for this."""

    code = "request_unknown"


class NoPendingQuestion(Rejected):
    """No question with this id waits for an answer: it was answered, its time is over, or it was never asked."""

    code = "no_pending_question"


# What the agent asks


def ask_tool(run: Run, child_run_id: str, call: ToolCall) -> tuple[str, Sequence[Draft]]:
    """Return the id of the request for a tool, and what is stored of it: nothing if it was asked before."""
    child, _ = child_at_work(run, child_run_id)
    turn_id = child.turn.turn_id if child.turn else ""
    digest = call_digest("tool", call.tool_name, call.tool_input)
    request_id = next_request_id(child.requests, turn_id, digest)
    if request_id in child.requests:
        return request_id, ()
    if call.command is not None and not run.policy.shell_enabled:
        return request_id, _refuse_shell(run, child, request_id, digest, call.command)
    why = run.policy.why_asked(call.command) if call.command is not None else None
    if call.command is not None and why is not None:
        return request_id, _ask_shell(run, child, request_id, digest, call.command, why)
    # Digests: names and addresses are words, which the log must be able to forget, and a key is never forgotten.
    grant, tool = call_digest("grant", call.tool_name, call.url or ""), call_digest("grant", call.tool_name, "*")
    asked = ToolApprovalRequired(
        request_id=request_id,
        tool_name=Text(call.tool_name),
        turn_id=turn_id,
        call_digest=digest,
        grant_key=grant,
        tool_key=tool,
        url=Text(call.url) if call.url else None,
        intention=Text(call.tool_input[:MAX_SHOWN]),
    )
    source = _granted(run, child, grant, tool)
    if source is not None:
        return request_id, _auto(run, child, asked, source)
    return request_id, (run.on_child(child.run_id, asked), _shown(run, child, request_id, "tool", asked.tool_name))


def ask_question(run: Run, child_run_id: str, question: str) -> tuple[str, Sequence[Draft]]:
    """Return the id of a question, and what is stored of it: nothing if it was asked before."""
    child, _ = child_at_work(run, child_run_id)
    turn_id = child.turn.turn_id if child.turn else ""
    digest = call_digest("question", "", question)
    request_id = next_request_id(child.requests, turn_id, digest)
    if request_id in child.requests:
        return request_id, ()
    asked = QuestionAsked(request_id=request_id, question=Text(question), turn_id=turn_id, call_digest=digest)
    shown = ChildQuestion(
        child_run_id=child.run_id, subtask_id=child.subtask_id, request_id=request_id, question=Text(question)
    )
    return request_id, (run.on_child(child.run_id, asked), run.coordinator(shown))


def is_settled(run: Run, child_run_id: str, request_id: str) -> bool:
    """Whether an agent's request has its answer, or nobody waits for one any more."""
    child = run.children[child_run_id]
    request = child.requests.get(request_id)
    over = child.status not in ("in_progress", "pausing", "paused") or run.ended or is_cut_short(run, child_run_id)
    return over or (request is not None and request.state != "pending")


def deliver(run: Run, child_run_id: str, request_id: str) -> Sequence[Draft]:
    """The agent gets its answer now. If we crash before it has it, it asks anew: a person is asked twice, never passed over."""
    child, _ = child_at_work(run, child_run_id)
    request = child.requests.get(request_id)
    if request is None or request.state in ("pending", "expired") or request.delivered:
        raise Overtaken
    if child.turn is None or child.turn.stop_reason is not None:
        # Its turn is over: nobody is there to take the answer.
        raise Overtaken
    return (run.on_child(child_run_id, AnswerDelivered(request_id=request_id)),)


def time_out_question(run: Run, child_run_id: str, request_id: str) -> Sequence[Draft]:
    """Nobody answered in time, so the agent goes on without; nothing if somebody did, at the last moment."""
    child, request = _find(run, child_run_id, request_id)
    if request.state != "pending":
        return ()
    answered = QuestionAnswered(request_id=request_id, answer=None, timed_out=True, answered_by=None)
    return (run.on_child(child.run_id, answered),)


# What people answer


def find_request(run: Run, request_id: str, asked_by: str | None = None) -> tuple[ChildRun, Request]:
    """Return the child that asked, and what it asked; with *asked_by* only if it was that one. Raises RequestUnknown."""
    for child in run.children.values():
        if request_id in child.requests and asked_by in (None, child.run_id):
            return child, child.requests[request_id]
    raise RequestUnknown(state="unknown")


def find_question(run: Run, request_id: str, asked_by: str | None = None) -> tuple[ChildRun, Request]:
    """Return the child that asked a question, and the question. Raises NoPendingQuestion."""
    try:
        child, request = find_request(run, request_id, asked_by)
    except RequestUnknown as unknown:
        raise NoPendingQuestion from unknown
    if request.kind != "question":
        raise NoPendingQuestion
    return child, request


def find_command(run: Run, digest: str, asked_by: str | None = None) -> tuple[ChildRun, Request]:
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


def resolve(run: Run, request_id: str, *, approved: bool, scope: Scope, by: str) -> Sequence[Draft]:
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


def answer(run: Run, request_id: str, words: str, by: str, asked_by: str | None = None) -> Sequence[Draft]:
    """Answer a question; with *asked_by* only one of that child. Raises NoPendingQuestion, Invalid."""
    if not words.strip() or len(words.encode(errors="replace")) > MAX_ANSWER_BYTES:
        raise Invalid(f"`answer` must have 1 to {MAX_ANSWER_BYTES} bytes and cannot be blank.")
    child, request = find_question(run, request_id, asked_by)
    if request.state != "pending" or run.ended:
        raise NoPendingQuestion
    answered = QuestionAnswered(request_id=request_id, answer=Text(words), timed_out=False, answered_by=by)
    return (run.on_child(child.run_id, answered),)


def answer_by_autopilot(run: Run, request_id: str, words: str) -> Sequence[Draft]:
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


def fail_autopilot(run: Run, request_id: str, error_code: str, message: str) -> Sequence[Draft]:
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


def set_options(run: Run, option: Literal["auto_approve_tools", "autopilot"], enabled: bool) -> Sequence[Draft]:
    """Change what the run does by itself; setting what is set stores nothing. Raises RunNotActive."""
    if run.status != "in_progress":
        raise RunNotActive
    options = {"auto_approve_tools": run.auto_approve_tools, "autopilot": run.autopilot}
    if options[option] == enabled:
        return ()
    return (run.coordinator(OptionsSet(**{**options, option: enabled})),)


def tend(run: Run) -> Sequence[Draft]:
    """Settle what need not wait for a person any more: its turn is over, or somebody has turned auto-approval on."""
    drafts: list[Draft] = []
    for child in run.children.values():
        asking = child.turn is not None and child.turn.stop_reason is None and child.status not in ENDED
        if not asking:
            # What is left of older releases: since then it is closed together with the turn.
            drafts.extend(expire_requests(run, child))
    return drafts or _grant_pending(run)


def _grant_pending(run: Run) -> Sequence[Draft]:
    drafts: list[Draft] = []
    for child in run.children.values():
        for request in child.requests.values():
            if request.kind != "tool" or request.state != "pending":
                continue
            source = _granted(run, child, request.grant_key, request.tool_key)
            if source is not None:
                said = AutoApproved(request_id=request.request_id, tool_name=request.subject, approval_source=source)
                drafts.append(run.on_child(child.run_id, said))
                drafts.extend(_resolved(run, child, request, approved=True, expired=False, scope="once", by=None))
    return drafts


# Parts


def _granted(run: Run, child: ChildRun, grant_key: str, tool_key: str) -> str | None:
    if run.auto_approve_tools:
        return "auto_approve_tools"
    if ALWAYS in run.grants:
        return "granted_always"
    if grant_key in child.grants or tool_key in child.grants:
        return "granted_for_run"
    return None


def _auto(run: Run, child: ChildRun, asked: ToolApprovalRequired, source: str) -> Sequence[Draft]:
    said = AutoApproved(request_id=asked.request_id, tool_name=asked.tool_name, approval_source=source)
    resolved = ApprovalResolved(
        request_id=asked.request_id,
        run_id=child.run_id,
        approved=True,
        expired=False,
        scope="once",
        resolved_by=None,
    )
    return tuple(run.on_child(child.run_id, event) for event in (asked, said, resolved))


def _ask_shell(run: Run, child: ChildRun, request_id: str, digest: str, command: str, why: str) -> Sequence[Draft]:
    asked = _shell(child, request_id, digest, command, why)
    return (run.on_child(child.run_id, asked), _shown(run, child, request_id, "shell", asked.message))


def _refuse_shell(run: Run, child: ChildRun, request_id: str, digest: str, command: str) -> Sequence[Draft]:
    """Nobody is asked: the project's policy has said no, and that is whose denial it is."""
    refused = ApprovalResolved(
        request_id=request_id,
        run_id=child.run_id,
        approved=False,
        expired=False,
        scope="once",
        resolved_by=SANDBOX_POLICY,
    )
    asked = _shell(child, request_id, digest, command, "The project's policy allows no command")
    return tuple(run.on_child(child.run_id, event) for event in (asked, refused))


def _shell(child: ChildRun, request_id: str, digest: str, command: str, why: str) -> ShellApprovalRequired:
    return ShellApprovalRequired(
        request_id=request_id,
        command_length=len(command),
        command_hash=command_hash(command),
        message=Text(f"{why}: {command[:MAX_SHOWN]}"),
        turn_id=child.turn.turn_id if child.turn else "",
        call_digest=digest,
    )


def _shown(run: Run, child: ChildRun, request_id: str, kind: Literal["tool", "shell"], name: Text) -> Draft:
    shown = ChildApprovalRequired(
        child_run_id=child.run_id, subtask_id=child.subtask_id, request_id=request_id, kind=kind, tool_name=name
    )
    return run.coordinator(shown)


def _resolved(
    run: Run, child: ChildRun, request: Request, *, approved: bool, expired: bool, scope: Scope, by: str | None
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


def _find(run: Run, child_run_id: str, request_id: str) -> tuple[ChildRun, Request]:
    child = run.children[child_run_id]
    if request_id not in child.requests:
        raise RequestUnknown(state="unknown")
    return child, child.requests[request_id]
