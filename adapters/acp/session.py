"""One agent and its open session: what the port promises, spoken in the Agent Client Protocol."""

import asyncio
import concurrent.futures
import uuid
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from acp import RequestError
from acp.connection import Connection
from acp.schema import (
    CreateFormSessionElicitationRequest,
    PromptResponse,
    RequestPermissionRequest,
    ToolCallProgress,
    ToolCallStart,
)
from pydantic import ValidationError

from ...application.ports.agents import AgentFailed, SessionRequest, TurnEnd, TurnObserver
from ...domain.redaction.personal_data import without_homes
from ..processes.agent_process import NOT_STARTED, OUR_WORDS, AgentProcess
from .opening import SessionOpening
from .transport import StdioTransport
from .turn import Question, TurnReports
from .updates import (
    KnownCall,
    answer_content,
    history_text,
    message_id,
    option_for,
    permission_of,
    question_text,
    read_update,
    report_of,
    usage_of_answer,
    what_is_new,
)

T = TypeVar("T")

#: What is kept of a loaded session's words: their end, where the latest turns are.
HISTORY_CHARACTERS = 16 * 1024 * 1024
#: A dead agent's last messages may still be in the pipe.
LAST_MESSAGES_SECONDS = 1.0
#: What an agent gets to end by itself once its standard input is closed.
CLOSE_SECONDS = 2.0
#: Tool calls whose beginning is remembered, for the permission that may be asked for them.
REMEMBERED_CALLS = 256


class AcpSession:
    """
    An `AgentSession`. Its public methods may be called from any thread but the loop's.

    Whatever ends the agent (its own exit, a broken protocol, a kill) is kept as `_failure`: the call that waits
    gets it, and every later one.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, process: AgentProcess, request: SessionRequest) -> None:
        self._loop = loop
        self._process = process
        self._request = request
        self._transport = StdioTransport(process.stdout, process.stdin, self._may_read, self._take_stray)
        self._connection = Connection(self._handle, self._transport)
        self._failure: asyncio.Future[AgentFailed] = loop.create_future()
        self._turn: TurnReports | None = None
        self._session_id = request.session_id or ""
        self._capabilities: tuple[str, ...] = ()
        self._history: deque[str] = deque()
        self._history_characters = 0
        self._is_loading = False
        self._last_heard: object = None
        self._is_stopped = False
        self._shutting: asyncio.Task[None] | None = None
        #: Nothing of the agent is left, and the loop may be gone as well: nothing more is asked of it.
        self._is_shut = False
        self._calls: dict[str, KnownCall] = {}
        #: Called on the loop once nothing of the agent is left.
        self.on_closed: Callable[[], None] = lambda: None
        process.on_stderr = self._take_stderr
        self._watcher = loop.create_task(self._watch())

    # The port, on any thread

    @property
    def session_id(self) -> str:
        return self._session_id

    @property
    def capabilities(self) -> tuple[str, ...]:
        return self._capabilities

    @property
    def history(self) -> str:
        return "".join(self._history)[-HISTORY_CHARACTERS:]

    def prompt(self, text: str, observer: TurnObserver) -> TurnEnd:
        """Run one turn to its end; what the observer raises ends the turn and is raised again."""
        if self._is_shut:
            raise AgentFailed("agent_exited", "the session is closed", retryable=True)
        turn = TurnReports(self._loop, observer, f"turn of {self._request.run_id}")
        try:
            stop_reason = self._call(self._run_turn(turn, text))
        except AgentFailed:
            turn.finish()
            raise
        finally:
            turn.wait()
        if turn.failure is not None:
            raise turn.failure
        return TurnEnd(stop_reason=stop_reason, message=turn.message())

    def cancel(self) -> None:
        if not self._is_shut:
            self._schedule(self._cancel())

    def stop_processes(self) -> None:
        self._is_stopped = True
        if not self._is_shut:
            self._call(self._process.command("stop"))

    def continue_processes(self) -> None:
        if not self._is_shut:
            self._call(self._process.command("continue"))
        self._is_stopped = False

    def kill(self) -> Sequence[int]:
        return [] if self._is_shut else self._call(self._kill())

    def close(self) -> None:
        if not self._is_shut:
            self._call(self.shut())

    # On the loop's thread

    async def open(self, deadline: float, model: str | None, login: str | None = None) -> None:
        """
        Say hello, log in where a way is named, open or load the session and choose the model, all before the deadline.
        Raises AgentFailed.
        """
        opening = self._opening(deadline)
        self._capabilities = await opening.say_hello()
        if login is not None:
            await opening.log_in(login)
        if self._request.session_id is None:
            self._session_id = await opening.begin()
        else:
            self._is_loading = True
            await opening.load(self._request.session_id)
            self._is_loading = False
        if model is not None:
            await opening.choose_model(model)

    def end_for(self, failure: AgentFailed) -> None:
        """Let whoever waits for the agent have this failure, and kill it."""
        self._fail(failure)
        self._begin_to_shut()

    def _opening(self, deadline: float) -> SessionOpening:
        async def ask(method: str, params: dict[str, Any]) -> object:
            return await self._ask(method, params, max(0.0, deadline - self._loop.time()))

        return SessionOpening(ask, str(self._request.cwd))

    async def shut(self) -> None:
        """End the agent, gently if it lets us. On return nothing of it is alive. Raises AgentFailed; again is no fault."""
        await asyncio.shield(self._begin_to_shut())

    def _begin_to_shut(self) -> "asyncio.Task[None]":
        before = self._shutting
        if before is None or (before.done() and not before.cancelled() and before.exception() is not None):
            self._shutting = self._loop.create_task(self._shut())
        assert self._shutting is not None
        return self._shutting

    async def _shut(self) -> None:
        if not self._is_stopped and not self._failure.done():
            self._process.stdin.close()
            await asyncio.wait({self._process.exited}, timeout=CLOSE_SECONDS)
        try:
            await self._process.end()
        except AgentFailed:
            # Its keeper goes on with it. Whenever that comes to its end, what is left here is tidied away.
            self._process.when_ended(self._begin_to_shut)
            raise
        await self._watcher
        await self._connection.close()
        self.on_closed()
        self._is_shut = True

    async def _run_turn(self, turn: TurnReports, text: str) -> str:
        if self._turn is not None:
            turn.finish()
            raise AgentFailed("agent_turn_failed", "the session's last turn has not ended", retryable=True)
        self._turn = turn
        request = self._loop.create_task(self._ask_to_prompt(turn, text))
        given_up: asyncio.Future[None] = self._loop.create_future()
        turn.failed = lambda: None if given_up.done() else given_up.set_result(None)
        request.add_done_callback(lambda _: self._end_turn(turn))
        await asyncio.wait({request, given_up}, return_when=asyncio.FIRST_COMPLETED)
        if not request.done():
            # The observer failed. The caller is told at once; the turn stays open until the agent ends it.
            request.add_done_callback(lambda done: done.cancelled() or done.exception())
            await self._cancel()
            return "cancelled"
        try:
            return request.result()
        except AgentFailed as failure:
            # Some agents answer a cancelled turn with an error.
            if turn.was_cancelled and isinstance(failure.__cause__, RequestError):
                return "cancelled"
            raise

    async def _ask_to_prompt(self, turn: TurnReports, text: str) -> str:
        params = {"sessionId": self._session_id, "prompt": [{"type": "text", "text": text}]}
        answer = await self._ask("session/prompt", params, None)
        try:
            response = PromptResponse.model_validate(answer)
        except ValidationError as error:
            raise AgentFailed("agent_protocol_error", f"the turn was answered with {error}", retryable=False) from error
        if response.usage is not None:
            turn.offer(usage_of_answer(response.usage))
        return response.stop_reason

    def _end_turn(self, turn: TurnReports) -> None:
        turn.finish()
        if self._turn is turn:
            self._turn = None

    async def _cancel(self) -> None:
        if self._turn is not None and not self._failure.done():
            self._turn.cancel()
            # One that has hung up cannot be told. Why it did is known in a moment, to whoever waits for its turn.
            with suppress(ConnectionError):
                await self._connection.send_notification("session/cancel", {"sessionId": self._session_id})

    async def _kill(self) -> list[int]:
        pids = await self._process.command("kill")
        self._fail(AgentFailed("agent_exited", "the agent was killed", retryable=True))
        return pids

    async def _ask(self, method: str, params: dict[str, Any], timeout_seconds: float | None) -> object:
        """Return the agent's answer to a request. Raises AgentFailed as soon as there can be none."""
        if self._failure.done():
            raise again(self._failure.result())
        request = self._loop.create_task(self._connection.send_request(method, params))
        await asyncio.wait({request, self._failure}, timeout=timeout_seconds, return_when=asyncio.FIRST_COMPLETED)
        if not request.done():
            request.cancel()
            if self._failure.done():
                raise again(self._failure.result())
            words = self._process.last_words()
            late = f"the agent is not ready in time: {method} took more than {timeout_seconds:.1f} s"
            late += f"; its last words: {words}" if words else ""
            raise AgentFailed("agent_start_timeout", late, retryable=True)
        try:
            return request.result()
        except RequestError as error:
            raise AgentFailed("agent_turn_failed", f"{method}: {error}{told(error.data)}", retryable=True) from error
        except ConnectionError:
            raise again(await self._failure) from None

    async def _handle(self, method: str, params: Any, is_notification: bool) -> object:
        """Take a message that the agent began."""
        try:
            match method:
                case "session/update":
                    self._take_update(params)
                case "session/request_permission":
                    return await self._ask_permission(RequestPermissionRequest.model_validate(params))
                case "elicitation/create":
                    return await self._ask_question(CreateFormSessionElicitationRequest.model_validate(params))
                case _ if not is_notification:
                    raise RequestError.method_not_found(method)
                case _:
                    pass
        except ValidationError as error:
            raise RequestError.invalid_params({"details": str(error)}) from error
        return None

    def _take_update(self, params: object) -> None:
        update = read_update(params)
        if self._is_loading and (words := history_text(update, self._last_heard)):
            self._history.append(words)
            self._history_characters += len(words)
            while self._history_characters - len(self._history[0]) >= HISTORY_CHARACTERS:
                self._history_characters -= len(self._history.popleft())
        self._last_heard = update
        report = report_of(update)
        if self._turn is None:
            return  # between turns an agent may say what it likes: nobody asked
        if isinstance(update, ToolCallProgress) and (known := self._calls.get(update.tool_call_id)) is not None:
            now, told = what_is_new(update, known.report)
            self._calls[update.tool_call_id] = KnownCall(known.name, now)
            if told is not None:
                self._turn.offer(told)
        if report is None:
            return
        if isinstance(update, ToolCallStart):
            self._calls[report.call_id] = KnownCall(report.title, report)
            if len(self._calls) > REMEMBERED_CALLS:
                self._calls.pop(next(iter(self._calls)))
        self._turn.offer(report, message_id(update))

    def _take_stderr(self, chunk: bytes) -> None:
        if self._turn is not None:
            self._turn.offer_stderr(chunk)

    def _take_stray(self, words: bytes) -> None:
        self._process.hear(words)
        self._take_stderr(words)

    async def _ask_permission(self, request: RequestPermissionRequest) -> dict[str, Any]:
        asked = permission_of(request, uuid.uuid4().hex, self._calls)
        answer = await self._turn.ask(asked) if self._turn else None
        option = option_for(request, answer) if isinstance(answer, bool) else None
        if option is None:
            return {"outcome": {"outcome": "cancelled"}}
        return {"outcome": {"outcome": "selected", "optionId": option}}

    async def _ask_question(self, request: CreateFormSessionElicitationRequest) -> dict[str, Any]:
        turn = self._turn
        answer = await turn.ask(Question(request_id=uuid.uuid4().hex, text=question_text(request))) if turn else None
        if isinstance(answer, str):
            return {"action": "accept", "content": answer_content(request, answer)}
        return {"action": "cancel" if turn is None or turn.was_cancelled else "decline"}

    async def _may_read(self) -> None:
        if self._turn is not None:
            await self._turn.may_read()

    async def _watch(self) -> None:
        """Wait for the agent's end, or the end of what it says, and tell those who wait for an answer."""
        ended = self._loop.create_task(self._transport.ended.wait())
        await asyncio.wait({ended, self._process.exited}, return_when=asyncio.FIRST_COMPLETED)
        if not self._process.exited.done() and self._transport.broken is None:
            # It closed its stdout. Nearly always it is about to exit, and its exit code says more.
            await asyncio.wait({self._process.exited}, timeout=LAST_MESSAGES_SECONDS)
        if self._process.exited.done():
            await self._hear_last_messages(ended)
        ended.cancel()
        self._fail(self._why())

    async def _hear_last_messages(self, ended: "asyncio.Task[Any]") -> None:
        heard = -1
        while not ended.done() and (self._transport.is_held_back or heard < self._transport.received):
            heard = self._transport.received
            await asyncio.wait({ended}, timeout=LAST_MESSAGES_SECONDS)
        try:
            await asyncio.wait_for(self._process.stderr_ended.wait(), LAST_MESSAGES_SECONDS)
        except TimeoutError:
            pass  # something that the agent left behind holds its stderr open

    def _why(self) -> AgentFailed:
        if self._transport.broken is not None:
            return AgentFailed("agent_protocol_error", str(self._transport.broken), retryable=False)
        if not self._process.exited.done():
            return AgentFailed("agent_protocol_error", "the agent closed its stdout and lives on", retryable=False)
        words = without_homes(self._process.last_words())
        code = self._process.exited.result()
        if code == NOT_STARTED and (told := words.rpartition(OUR_WORDS)[2]) != words:
            return AgentFailed("agent_not_installed", told, retryable=False)
        message = f"the agent exited with code {code}" if code is not None else "the agent's keeper ended"
        return AgentFailed("agent_exited", message + (f"; its last words: {words}" if words else ""), retryable=True)

    def _fail(self, failure: AgentFailed) -> None:
        if not self._failure.done():
            self._failure.set_result(failure)

    # Between the two

    def _schedule(self, work: Coroutine[Any, Any, T]) -> "concurrent.futures.Future[T]":
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:
            work.close()
            raise AgentFailed("agent_exited", "the service ends", retryable=True) from None

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return self._schedule(work).result()


def again(failure: AgentFailed) -> AgentFailed:
    """Return the same failure, to be raised once more."""
    return AgentFailed(failure.code, str(failure), retryable=failure.retryable)


def told(data: object) -> str:
    """Return what an error carries beyond its message, short enough to be read."""
    return f" ({str(data)[:500]})" if data else ""
