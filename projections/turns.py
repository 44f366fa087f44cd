"""What an agent did in each of a run's turns, folded from its feed when somebody asks: plan, tool calls, permissions."""

from collections.abc import Iterable, Iterator

import msgspec

from ..domain.event import Event, Fact, Text
from ..domain.facts import agent_output as output
from ..domain.facts import asking, child_run
from ..domain.facts.asking import Scope
from ..domain.facts.spending import Spending, TurnCounted, spent
from .usage import UsageView, usage_view


class PlanStepView(msgspec.Struct, frozen=True, kw_only=True):
    """One step of what an agent means to do, and how far it is."""

    content: str | None
    status: str
    priority: str


class LocationView(msgspec.Struct, frozen=True, kw_only=True):
    """A file that a tool call is about, and where in it."""

    path: str | None
    line: int | None


class DiffView(msgspec.Struct, frozen=True, kw_only=True):
    """What a tool call made of a file, as its agent reports it; `old` is null for a new file."""

    path: str | None
    old: str | None
    new: str | None


class ToolCallView(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call, with what its agent said of it until its end. Words that were forgotten are null."""

    call_id: str
    tool_name: str | None
    kind: str | None
    #: The JSON that the agent sent, as it sent it.
    arguments: str | None
    locations: tuple[LocationView, ...] = ()
    #: called, returned or failed.
    state: str = "called"
    called_at: str
    ended_at: str | None = None
    result: str | None = None
    diffs: tuple[DiffView, ...] = ()


class PermissionView(msgspec.Struct, frozen=True, kw_only=True):
    """Something that an agent asked leave for, and who said what to it, for how much."""

    request_id: str
    #: tool or shell.
    kind: str
    #: The call that it is about, if the agent said so.
    call_id: str | None
    #: The tool, or why the command is asked about, with the command.
    subject: str | None
    asked_at: str
    #: pending, approved, denied or expired.
    state: str = "pending"
    scope: Scope | None = None
    #: The person; null where nobody was asked: then `source` says what let it pass.
    decided_by: str | None = None
    source: str | None = None
    decided_at: str | None = None


class TurnView(msgspec.Struct, frozen=True, kw_only=True):
    """One turn of an agent."""

    turn_id: str
    #: Counts a child's turns from 1; null in a coordinator run, whose agents have one turn each.
    number: int | None
    opened_at: str
    started_at: str | None = None
    ended_at: str | None = None
    stop_reason: str | None = None
    #: Once it was counted.
    usage: UsageView | None = None
    plan: tuple[PlanStepView, ...] = ()
    tool_calls: tuple[ToolCallView, ...] = ()
    permissions: tuple[PermissionView, ...] = ()


class FeedTurns:
    """The turns of one run, as they grow fact by fact."""

    def __init__(self) -> None:
        self._turns: dict[str, TurnView] = {}
        self._calls: dict[str, dict[str, ToolCallView]] = {}
        self._asked: dict[str, dict[str, PermissionView]] = {}
        self._plans: dict[str, tuple[PlanStepView, ...]] = {}
        #: The turn that the feed is in.
        self._now = ""

    def add(self, fact: Fact) -> None:
        """Add one fact of the run's feed."""
        event, at = fact.event, fact.at.isoformat()
        match event:
            case child_run.TurnOpened():
                self._enter(event.turn_id, at, event.number)
            case child_run.TurnStarted():
                self._change(event.turn_id, started_at=at)
            case child_run.TurnEnded():
                self._change(event.turn_id, ended_at=at, stop_reason=event.stop_reason)
            case output.MessageDelta():
                self._enter(event.message_id, at)
            case output.TurnUsage():
                self._enter(event.turn_id, at)
            case output.PlanReported():
                self._enter(event.turn_id, at)
                self._plans[self._now] = tuple(
                    PlanStepView(content=step.content.value, status=step.status, priority=step.priority)
                    for step in event.entries
                )
            case _:
                self._add_call(event, at)
                self._add_permission(event, at)

    def shown(self, counted: Iterable[TurnCounted]) -> Iterator[TurnView]:
        """Give the turns, the oldest first, with what they have used."""
        used: dict[str, Spending] = {}
        for event in counted:
            turn_id = event.counted.turn_id
            used[turn_id] = spent(used.get(turn_id, Spending()), event.counted)
        for turn_id, turn in self._turns.items():
            found = used.get(turn_id)
            yield msgspec.structs.replace(
                turn,
                usage=usage_view(msgspec.structs.replace(found, turns=1)) if found is not None else None,
                plan=self._plans.get(turn_id, ()),
                tool_calls=tuple(self._calls.get(turn_id, {}).values()),
                permissions=tuple(self._asked.get(turn_id, {}).values()),
            )

    def _enter(self, turn_id: str, at: str, number: int | None = None) -> None:
        self._now = turn_id
        if turn_id not in self._turns:
            self._turns[turn_id] = TurnView(turn_id=turn_id, number=number, opened_at=at)

    def _change(self, turn_id: str, **changes: str) -> None:
        if turn_id in self._turns:
            self._turns[turn_id] = msgspec.structs.replace(self._turns[turn_id], **changes)

    def _add_call(self, event: Event, at: str) -> None:
        replace = msgspec.structs.replace
        calls = self._calls.setdefault(self._now, {})
        match event:
            case output.ToolCalled():
                # An agent of the coordinator's may call a tool before it says anything.
                self._enter(self._now, at)
                calls[event.call_id] = ToolCallView(
                    call_id=event.call_id,
                    tool_name=event.tool_name.value,
                    kind=event.kind,
                    arguments=event.arguments.value,
                    locations=_locations(event.locations),
                    called_at=at,
                )
            case output.ToolCallUpdated() if (call := calls.get(event.call_id)) is not None:
                calls[event.call_id] = replace(
                    call,
                    tool_name=event.tool_name.value if event.tool_name else call.tool_name,
                    kind=event.kind or call.kind,
                    arguments=event.arguments.value if event.arguments else call.arguments,
                    locations=_locations(event.locations) or call.locations,
                )
            case output.ToolReturned() if (call := calls.get(event.call_id)) is not None:
                ended = replace(call, state="returned", ended_at=at, result=event.content.value)
                calls[event.call_id] = replace(ended, diffs=_diffs(event.diffs))
            case output.ToolFailed() if (call := calls.get(event.call_id)) is not None:
                ended = replace(call, state="failed", ended_at=at, result=event.error_message.value)
                calls[event.call_id] = replace(ended, diffs=_diffs(event.diffs))
            case _:
                pass

    def _add_permission(self, event: Event, at: str) -> None:
        match event:
            case asking.ToolApprovalRequired():
                self._ask(event.turn_id, event.request_id, "tool", event.tool_name, at, event.call_id)
            case asking.ShellApprovalRequired():
                self._ask(event.turn_id, event.request_id, "shell", event.message, at)
            case asking.AutoApproved():
                self._decide(event.request_id, source=event.approval_source)
            case asking.ApprovalResolved():
                state = "expired" if event.expired else "approved" if event.approved else "denied"
                self._decide(
                    event.request_id,
                    state=state,
                    scope=event.scope if event.approved else None,
                    decided_by=event.resolved_by,
                    decided_at=at,
                )
            case _:
                pass

    def _ask(
        self, turn_id: str, request_id: str, kind: str, subject: Text, at: str, call_id: str | None = None
    ) -> None:
        self._asked.setdefault(turn_id, {})[request_id] = PermissionView(
            request_id=request_id, kind=kind, call_id=call_id, subject=subject.value, asked_at=at
        )

    def _decide(self, request_id: str, **changes: str | None) -> None:
        for asked in self._asked.values():
            if request_id in asked:
                asked[request_id] = msgspec.structs.replace(asked[request_id], **changes)


def _locations(found: Iterable[output.ToolLocation]) -> tuple[LocationView, ...]:
    return tuple(LocationView(path=at.path.value, line=at.line) for at in found)


def _diffs(found: Iterable[output.ToolDiff]) -> tuple[DiffView, ...]:
    return tuple(
        DiffView(path=diff.path.value, old=diff.old.value if diff.old else None, new=diff.new.value) for diff in found
    )
