"""What the use cases need of the coding agents."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Protocol

import msgspec


class AgentFailed(Exception):
    """
    The agent could not do its turn. `code` is the public word (agent_not_installed, agent_not_configured,
    agent_login_required, agent_start_timeout, agent_exited, agent_protocol_error, agent_turn_failed, session_not_found, agent_processes_unruly, agent_disk_limit, agent_output_limit); `retryable` says whether the same may work later.
    """

    def __init__(self, code: str, message: str, *, retryable: bool) -> None:
        super().__init__(message)
        self.code = code
        self.retryable = retryable


class AgentInfo(msgspec.Struct, frozen=True, kw_only=True):
    """An agent that agents.toml, or the product itself, names."""

    name: str
    command: tuple[str, ...]
    #: Whether the command is on PATH.
    installed: bool
    is_default: bool


class SessionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent process is started for."""

    #: `agent` or `agent/model…`.
    model_id: str
    #: The child run that the process belongs to; becomes STEERSMAN_RUN_ID.
    run_id: str
    cwd: Path
    #: What the agent may read beside it: the objects that its workplace borrows.
    reads: tuple[Path, ...] = ()
    #: The session to load; None for a new one.
    session_id: str | None = None


class PermissionAsked(msgspec.Struct, frozen=True, kw_only=True):
    """The agent asks whether it may call a tool."""

    request_id: str
    tool_name: str
    #: The tool's input, as the JSON string that was received.
    tool_input: str
    kind: str = "other"
    #: The call, by the agent's own id for it, and the files that it is about.
    call_id: str = ""
    locations: tuple["CallLocation", ...] = ()


class CallLocation(msgspec.Struct, frozen=True, kw_only=True):
    """A file that a tool call is about, and where in it."""

    path: str
    line: int | None = None


class CallDiff(msgspec.Struct, frozen=True, kw_only=True):
    """What a tool call made of a file; old: None for a new one."""

    path: str
    old: str | None
    new: str


class PlanStep(msgspec.Struct, frozen=True, kw_only=True):
    """One step of what an agent means to do in a turn."""

    content: str
    status: str
    priority: str


class AgentUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """
    Something that the agent reported while it worked.

    `kind` is message (text), thought (text), tool_call (call_id, title, text = its input as JSON, call_kind, locations),
    tool_result (call_id, text, failed, diffs), tool_update (call_id, and what of title, text, call_kind and
    locations is another than before), plan (plan, text = the same as lines), usage (tokens of the turn, cost of the session),
    stderr (text).
    """

    kind: str
    text: str = ""
    call_id: str = ""
    title: str = ""
    failed: bool = False
    call_kind: str = ""
    locations: tuple[CallLocation, ...] = ()
    diffs: tuple[CallDiff, ...] = ()
    plan: tuple[PlanStep, ...] = ()
    #: None: the agent does not say. What a turn has used, as it stands; of the cost what the whole session has, in
    #: millionths of the currency; of the context how much of it is taken.
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_read_tokens: int | None = None
    cached_write_tokens: int | None = None
    thought_tokens: int | None = None
    total_tokens: int | None = None
    context_tokens: int | None = None
    session_cost_micros: int | None = None
    currency: str | None = None


class TurnEnd(msgspec.Struct, frozen=True, kw_only=True):
    """How a turn ended. `stop_reason` is the protocol's: end_turn, cancelled, refusal, max_tokens, max_turn_requests."""

    stop_reason: str
    #: What the agent said in this turn, at most 256 KiB of it.
    message: str


class TurnObserver(Protocol):
    """Who is told what happens in a turn. Called from one thread, in order; a slow observer slows the agent down."""

    def update(self, update: AgentUpdate) -> None:
        """Take a report."""
        ...

    def permission(self, asked: PermissionAsked) -> bool:
        """Block until it is decided whether the tool may be called."""
        ...

    def question(self, request_id: str, question: str) -> str | None:
        """Block until the question is answered; None if it will not be."""
        ...


class AgentSession(Protocol):
    """One agent process under its keeper, with one open session."""

    @property
    def session_id(self) -> str:
        """The session's id, as the agent gave it."""
        ...

    @property
    def capabilities(self) -> tuple[str, ...]:
        """What the agent said it can do, from: load_session, resume_session, elicitation, image, audio, embedded_context."""
        ...

    @property
    def history(self) -> str:
        """The text of the session's earlier turns as `session/load` replayed it; empty for a new session."""
        ...

    def prompt(self, text: str, observer: TurnObserver) -> TurnEnd:
        """Run one turn to its end. Raises AgentFailed when the agent dies, breaks the protocol or ends it with an error."""
        ...

    def cancel(self) -> None:
        """Ask for the end of the turn (session/cancel). Returns at once; the turn ends through `prompt`."""
        ...

    def stop_processes(self) -> None:
        """On return every process of the agent, detached ones too, is stopped (SIGSTOP) or gone."""
        ...

    def continue_processes(self) -> None:
        """On return every stopped process of the agent runs again."""
        ...

    def kill(self) -> Sequence[int]:
        """On return no process of the agent, detached ones too, is alive. Returns the pids that were killed."""
        ...

    def close(self) -> None:
        """End the agent: ask first, then kill. On return nothing of it is alive."""
        ...


class Agents(Protocol):
    """The coding agents that this installation knows."""

    @property
    def isolation(self) -> Literal["bubblewrap", "none"]:
        """What keeps them apart from the service; with `none` they have all its rights."""
        ...

    def known(self) -> Sequence[AgentInfo]:
        """Return every agent that can be named, the default first."""
        ...

    def resolve(self, model_id: str | None) -> str | None:
        """Return the full model id for what a caller gave (None: the default agent), or None if nobody knows it."""
        ...

    def open(self, request: SessionRequest) -> AgentSession:
        """
        Start an agent under a keeper and open, or load, its session.

        Raises AgentFailed. `session_not_found` as its code means that the agent no longer has the session to load.
        """
        ...

    def forget(self, run_ids: Sequence[str]) -> None:
        """On return nothing is left of what agents kept in their homes for these runs."""
        ...
