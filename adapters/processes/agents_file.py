"""What agents.toml says: which agents there are, how each is started, and what each finds in its box."""

import os
import re
import shutil
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

import msgspec

from .box import BoxLimits
from .proxy import WaysOut, read_reach

REHEARSAL = "rehearsal"
#: Stands for the model's name in an agent's command and environment.
MODEL_PLACEHOLDER = "{model}"
#: What an agent needs of the service's environment to find itself a language and the network's roots of trust. Its
#: home is its own. Everything else (keys, tokens, database addresses) stays with the service.
ALLOWED_VARIABLES = frozenset({"PATH", "LANG", "LANGUAGE", "TZ", "TERM", "USER", "LOGNAME", "SHELL"})
ALLOWED_PREFIXES = ("LC_", "SSL_CERT_")

Isolation = Literal["bubblewrap", "none"]
S = TypeVar("S", bound="Surroundings")


#: Variables beyond these no shell could set.
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
#: A secret is a key or a token, not a file of data.
MAX_SECRET_BYTES = 65_536


class AgentNotConfigured(ValueError):
    """An agent lacks what agents.toml says that it gets; the message says what, never the secret itself."""


class AgentsFileInvalid(ValueError):
    """agents.toml cannot be used; the message names the file and what is wrong in it."""


class Shown(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Something of this machine that an agent finds in its box."""

    path: str
    #: `read`: it is seen, and cannot be changed. `copy`: before each start it is copied into the agent's home.
    mode: Literal["read", "copy"] = "read"
    #: Where; for a copy below the home. By default `read` is seen at its own path, and a copy goes where it is in the
    #: service's home.
    target: str | None = None

    @property
    def source(self) -> Path:
        return Path(self.path).expanduser()

    @property
    def place(self) -> Path:
        """The target: absolute for `read`, relative to the agent's home for `copy`. Raises ValueError."""
        if self.mode == "read":
            place = Path(self.target).expanduser() if self.target else self.source
            if not place.is_absolute() or ".." in place.parts:
                raise ValueError(f"mounts: the target {str(place)!r} must be an absolute path")
            return place
        if self.target is None:
            if not self.source.is_relative_to(Path.home()):
                raise ValueError(f"mounts: {self.path!r} is not in the service's home, so its copy needs a `target`")
            return self.source.relative_to(Path.home())
        place = Path(self.target.removeprefix("~/"))
        if place.is_absolute() or ".." in place.parts or not place.parts:
            raise ValueError(f"mounts: the target {self.target!r} must be below the agent's home")
        return place


class Surroundings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a command finds around it: the network, files and limits."""

    network: Literal["proxy", "none", "host"] = "proxy"
    #: What the proxy is narrowed to; None: any host on the public internet.
    hosts: tuple[str, ...] | None = None
    #: Addresses of this machine or of private networks that the proxy connects to all the same, `host:port`.
    reach: tuple[str, ...] = ()
    mounts: tuple[Shown, ...] = ()
    limits: BoxLimits = BoxLimits()

    def ways_out(self) -> WaysOut:
        """Return where its proxy connects to. Raises ValueError."""
        return WaysOut(hosts=self.hosts, reach=read_reach(self.reach))

    def check(self) -> None:
        """Raise ValueError if something in it can mean nothing."""
        self.ways_out()
        for shown in self.mounts:
            if not shown.source.is_absolute():
                raise ValueError(f"mounts: {shown.path!r} must be an absolute path, or begin with ~")
            _ = shown.place
        for name in BoxLimits.__struct_fields__:
            if getattr(self.limits, name) < 1:
                raise ValueError(f"limits: {name} must be 1 or more")


class AgentCommand(Surroundings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How an agent is started: its command, what its environment has beyond the allowed variables, and its surroundings."""

    command: tuple[str, ...]
    env: Mapping[str, str] = {}
    #: Variables that it gets from the service's own environment, as an API key is.
    passed: tuple[str, ...] = msgspec.field(default=(), name="pass")
    #: Variables whose values are read from a file, at each start.
    secrets: Mapping[str, str] = {}
    #: The way of logging in, of those that it offers, which is asked for before a session is opened.
    authenticate: str | None = None

    def check(self) -> None:
        """Raise ValueError if something in it can mean nothing."""
        super().check()
        named = [*self.env, *self.passed, *self.secrets]
        for name in (*self.passed, *self.secrets):
            if not _VARIABLE.fullmatch(name):
                raise ValueError(f"pass, secrets: {name!r} is no name of a variable")
            if name.startswith("STEERSMAN_"):
                raise ValueError(f"pass, secrets: {name} is the service's own: no agent gets it")
            if named.count(name) > 1:
                raise ValueError(f"env, pass, secrets: {name} is named more than once")
        for path in self.secrets.values():
            if not Path(path).expanduser().is_absolute():
                raise ValueError(f"secrets: {path!r} must be an absolute path, or begin with ~")

    def takes_model(self) -> bool:
        """Whether the model is given with the command or the environment, and not by the protocol."""
        return any(MODEL_PLACEHOLDER in word for word in (*self.command, *self.env.values()))

    def with_model(self, model: str) -> "AgentCommand":
        """Return the command for this model; without a placeholder it stays as it is."""
        return msgspec.structs.replace(
            self,
            command=tuple(word.replace(MODEL_PLACEHOLDER, model) for word in self.command),
            env={name: value.replace(MODEL_PLACEHOLDER, model) for name, value in self.env.items()},
        )


class KnownAgents(msgspec.Struct, frozen=True, kw_only=True):
    """Every agent that can be named, and which one is meant when none is."""

    default: str
    commands: Mapping[str, AgentCommand]
    #: What the file says of isolation, if anything.
    isolation: Isolation | None = None
    #: What the projects' own commands, such as their builds, find around them.
    build: Surroundings = Surroundings()


class _File(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    default: str = REHEARSAL
    isolation: Isolation | None = None
    #: For every agent that says nothing else.
    limits: dict[str, Any] = {}
    build: dict[str, Any] = {}
    agents: dict[str, dict[str, Any]] = {}


def read_agents(agents_file: Path | None, data_dir: Path) -> KnownAgents:
    """
    Return the agents of the file and the rehearsal agent, which is always there.

    Without a file given it is agents.toml in the data directory, which may be absent. Raises AgentsFileInvalid.
    """
    path = agents_file or data_dir / "agents.toml"
    document: dict[str, Any] = {}
    if agents_file is not None or path.exists():
        try:
            document = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise AgentsFileInvalid(f"{path}: {error}") from error
    try:
        file = msgspec.convert(document, _File, strict=True)
    except msgspec.ValidationError as error:
        raise AgentsFileInvalid(f"{path}: {error}") from error
    commands = {REHEARSAL: rehearsal_command()} | {
        name: _agent(path, name, entry, file.limits) for name, entry in file.agents.items()
    }
    if file.default not in commands:
        raise AgentsFileInvalid(
            f"{path}: the default agent {file.default!r} is not among {', '.join(sorted(commands))}"
        )
    build = _surroundings(f"{path}: build", file.build, file.limits, Surroundings)
    return KnownAgents(default=file.default, commands=commands, isolation=file.isolation, build=build)


def rehearsal_command() -> AgentCommand:
    """Return how the built-in agent is started: it needs nobody."""
    # -P: the agent's working directory is a stranger's repository, whose modules must not be imported instead of ours.
    command = (sys.executable, "-P", "-m", "steersman.adapters.rehearsal.agent")
    return AgentCommand(command=command, network="none")


def agent_environment(
    command: AgentCommand, run_id: str, home: Path, environment: Mapping[str, str] | None = None
) -> dict[str, str]:
    """
    Return the whole environment of an agent: allowed variables, its home, its own from agents.toml, the run's id.

    Raises AgentNotConfigured: a variable that is passed on is not set, or a secret cannot be read.
    """
    own = os.environ if environment is None else environment
    allowed = {k: v for k, v in own.items() if k in ALLOWED_VARIABLES or k.startswith(ALLOWED_PREFIXES)}
    if missing := [name for name in command.passed if not own.get(name)]:
        raise AgentNotConfigured(
            f"`pass` of agents.toml names {', '.join(missing)}, which the service does not have in its environment"
        )
    passed = {name: own[name] for name in command.passed}
    secrets = {name: _secret(name, Path(path).expanduser()) for name, path in command.secrets.items()}
    return {**allowed, "HOME": str(home), **command.env, **passed, **secrets, "STEERSMAN_RUN_ID": run_id}


def _secret(name: str, path: Path) -> str:
    try:
        with path.open("rb") as file:
            read = file.read(MAX_SECRET_BYTES + 1)
        value = read.decode().strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise AgentNotConfigured(f"`secrets` of agents.toml: {name} cannot be read from {path}: {why}") from error
    if not value or "\0" in value or len(read) > MAX_SECRET_BYTES:
        raise AgentNotConfigured(f"`secrets` of agents.toml: {name}: {path} holds no secret")
    return value


def find_command(command: AgentCommand) -> str | None:
    """Return the absolute path of the agent's program, None if it is not installed."""
    found = shutil.which(command.command[0], path=command.env.get("PATH", os.environ.get("PATH")))
    return os.path.abspath(found) if found else None


def _agent(path: Path, name: str, entry: Mapping[str, Any], limits: Mapping[str, Any]) -> AgentCommand:
    if not name or "/" in name:
        raise AgentsFileInvalid(f"{path}: {name!r} cannot be an agent's name: it must not be empty or contain a slash")
    command = _surroundings(f"{path}: agents.{name}", entry, limits, AgentCommand)
    if not command.command or not command.command[0]:
        raise AgentsFileInvalid(f"{path}: agents.{name}: the command is empty")
    return command


def _surroundings(where: str, entry: Mapping[str, Any], limits: Mapping[str, Any], kind: type[S]) -> S:
    own = cast("Mapping[str, Any]", entry.get("limits", {}))
    try:
        found = msgspec.convert({**entry, "limits": {**limits, **own}}, kind, strict=True)
        found.check()
    except (TypeError, ValueError) as error:  # msgspec's own is a ValueError
        raise AgentsFileInvalid(f"{where}: {error}") from error
    return found
