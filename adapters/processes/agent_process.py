"""The service's end of a keeper: start an agent under one, command it, and know when the agent is gone."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, cast

import msgspec

from ...application.ports.agents import AgentFailed

KEEPER = "steersman.adapters.processes.agent_keeper"
#: One JSON line of an agent. A longer one breaks the protocol, and is never held in memory as a whole.
MAX_LINE_BYTES = 8 * 1024 * 1024
#: What is kept of an agent's last words on stderr.
STDERR_TAIL_BYTES = 16 * 1024
LAST_WORDS_LINES = 5
LAST_WORDS_BYTES = 2 * 1024
STATUS_LINE_BYTES = 4 * 1024 * 1024
#: Stopping and killing take milliseconds; a process that hangs in the kernel can make them long.
COMMAND_SECONDS = 60.0


#: How a program of ours ends that could not become the agent, and how its words begin.
NOT_STARTED = 126
OUR_WORDS = "steersman: "
#: A box ends with this and the signal's number when a signal ended the command.
BY_SIGNAL = 128


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a keeper needs to start an agent. `argv` begins with an absolute path."""

    argv: Sequence[str]
    cwd: Path
    env: Mapping[str, str]
    #: Whether a box tells how the agent ended.
    is_boxed: bool = False


class AgentProcess:
    """One agent under its keeper. Used on the event loop's thread only, but for `start` and `wait`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, popen: "subprocess.Popen[bytes]", control: int) -> None:
        self._loop = loop
        self._popen = popen
        self._control = control
        self._number = 0
        self._is_boxed = False
        self._commands: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._transports: list[asyncio.BaseTransport] = []
        self._tail = b""
        #: Done with the exit code when the agent's own process has ended (None: unknown, its keeper was killed).
        self.exited: asyncio.Future[int | None] = loop.create_future()
        self.started: asyncio.Future[None] = loop.create_future()
        self.stderr_ended = asyncio.Event()
        self.on_stderr: Callable[[bytes], None] = lambda _: None
        self.stdin: asyncio.StreamWriter
        self.stdout: asyncio.StreamReader

    @classmethod
    async def start(cls, launch: Launch, until: float | None, held: Sequence[int] = ()) -> "AgentProcess":
        """
        Return once the agent's program runs; its keeper holds the descriptors *held* open for as long as it lives.

        Raises AgentFailed (agent_not_installed) if it cannot be started.
        """
        popen, ours = await _keeper_of_its_own(launch.env, held)
        process = cls(asyncio.get_running_loop(), popen, ours["control"])
        process._is_boxed = launch.is_boxed
        try:
            await process._attach(ours)
        except BaseException:
            # Without its control pipe the keeper ends; it has no agent yet.
            process._close_control()
            await asyncio.to_thread(popen.wait)
            raise
        try:
            process.extend(until)
            start = {"do": "start", "path": launch.argv[0], "argv": list(launch.argv), "cwd": str(launch.cwd)}
            process._send(start, launch.env)
            await process.started
        except BaseException:
            await process.end()
            raise
        return process

    async def _attach(self, ours: Mapping[str, int]) -> None:
        """On return our ends of the pipes are read and written; on failure they are closed, all but the control pipe."""
        with contextlib.ExitStack() as undo:
            modes = {"stdin": "wb", "stdout": "rb", "stderr": "rb", "status": "rb"}
            files = {name: undo.enter_context(os.fdopen(ours[name], mode, 0)) for name, mode in modes.items()}
            self.stdout = await self._reader(files["stdout"], MAX_LINE_BYTES, undo)
            stderr = await self._reader(files["stderr"], 64 * 1024, undo)
            status = await self._reader(files["status"], STATUS_LINE_BYTES, undo)
            # A reader's protocol is what the standard library has for a writer's flow control, too.
            protocol = asyncio.StreamReaderProtocol(asyncio.StreamReader(loop=self._loop), loop=self._loop)
            transport, _ = await self._loop.connect_write_pipe(lambda: protocol, files["stdin"])
            self.stdin = asyncio.StreamWriter(transport, protocol, None, self._loop)
            self._transports.append(transport)
            # From here on they are the transports' own.
            undo.pop_all()
        self._tasks = [
            self._loop.create_task(self._read_stderr(stderr)),
            self._loop.create_task(self._read_status(status)),
        ]

    async def _reader(self, file: IO[bytes], limit: int, undo: contextlib.ExitStack) -> asyncio.StreamReader:
        reader = asyncio.StreamReader(limit, self._loop)
        transport, _ = await self._loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader, loop=self._loop), file
        )
        undo.callback(transport.close)
        self._transports.append(transport)
        return reader

    async def _read_stderr(self, stderr: asyncio.StreamReader) -> None:
        # Always read, never waited for: a flood of words neither blocks the agent nor stays in memory.
        while chunk := await stderr.read(64 * 1024):
            self.hear(chunk)
            self.on_stderr(chunk)
        self.stderr_ended.set()

    async def _read_status(self, status: asyncio.StreamReader) -> None:
        while line := await status.readline():
            report = cast("dict[str, Any]", json.loads(line))
            match report:
                case {"event": "started"}:
                    self.started.set_result(None)
                case {"event": "not_started", "message": message}:
                    self.started.set_exception(not_started(str(message)))
                case {"event": "exited", "code": int(code)} if not self.exited.done():
                    is_signal = self._is_boxed and BY_SIGNAL < code <= BY_SIGNAL + signal.NSIG
                    self.exited.set_result(BY_SIGNAL - code if is_signal else code)
                case {"id": int(number)} if number in self._commands:
                    command = self._commands.pop(number)
                    if not command.done():
                        command.set_result(report)
                case _:
                    pass
        self._keeper_ended()

    def _keeper_ended(self) -> None:
        """The status pipe is closed: both halves of the keeper are gone, and all that they kept."""
        if not self.exited.done():
            self.exited.set_result(None)
        if not self.started.done():
            self.started.set_exception(AgentFailed("agent_exited", "the keeper ended before the agent", retryable=True))
        for command in self._commands.values():
            if not command.done():
                command.set_result({"pids": [], "gone": True})
        self._commands.clear()

    def hear(self, words: bytes) -> None:
        """Keep words of the agent for `last_words`: no more than a tail of them."""
        self._tail = (self._tail + words)[-STDERR_TAIL_BYTES:]

    def last_words(self) -> str:
        """Return the last lines that the agent wrote for no program to read."""
        text = self._tail[-LAST_WORDS_BYTES:].decode(errors="replace")
        return "\n".join(text.strip().splitlines()[-LAST_WORDS_LINES:])

    def extend(self, until: float | None) -> None:
        """
        Let the keeper kill everything at that moment, unless it is extended again; None: never.

        The moment is on the monotonic clock, which all processes of a machine share: an order that is late, because
        we were stopped before we gave it, gives the agent no more time than it was meant to.
        """
        self._send({"do": "extend", "until": until})

    async def command(self, verb: str) -> list[int]:
        """
        Stop, continue or kill every process of the agent; return the pids that had to be touched.

        Raises AgentFailed (agent_processes_unruly) if some cannot be signalled, or the time is over.
        """
        if self._tasks[1].done():
            return []
        if self._control < 0:
            # It is being ended already, and may take no more commands: nothing is left of it after that.
            await self.end()
            return []
        self._number += 1
        report = self._commands[self._number] = self._loop.create_future()
        self._send({"id": self._number, "do": verb})
        try:
            answer = await asyncio.wait_for(report, COMMAND_SECONDS)
        except TimeoutError:
            raise AgentFailed(
                "agent_processes_unruly", f"{verb} took more than {COMMAND_SECONDS} s", retryable=True
            ) from None
        if trouble := answer.get("refused") or answer.get("failed"):
            raise AgentFailed("agent_processes_unruly", f"{verb}: {trouble}", retryable=True)
        return [int(pid) for pid in answer["pids"]]

    async def end(self) -> None:
        """
        Close the control pipe, upon which the keeper kills everything and ends. On return nothing is alive.

        Raises AgentFailed (agent_processes_unruly) if that takes too long. It goes on all the same, and again is no fault.
        """
        self._close_control()
        self.stdin.close()
        await asyncio.wait({self._tasks[1]}, timeout=COMMAND_SECONDS)
        if not self._tasks[1].done():
            raise AgentFailed("agent_processes_unruly", f"killing took more than {COMMAND_SECONDS} s", retryable=True)
        self._tasks[0].cancel()  # a process out of our reach may hold stderr open
        with contextlib.suppress(asyncio.CancelledError):
            await self._tasks[0]
        for transport in self._transports:
            transport.close()
        await asyncio.sleep(0)  # transports close their files in the next round of the loop
        await asyncio.to_thread(self._popen.wait)

    def when_ended(self, call: Callable[[], object]) -> None:
        """Call that on the loop once nothing of the keeper is left."""
        self._tasks[1].add_done_callback(lambda _: call())

    def _close_control(self) -> None:
        if self._control >= 0:
            os.close(self._control)
            self._control = -1

    def _send(self, command: dict[str, Any], env: Mapping[str, str] | None = None) -> None:
        line = json.dumps(command if env is None else {**command, "env": dict(env)}) + "\n"
        # A broken pipe: the keeper is gone, and the end of its status pipe says so to everybody who waits.
        with contextlib.suppress(BrokenPipeError):
            data = line.encode()
            while self._control >= 0 and data:
                data = data[os.write(self._control, data) :]


async def _keeper_of_its_own(
    env: Mapping[str, str], held: Sequence[int]
) -> "tuple[subprocess.Popen[bytes], dict[str, int]]":
    """Start a keeper. Whoever is cancelled meanwhile waits until there is one, and ends it: else nobody would."""
    starting = asyncio.ensure_future(asyncio.to_thread(start_keeper, env, held))
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        popen, ours = await starting
        for descriptor in ours.values():
            os.close(descriptor)
        await asyncio.to_thread(popen.wait)
        raise


def start_keeper(env: Mapping[str, str], held: Sequence[int] = ()) -> "tuple[subprocess.Popen[bytes], dict[str, int]]":
    """Start a keeper that has no agent yet; return it and our ends of its pipes, by name."""
    ours: dict[str, int] = {}
    theirs: dict[str, int] = {}
    with contextlib.ExitStack() as undo, contextlib.ExitStack() as done:
        for name in ("stdin", "stdout", "stderr", "control", "status"):
            reading, writing = os.pipe()
            ours[name], theirs[name] = (writing, reading) if name in ("stdin", "control") else (reading, writing)
            undo.callback(os.close, ours[name])
            done.callback(os.close, theirs[name])
        popen = subprocess.Popen(
            # -I: nothing in the environment or the working directory may put other modules in its way.
            [sys.executable, "-I", "-m", KEEPER, *map(str, (theirs["control"], theirs["status"], *held))],
            stdin=theirs["stdin"],
            stdout=theirs["stdout"],
            stderr=theirs["stderr"],
            pass_fds=(theirs["control"], theirs["status"], *held),
            env=dict(env),  # the agent's, not ours: whoever may read the keeper's finds no secret there
            cwd="/",
            start_new_session=True,
        )
        undo.pop_all()
    return popen, ours


def not_started(message: str) -> AgentFailed:
    """Return the failure for what the keeper said when it could not start the agent."""
    if message.startswith("cwd: "):
        return AgentFailed("agent_exited", f"the working directory cannot be entered: {message[5:]}", retryable=True)
    return AgentFailed("agent_not_installed", message.removeprefix("exec: "), retryable=False)
