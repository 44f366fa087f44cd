"""What agents ask of people: whether a tool may be used, whether a command may run, and questions."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal
from uuid import NAMESPACE_OID, uuid5

import msgspec

from ..event import Event, Text
from .agent_output import ToolLocation

RequestKind = Literal["tool", "shell", "question"]
Scope = Literal["once", "run", "always", "tool"]

MAX_ANSWER_BYTES = 16_384
#: How often the coordinator's agent may fail at a question before a person has to answer it.
MAX_AUTOPILOT_FAILURES = 3
#: Parts of a command that only a person may let pass, whatever else is granted.
DESTRUCTIVE = ("rm -rf", "del /s", "format ", "mkfs", "dd if=", "git push --force", "git reset --hard")

# Events


class ToolApprovalRequired(Event, frozen=True, kw_only=True):
    """The agent waits until somebody says whether it may use a tool."""

    TOPIC: ClassVar[str] = "tool.approval_required"

    request_id: str = msgspec.field(name="request_id")
    tool_name: Text = msgspec.field(name="tool_name")
    turn_id: str
    #: The digest of tool and input; the same call asked again after a crash is the same request.
    call_digest: str
    #: What a grant for the whole run would cover: the tool and, if it names one, its address.
    grant_key: str
    tool_key: str
    url: Text | None = None
    intention: Text | None = None
    #: The call on the child's feed (`tool.call`), what kind of tool it is, and the files that it is about.
    call_id: str | None = None
    kind: str | None = None
    locations: tuple[ToolLocation, ...] = ()


class ShellApprovalRequired(Event, frozen=True, kw_only=True):
    """The agent waits until somebody says whether a destructive command may run."""

    TOPIC: ClassVar[str] = "shell.approval_required"

    request_id: str = msgspec.field(name="request_id")
    command_length: int = msgspec.field(name="command_length")
    command_hash: str = msgspec.field(name="command_hash")
    message: Text
    turn_id: str
    call_digest: str


class ApprovalResolved(Event, frozen=True, kw_only=True):
    """Somebody decided, or the turn that asked is over (`expired`), which is nobody's denial."""

    TOPIC: ClassVar[str] = "tool.approval_resolved"

    request_id: str
    run_id: str
    approved: bool
    expired: bool
    scope: Scope
    resolved_by: str | None


class AutoApproved(Event, frozen=True, kw_only=True):
    """A tool was allowed without asking anybody, and why."""

    TOPIC: ClassVar[str] = "tool.auto_approved"

    request_id: str
    tool_name: Text
    approval_source: str


class QuestionAsked(Event, frozen=True, kw_only=True):
    """The agent waits for an answer."""

    TOPIC: ClassVar[str] = "agent.question_asked"

    request_id: str
    question: Text
    turn_id: str
    call_digest: str


class QuestionAnswered(Event, frozen=True, kw_only=True):
    """The question was answered; without an answer the time, or the turn, was over and the agent goes on."""

    TOPIC: ClassVar[str] = "agent.question_answered"

    request_id: str
    answer: Text | None
    timed_out: bool
    answered_by: str | None


class AnswerDelivered(Event, frozen=True, kw_only=True):
    """The agent has what it asked for. Asking the same again is a new request."""

    TOPIC: ClassVar[str] = "agent.answer_delivered"

    request_id: str


class ChildApprovalRequired(Event, frozen=True, kw_only=True):
    """A child's agent waits for a decision; shown on the coordinator's feed."""

    TOPIC: ClassVar[str] = "coordinator.child_approval_required"

    child_run_id: str
    subtask_id: int
    request_id: str
    kind: RequestKind
    tool_name: Text


class ChildApprovalResolved(Event, frozen=True, kw_only=True):
    """A child's request was decided; shown on the coordinator's feed."""

    TOPIC: ClassVar[str] = "coordinator.child_approval_resolved"

    child_run_id: str
    subtask_id: int
    request_id: str
    approved: bool
    expired: bool


class ChildQuestion(Event, frozen=True, kw_only=True):
    """A child's agent waits for an answer; shown on the coordinator's feed."""

    TOPIC: ClassVar[str] = "coordinator.child_question"

    child_run_id: str
    subtask_id: int
    request_id: str
    question: Text


class AutopilotAnswered(Event, frozen=True, kw_only=True):
    """The coordinator answered a child's question by itself."""

    TOPIC: ClassVar[str] = "coordinator.autopilot_answered"

    run_id: str
    child_run_id: str
    request_id: str
    question: Text
    answer: Text


class AutopilotFailed(Event, frozen=True, kw_only=True):
    """The coordinator's agent could not answer a child's question; after the last try it is a person's to answer."""

    TOPIC: ClassVar[str] = "coordinator.autopilot_failed"

    run_id: str
    child_run_id: str
    request_id: str
    attempt: int
    state: Literal["retrying", "needs_attention"]
    error_code: str
    message: Text


class OptionsSet(Event, frozen=True, kw_only=True):
    """Somebody changed what the run does by itself, from here on and for its children too."""

    TOPIC: ClassVar[str] = "run.options_set"

    auto_approve_tools: bool
    autopilot: bool
    #: Whether every grant for more than one call ends with it, too: tools are to be asked about again.
    grants_revoked: bool = False


# State


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """Something that an agent asked, and what became of it."""

    request_id: str
    kind: RequestKind
    turn_id: str
    call_digest: str
    subject: Text
    grant_key: str = ""
    tool_key: str = ""
    command_hash: str = ""
    state: Literal["pending", "approved", "denied", "expired", "answered"] = "pending"
    answer: Text | None = None
    delivered: bool = False
    #: How often autopilot could not answer, since it was last turned on.
    autopilot_failures: int = 0

    @property
    def over(self) -> bool:
        """Whether asking the same again is another request."""
        return self.delivered or self.state == "expired" or (self.state == "answered" and self.answer is None)

    @property
    def waits_for_autopilot(self) -> bool:
        """Whether it is a question that autopilot may still try to answer."""
        return self.kind == "question" and self.state == "pending" and self.autopilot_failures < MAX_AUTOPILOT_FAILURES


Requests = Mapping[str, Request]


def evolve(requests: Requests, event: Event) -> Requests:
    """Add one fact of a child's stream to what its agent has asked."""
    match event:
        case ToolApprovalRequired() | ShellApprovalRequired() | QuestionAsked():
            return {**requests, event.request_id: _asked(event)}
        case ApprovalResolved() if event.request_id in requests:
            state = "expired" if event.expired else "approved" if event.approved else "denied"
            return _change(requests, event.request_id, state=state)
        case QuestionAnswered() if event.request_id in requests:
            return _change(requests, event.request_id, state="answered", answer=event.answer)
        case AnswerDelivered() if event.request_id in requests:
            return _change(requests, event.request_id, delivered=True)
        case _:
            return requests


def failed_at(requests: Requests, failure: AutopilotFailed) -> Requests:
    """Count what autopilot could not answer."""
    if failure.request_id not in requests:
        return requests
    return _change(requests, failure.request_id, autopilot_failures=failure.attempt)


def try_again(requests: Requests) -> Requests:
    """Autopilot was turned on: it may try every question as often as at first."""
    return {key: msgspec.structs.replace(request, autopilot_failures=0) for key, request in requests.items()}


def grants(granted: frozenset[str], requests: Requests, event: Event) -> frozenset[str]:
    """Return what needs no further asking after a decision: a tool with one address, a tool, or everything."""
    if not isinstance(event, ApprovalResolved) or not event.approved or event.request_id not in requests:
        return granted
    request = requests[event.request_id]
    covers = {"run": request.grant_key, "tool": request.tool_key, "always": ALWAYS}.get(event.scope)
    return granted | {covers} if covers and request.kind == "tool" else granted


#: The grant that covers every tool.
ALWAYS = "*"


def _asked(event: ToolApprovalRequired | ShellApprovalRequired | QuestionAsked) -> Request:
    request = Request(
        request_id=event.request_id,
        kind="question",
        turn_id=event.turn_id,
        call_digest=event.call_digest,
        subject=Text(None),
    )
    replace = msgspec.structs.replace
    match event:
        case ToolApprovalRequired():
            kept = {"grant_key": event.grant_key, "tool_key": event.tool_key}
            return replace(request, kind="tool", subject=event.tool_name, **kept)
        case ShellApprovalRequired():
            return replace(request, kind="shell", subject=event.message, command_hash=event.command_hash)
        case QuestionAsked():
            return replace(request, subject=event.question)


def ask_again(requests: Requests, turn_id: str) -> Requests:
    """
    The agent that had a turn's answers is gone. An answer to a question still holds for whoever asks it again.

    What was allowed or denied does not: a person says anew whether the same may be done once more.
    """
    again = {i: r for i, r in requests.items() if r.kind == "question" and r.turn_id == turn_id and r.delivered}
    return {**requests, **{i: msgspec.structs.replace(r, delivered=False) for i, r in again.items()}}


def _change(requests: Requests, request_id: str, **changes: object) -> Requests:
    return {**requests, request_id: msgspec.structs.replace(requests[request_id], **changes)}


# What is asked, as it is recognised


def call_digest(kind: str, name: str, words: str) -> str:
    """Return the digest by which the same call is known when it is asked again."""
    return hashlib.sha256(f"{kind}\n{name}\n{words}".encode(errors="replace")).hexdigest()


def next_request_id(requests: Requests, turn_id: str, digest: str) -> str:
    """
    Return the id of a call's request: that of an earlier one which the agent never had its answer to, else a new one.

    After a crash the agent asks again what it had asked; an answer that was given before anybody took the turn up again
    is then there. One that was closed without an answer is over.
    """
    had = sum(r.over for r in requests.values() if r.turn_id == turn_id and r.call_digest == digest)
    return str(uuid5(NAMESPACE_OID, f"{turn_id}/{digest}/{had + 1}"))


def command_hash(command: str) -> str:
    """Return the digest by which a command is approved."""
    return "sha256:" + hashlib.sha256(command.encode(errors="replace")).hexdigest()


def destructive_part(command: str, patterns: Sequence[str] = DESTRUCTIVE) -> str | None:
    """Return the first pattern that a command holds, None if it holds none."""
    folded = " ".join(command.split()).casefold()
    return next((pattern for pattern in patterns if pattern.casefold().strip() in folded), None)
