"""One turn's reports on their way from the event loop to the observer: in order, bounded, from one thread."""

import asyncio
import threading
from collections import deque
from collections.abc import Callable

import msgspec

from ...application.ports.agents import AgentUpdate, PermissionAsked, TurnObserver

#: What may lie between the agent and a slow observer before the agent is no longer read.
BACKLOG_REPORTS = 512
BACKLOG_BYTES = 8 * 1024 * 1024
#: What is kept of what an agent says in a turn: its end, where a structured answer stands.
MESSAGE_CHARACTERS = 256 * 1024
STDERR_BYTES_A_TURN = 64 * 1024


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """The agent asks a person something, in words."""

    request_id: str
    text: str


class Ask(msgspec.Struct, frozen=True):
    """Something that waits for the observer's answer. The answer is None once the turn was cancelled."""

    subject: PermissionAsked | Question
    answer: "asyncio.Future[bool | str | None]"


class TurnReports:
    """
    The reports of one turn. `offer` and `ask` belong to the loop's thread; a thread of the turn's own calls the observer.

    A turn that has ended while its observer still blocks on a cancelled question does not wait for it: the observer
    gets nothing more, and its answer is dropped.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, observer: TurnObserver, name: str) -> None:
        self._loop = loop
        self._observer = observer
        self._reports: deque[AgentUpdate | Ask] = deque()
        self._bytes = 0
        self._changed = threading.Condition()
        self._is_over = False
        self._is_done = False
        self._is_blocked_on: Ask | None = None
        self._space = asyncio.Event()
        self._space.set()
        self._asks: set[asyncio.Future[bool | str | None]] = set()
        self._message: deque[str] = deque()
        self._message_characters = 0
        #: The id of the message that goes on, in a tuple as it may be None; None after something else was said.
        self._speaks_in: tuple[str | None] | None = None
        self._stderr_left = STDERR_BYTES_A_TURN
        self._stderr_dropped = 0
        #: What the observer raised, if it did; the turn's `prompt` raises it again.
        self.failure: BaseException | None = None
        self.failed: Callable[[], None] = lambda: None
        self.was_cancelled = False
        self._thread = threading.Thread(target=self._deliver, name=name, daemon=True)
        self._thread.start()

    # On the loop's thread

    async def may_read(self) -> None:
        """Return when the observer has caught up."""
        await self._space.wait()

    def offer(self, update: AgentUpdate, message_id: str | None = None) -> None:
        """Queue a report."""
        if update.kind == "message":
            # Chunks of one message are put together, messages are kept apart: an answer's first and last lines are its own.
            is_new = self._speaks_in is None or self._speaks_in[0] != message_id
            text = self._remember(update.text, apart=is_new and self._message_characters > 0)
            update = msgspec.structs.replace(update, text=text)
            self._speaks_in = (message_id,)
        elif update.kind in ("tool_call", "plan"):
            self._speaks_in = None
        self._put(update)

    def offer_stderr(self, chunk: bytes) -> None:
        """Queue words from stderr, as many as fit; the rest is counted."""
        taken = chunk[: self._stderr_left] if self._space.is_set() else b""
        self._stderr_left -= len(taken)
        self._stderr_dropped += len(chunk) - len(taken)
        if taken:
            self._put(AgentUpdate(kind="stderr", text=taken.decode(errors="replace")))

    async def ask(self, subject: PermissionAsked | Question) -> bool | str | None:
        """Return the observer's answer, or None as soon as the turn is cancelled or over."""
        if self.was_cancelled or self._is_over:
            return None
        answer: asyncio.Future[bool | str | None] = self._loop.create_future()
        self._asks.add(answer)
        self._put(Ask(subject, answer))
        try:
            return await answer
        finally:
            self._asks.discard(answer)

    def cancel(self) -> None:
        """Answer every open question with None."""
        self.was_cancelled = True
        for answer in list(self._asks):
            if not answer.done():
                answer.set_result(None)

    def finish(self) -> None:
        """Take no more; the thread ends when it has delivered what is queued."""
        for answer in list(self._asks):
            if not answer.done():
                answer.set_result(None)
        if self._stderr_dropped:
            self._put(AgentUpdate(kind="stderr", text=f"({self._stderr_dropped} more bytes on stderr were not kept)\n"))
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def _put(self, report: AgentUpdate | Ask) -> None:
        with self._changed:
            if self._is_over:
                return
            self._reports.append(report)
            self._bytes += size_of(report)
            if len(self._reports) >= BACKLOG_REPORTS or self._bytes >= BACKLOG_BYTES:
                self._space.clear()
            self._changed.notify_all()

    def _remember(self, text: str, *, apart: bool) -> str:
        if apart and not self._message[-1].endswith("\n"):
            text = "\n" + text
        self._message.append(text)
        self._message_characters += len(text)
        while self._message_characters - len(self._message[0]) >= MESSAGE_CHARACTERS:
            self._message_characters -= len(self._message.popleft())
        return text

    # On the caller's thread

    def message(self) -> str:
        """Return what the agent said in the turn, the end of it if it was much."""
        return "".join(self._message)[-MESSAGE_CHARACTERS:]

    def wait(self) -> None:
        """Return when the observer has everything, or blocks on a question that nobody waits for any more."""
        with self._changed:
            self._changed.wait_for(self._may_be_left)
            self._reports.clear()

    def _may_be_left(self) -> bool:
        return self._is_over and (not self._thread.is_alive() or self._is_done or self._is_blocked_on is not None)

    # On the turn's own thread

    def _deliver(self) -> None:
        try:
            while (report := self._take()) is not None:
                self._hand_over(report)
        except BaseException as error:  # noqa: BLE001 -- kept, and raised again in the caller's thread
            self.failure = error
            with self._changed:
                self._reports.clear()
                self._is_over = True
        finally:
            with self._changed:
                self._is_done = True
                self._changed.notify_all()
            self._call(self._space.set)
            if self.failure is not None:
                self._call(self.failed)

    def _take(self) -> AgentUpdate | Ask | None:
        with self._changed:
            self._changed.wait_for(lambda: self._reports or self._is_over)
            if not self._reports:
                return None
            report = self._reports.popleft()
            self._bytes -= size_of(report)
            caught_up = len(self._reports) < BACKLOG_REPORTS // 2 and self._bytes < BACKLOG_BYTES // 2
            if caught_up and not self._space.is_set():
                self._call(self._space.set)
            return report

    def _hand_over(self, report: AgentUpdate | Ask) -> None:
        if isinstance(report, AgentUpdate):
            self._observer.update(report)
            return
        if report.answer.done():
            return  # cancelled before anybody was asked
        with self._changed:
            self._is_blocked_on = report
            self._changed.notify_all()
        try:
            subject = report.subject
            if isinstance(subject, PermissionAsked):
                answer = self._observer.permission(subject)
            else:
                answer = self._observer.question(subject.request_id, subject.text)
        finally:
            with self._changed:
                self._is_blocked_on = None
        self._call(lambda: None if report.answer.done() else report.answer.set_result(answer))

    def _call(self, function: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(function)
        except RuntimeError:
            pass  # the loop is closed: nobody waits for the answer


def size_of(report: AgentUpdate | Ask) -> int:
    """Return roughly what a report holds in memory."""
    if not isinstance(report, AgentUpdate):
        return 1024
    listed = [at.path for at in report.locations] + [step.content for step in report.plan]
    listed += [words for diff in report.diffs for words in (diff.path, diff.old or "", diff.new)]
    return len(report.text) + len(report.title) + sum(len(words) for words in listed)
