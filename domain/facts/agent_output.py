"""What an agent says and does while it works: shown on its run's feed, read by no decision."""

from typing import ClassVar

import msgspec

from ..event import Event, Text

#: How much of an agent's output a run keeps; after that one fact says that the rest was dropped.
MAX_OUTPUT_BYTES = 4 * 1024 * 1024
#: How much an agent may report in one turn, kept or not, before it is taken for one that never comes to an end. Our choice:
#: far beyond what a long turn's work says.
MAX_TURN_BYTES = 64 * 1024 * 1024


class Output(Event, frozen=True, kw_only=True):
    """What every kind of output has in common."""

    OUTPUT: ClassVar[bool] = True


class MessageDelta(Output, frozen=True, kw_only=True):
    """A piece of the agent's message."""

    TOPIC: ClassVar[str] = "agent.message.delta"

    delta: Text
    message_id: str


class Intent(Output, frozen=True, kw_only=True):
    """What the agent says that it means to do: its thoughts, or its plan."""

    TOPIC: ClassVar[str] = "agent.intent"

    intent: Text


class ToolCalled(Output, frozen=True, kw_only=True):
    """The agent calls a tool. `arguments` is the JSON that it sent, as it sent it."""

    TOPIC: ClassVar[str] = "tool.call"

    call_id: str
    tool_name: Text
    arguments: Text


class ToolReturned(Output, frozen=True, kw_only=True):
    """A tool call ended well."""

    TOPIC: ClassVar[str] = "tool.result"

    call_id: str
    content: Text


class ToolFailed(Output, frozen=True, kw_only=True):
    """A tool call failed, or was denied."""

    TOPIC: ClassVar[str] = "tool.error"

    call_id: str
    error_message: Text


class ToolOutput(Output, frozen=True, kw_only=True):
    """What a process of the agent wrote to its standard error."""

    TOPIC: ClassVar[str] = "tool.output"

    stream: str
    data: Text


class TurnUsage(Output, frozen=True, kw_only=True):
    """What the turn has cost so far, in tokens."""

    TOPIC: ClassVar[str] = "agent.turn.usage"

    turn_id: str
    input_tokens: int
    output_tokens: int
    total_tokens: int
    model_id: str


class OutputTruncated(Output, frozen=True, kw_only=True):
    """The run's output reached its limit; nothing after this is kept."""

    TOPIC: ClassVar[str] = "run.output_truncated"

    limit_bytes: int = msgspec.field(default=MAX_OUTPUT_BYTES)
