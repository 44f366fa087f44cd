"""How a session with an agent is opened: what the agent can do, a new or an old session, and the model."""

from collections.abc import Awaitable, Callable
from typing import Any, cast

from acp import PROTOCOL_VERSION, RequestError
from acp.schema import (
    ClientCapabilities,
    ElicitationCapabilities,
    ElicitationFormCapabilities,
    Implementation,
    InitializeRequest,
    InitializeResponse,
)
from pydantic import ValidationError

from ...application.ports.agents import AgentFailed

#: How many pages of sessions are read, to find out whether one still exists.
LIST_PAGES = 50
AUTHENTICATION_REQUIRED = -32000

#: Sends a request and returns its answer, or raises AgentFailed: with the agent's own error as the cause, if it was one.
Asks = Callable[[str, dict[str, Any]], Awaitable[object]]


class SessionOpening:
    """The requests before the first turn, in the order in which the methods stand here."""

    def __init__(self, ask: Asks, cwd: str) -> None:
        self._ask = ask
        self._cwd = cwd
        self._capabilities: tuple[str, ...] = ()
        self._can_list = False
        self._logins: tuple[str, ...] = ()
        self._session_id = ""
        self._opened: dict[str, Any] = {}

    async def say_hello(self) -> tuple[str, ...]:
        """Offer questions in forms, and neither files nor terminals; return what the agent can do."""
        form = ElicitationCapabilities(form=ElicitationFormCapabilities())
        hello = InitializeRequest(
            protocol_version=PROTOCOL_VERSION,
            client_capabilities=ClientCapabilities(elicitation=form),
            client_info=Implementation(name="steersman", title="Steersman", version="1"),
        )
        # The library's own way leaves out what is empty, and the offer of a form is an empty object.
        answer = await self._ask("initialize", hello.model_dump(mode="json", by_alias=True, exclude_none=True))
        try:
            told = InitializeResponse.model_validate(answer)
        except ValidationError as error:
            raise broken(f"initialize was answered with {error}") from error
        can = told.agent_capabilities
        self._logins = tuple(method["id"] for method in tables(table(answer).get("authMethods")) if method.get("id"))
        prompts = can.prompt_capabilities if can else None
        sessions = can.session_capabilities if can else None
        self._can_list = sessions is not None and sessions.list is not None
        offered = {
            "load_session": can is not None and can.load_session,
            "resume_session": sessions is not None and sessions.resume is not None,
            "elicitation": can is not None and "elicitation" in (can.field_meta or {}),
            "image": prompts is not None and prompts.image,
            "audio": prompts is not None and prompts.audio,
            "embedded_context": prompts is not None and prompts.embedded_context,
        }
        self._capabilities = tuple(name for name, is_offered in offered.items() if is_offered)
        return self._capabilities

    async def log_in(self, method: str) -> None:
        """On return the agent is logged in this way. Raises AgentFailed: agent_login_required."""
        if method not in self._logins:
            raise self._login_required(f"agents.toml says `authenticate` {method!r}, which the agent does not offer")
        try:
            await self._ask("authenticate", {"methodId": method})
        except AgentFailed as failure:
            if isinstance(failure.__cause__, RequestError):
                raise self._login_required(str(failure)) from failure.__cause__
            raise

    def _login_required(self, said: str) -> AgentFailed:
        offers = f"It offers: {', '.join(self._logins)}" if self._logins else "It offers no way that is known here"
        todo = (
            "name one as `authenticate` in agents.toml, with the key under `pass` or `secrets`, or log in as the service's "
            "user and hand the login on by `mounts`"
        )
        return AgentFailed("agent_login_required", f"{said}. {offers}; {todo}.", retryable=False)

    async def begin(self) -> str:
        """Open a new session; return its id. Raises AgentFailed: agent_login_required if the agent lets nobody in."""
        try:
            self._opened = table(await self._ask("session/new", {"cwd": self._cwd, "mcpServers": []}))
        except AgentFailed as failure:
            if isinstance(failure.__cause__, RequestError) and failure.__cause__.code == AUTHENTICATION_REQUIRED:
                raise self._login_required(str(failure)) from failure.__cause__
            raise
        session_id = self._opened.get("sessionId")
        if not isinstance(session_id, str) or not session_id:
            raise broken("the answer to session/new has no session id")
        self._session_id = session_id
        return session_id

    async def load(self, session_id: str) -> None:
        """Open an earlier session. Raises AgentFailed: session_not_found if the agent has it no longer."""
        self._session_id = session_id
        methods = {"load_session": "session/load", "resume_session": "session/resume"}
        method = next((methods[name] for name in methods if name in self._capabilities), None)
        if method is None:
            raise AgentFailed("session_not_found", "the agent cannot load sessions", retryable=False)
        try:
            params: dict[str, Any] = {"sessionId": session_id, "cwd": self._cwd, "mcpServers": []}
            self._opened = table(await self._ask(method, params))
        except AgentFailed as failure:
            if isinstance(failure.__cause__, RequestError) and failure.__cause__.code == AUTHENTICATION_REQUIRED:
                raise self._login_required(str(failure)) from failure.__cause__
            if isinstance(failure.__cause__, RequestError) and await self._is_gone():
                raise AgentFailed("session_not_found", str(failure), retryable=False) from failure
            raise

    async def _is_gone(self) -> bool:
        """Whether a load failed because there is no such session. Agents have no common error for it: the list tells."""
        if not self._can_list:
            return True
        cursor: object = None
        for _ in range(LIST_PAGES):
            page = table(await self._ask("session/list", {"cwd": self._cwd} | ({"cursor": cursor} if cursor else {})))
            if any(entry.get("sessionId") == self._session_id for entry in tables(page.get("sessions"))):
                return False
            cursor = page.get("nextCursor")
            if not cursor:
                return True
        return False

    async def choose_model(self, model: str) -> None:
        """Make the session use this model. Raises AgentFailed if the agent lets nobody choose: never ignored."""
        params: dict[str, Any] = {"sessionId": self._session_id}
        for option in tables(self._opened.get("configOptions")):
            if option.get("category") == "model" or option.get("id") == "model":
                params |= {"configId": option.get("id"), "value": model}
                await self._ask("session/set_config_option", params)
                return
        if not self._opened.get("models"):
            told = f"the agent lets nobody choose a model, so not {model!r}"
            raise AgentFailed("agent_turn_failed", told, retryable=False)
        # Agents of before configuration options.
        await self._ask("session/set_model", params | {"modelId": model})


def broken(message: str) -> AgentFailed:
    """Return the failure of an agent that answers in no form of the protocol."""
    return AgentFailed("agent_protocol_error", message, retryable=False)


def table(value: object) -> dict[str, Any]:
    """Return a JSON object as it is, and anything else as an empty one."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def tables(value: object) -> list[dict[str, Any]]:
    """Return the objects in a JSON array; none if it is no array."""
    return [table(entry) for entry in cast("list[object]", value)] if isinstance(value, list) else []
