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
    """What the agent says that it means to do: its thoughts; in logs of earlier releases its plan, too."""

    TOPIC: ClassVar[str] = "agent.intent"

    intent: Text


class PlannedStep(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One step of what an agent means to do in a turn, and how far it is."""

    content: Text
    status: str
    priority: str


class PlanReported(Output, frozen=True, kw_only=True):
    """What the agent means to do in a turn, all of it; a later one takes its place."""

    TOPIC: ClassVar[str] = "agent.plan"

    turn_id: str
    entries: tuple[PlannedStep, ...]


class ToolLocation(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A file that a tool call is about, and where in it."""

    path: Text
    line: int | None = None


class ToolDiff(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What a tool call made of a file, as the agent reports it; what is long is cut. `old` is null for a new file."""

    path: Text
    old: Text | None
    new: Text


class ToolCalled(Output, frozen=True, kw_only=True):
    """
    The agent calls a tool. `arguments` is the JSON that it sent, as it sent it; an agent may send it only later, see
    `tool.call.update`.
    """

    TOPIC: ClassVar[str] = "tool.call"

    call_id: str
    tool_name: Text
    arguments: Text
    #: What kind of tool it is, as the agent says: read, edit, delete, move, search, execute, think, fetch, other.
    kind: str | None = None
    locations: tuple[ToolLocation, ...] = ()


class ToolCallUpdated(Output, frozen=True, kw_only=True):
    """More has become known of a tool call; null, or none: what was said of it before holds."""

    TOPIC: ClassVar[str] = "tool.call.update"

    call_id: str
    tool_name: Text | None = None
    arguments: Text | None = None
    kind: str | None = None
    locations: tuple[ToolLocation, ...] = ()


class ToolReturned(Output, frozen=True, kw_only=True):
    """A tool call ended well."""

    TOPIC: ClassVar[str] = "tool.result"

    call_id: str
    content: Text
    diffs: tuple[ToolDiff, ...] = ()


class ToolFailed(Output, frozen=True, kw_only=True):
    """A tool call failed, or was denied."""

    TOPIC: ClassVar[str] = "tool.error"

    call_id: str
    error_message: Text
    diffs: tuple[ToolDiff, ...] = ()


class ToolOutput(Output, frozen=True, kw_only=True):
    """What a process of the agent wrote to its standard error."""

    TOPIC: ClassVar[str] = "tool.output"

    stream: str
    data: Text


class TurnUsage(Output, frozen=True, kw_only=True):
    """What the turn has used so far, as the agent reports it. What it does not report is null, or 0 of the first three."""

    TOPIC: ClassVar[str] = "agent.turn.usage"

    turn_id: str
    input_tokens: int
    output_tokens: int
    total_tokens: int
    model_id: str
    cached_read_tokens: int | None = None
    cached_write_tokens: int | None = None
    thought_tokens: int | None = None
    #: How much of its context the agent has filled.
    context_tokens: int | None = None
    #: What the agent's whole session has cost, in millionths of the currency.
    session_cost_micros: int | None = None
    currency: str | None = None


class OutputTruncated(Output, frozen=True, kw_only=True):
    """The run's output reached its limit; nothing after this is kept."""

    TOPIC: ClassVar[str] = "run.output_truncated"

    limit_bytes: int = msgspec.field(default=MAX_OUTPUT_BYTES)
