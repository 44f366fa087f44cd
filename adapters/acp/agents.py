"""The coding agents of this installation, each started under its own keeper and spoken to over ACP."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal, Self

from ...application.ports.agents import AgentFailed, AgentInfo, SessionRequest
from ..processes.agent_process import AgentProcess
from ..processes.agents_file import AgentCommand, AgentNotConfigured, KnownAgents, agent_environment, find_command
from ..processes.box import Bare, Box
from ..processes.homes import Homes
from ..processes.proxy import Door
from ..processes.surroundings import Surrounded, surrounded
from .disk_watch import watch_disk
from .session import AcpSession

#: What an agent gets until its session is open, from its program's start on. Whoever ends it may wait for that long.
START_TIMEOUT_SECONDS = 30.0
#: How often closing looks whether a session that is being opened has come so far that it can be ended.
OPENING_POLL_SECONDS = 0.01


class AcpAgents:
    """
    The `Agents` of agents.toml, and the rehearsal agent. One event loop, on one thread, speaks with all of them.

    Once `renew` was called, the keepers kill what they keep at the moment that it named, unless it is called again: an
    owner that has lost its leases, or hangs, leaves no agent behind.
    """

    def __init__(
        self,
        known: KnownAgents,
        data_dir: Path,
        *,
        box: Box | None = None,
        start_timeout_seconds: float = START_TIMEOUT_SECONDS,
        held: Sequence[int] = (),
    ) -> None:
        """
        Agents work in the box, without one with all rights of the service; each keeper holds the
        descriptors *held* open while it lives.
        """
        self._agents = known
        self._box = box or Bare()
        self._homes = Homes(data_dir / "homes", self._box)
        self._start_timeout_seconds = start_timeout_seconds
        self._held = held
        self._until: float | None = None
        self._processes: set[AgentProcess] = set()
        self._sessions: set[AcpSession] = set()
        #: How many calls are opening a session just now: nobody else knows yet what they have started.
        self._opening = 0
        self._is_closing = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="agents", daemon=True)
        self._thread.start()

    @property
    def isolation(self) -> Literal["bubblewrap", "none"]:
        return self._box.isolation

    def known(self) -> Sequence[AgentInfo]:
        default = self._agents.default
        names = sorted(self._agents.commands, key=lambda name: (name != default, name))
        return [self._info(name, self._agents.commands[name]) for name in names]

    def resolve(self, model_id: str | None) -> str | None:
        if model_id is None:
            return self._agents.default
        name, slash, model = model_id.partition("/")
        return model_id if name in self._agents.commands and (model or not slash) else None

    def open(self, request: SessionRequest) -> AcpSession:
        command, model = self._command(request)
        home = self._homes.make(request.run_id)
        self._homes.copy_into(request.run_id, [(s.source, s.place) for s in command.mounts if s.mode == "copy"])
        path = find_command(command)
        if path is None:
            raise AgentFailed("agent_not_installed", f"{command.command[0]!r} is not on PATH", retryable=False)
        try:
            environment = agent_environment(command, request.run_id, home)
        except AgentNotConfigured as error:
            raise AgentFailed("agent_not_configured", str(error), retryable=False) from error
        work = surrounded(
            [path, *command.command[1:]],
            environment,
            command,
            cwd=request.cwd,
            home=home,
            reads=request.reads,
        )
        return asyncio.run_coroutine_threadsafe(
            self._open(work, request, model, command.authenticate), self._loop
        ).result()

    def forget(self, run_ids: Sequence[str]) -> None:
        self._homes.forget(run_ids)

    def _command(self, request: SessionRequest) -> tuple[AgentCommand, str | None]:
        """Return how the agent is started, and the model that it is told by the protocol."""
        name, _, model = request.model_id.partition("/")
        command = self._agents.commands.get(name)
        if command is None:
            raise AgentFailed("agent_not_installed", f"no agent is named {name!r}", retryable=False)
        return command.with_model(model), None if command.takes_model() or not model else model

    @property
    def running(self) -> int:
        """How many agents run now, each under a keeper of its own."""
        return len(self._processes)

    def renew(self, until: float) -> None:
        """Let every agent, those to come too, live until then on the monotonic clock. Returns at once."""
        self._loop.call_soon_threadsafe(self._renew, until)

    def close(self) -> None:
        """End every agent. On return none is alive, and the loop's thread is gone."""
        if self._loop.is_closed():
            return
        asyncio.run_coroutine_threadsafe(self._shut(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @asynccontextmanager
    async def _started(self, work: Surrounded, request: SessionRequest, deadline: float) -> AsyncGenerator[AcpSession]:
        """Give a new session, which is not open yet; closing waits for the end of this."""
        if self._is_closing:
            raise AgentFailed("agent_exited", "the service ends", retryable=True)
        self._opening += 1
        try:
            yield await self._start(work, request, deadline)
        finally:
            self._opening -= 1

    async def _start(self, work: Surrounded, request: SessionRequest, deadline: float) -> AcpSession:
        door = await work.open_door(self._box)
        try:
            async with asyncio.timeout_at(deadline):
                process = await AgentProcess.start(work.launch(self._box, door), self._until, self._held)
        except TimeoutError:
            if door:
                door.end()
            raise AgentFailed(
                "agent_start_timeout", "the agent's program did not start in time", retryable=True
            ) from None
        except BaseException:
            if door:
                door.end()
            raise
        self._processes.add(process)
        process.extend(self._until)  # it may have been renewed while this one started
        session = AcpSession(self._loop, process, request)
        self._sessions.add(session)
        watch = self._loop.create_task(
            watch_disk(self._box, (work.inside.cwd, work.home), work.around.limits.disk_bytes, session.end_for)
        )
        session.on_closed = lambda: self._forget(session, process, door, watch)
        return session

    async def _open(
        self, work: Surrounded, request: SessionRequest, model: str | None, login: str | None
    ) -> AcpSession:
        deadline = self._deadline()
        async with self._started(work, request, deadline) as session:
            try:
                await session.open(deadline, model, login)
            except BaseException:
                await session.shut()
                raise
            return session

    def _deadline(self) -> float:
        return self._loop.time() + self._start_timeout_seconds

    def _forget(
        self, session: AcpSession, process: AgentProcess, door: Door | None, watch: "asyncio.Task[None]"
    ) -> None:
        watch.cancel()
        if door:
            door.end()
        self._sessions.discard(session)
        self._processes.discard(process)

    def _renew(self, until: float) -> None:
        self._until = until
        for process in self._processes:
            process.extend(until)

    async def _shut(self) -> None:
        self._is_closing = True
        await self._shut_sessions()
        while self._opening:
            await asyncio.sleep(OPENING_POLL_SECONDS)
            await self._shut_sessions()
        await self._loop.shutdown_default_executor()

    async def _shut_sessions(self) -> None:
        await asyncio.gather(*(session.shut() for session in list(self._sessions)), return_exceptions=True)

    def _info(self, name: str, command: AgentCommand) -> AgentInfo:
        return AgentInfo(
            name=name,
            command=command.command,
            installed=find_command(command) is not None,
            is_default=name == self._agents.default,
        )
