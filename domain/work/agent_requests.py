"""Decide about what an agent asks for: grant it, ask a person, and bring the answer back once."""

from collections.abc import Sequence
from typing import Literal

import msgspec

from ..event import Draft, Text
from ..facts.agent_output import ToolLocation
from ..facts.asking import (
    ALWAYS,
    AnswerDelivered,
    ApprovalResolved,
    AutoApproved,
    ChildApprovalRequired,
    ChildQuestion,
    QuestionAnswered,
    QuestionAsked,
    Request,
    ShellApprovalRequired,
    ToolApprovalRequired,
    call_digest,
    command_hash,
    next_request_id,
)
from ..facts.child_run import ChildRun
from ..facts.run import CoordinatorRun
from ..rejected import NotFound
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
    call_id: str | None = None
    kind: str | None = None
    locations: tuple[ToolLocation, ...] = ()


class RequestUnknown(NotFound):
    """No run here has asked for this."""

    code = "request_unknown"


def ask_tool(run: CoordinatorRun, child_run_id: str, call: ToolCall) -> tuple[str, Sequence[Draft]]:
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
        call_id=call.call_id,
        kind=call.kind,
        locations=call.locations,
    )
    source = granted(run, child, grant, tool)
    if source is not None:
        return request_id, _auto(run, child, asked, source)
    return request_id, (run.on_child(child.run_id, asked), _shown(run, child, request_id, "tool", asked.tool_name))


def ask_question(run: CoordinatorRun, child_run_id: str, question: str) -> tuple[str, Sequence[Draft]]:
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


def is_settled(run: CoordinatorRun, child_run_id: str, request_id: str) -> bool:
    """Whether an agent's request has its answer, or nobody waits for one any more."""
    request = run.children[child_run_id].requests.get(request_id)
    return is_over(run, child_run_id) or (request is not None and request.state != "pending")


def is_over(run: CoordinatorRun, child_run_id: str) -> bool:
    """Whether nobody waits any more for what a child's agent has asked: its turn is over, or is being ended."""
    child = run.children[child_run_id]
    is_at_work = child.status in ("in_progress", "pausing", "paused")
    return not is_at_work or run.ended or is_cut_short(run, child_run_id)


def waits_for_person(run: CoordinatorRun, child_run_id: str, request_id: str) -> bool:
    """Whether only a person can say what becomes of an agent's request."""
    request = run.children[child_run_id].requests.get(request_id)
    if request is None or request.state != "pending":
        return False
    return not (run.autopilot and request.waits_for_autopilot)


def deliver(run: CoordinatorRun, child_run_id: str, request_id: str) -> Sequence[Draft]:
    """The agent gets its answer now. If we crash before it has it, it asks anew: a person is asked twice, never passed over."""
    child, _ = child_at_work(run, child_run_id)
    request = child.requests.get(request_id)
    if request is None or request.state in ("pending", "expired") or request.delivered:
        raise Overtaken
    if child.turn is None or child.turn.stop_reason is not None:
        # Its turn is over: nobody is there to take the answer.
        raise Overtaken
    return (run.on_child(child_run_id, AnswerDelivered(request_id=request_id)),)


def time_out_question(run: CoordinatorRun, child_run_id: str, request_id: str) -> Sequence[Draft]:
    """Nobody answered in time, so the agent goes on without; nothing if somebody did, at the last moment."""
    child, request = _find(run, child_run_id, request_id)
    if request.state != "pending":
        return ()
    answered = QuestionAnswered(request_id=request_id, answer=None, timed_out=True, answered_by=None)
    return (run.on_child(child.run_id, answered),)


def granted(run: CoordinatorRun, child: ChildRun, grant_key: str, tool_key: str) -> str | None:
    if run.auto_approve_tools:
        return "auto_approve_tools"
    if ALWAYS in run.grants:
        return "granted_always"
    if grant_key in child.grants or tool_key in child.grants:
        return "granted_for_run"
    return None


def _auto(run: CoordinatorRun, child: ChildRun, asked: ToolApprovalRequired, source: str) -> Sequence[Draft]:
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


def _ask_shell(
    run: CoordinatorRun, child: ChildRun, request_id: str, digest: str, command: str, why: str
) -> Sequence[Draft]:
    asked = _shell(child, request_id, digest, command, why)
    return (run.on_child(child.run_id, asked), _shown(run, child, request_id, "shell", asked.message))


def _refuse_shell(run: CoordinatorRun, child: ChildRun, request_id: str, digest: str, command: str) -> Sequence[Draft]:
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


def _shown(run: CoordinatorRun, child: ChildRun, request_id: str, kind: Literal["tool", "shell"], name: Text) -> Draft:
    shown = ChildApprovalRequired(
        child_run_id=child.run_id, subtask_id=child.subtask_id, request_id=request_id, kind=kind, tool_name=name
    )
    return run.coordinator(shown)


def _find(run: CoordinatorRun, child_run_id: str, request_id: str) -> tuple[ChildRun, Request]:
    child = run.children[child_run_id]
    if request_id not in child.requests:
        raise RequestUnknown(state="unknown")
    return child, child.requests[request_id]
