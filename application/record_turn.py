"""Put what an agent says on its run's feed: coalesced, bounded, and never in the way of a decision."""

import time
from collections.abc import Sequence
from threading import Lock, Timer
from uuid import uuid4

from ..domain.agent_output import (
    MAX_OUTPUT_BYTES,
    Intent,
    MessageDelta,
    OutputTruncated,
    ToolCalled,
    ToolFailed,
    ToolOutput,
    ToolReturned,
    TurnUsage,
)
from ..domain.child_run import output_stream
from ..domain.event import Draft, Event, Text
from .caller import Caller
from .ports import AgentUpdate, PermissionAsked
from .run_log import RunLog

FLUSH_SECONDS = 0.1
FLUSH_BYTES = 4_096
MAX_TOOL_NAME = 500

_KINDS = {"message": MessageDelta, "thought": Intent, "plan": Intent, "stderr": ToolOutput}


class TurnRecorder:
    """
    The observer of one turn. What it was told is durable after `close`; until then at most FLUSH_SECONDS behind.

    Pieces of the same kind that follow each other become one fact.
    """

    def __init__(self, runs: RunLog, root: str, run_id: str, turn_id: str, model_id: str, used_bytes: int) -> None:
        self._runs = runs
        self._root = root
        self._run_id = run_id
        self._turn_id = turn_id
        self._model_id = model_id
        self._used = used_bytes
        self._pieces: list[str] = []
        self._kind = ""
        self._size = 0
        self._timer: Timer | None = None
        self._lock = Lock()
        self.failure: Exception | None = None
        #: When the agent last showed a sign of work, on the process's monotonic clock; None while it waits for a person.
        self.last_sign: float | None = time.monotonic()

    def update(self, update: AgentUpdate) -> None:
        """Take a report. Raises what went wrong with an earlier one, if it could not be stored."""
        if self.failure is not None:
            raise self.failure
        self.touch()
        with self._lock:
            if update.kind in _KINDS:
                self._gather(update.kind, update.text)
            else:
                self._flush()
                self._store([self._event(update)], len(update.text))

    def permission(self, asked: PermissionAsked) -> bool:
        """Grant what the run grants by itself; deny the rest."""
        return self._runs.run(self._root).auto_approve_tools

    def question(self, request_id: str, question: str) -> str | None:
        """Leave the question unanswered."""
        return None

    def touch(self) -> None:
        """Take note of a sign of work."""
        self.last_sign = time.monotonic()

    def close(self) -> None:
        """Store what is gathered. Raises what went wrong on the way."""
        with self._lock:
            self._flush()
        if self.failure is not None:
            raise self.failure

    def _gather(self, kind: str, text: str) -> None:
        if kind != self._kind:
            self._flush()
        self._kind = kind
        self._pieces.append(text)
        self._size += len(text)
        if self._size >= FLUSH_BYTES:
            self._flush()
        elif self._timer is None:
            # An agent that falls silent must not keep its last words from the feed.
            self._timer = Timer(FLUSH_SECONDS, self._flush_late)
            self._timer.daemon = True
            self._timer.start()

    def _flush_late(self) -> None:
        with self._lock:
            try:
                self._flush()
            except Exception as failure:  # noqa: BLE001
                # The turn's own thread is told at its next report, and stops the turn there.
                self.failure = failure

    def _flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._pieces:
            return
        text, kind = "".join(self._pieces), self._kind
        self._pieces, self._size = [], 0
        self._store([_said(kind, text, self._turn_id)], len(text.encode(errors="replace")))

    def _store(self, events: Sequence[Event], size: int) -> None:
        if self._used > MAX_OUTPUT_BYTES:
            return
        self._used += size
        if self._used > MAX_OUTPUT_BYTES:
            events = [OutputTruncated()]
        stream = output_stream(self._run_id)
        drafts = [Draft(stream=stream, event=event, run=self._run_id, root=self._root) for event in events]
        by = Caller(principal="agent", command_id=str(uuid4()))
        self._runs.log.append(by.append(drafts, {}, self._runs.clock.now()))

    def _event(self, update: AgentUpdate) -> Event:
        match update.kind:
            case "tool_call":
                name = Text(update.title[:MAX_TOOL_NAME])
                return ToolCalled(call_id=update.call_id, tool_name=name, arguments=Text(update.text))
            case "tool_result" if update.failed:
                return ToolFailed(call_id=update.call_id, error_message=Text(update.text))
            case "tool_result":
                return ToolReturned(call_id=update.call_id, content=Text(update.text))
            case "usage":
                return TurnUsage(
                    turn_id=self._turn_id,
                    input_tokens=update.input_tokens,
                    output_tokens=update.output_tokens,
                    total_tokens=update.input_tokens + update.output_tokens,
                    model_id=self._model_id,
                )
            case unknown:
                raise ValueError(f"an agent cannot report {unknown!r}")


def _said(kind: str, text: str, turn_id: str) -> Event:
    match kind:
        case "message":
            return MessageDelta(delta=Text(text), message_id=turn_id)
        case "stderr":
            return ToolOutput(stream="stderr", data=Text(text))
        case _:
            return Intent(intent=Text(text))


def output_bytes(runs: RunLog, run_id: str) -> int:
    """Return how much of a run's output is kept already, so that a turn after a restart goes on counting."""
    used, after = 0, 0
    while facts := runs.log.read_run(run_id, after, 500):
        after = facts[-1].run_sequence or 0
        for fact in facts:
            event = fact.event
            texts = (getattr(event, name) for name in event.__struct_fields__) if event.OUTPUT else ()
            used += sum(len(text.value or "") for text in texts if isinstance(text, Text))
            if isinstance(event, OutputTruncated):
                return MAX_OUTPUT_BYTES + 1
    return used
