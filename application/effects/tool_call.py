"""Read from what an agent asks to use a tool for."""

from typing import Any, cast

import msgspec

from ...domain.work.agent_requests import ToolCall
from ..ports.agents import PermissionAsked


def tool_call(asked: PermissionAsked) -> ToolCall:
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
    )
