"""What an agent says over the protocol, in the port's words."""

import json
import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, cast

import msgspec
from acp.schema import (
    AgentMessageChunk,
    AgentPlanUpdate,
    AgentThoughtChunk,
    ContentToolCallContent,
    CreateFormSessionElicitationRequest,
    FileEditToolCallContent,
    RequestPermissionRequest,
    SessionNotification,
    TextContentBlock,
    ToolCallLocation,
    ToolCallProgress,
    ToolCallStart,
    Usage,
    UsageUpdate,
    UserMessageChunk,
)
from pydantic import ValidationError

from ...application.ports.agents import AgentUpdate, CallDiff, CallLocation, PermissionAsked, PlanStep
from ...domain.facts.spending import MICROS

#: One report's text; an agent that says more at once is cut, visibly.
TEXT_CHARACTERS = 256 * 1024
#: Of a tool call: how many files and diffs are kept, how long a path may be, and either side of a diff.
MAX_LOCATIONS = 50
MAX_DIFFS = 20
MAX_PATH = 4_096
MAX_DIFF_TEXT = 16 * 1024
#: Of an agent's plan.
MAX_STEPS = 200
MAX_STEP = 2_000
#: How much of a currency's name is kept; ISO 4217 has three letters.
MAX_CURRENCY = 8
#: No session costs more: what a fact can hold, in millionths.
MOST_MONEY = 2**53 // MICROS
#: Under which names agents tell a turn's tokens in `_meta`, while it goes on.
META_TOKENS = {
    "input_tokens": "inputTokens",
    "output_tokens": "outputTokens",
    "cached_read_tokens": "cachedReadTokens",
    "cached_write_tokens": "cachedWriteTokens",
    "thought_tokens": "thoughtTokens",
    "total_tokens": "totalTokens",
}


def read_update(params: object) -> object | None:
    """Return a session update as the library's type; None for one that this release does not know."""
    try:
        return SessionNotification.model_validate(params).update
    except ValidationError:
        return None


def report_of(update: object) -> AgentUpdate | None:
    """Return what an update means to an observer; None if it means nothing to one."""
    match update:
        case AgentMessageChunk(content=TextContentBlock(text=text)):
            return AgentUpdate(kind="message", text=cut(text))
        case AgentThoughtChunk(content=TextContentBlock(text=text)):
            return AgentUpdate(kind="thought", text=cut(text))
        case ToolCallStart(tool_call_id=call_id, title=title, raw_input=tool_input):
            return AgentUpdate(
                kind="tool_call",
                call_id=call_id,
                title=cut(title),
                text=cut(as_json(tool_input)),
                call_kind=update.kind or "",
                locations=locations_of(update.locations),
            )
        case ToolCallProgress(status="completed" | "failed" as status, tool_call_id=call_id):
            return AgentUpdate(
                kind="tool_result",
                call_id=call_id,
                title=update.title or "",
                text=cut(result_text(update)),
                failed=status == "failed",
                diffs=diffs_of(update),
            )
        case AgentPlanUpdate(entries=entries):
            steps = tuple(
                PlanStep(content=cut(e.content, MAX_STEP), status=e.status, priority=e.priority)
                for e in entries[:MAX_STEPS]
            )
            return AgentUpdate(kind="plan", plan=steps)
        case UsageUpdate():
            return usage_of(update)
        case _:
            return None


def message_id(update: object) -> str | None:
    """Return the id of the message that an update is a part of, if the agent gives any."""
    return update.message_id if isinstance(update, AgentMessageChunk | UserMessageChunk) else None


def history_text(update: object, before: object) -> str:
    """Return the words of an update that a session's history is made of, apart from those of another message."""
    match update:
        case (
            UserMessageChunk(content=TextContentBlock(text=text))
            | AgentMessageChunk(content=TextContentBlock(text=text))
        ):
            goes_on = type(update) is type(before) and message_id(update) == message_id(before)
            return text if goes_on else "\n" + text
        case ToolCallStart(title=title):
            return f"\n[{title}]\n"
        case _:
            return ""


class KnownCall(msgspec.Struct, frozen=True):
    """A tool call: under which name it was begun, and what is known of it by now."""

    name: str
    report: AgentUpdate


def what_is_new(update: ToolCallProgress, known: AgentUpdate) -> tuple[AgentUpdate, AgentUpdate | None]:
    """
    Return a call as it is known after a later report about it, and what that report says that was not known; None if
    nothing. An agent may say only later what it calls a tool with.
    """
    said = {
        "title": cut(update.title or ""),
        "text": cut(as_json(update.raw_input)) if update.raw_input is not None else "",
        "call_kind": update.kind or "",
        "locations": locations_of(update.locations),
    }
    new = {name: value for name, value in said.items() if value and value != getattr(known, name)}
    if not new:
        return known, None
    told = msgspec.structs.replace(AgentUpdate(kind="tool_update", call_id=known.call_id), **new)
    return msgspec.structs.replace(known, **new), told


def locations_of(found: Sequence[ToolCallLocation] | None) -> tuple[CallLocation, ...]:
    """Return the files that a call is about, as many as are kept."""
    return tuple(CallLocation(path=cut(at.path, MAX_PATH), line=at.line) for at in (found or [])[:MAX_LOCATIONS])


def diffs_of(update: ToolCallProgress) -> tuple[CallDiff, ...]:
    """Return what a call made of files, as the agent reports it; what is long is cut."""
    found = [content for content in update.content or [] if isinstance(content, FileEditToolCallContent)]
    return tuple(
        CallDiff(
            path=cut(diff.path, MAX_PATH),
            old=None if diff.old_text is None else cut(diff.old_text, MAX_DIFF_TEXT),
            new=cut(diff.new_text, MAX_DIFF_TEXT),
        )
        for diff in found[:MAX_DIFFS]
    )


def usage_of(update: UsageUpdate) -> AgentUpdate:
    """
    Return what a usage update says: how full the context is, and what the session has cost.

    Agents that count a turn's tokens while it goes on do it in `_meta`; the tokens in context (`used`) are no such count.
    """
    meta: Mapping[str, Any] = update.field_meta or {}
    counted = {name: n for name, key in META_TOKENS.items() if isinstance(n := meta.get(key), int) and n >= 0}
    cost = micros(update.cost.amount) if update.cost is not None else None
    currency = update.cost.currency[:MAX_CURRENCY].upper() if update.cost is not None and cost is not None else None
    said = AgentUpdate(kind="usage", context_tokens=update.used, session_cost_micros=cost, currency=currency)
    return msgspec.structs.replace(said, **counted)


def usage_of_answer(usage: Usage) -> AgentUpdate:
    """Return what the answer to a prompt says that the turn has used."""
    return AgentUpdate(
        kind="usage",
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cached_read_tokens=usage.cached_read_tokens,
        cached_write_tokens=usage.cached_write_tokens,
        thought_tokens=usage.thought_tokens,
        total_tokens=usage.total_tokens,
    )


def micros(amount: float) -> int | None:
    """Return an amount of money in millionths; None for what is none."""
    return round(Decimal(repr(amount)) * MICROS) if math.isfinite(amount) and 0 <= amount <= MOST_MONEY else None


def result_text(update: ToolCallProgress) -> str:
    """Return what a tool call came to, as text."""
    parts: list[str] = []
    for content in update.content or []:
        match content:
            case ContentToolCallContent(content=TextContentBlock(text=text)):
                parts.append(text)
            case FileEditToolCallContent(path=path):
                parts.append(f"changed {path}")
            case _:
                parts.append(f"({content.type})")
    if not parts and update.raw_output is not None:
        parts.append(as_json(update.raw_output))
    return "\n".join(parts)


def permission_of(
    request: RequestPermissionRequest, request_id: str, known: Mapping[str, KnownCall]
) -> PermissionAsked:
    """
    Return what the agent asks leave for; what the request leaves out was said when the call began. The tool's name is what
    it was called then: what is asked may have the title of this one call, such as its file.
    """
    call, begun = request.tool_call, known.get(request.tool_call.tool_call_id)
    before = begun.report if begun else AgentUpdate(kind="tool_call", text="{}")
    return PermissionAsked(
        request_id=request_id,
        tool_name=cut((begun.name if begun else "") or call.title or call.tool_call_id),
        tool_input=as_json(call.raw_input) if call.raw_input is not None else before.text,
        kind=call.kind or before.call_kind or "other",
        call_id=before.call_id,
        locations=locations_of(call.locations) or before.locations,
    )


def option_for(request: RequestPermissionRequest, allowed: bool) -> str | None:
    """Return the option that says yes, or no, for this once; None if the agent offers none."""
    kinds = ("allow_once", "allow_always") if allowed else ("reject_once", "reject_always")
    for kind in kinds:
        for option in request.options:
            if option.kind == kind:
                return option.option_id
    return None


def question_text(request: CreateFormSessionElicitationRequest) -> str:
    """Return the question, with the names and choices of what is to be filled in when that is more than one line."""
    lines = [request.message]
    schema = request.requested_schema.model_dump(mode="json", by_alias=True, exclude_none=True)
    properties = cast("dict[str, dict[str, Any]]", schema.get("properties") or {})
    for name, field in properties.items():
        choices = field.get("enum") or [choice.get("const") for choice in field.get("oneOf", [])]
        if len(properties) > 1 or choices:
            told = f"{name}: {field.get('description') or field.get('title') or field.get('type', '')}"
            lines.append(told + (f" (one of {', '.join(map(str, choices))})" if choices else ""))
    return cut("\n".join(lines))


def answer_content(request: CreateFormSessionElicitationRequest, answer: str) -> dict[str, Any]:
    """
    Return a person's words in the form that the agent asked for.

    One field takes all the words, as the type that it has. Several are taken from a JSON object, if that is what the
    answer is; other words go into the first field.
    """
    schema = request.requested_schema.model_dump(mode="json", by_alias=True, exclude_none=True)
    properties = cast("dict[str, dict[str, Any]]", schema.get("properties") or {})
    if len(properties) > 1:
        try:
            given: object = json.loads(answer)
        except ValueError:
            given = None
        if isinstance(given, dict):
            return cast("dict[str, Any]", given)
    for name, field in properties.items():
        return {name: typed(answer, str(field.get("type", "string")))}
    return {}


def typed(answer: str, kind: str) -> Any:
    """Return words as the JSON type that a field has; as they are if they are no such thing."""
    try:
        match kind:
            case "integer":
                return int(answer)
            case "number":
                return float(answer)
            case "boolean":
                return answer.strip().lower() in {"yes", "true", "y", "1"}
            case "array":
                return [part.strip() for part in answer.split(",") if part.strip()]
            case _:
                return answer
    except ValueError:
        return answer


def as_json(value: object) -> str:
    """Return a value as JSON text, `{}` for nothing."""
    return "{}" if value is None else json.dumps(value, ensure_ascii=False, default=str)


def cut(text: str, most: int = TEXT_CHARACTERS) -> str:
    """Return the text, cut visibly if it is longer than it may be."""
    if len(text) <= most:
        return text
    return text[:most] + f"… ({len(text) - most} more characters)"
