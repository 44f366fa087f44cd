"""What agents.toml says: which agents there are, and how each is started."""

import os
import shutil
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import msgspec

REHEARSAL = "rehearsal"
#: Stands for the model's name in an agent's command and environment.
MODEL_PLACEHOLDER = "{model}"
#: What an agent needs of the service's environment to find itself a home, a language and the network's roots of
#: trust. Everything else (keys, tokens, database addresses) stays with the service.
ALLOWED_VARIABLES = frozenset({"PATH", "HOME", "LANG", "LANGUAGE", "TZ", "TMPDIR", "TERM", "USER", "LOGNAME", "SHELL"})
ALLOWED_PREFIXES = ("LC_", "SSL_CERT_", "XDG_")


class AgentsFileInvalid(ValueError):
    """agents.toml cannot be used; the message names the file and what is wrong in it."""


class AgentCommand(msgspec.Struct, frozen=True, kw_only=True):
    """How an agent is started: its command and what its environment has beyond the allowed variables."""

    command: tuple[str, ...]
    env: Mapping[str, str] = {}

    def takes_model(self) -> bool:
        """Whether the model is given with the command or the environment, and not by the protocol."""
        return any(MODEL_PLACEHOLDER in word for word in (*self.command, *self.env.values()))

    def with_model(self, model: str) -> "AgentCommand":
        """Return the command for this model; without a placeholder it stays as it is."""
        return AgentCommand(
            command=tuple(word.replace(MODEL_PLACEHOLDER, model) for word in self.command),
            env={name: value.replace(MODEL_PLACEHOLDER, model) for name, value in self.env.items()},
        )


class KnownAgents(msgspec.Struct, frozen=True, kw_only=True):
    """Every agent that can be named, and which one is meant when none is."""

    default: str
    commands: Mapping[str, AgentCommand]


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
    commands = {REHEARSAL: rehearsal_command(data_dir), **_commands(path, document.get("agents", {}))}
    default = document.get("default", REHEARSAL)
    if default not in commands:
        raise AgentsFileInvalid(f"{path}: the default agent {default!r} is not among {', '.join(sorted(commands))}")
    return KnownAgents(default=default, commands=commands)


def rehearsal_command(data_dir: Path) -> AgentCommand:
    """Return how the built-in agent is started."""
    # -P: the agent's working directory is a stranger's repository, whose modules must not be imported instead of ours.
    command = (sys.executable, "-P", "-m", "steersman.adapters.rehearsal.agent", "--home", str(data_dir / "rehearsal"))
    return AgentCommand(command=command)


def agent_environment(
    command: AgentCommand, run_id: str, environment: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the whole environment of an agent: allowed variables, its own from agents.toml, and the run's id."""
    own = os.environ if environment is None else environment
    allowed = {k: v for k, v in own.items() if k in ALLOWED_VARIABLES or k.startswith(ALLOWED_PREFIXES)}
    return {**allowed, **command.env, "STEERSMAN_RUN_ID": run_id}


def find_command(command: AgentCommand) -> str | None:
    """Return the absolute path of the agent's program, None if it is not installed."""
    found = shutil.which(command.command[0], path=command.env.get("PATH", os.environ.get("PATH")))
    return os.path.abspath(found) if found else None


def _commands(path: Path, agents: object) -> dict[str, AgentCommand]:
    if not isinstance(agents, dict):
        raise AgentsFileInvalid(f"{path}: `agents` must be a table")
    commands: dict[str, AgentCommand] = {}
    for name, entry in cast("dict[str, object]", agents).items():
        if not name or "/" in name:
            raise AgentsFileInvalid(
                f"{path}: {name!r} cannot be an agent's name: it must not be empty or contain a slash"
            )
        try:
            command = msgspec.convert(entry, AgentCommand, strict=True)
        except msgspec.ValidationError as error:
            raise AgentsFileInvalid(f"{path}: agents.{name}: {error}") from error
        if not command.command or not command.command[0]:
            raise AgentsFileInvalid(f"{path}: agents.{name}: the command is empty")
        commands[name] = command
    return commands
