"""Read from what an agent asks to use a tool for."""

from collections.abc import Callable, Sequence
from typing import Any, cast
from uuid import NAMESPACE_OID, uuid5

import msgspec

from ...domain.event import Text
from ...domain.facts.agent_output import ToolLocation
from ...domain.work.agent_requests import ToolCall
from ..ports.agents import CallLocation, PermissionAsked

#: How many files a fact names that a tool call is about.
MAX_LOCATIONS = 50


def call_id_of(turn_id: str, agents_id: str) -> str:
    """Return our id of a tool call: the agent's own may be any words, which a fact could not forget."""
    return str(uuid5(NAMESPACE_OID, f"{turn_id}/{agents_id}"))


def locations_of(found: Sequence[CallLocation], text: Callable[[str], Text]) -> tuple[ToolLocation, ...]:
    """Return the files that a tool call is about, as a fact names them."""
    return tuple(ToolLocation(path=text(where.path), line=where.line) for where in found[:MAX_LOCATIONS])


def tool_call(asked: PermissionAsked, turn_id: str = "", text: Callable[[str], Text] = Text) -> ToolCall:
    """Return what a tool is to be used for, as far as its input says so in the usual places."""
    try:
        found: Any = msgspec.json.decode(asked.tool_input)
    except msgspec.DecodeError:
        found = None
    named = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
    command = named.get("command")
    words = " ".join(map(str, cast("list[object]", command))) if isinstance(command, list) else command
    url = named.get("url")
    return ToolCall(
        tool_name=asked.tool_name,
        tool_input=asked.tool_input,
        command=words if isinstance(words, str) else None,
        url=url if isinstance(url, str) else None,
        call_id=call_id_of(turn_id, asked.call_id) if asked.call_id else None,
        kind=asked.kind,
        locations=locations_of(asked.locations, text),
    )
