"""What the tests of agents share: real processes, an observer that remembers, and waiting on conditions."""

import json
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from steersman.adapters.processes.family import look, read_process
from steersman.application.ports.agents import AgentUpdate, PermissionAsked

#: Far beyond what anything here takes: who waits that long has found a fault.
PATIENCE_SECONDS = 120.0
#: Appends a line each 100 ms for ever; the pid, so that the test knows whom to look for.
WRITER = """
import os, sys, time
while True:
    with open(sys.argv[1], "a") as file:
        file.write(f"{os.getpid()}\\n")
    time.sleep(0.1)
"""


def wait_until(condition: Callable[[], Any], what: str) -> Any:
    """Return the condition's first true value; fail if there is none in a long time."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.01)
    raise AssertionError(f"waited in vain until {what}")


def is_alive(pid: int) -> bool:
    """Whether the process exists and is more than a zombie."""
    process = read_process(f"/proc/{pid}/stat")
    return process is not None and not process.is_dead


def outside(pid: int, directory: Path) -> int:
    """Return the pid out here of a process that works in a directory and calls itself *pid*, maybe in a box."""

    def found() -> int:
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                if entry.name.isdigit() and (entry / "cwd").readlink() == directory:
                    names = (entry / "status").read_text().partition("NSpid:")[2].split("\n")[0].split()
                    if int(names[-1]) == pid:
                        return int(entry.name)
        return 0

    return wait_until(found, f"a process in {directory} is {pid}")


def state_of(pid: int) -> str:
    process = read_process(f"/proc/{pid}/stat")
    return process.state if process else "gone"


def family_of(pid: int) -> set[int]:
    """Return the pids of everything under a process that is alive."""
    return {member.pid for member in look(pid).alive}


def size_of(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def script(*steps: Mapping[str, Any], turn: str = "", text: str = "Do this.") -> str:
    """Return a prompt that the rehearsal agent obeys."""
    named = f"\nSteersman-Turn: {turn}\n" if turn else "\n"
    return f"{text}{named}\n```rehearsal\n{json.dumps(steps)}\n```\n"


def agents_toml(directory: Path, **agents: Sequence[str] | Mapping[str, Any]) -> Path:
    """Write an agents.toml in which each agent is a command, or a table."""
    lines: list[str] = []
    for name, agent in agents.items():
        table = agent if isinstance(agent, Mapping) else {"command": list(agent)}
        lines.append(f"[agents.{name}]")
        lines += [f"{key} = {toml_of(value)}" for key, value in table.items()]
    path = directory / "agents.toml"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def toml_of(value: Any) -> str:
    """Return a value as TOML writes it on one line."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{k} = {toml_of(v)}" for k, v in cast("dict[str, Any]", value).items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml_of, cast("list[Any]", value))) + "]"
    return json.dumps(value)


def python_agent(body: str) -> list[str]:
    """Return the command of an agent that is a few lines of Python. `recv` and `send` speak JSON lines."""
    prelude = (
        "import json, os, signal, sys, time\n"
        "def recv():\n"
        "    line = sys.stdin.readline()\n"
        "    return json.loads(line) if line else sys.exit(0)\n"
        "def send(**message):\n"
        "    print(json.dumps({'jsonrpc': '2.0', **message}), flush=True)\n"
        "def hello(**capabilities):\n"
        "    send(id=recv()['id'], result={'protocolVersion': 1, 'agentCapabilities': capabilities})\n"
        "def new():\n"
        "    send(id=recv()['id'], result={'sessionId': 's1'})\n"
        "def say(text):\n"
        "    send(method='session/update', params={'sessionId': 's1', 'update': {\n"
        "        'sessionUpdate': 'agent_message_chunk', 'content': {'type': 'text', 'text': text}}})\n"
    )
    return [sys.executable, "-I", "-S", "-c", prelude + body]


class Recorder:
    """An observer that remembers everything, allows what it is told to, and can be made slow or deaf."""

    def __init__(self, *, allows: bool = True, answer: str | None = "forty-two") -> None:
        self.updates: list[AgentUpdate] = []
        self.asked: list[PermissionAsked] = []
        self.questions: list[str] = []
        self.threads: set[int] = set()
        self.allows = allows
        self.answer = answer
        #: Set when the observer may go on; cleared, it blocks on what it is asked.
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.is_asked = threading.Event()

    def update(self, update: AgentUpdate) -> None:
        self.threads.add(threading.get_ident())
        self.updates.append(update)

    def permission(self, asked: PermissionAsked) -> bool:
        self.threads.add(threading.get_ident())
        self.asked.append(asked)
        self.is_asked.set()
        self.may_answer.wait(PATIENCE_SECONDS)
        return self.allows

    def question(self, request_id: str, question: str) -> str | None:
        self.threads.add(threading.get_ident())
        self.questions.append(question)
        self.is_asked.set()
        self.may_answer.wait(PATIENCE_SECONDS)
        return self.answer

    def of(self, kind: str) -> list[AgentUpdate]:
        """Return the reports of one kind."""
        return [update for update in self.updates if update.kind == kind]


class InBackground:
    """A call on a thread of its own, whose outcome can be asked for."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self._result: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._result = self._call()
        except BaseException as error:  # noqa: BLE001 -- raised again in `result`
            self._error = error

    def runs_on(self, seconds: float) -> bool:
        """Wait for the call's end, that long at most; True if it has not come."""
        self._thread.join(seconds)
        return self._thread.is_alive()

    def result(self) -> Any:
        """Return what the call returned, or raise what it raised."""
        self._thread.join(PATIENCE_SECONDS)
        assert not self._thread.is_alive(), "the call never ended"
        if self._error is not None:
            raise self._error
        return self._result
