"""Put what an agent says on its run's feed: coalesced, bounded, and never in the way of a decision."""

import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from threading import Lock, Timer, current_thread
from typing import Self, cast
from uuid import uuid4

import msgspec
import structlog

from ...domain.event import Draft, Event, Text
from ...domain.facts.agent_output import (
    MAX_OUTPUT_BYTES,
    MAX_TURN_BYTES,
    Intent,
    MessageDelta,
    OutputTruncated,
    PlannedStep,
    PlanReported,
    ToolCalled,
    ToolCallUpdated,
    ToolDiff,
    ToolFailed,
    ToolOutput,
    ToolReturned,
    TurnUsage,
)
from ...domain.facts.child_run import ENDED, output_stream
from ...domain.facts.run import CoordinatorRun, deletion_stream, run_stream
from ...domain.redaction.hold_back import unfinished
from ...domain.redaction.personal_data import redact_personal, without_homes
from ...domain.rejected import Busy
from ...domain.work.budget import Reported
from ..ports.agents import AgentFailed, AgentUpdate, PermissionAsked
from ..ports.log import ConcurrencyConflict
from ..ports.tenure import Tenure
from ..writer.caller import AGENT, Caller
from ..writer.run_log import MAX_ATTEMPTS, RunLog
from .timings import Timings
from .tool_call import call_id_of, locations_of, tool_call

FLUSH_SECONDS = 0.1
FLUSH_BYTES = 4_096
MAX_TOOL_NAME = 500
#: How much of what the agent says last is kept for whoever is told how its turn ended.
MAX_LAST_WORDS = 500

log = structlog.get_logger(__name__)

#: What a record costs besides its words: one without any takes as much room on the log, and as much time.
RECORD_BYTES = 512
#: What a piece of words costs besides them before it is put together with others.
PIECE_BYTES = 16
_KINDS = {"message": MessageDelta, "thought": Intent, "stderr": ToolOutput}


class TurnRecorder:
    """
    The observer of a turn, used in a block inside that of the turn's session. What it was told is at most FLUSH_SECONDS
    behind, and the last word of what is not complete yet *hold_seconds*; after the block all of it is durable.

    After a block that failed it is so if it could be stored. Either way nothing is stored from then on: whoever finds no
    session any more may count on silence. Nor is anything behind the end of the run, or once the run is deleted.

    Pieces of the same kind that follow each other become one fact. What the run's policy does not let us keep is
    taken out before.

    An agent that goes on reporting, beyond all that is kept, costs as much as one that works: past *most_bytes* in one turn
    `update` raises AgentFailed (agent_output_limit), which ends the turn.
    """

    def __init__(
        self,
        runs: RunLog,
        tenure: Tenure,
        root: str,
        run_id: str,
        turn_id: str,
        model_id: str,
        used_bytes: int,
        most_bytes: int = MAX_TURN_BYTES,
        hold_seconds: float = Timings().hold_words,
    ) -> None:
        self._runs = runs
        self._tenure = tenure
        self._root = root
        self._run_id = run_id
        self._turn_id = turn_id
        self._model_id = model_id
        self._used = used_bytes
        self._reported = 0
        self._most = most_bytes
        self._hold_seconds = hold_seconds
        run = runs.run(root)
        self._expected = self._versions(run)
        policy = run.policy
        self._redacts = policy.redact_pii
        self._limit = min(policy.max_output_bytes, MAX_OUTPUT_BYTES)
        #: By kind: what was not stored yet. Of all but the present kind only an unfinished word.
        self._gathered: dict[str, list[str]] = {}
        self._kind = ""
        self._size = 0
        self._timer: Timer | None = None
        self._lock = Lock()
        #: Whether the turn is over here, so that nothing is stored any more.
        self.is_closed = False
        self._last_words = ""
        #: What the agent has said that this turn has used.
        self.reported = Reported()
        self._context_tokens: int | None = None
        self.failure: Exception | None = None
        #: When the agent last showed a sign of work, on the process's monotonic clock; None while it waits for a person.
        self.last_sign: float | None = time.monotonic()

    def update(self, update: AgentUpdate) -> None:
        """Take a report. Raises what went wrong with an earlier one, if it could not be stored."""
        if self.failure is not None:
            raise self.failure
        self._count(update)
        if update.kind != "stderr":
            # What a program writes there it may write without end, and without doing anything.
            self.touch()
        if update.kind == "message":
            self._last_words = (self._last_words + update.text)[-MAX_LAST_WORDS:]
        if update.kind == "usage":
            self._take_usage(update)
        with self._lock:
            if self.is_closed:
                return
            if update.kind in _KINDS:
                self._gather(update.kind, update.text)
            else:
                self._flush(hold=update.kind == "usage")
                self._store([self._event(update)], _size(update))

    def _take_usage(self, update: AgentUpdate) -> None:
        """Put what the agent says now in the place of what it said of the same before."""
        names = Reported.__struct_fields__
        said = {name: value for name in names if (value := getattr(update, name)) is not None}
        if "total_tokens" not in said and ("input_tokens" in said or "output_tokens" in said):
            said["total_tokens"] = said.get("input_tokens", 0) + said.get("output_tokens", 0)
        self.reported = msgspec.structs.replace(self.reported, **said)
        self._context_tokens = update.context_tokens if update.context_tokens is not None else self._context_tokens

    def _count(self, update: AgentUpdate) -> None:
        self._reported += _size(update) + (PIECE_BYTES if update.kind in _KINDS else RECORD_BYTES)
        if self._reported > self._most:
            words = f"The agent reported more than {self._most} bytes in one turn, and went on."
            raise AgentFailed("agent_output_limit", words, retryable=True)

    def permission(self, asked: PermissionAsked) -> bool:
        """Grant what the run grants by itself, but no command that a person has to see; deny the rest."""
        run, command = self._runs.run(self._root), tool_call(asked).command
        if command is not None and (not run.policy.shell_enabled or run.policy.why_asked(command) is not None):
            return False
        return run.auto_approve_tools

    def question(self, request_id: str, question: str) -> str | None:
        """Leave the question unanswered."""
        return None

    @property
    def last_words(self) -> str:
        """What the agent said last in this turn, without what the run's policy does not let us keep."""
        return redact_personal(self._last_words) if self._redacts else self._last_words

    def touch(self) -> None:
        """Take note of a sign of work."""
        self.last_sign = time.monotonic()

    def close(self) -> None:
        """Store what is gathered, and nothing any more. Raises what went wrong on the way."""
        with self._lock:
            self.is_closed = True
            self._flush()
        if self.failure is not None:
            raise self.failure

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: object) -> None:
        try:
            self.close()
        except Exception as failure:
            if error is None:
                raise
            # How the turn ended says more than that its last words could not be stored.
            log.warning("the last words of a turn were lost", run=self._run_id, error=str(failure))

    def _gather(self, kind: str, text: str) -> None:
        if kind != self._kind:
            self._flush(hold=True)
        self._kind = kind
        self._gathered.setdefault(kind, []).append(text)
        self._size += len(text)
        if self._size >= FLUSH_BYTES:
            self._flush(hold=True)
        elif self._timer is None or self._timer.interval > FLUSH_SECONDS:
            # An agent that falls silent must not keep its last words from the feed.
            self._arm(FLUSH_SECONDS)

    def _arm(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = Timer(seconds, self._flush_late, kwargs={"hold": seconds < self._hold_seconds})
        self._timer.daemon = True
        self._timer.start()

    def _flush_late(self, *, hold: bool) -> None:
        with self._lock:
            if self._timer is not current_thread():
                # Others flushed while this one waited; what is held back since then has its time before it.
                return
            try:
                self._flush(hold=hold)
            except Exception as failure:  # noqa: BLE001
                # The turn's own thread is told at its next report, and stops the turn there.
                self.failure = failure

    def _flush(self, *, hold: bool = False) -> None:
        """Store what is gathered; with *hold*, all but what may be the beginning of a secret."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        gathered, self._gathered, self._size = self._gathered, {}, 0
        for kind, pieces in gathered.items():
            text = "".join(pieces)
            cut = unfinished(text) if hold else len(text)
            if text[cut:]:
                self._gathered[kind] = [text[cut:]]
            if text[:cut]:
                self._store([self._output(kind, text[:cut])], len(text[:cut].encode(errors="replace")))
        if self._gathered:
            self._arm(self._hold_seconds)

    def _store(self, events: Sequence[Event], size: int) -> None:
        if self._used > self._limit:
            return
        self._used += size + RECORD_BYTES * len(events)
        if self._used > self._limit:
            events = [OutputTruncated(limit_bytes=self._limit)]
        stream = output_stream(self._run_id)
        drafts = [Draft(stream=stream, event=event, run=self._run_id, root=self._root) for event in events]
        by = Caller(principal=AGENT, command_id=str(uuid4()), fence=self._tenure.fence(self._root))
        for _ in range(MAX_ATTEMPTS):
            try:
                self._runs.log.append(by.append(drafts, self._expected, self._runs.clock.now()))
                return
            except ConcurrencyConflict:
                # Something was decided about the run. Only now do we need to look what.
                run = self._runs.run(self._root)
                if self._is_over(run):
                    return
                self._expected = self._versions(run)
        raise Busy

    def _versions(self, run: CoordinatorRun) -> dict[str, int]:
        """Return what an append rests on: the run has not ended, and is not deleted."""
        streams = (run_stream(self._run_id), deletion_stream(self._root))
        return {stream: run.versions.get(stream, 0) for stream in streams}

    def _is_over(self, run: CoordinatorRun) -> bool:
        child = run.children.get(self._run_id)
        return run.deleted or (run.ended if child is None else child.status in ENDED)

    def _event(self, update: AgentUpdate) -> Event:
        call_id = call_id_of(self._turn_id, update.call_id)
        match update.kind:
            case "tool_call":
                return ToolCalled(
                    call_id=call_id,
                    tool_name=self._text(update.title[:MAX_TOOL_NAME]),
                    arguments=self._text(update.text),
                    kind=update.call_kind or None,
                    locations=locations_of(update.locations, self._text),
                )
            case "tool_update":
                return ToolCallUpdated(
                    call_id=call_id,
                    tool_name=self._text(update.title[:MAX_TOOL_NAME]) if update.title else None,
                    arguments=self._text(update.text) if update.text else None,
                    kind=update.call_kind or None,
                    locations=locations_of(update.locations, self._text),
                )
            case "tool_result":
                diffs = tuple(
                    ToolDiff(
                        path=self._text(diff.path),
                        old=None if diff.old is None else self._text(diff.old),
                        new=self._text(diff.new),
                    )
                    for diff in update.diffs
                )
                if update.failed:
                    return ToolFailed(call_id=call_id, error_message=self._text(update.text), diffs=diffs)
                return ToolReturned(call_id=call_id, content=self._text(update.text), diffs=diffs)
            case "plan":
                steps = tuple(
                    PlannedStep(content=self._text(step.content), status=step.status, priority=step.priority)
                    for step in update.plan
                )
                return PlanReported(turn_id=self._turn_id, entries=steps)
            case "usage":
                return self._usage()
            case unknown:
                raise ValueError(f"an agent cannot report {unknown!r}")

    def _usage(self) -> TurnUsage:
        said = self.reported
        return TurnUsage(
            turn_id=self._turn_id,
            input_tokens=said.input_tokens or 0,
            output_tokens=said.output_tokens or 0,
            total_tokens=said.total_tokens or 0,
            model_id=self._model_id,
            cached_read_tokens=said.cached_read_tokens,
            cached_write_tokens=said.cached_write_tokens,
            thought_tokens=said.thought_tokens,
            context_tokens=self._context_tokens,
            session_cost_micros=said.session_cost_micros,
            currency=said.currency,
        )

    def _output(self, kind: str, words: str) -> Event:
        match kind:
            case "message":
                return MessageDelta(delta=self._text(words), message_id=self._turn_id)
            case "stderr":
                return ToolOutput(stream="stderr", data=self._text(without_homes(words)))
            case _:
                return Intent(intent=self._text(words))

    def _text(self, words: str) -> Text:
        return Text(redact_personal(words) if self._redacts else words)


def _size(update: AgentUpdate) -> int:
    """Return how many bytes of words a report has."""
    words = [update.title, update.text, *(where.path for where in update.locations)]
    words += [word or "" for diff in update.diffs for word in (diff.path, diff.old, diff.new)]
    words += [step.content for step in update.plan] if not update.text else []
    return sum(len(word.encode(errors="replace")) for word in words)


def reported_since(runs: RunLog, run_id: str, turn_id: str, position: int) -> tuple[Reported, datetime | None]:
    """
    Return what an agent's output says that a turn has used, after a position of the log, and when it said something last:
    for a process that takes the turn up from one that died.
    """
    reported, last, after = Reported(), None, 0
    while facts := runs.log.read_run(run_id, after, 500):
        after = facts[-1].run_sequence or 0
        for fact in facts:
            if fact.position <= position:
                continue
            last = fact.at if fact.event.OUTPUT else last
            if isinstance(fact.event, TurnUsage) and fact.event.turn_id == turn_id:
                event = fact.event
                has_tokens = event.total_tokens > 0
                reported = Reported(
                    input_tokens=event.input_tokens if has_tokens else None,
                    output_tokens=event.output_tokens if has_tokens else None,
                    total_tokens=event.total_tokens if has_tokens else None,
                    cached_read_tokens=event.cached_read_tokens,
                    cached_write_tokens=event.cached_write_tokens,
                    thought_tokens=event.thought_tokens,
                    session_cost_micros=event.session_cost_micros,
                    currency=event.currency,
                )
    return reported, last


def output_bytes(runs: RunLog, run_id: str) -> int:
    """Return how much of a run's output is kept already, so that a turn after a restart goes on counting."""
    used, after = 0, 0
    while facts := runs.log.read_run(run_id, after, 500):
        after = facts[-1].run_sequence or 0
        for fact in facts:
            event = fact.event
            if event.OUTPUT:
                used += RECORD_BYTES + sum(len(text.value or "") for text in _texts(event))
            if isinstance(event, OutputTruncated):
                return MAX_OUTPUT_BYTES + 1
    return used


def _texts(value: msgspec.Struct) -> Iterator[Text]:
    """Give the words of a fact, those of what it is made of, too."""
    for found in (getattr(value, name) for name in value.__struct_fields__):
        if isinstance(found, Text):
            yield found
        elif isinstance(found, tuple):
            for part in cast("tuple[object, ...]", found):
                if isinstance(part, msgspec.Struct):
                    yield from _texts(part)
