"""The coding agents of this installation, each started under its own keeper and spoken to over ACP."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self

from ...application.agent_port import AgentFailed, AgentInfo, SessionRequest
from ..agents_file import AgentCommand, agent_environment, find_command, read_agents
from ..processes.agent_process import AgentProcess, Launch
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
        agents_file: Path | None,
        data_dir: Path,
        *,
        start_timeout_seconds: float = START_TIMEOUT_SECONDS,
        held: Sequence[int] = (),
    ) -> None:
        """Read agents.toml. Each keeper holds the descriptors *held* open while it lives. Raises AgentsFileInvalid."""
        self._agents = read_agents(agents_file, data_dir)
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
        launch, model = self._launch(request)
        return asyncio.run_coroutine_threadsafe(self._open(launch, request, model), self._loop).result()

    def forget(self, model_id: str, directories: Sequence[Path]) -> bool:
        with TemporaryDirectory(prefix="steersman-") as nowhere:
            request = SessionRequest(model_id=model_id, run_id="", cwd=Path(nowhere))
            try:
                launch, _ = self._launch(request)
            except AgentFailed:
                return False
            work = self._delete_sessions(launch, request, directories)
            return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _launch(self, request: SessionRequest) -> tuple[Launch, str | None]:
        """Return how the agent is started, and the model that it is told by the protocol."""
        name, _, model = request.model_id.partition("/")
        command = self._agents.commands.get(name)
        if command is None:
            raise AgentFailed("agent_not_installed", f"no agent is named {name!r}", retryable=False)
        takes_model = command.takes_model()
        command = command.with_model(model)
        path = find_command(command)
        if path is None:
            raise AgentFailed("agent_not_installed", f"{command.command[0]!r} is not on PATH", retryable=False)
        environment = agent_environment(command, request.run_id)
        launch = Launch(path=path, argv=command.command, cwd=request.cwd, env=environment)
        return launch, None if takes_model or not model else model

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
    async def _started(self, launch: Launch, request: SessionRequest, deadline: float) -> AsyncGenerator[AcpSession]:
        """Give a new session, which is not open yet; closing waits for the end of this."""
        if self._is_closing:
            raise AgentFailed("agent_exited", "the service ends", retryable=True)
        self._opening += 1
        try:
            yield await self._start(launch, request, deadline)
        finally:
            self._opening -= 1

    async def _start(self, launch: Launch, request: SessionRequest, deadline: float) -> AcpSession:
        try:
            async with asyncio.timeout_at(deadline):
                process = await AgentProcess.start(launch, self._until, self._held)
        except TimeoutError:
            raise AgentFailed(
                "agent_start_timeout", "the agent's program did not start in time", retryable=True
            ) from None
        self._processes.add(process)
        process.extend(self._until)  # it may have been renewed while this one started
        session = AcpSession(self._loop, process, request)
        self._sessions.add(session)
        session.on_closed = lambda: self._forget(session, process)
        return session

    async def _delete_sessions(self, launch: Launch, request: SessionRequest, directories: Sequence[Path]) -> bool:
        async with self._started(launch, request, self._deadline()) as session:
            try:
                return await session.delete_sessions(directories, self._start_timeout_seconds)
            finally:
                await session.shut()

    async def _open(self, launch: Launch, request: SessionRequest, model: str | None) -> AcpSession:
        deadline = self._deadline()
        async with self._started(launch, request, deadline) as session:
            try:
                await session.open(deadline, model)
            except BaseException:
                await session.shut()
                raise
            return session

    def _deadline(self) -> float:
        return self._loop.time() + self._start_timeout_seconds

    def _forget(self, session: AcpSession, process: AgentProcess) -> None:
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
