"""What an agent says over the protocol, in the port's words."""

import json
from collections.abc import Mapping
from typing import Any, cast

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
    ToolCallProgress,
    ToolCallStart,
    UsageUpdate,
    UserMessageChunk,
)
from pydantic import ValidationError

from ...application.ports.agents import AgentUpdate, PermissionAsked

#: One report's text; an agent that says more at once is cut, visibly.
TEXT_CHARACTERS = 256 * 1024


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
            return AgentUpdate(kind="tool_call", call_id=call_id, title=cut(title), text=cut(as_json(tool_input)))
        case ToolCallProgress(status="completed" | "failed" as status, tool_call_id=call_id):
            text = cut(result_text(update))
            return AgentUpdate(
                kind="tool_result", call_id=call_id, title=update.title or "", text=text, failed=status == "failed"
            )
        case AgentPlanUpdate(entries=entries):
            return AgentUpdate(kind="plan", text=cut("\n".join(f"[{e.status}] {e.content}" for e in entries)))
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


def usage_of(update: UsageUpdate) -> AgentUpdate:
    """
    Return the tokens of a usage update.

    The protocol counts the tokens in context (`used`); agents that tell input from output do it in `_meta`.
    """
    meta: Mapping[str, Any] = update.field_meta or {}
    tokens_in, tokens_out = meta.get("inputTokens", update.used), meta.get("outputTokens", 0)
    return AgentUpdate(
        kind="usage",
        input_tokens=tokens_in if isinstance(tokens_in, int) else 0,
        output_tokens=tokens_out if isinstance(tokens_out, int) else 0,
    )


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
    request: RequestPermissionRequest, request_id: str, known: Mapping[str, AgentUpdate]
) -> PermissionAsked:
    """Return what the agent asks leave for; what the request leaves out was said when the call began."""
    call = request.tool_call
    begun = known.get(call.tool_call_id)
    return PermissionAsked(
        request_id=request_id,
        tool_name=cut(call.title or (begun.title if begun else "") or call.tool_call_id),
        tool_input=as_json(call.raw_input) if call.raw_input is not None else (begun.text if begun else "{}"),
        kind=call.kind or "other",
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


def cut(text: str) -> str:
    """Return the text, cut visibly if it is longer than a report may be."""
    if len(text) <= TEXT_CHARACTERS:
        return text
    return text[:TEXT_CHARACTERS] + f"… ({len(text) - TEXT_CHARACTERS} more characters)"
