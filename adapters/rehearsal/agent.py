"""
The rehearsal agent: a real ACP agent on standard input and output that needs no model.

It does what the last fenced block `rehearsal` of a prompt says (rehearsal_script.py), keeps its sessions on disk as
real agents do, and after a kill -9 goes on exactly where it was. Only the standard library: it starts at once.
"""

import argparse
import json
import os
import queue
import signal
import sys
import threading
import uuid
from pathlib import Path
from typing import Any, cast

from .script import ScriptInvalid, own_steps, steps_of, turn_of
from .sessions import StoredSession, TurnProgress
from .steps import Cancelled, Performer, TurnFailed, TurnIsOver

INVALID_PARAMS = -32602
METHOD_NOT_FOUND = -32601
RESOURCE_NOT_FOUND = -32002
INTERNAL_ERROR = -32603


class RequestFailed(Exception):
    """A request is answered with an error."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class AcpClient:
    """The other side: whole JSON-RPC messages, from any thread."""

    def __init__(self, output: int) -> None:
        self._output = output
        self._lock = threading.Lock()
        self._number = 0
        self._answers: dict[int, queue.SimpleQueue[dict[str, Any]]] = {}
        self.can_be_asked = False

    def send(self, **message: Any) -> None:
        """Write one message; it is whole on the pipe on return."""
        data = json.dumps({"jsonrpc": "2.0", **message}, ensure_ascii=False).encode() + b"\n"
        with self._lock:
            while data:
                data = data[os.write(self._output, data) :]

    def update(self, session_id: str, **update: Any) -> None:
        """Report something that happens in a session."""
        self.send(method="session/update", params={"sessionId": session_id, "update": update})

    def request(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Return the client's answer, or an empty one if it refused."""
        answer: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        with self._lock:
            self._number += 1
            number = self._number
            self._answers[number] = answer
        self.send(id=number, method=method, params=params)
        return answer.get()

    def take_answer(self, message: dict[str, Any]) -> None:
        """Give an answer to the thread that waits for it."""
        answer = self._answers.pop(message["id"], None)
        if answer is not None:
            answer.put(cast("dict[str, Any]", message.get("result") or {}))


class SessionVoice:
    """How the steps of one session speak to the client (rehearsal_steps.Voice)."""

    def __init__(self, client: AcpClient, session_id: str, agent: "RehearsalAgent") -> None:
        self._client = client
        self._session_id = session_id
        self._agent = agent
        self._tokens = 0
        self.cancelled = threading.Event()

    def say(self, text: str) -> None:
        content, message_id = {"type": "text", "text": text}, uuid.uuid4().hex
        self._client.update(
            self._session_id, sessionUpdate="agent_message_chunk", content=content, messageId=message_id
        )

    def usage(self, tokens_in: int, tokens_out: int, cost: float | None, currency: str) -> None:
        self._tokens += tokens_in + tokens_out
        meta = {"inputTokens": tokens_in, "outputTokens": tokens_out}
        # What the session has cost by now, as the protocol has it.
        costs = {} if cost is None else {"cost": {"amount": cost, "currency": currency}}
        self._client.update(
            self._session_id, sessionUpdate="usage_update", used=self._tokens, size=200_000, _meta=meta, **costs
        )

    def plan(self, steps: list[dict[str, str]]) -> None:
        entries = [{"priority": "medium", "status": "pending"} | step for step in steps]
        self._client.update(self._session_id, sessionUpdate="plan", entries=entries)

    def begin_tool(self, name: str, tool_input: object, kind: str) -> str:
        call_id = f"call-{uuid.uuid4().hex}"
        call = {"toolCallId": call_id, "title": name, "kind": kind, "status": "pending", "rawInput": tool_input}
        self._client.update(self._session_id, sessionUpdate="tool_call", **call)
        return call_id

    def say_of_tool(self, call_id: str, tool_input: object, files: list[str]) -> None:
        locations = [{"path": path} for path in files]
        update = {"toolCallId": call_id, "status": "in_progress", "rawInput": tool_input, "locations": locations}
        self._client.update(self._session_id, sessionUpdate="tool_call_update", **update)

    def end_tool(self, call_id: str, text: str, *, failed: bool, diff: dict[str, str] | None = None) -> None:
        content: list[object] = [{"type": "content", "content": {"type": "text", "text": text}}]
        if diff is not None:
            content.append(
                {"type": "diff", "path": diff["path"], "oldText": diff.get("old"), "newText": diff.get("new", "")}
            )
        status = "failed" if failed else "completed"
        update = {"toolCallId": call_id, "status": status, "content": content}
        self._client.update(self._session_id, sessionUpdate="tool_call_update", **update)

    def may(self, call_id: str, name: str, tool_input: object) -> bool:
        options = [
            {"optionId": "allow", "name": "Allow", "kind": "allow_once"},
            {"optionId": "reject", "name": "Reject", "kind": "reject_once"},
        ]
        call = {"toolCallId": call_id, "title": name, "rawInput": tool_input}
        params = {"sessionId": self._session_id, "toolCall": call, "options": options}
        return self._client.request("session/request_permission", params).get("outcome", {}).get("optionId") == "allow"

    def ask(self, question: str) -> str | None:
        if not self._client.can_be_asked:
            return None
        schema = {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]}
        params = {"sessionId": self._session_id, "mode": "form", "message": question, "requestedSchema": schema}
        answer = self._client.request("elicitation/create", params)
        return str(answer["content"]["answer"]) if answer.get("action") == "accept" else None

    def ignore_end(self) -> None:
        self._agent.ignores_end = True


class OpenSession:
    """A session of this process: its stored state, where it works, and the voice of its turn, if one is under way."""

    def __init__(self, stored: StoredSession, cwd: Path) -> None:
        self.stored = stored
        self.cwd = cwd
        self.turn: SessionVoice | None = None


class RehearsalAgent:
    """The agent: the main thread takes messages, each turn has a thread of its own."""

    def __init__(self, home: Path, client: AcpClient) -> None:
        self._home = home
        self._client = client
        self._sessions: dict[str, OpenSession] = {}
        self.ignores_end = False

    def take(self, message: dict[str, Any]) -> None:
        """Obey one message; a turn goes on after the return."""
        if "method" not in message:
            self._client.take_answer(message)
            return
        params = cast("dict[str, Any]", message.get("params") or {})
        try:
            result = self._dispatch(message["method"], params, message.get("id"))
        except RequestFailed as error:
            if "id" in message:
                self._client.send(id=message["id"], error={"code": error.code, "message": str(error)})
            return
        if result is not None and "id" in message:
            self._client.send(id=message["id"], result=result)

    def _dispatch(self, method: str, params: dict[str, Any], number: object) -> dict[str, Any] | None:
        match method:
            case "initialize":
                return self._initialize(params)
            case "session/new":
                return self._new(Path(params["cwd"]))
            case "session/load":
                return self._load(params["sessionId"], Path(params["cwd"]))
            case "session/list":
                return {"sessions": StoredSession.those_in(self._home, params.get("cwd"))}
            case "session/prompt":
                self._begin_turn(self._session(params["sessionId"]), params["prompt"], number)
                return None
            case "session/cancel":
                if (session := self._sessions.get(params["sessionId"])) and session.turn:
                    session.turn.cancelled.set()
                return None
            case _:
                raise RequestFailed(METHOD_NOT_FOUND, f"{method} is not known")

    def _initialize(self, params: dict[str, Any]) -> dict[str, Any]:
        capabilities: dict[str, Any] = params.get("clientCapabilities") or {}
        self._client.can_be_asked = "form" in (capabilities.get("elicitation") or {})
        return {
            "protocolVersion": 1,
            "agentCapabilities": {
                "loadSession": True,
                "sessionCapabilities": {"list": {}},
                "_meta": {"elicitation": True},
            },
            "agentInfo": {"name": "rehearsal", "version": "1"},
            "authMethods": [],
        }

    def _new(self, cwd: Path) -> dict[str, Any]:
        stored = StoredSession.create(self._home, cwd)
        self._sessions[stored.session_id] = OpenSession(stored, cwd)
        return {"sessionId": stored.session_id}

    def _load(self, session_id: str, cwd: Path) -> dict[str, Any]:
        stored = StoredSession.load(self._home, session_id)
        if stored is None:
            raise RequestFailed(RESOURCE_NOT_FOUND, f"there is no session {session_id}")
        self._sessions[session_id] = OpenSession(stored, cwd)
        for number, (speaker, text) in enumerate(stored.history()):
            kind = "user_message_chunk" if speaker == "user" else "agent_message_chunk"
            content = {"type": "text", "text": text}
            self._client.update(session_id, sessionUpdate=kind, content=content, messageId=str(number))
        return {}

    def _session(self, session_id: str) -> OpenSession:
        session = self._sessions.get(session_id)
        if session is None:
            raise RequestFailed(RESOURCE_NOT_FOUND, f"the session {session_id} is not open")
        if session.turn is not None:
            raise RequestFailed(INVALID_PARAMS, "the session's turn has not ended")
        return session

    def _begin_turn(self, session: OpenSession, prompt: list[dict[str, Any]], number: object) -> None:
        text = "\n".join(str(block.get("text", "")) for block in prompt if block.get("type") == "text")
        session.turn = SessionVoice(self._client, session.stored.session_id, self)
        threading.Thread(target=self._turn, args=(session, session.turn, text, number), daemon=True).start()

    def _turn(self, session: OpenSession, voice: SessionVoice, text: str, number: object) -> None:
        answer: dict[str, Any]
        try:
            performer = Performer(session.stored, session.cwd, voice)
            if open_turn(session.stored, text):
                performer.perform()
            else:
                performer.repeat_answers()
            answer = {"result": {"stopReason": "end_turn"}}
        except Cancelled:
            answer = {"result": {"stopReason": "cancelled"}}
        except TurnIsOver as ended:
            answer = {"result": {"stopReason": str(ended)}}
        except (TurnFailed, ScriptInvalid) as error:
            answer = {"error": {"code": INTERNAL_ERROR, "message": str(error)}}
        except Exception as error:  # noqa: BLE001 -- told to the client: a turn that never ends helps nobody
            answer = {"error": {"code": INTERNAL_ERROR, "message": f"{type(error).__name__}: {error}"}}
        session.turn = None  # before the answer: the client may prompt again as soon as it has it
        self._client.send(id=number, **answer)


def open_turn(session: StoredSession, prompt: str) -> bool:
    """
    Decide what a prompt means, and record it. False if its turn was done to the end before.

    The same turn again goes on where it was, whatever the prompt repeats; so does a prompt without steps while
    some are left. Anything else begins anew.
    """
    turn_id = turn_of(prompt)
    progress = session.progress
    is_same_turn = bool(turn_id) and turn_id == progress.turn_id
    steps = None if is_same_turn else steps_of(prompt)
    if not is_same_turn and (steps is not None or not progress.is_open):
        session.progress = TurnProgress(
            turn_id=turn_id, prompt=prompt, steps=steps if steps is not None else own_steps(prompt)
        )
    elif progress.is_open and not is_same_turn:
        # A continuation of the same turn is no new prompt of it: what was asked first is what the turn is about.
        progress.turn_id, progress.prompt = turn_id or progress.turn_id, prompt
    # If we die between these two lines the history lacks a prompt whose steps are known: it comes again, with
    # the same turn id, and goes on. The other way round its steps would be taken for done.
    session.save()
    session.add_history("user", prompt)
    return session.progress.is_open or not is_same_turn


def main(arguments: list[str] | None = None) -> int:
    """Serve one client on standard input and output until it closes the input."""
    parser = argparse.ArgumentParser(prog="rehearsal-agent", description="An ACP agent that needs no model.")
    own = Path.home() / ".steersman" / "rehearsal"
    parser.add_argument("--home", type=Path, default=own, help="where the sessions are kept")
    home: Path = parser.parse_args(arguments).home
    home.mkdir(parents=True, exist_ok=True)
    # What a step or a library prints must not end up between the protocol's messages.
    output = os.dup(1)
    os.dup2(2, 1)
    agent = RehearsalAgent(home, AcpClient(output))
    signal.signal(signal.SIGTERM, lambda _number, _frame: None if agent.ignores_end else os._exit(0))
    for line in sys.stdin.buffer:
        agent.take(json.loads(line))
    while agent.ignores_end:
        signal.pause()
    return 0


if __name__ == "__main__":
    sys.exit(main())
