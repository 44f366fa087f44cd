"""Commands of a project's own, such as its build, each under a keeper of its own, so that nothing of them is left behind."""

import asyncio
import os
import shutil
import tempfile
from asyncio import Task
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Any

from ...application.ports.agents import AgentFailed
from ...application.ports.outside import CommandResult
from ..removal import remove_tree
from .agent_process import NOT_STARTED, OUR_WORDS, AgentProcess, Launch
from .agents_file import Surroundings
from .box import Bare, Box
from .surroundings import Surrounded, surrounded

#: What is kept of a command's output: its end, where the reason for a failure stands.
TAIL_BYTES = 64 * 1024
_INHERITED = ("PATH", "LANG", "TZ", "USER")


class KeptCommands:
    """The port `Commands`. Closing it kills what runs."""

    def __init__(self, held: Sequence[int] = (), *, box: Box | None = None, around: Surroundings | None = None) -> None:
        """
        Commands run in the box, without one with all rights of the service; each keeper holds the descriptors *held*
        open while it lives.
        """
        self._held = held
        self._box = box or Bare()
        self._around = around or Surroundings()
        self._lock = Lock()
        #: Each command's task, with the directory that it runs in.
        self._running: dict[Task[Any], Path] = {}
        self._processes: dict[AgentProcess, asyncio.AbstractEventLoop] = {}
        self._until: float | None = None

    def run(
        self, command: Sequence[str], cwd: Path, timeout_seconds: float, reads: Sequence[Path] = ()
    ) -> CommandResult:
        """Run the command to its end, or kill it after the time. On return nothing that it started is alive."""
        path = shutil.which(command[0], path=os.environ.get("PATH"))
        if path is None:
            return CommandResult(state="not_found", output=f"{command[0]} is not on PATH")
        # A home of its own, so that it finds nothing of the service's user there, and leaves nothing.
        home = Path(tempfile.mkdtemp(prefix="steersman-home-"))
        try:
            self._box.give(home)
            environment = {name: os.environ[name] for name in _INHERITED if name in os.environ}
            environment |= {"CI": "true", "HOME": str(home)}
            work = surrounded(
                [os.path.abspath(path), *command[1:]], environment, self._around, cwd=cwd, home=home, reads=reads
            )
            return asyncio.run(self._kept(work, timeout_seconds))
        finally:
            remove_tree(home)

    def renew(self, until: float) -> None:
        """Let every command, those to come too, run until then on the monotonic clock. Returns at once."""
        with self._lock:
            self._until = until
            processes = list(self._processes.items())
        for process, loop in processes:
            with suppress(RuntimeError):  # its loop has ended meanwhile, and the command with it
                loop.call_soon_threadsafe(process.extend, until)

    def kill(self, cwd: Path) -> None:
        """Kill the commands that run in this directory; their callers are told that they were interrupted."""
        self._cancel(lambda directory: directory == cwd)

    def close(self) -> None:
        """Kill every command that runs; their callers are told that they were interrupted."""
        self._cancel(lambda directory: True)

    def _cancel(self, chosen: Callable[[Path], bool]) -> None:
        with self._lock:
            tasks = [task for task, directory in self._running.items() if chosen(directory)]
        for task in tasks:
            with suppress(RuntimeError):  # its loop has ended meanwhile, and the command with it
                task.get_loop().call_soon_threadsafe(task.cancel)

    async def _kept(self, work: Surrounded, timeout_seconds: float) -> CommandResult:
        task = asyncio.get_running_loop().create_task(self._behind_door(work, timeout_seconds))
        with self._lock:
            self._running[task] = work.inside.cwd
        try:
            return await task
        except asyncio.CancelledError:
            return CommandResult(state="interrupted", output="")
        except AgentFailed as failed:
            return CommandResult(state="not_started", output=str(failed))
        finally:
            with self._lock:
                del self._running[task]

    async def _behind_door(self, work: Surrounded, timeout_seconds: float) -> CommandResult:
        door = await work.open_door(self._box)
        try:
            return await self._run(work.launch(self._box, door), timeout_seconds)
        finally:
            if door:
                door.end()

    async def _start(self, launch: Launch) -> AgentProcess:
        """Start the command. Whoever is cancelled meanwhile waits until it has begun, and ends it: else nobody would."""
        starting = asyncio.ensure_future(AgentProcess.start(launch, self._until, self._held))
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            await (await starting).end()
            raise

    async def _run(self, launch: Launch, timeout_seconds: float) -> CommandResult:
        process = await self._start(launch)
        with self._lock:
            self._processes[process] = asyncio.get_running_loop()
            process.extend(self._until)
        tail = bytearray()
        process.on_stderr = lambda chunk: _keep(tail, chunk)
        reading = asyncio.create_task(_read(process, tail))
        try:
            process.stdin.close()
            async with asyncio.timeout(timeout_seconds):
                code = await process.exited
                await reading
        except TimeoutError:
            return CommandResult(state="timed_out", output=tail.decode(errors="replace"))
        finally:
            with self._lock:
                del self._processes[process]
            reading.cancel()
            await process.end()
        if code is None:
            return CommandResult(state="interrupted", output=tail.decode(errors="replace"))
        if code == NOT_STARTED and OUR_WORDS in process.last_words():
            return CommandResult(state="not_started", output=process.last_words())
        return CommandResult(state="exited", exit_code=code, output=tail.decode(errors="replace"))


async def _read(process: AgentProcess, tail: bytearray) -> None:
    while chunk := await process.stdout.read(64 * 1024):
        _keep(tail, chunk)


def _keep(tail: bytearray, chunk: bytes) -> None:
    tail += chunk
    del tail[:-TAIL_BYTES]
