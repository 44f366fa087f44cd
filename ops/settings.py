"""What the environment and the settings file say: read once, checked once, and from then on a value like any other."""

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from ..adapters.outgoing.addresses import read_networks
from ..adapters.processes.agents_file import Isolation
from ..domain.facts.agent_output import MAX_TURN_BYTES
from .refused import Refused
from .settings_sources import Sources, read_sources

#: A command before it has its options.
Command = TypeVar("Command", bound=Callable[..., Any])

DEFAULT_MAX_AGENTS = 4
#: More processes than any machine gives places to.
MOST_AGENTS = 1_000
DEFAULT_STALL_SECONDS = 300
MOST_STALL_SECONDS = 86_400
DEFAULT_LEASE_STALE_SECONDS = 15
MOST_LEASE_STALE_SECONDS = 3_600
DEFAULT_MAX_FEEDS = 4_096
MOST_FEEDS = 100_000
MIB = 1024 * 1024
DEFAULT_MAX_FILE_MIB = 500
DEFAULT_MAX_COMMIT_MIB = 2_048
DEFAULT_TURN_OUTPUT_MIB = MAX_TURN_BYTES // MIB
MOST_MIB = 1_000_000
DEFAULT_SERVER_URL = "http://127.0.0.1:8420"


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """How this installation is set up."""

    #: Where everything is kept that is not in a database elsewhere.
    data: Path
    #: The PostgreSQL that holds the log, the views and the tokens; None: SQLite in the data directory.
    database: str | None = None
    #: Where wake-ups go between processes; nothing that must last.
    redis: str | None = None
    #: Where the keys are that sign the log: never in the data directory.
    keys: Path = Path("~/.local/state/steersman/keys").expanduser()
    #: How many agents work at once in this process.
    max_agents: int = DEFAULT_MAX_AGENTS
    #: How long an agent may show no sign of work before it is given up.
    stall_seconds: int = DEFAULT_STALL_SECONDS
    #: How many feeds clients may have open at this process.
    max_feeds: int = DEFAULT_MAX_FEEDS
    #: How long a replica may be silent before others take over the runs that it drives.
    lease_stale_seconds: int = DEFAULT_LEASE_STALE_SECONDS
    #: What keeps agents apart from the service; None: what agents.toml says, else bubblewrap.
    isolation: Isolation | None = None
    #: Who agents are if the service is root; None: nobody.
    agent_user: str | None = None
    #: Below which directories repositories may be; None: wherever everything belongs to the service's user.
    repositories: tuple[Path, ...] | None = None
    #: How large a file of an agent's may be, and all that it changed in one turn.
    max_file_mib: int = DEFAULT_MAX_FILE_MIB
    max_commit_mib: int = DEFAULT_MAX_COMMIT_MIB
    #: How much an agent may report in one turn, kept or not, before its turn is ended.
    turn_output_mib: int = DEFAULT_TURN_OUTPUT_MIB
    #: Networks besides the public internet, such as 10.0.0.0/8, to which notices may be sent, over http as well.
    webhook_networks: tuple[str, ...] = ()
    #: The command that is told of what waits and what ends, in every project; named in the settings file alone.
    notify_command: tuple[str, ...] = ()
    #: The author of every commit, `Name <address>`; None: Steersman itself.
    commit_author: str | None = None
    #: Whether the commit that brings work in says who approved it.
    approved_by: bool = False

    @property
    def checkpoints(self) -> Path:
        """The file that every signed checkpoint of the log goes to."""
        return self.data / "checkpoints.log"

    @property
    def worktrees(self) -> Path:
        """Where the runs' worktrees are."""
        return self.data / "worktrees"


class Connection(msgspec.Struct, frozen=True, kw_only=True):
    """How a client command reaches the service."""

    url: str
    token: str


def read_settings(data: Path | None = None, environment: Mapping[str, str] = os.environ) -> Settings:
    """
    Return the settings; a *data* directory that was named wins over STEERSMAN_DATA, and a variable over the settings file.
    Raises Refused.
    """
    return settings_of(read_sources(environment), data)


def settings_of(environment: Sources, data: Path | None = None) -> Settings:
    """Return the settings that these sources make. Raises Refused."""
    named = data or (Path(environment["STEERSMAN_DATA"]) if environment.get("STEERSMAN_DATA") else None)
    return Settings(
        data=(named or _home(environment)).expanduser().absolute(),
        database=_address(environment, "STEERSMAN_DATABASE", ("postgresql://", "postgres://")),
        redis=_address(environment, "STEERSMAN_REDIS", ("redis://", "rediss://", "unix://")),
        keys=_keys(environment),
        max_agents=_count(environment, "STEERSMAN_MAX_AGENTS", DEFAULT_MAX_AGENTS, MOST_AGENTS),
        stall_seconds=_count(environment, "STEERSMAN_STALL_SECONDS", DEFAULT_STALL_SECONDS, MOST_STALL_SECONDS),
        max_feeds=_count(environment, "STEERSMAN_MAX_FEEDS", DEFAULT_MAX_FEEDS, MOST_FEEDS),
        lease_stale_seconds=_count(
            environment, "STEERSMAN_LEASE_STALE_SECONDS", DEFAULT_LEASE_STALE_SECONDS, MOST_LEASE_STALE_SECONDS
        ),
        isolation=_isolation(environment),
        agent_user=environment.get("STEERSMAN_AGENT_USER") or None,
        repositories=_directories(environment, "STEERSMAN_REPOSITORIES"),
        max_file_mib=_count(environment, "STEERSMAN_MAX_FILE_MIB", DEFAULT_MAX_FILE_MIB, MOST_MIB),
        max_commit_mib=_count(environment, "STEERSMAN_MAX_COMMIT_MIB", DEFAULT_MAX_COMMIT_MIB, MOST_MIB),
        turn_output_mib=_count(environment, "STEERSMAN_TURN_OUTPUT_MIB", DEFAULT_TURN_OUTPUT_MIB, MOST_MIB),
        webhook_networks=_networks(environment, "STEERSMAN_WEBHOOK_NETWORKS"),
        notify_command=environment.command,
        commit_author=_author(environment),
        approved_by=_switch(environment, "STEERSMAN_APPROVED_BY"),
    )


def read_connection(environment: Mapping[str, str] | None = None) -> Connection:
    """
    Return where the service is and the token to show it: as the command's own options say, else as the environment does.
    Raises Refused.
    """
    if environment is None:
        context = click.get_current_context(silent=True)
        given: Mapping[str, str] = context.meta.get(CONNECTION, {}) if context else {}
        environment = {**os.environ, **given}
    environment = read_sources(environment)
    token = environment.get("STEERSMAN_TOKEN", "")
    if not token:
        raise Refused("STEERSMAN_TOKEN is not set. Get one with: steersman token issue --user YOU --scope operator")
    if not token.isascii() or not token.isprintable():
        # It may be the greater part of a token, so it is not repeated.
        raise Refused("STEERSMAN_TOKEN is no token: it holds other letters than those have.")
    url = environment.get("STEERSMAN_SERVER_URL") or DEFAULT_SERVER_URL
    if not url.startswith(("http://", "https://")):
        raise Refused(f"STEERSMAN_SERVER_URL must begin with http:// or https://, not be {url!r}.")
    return Connection(url=url.rstrip("/"), token=token)


def _isolation(environment: Sources) -> Isolation | None:
    match environment.get("STEERSMAN_ISOLATION") or None:
        case None | "bubblewrap" | "none" as isolation:
            return isolation
        case other:
            raise Refused(f"{environment.label('STEERSMAN_ISOLATION')} must be bubblewrap or none, not {other!r}.")


def _author(environment: Sources) -> str | None:
    value = environment.get("STEERSMAN_COMMIT_AUTHOR") or None
    if value is not None and not re.fullmatch(r"[^<>\x00-\x1f]*[^<>\s\x00-\x1f] <[^<>\s\x00-\x1f]+>", value):
        raise Refused(f"{environment.label('STEERSMAN_COMMIT_AUTHOR')} must be `Name <address>`, not {value!r}.")
    return value


def _switch(environment: Sources, name: str) -> bool:
    match environment.get(name) or "no":
        case "yes" | "no" as value:
            return value == "yes"
        case other:
            raise Refused(f"{environment.label(name)} must be yes or no, not {other!r}.")


def _directories(environment: Sources, name: str) -> tuple[Path, ...] | None:
    named = [Path(part).expanduser() for part in environment.get(name, "").split(os.pathsep) if part]
    for path in named:
        if not path.is_absolute():
            raise Refused(f"{environment.label(name)} must name absolute directories, not {str(path)!r}.")
    return tuple(named) or None


def _networks(environment: Sources, name: str) -> tuple[str, ...]:
    # Between networks stands a comma: an address of IPv6 has colons of its own.
    named = tuple(part.strip() for part in environment.get(name, "").split(",") if part.strip())
    try:
        read_networks(named)
    except ValueError as error:
        raise Refused(f"{environment.label(name)} must name networks, such as 10.0.0.0/8: {error}.") from error
    return named


def _home(environment: Sources) -> Path:
    base = environment.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(base) / "steersman"


def _keys(environment: Sources) -> Path:
    if environment.get("STEERSMAN_KEYS"):
        return Path(environment["STEERSMAN_KEYS"]).expanduser().absolute()
    base = environment.get("XDG_STATE_HOME") or "~/.local/state"
    return (Path(base) / "steersman" / "keys").expanduser().absolute()


def _address(environment: Sources, name: str, schemes: tuple[str, ...]) -> str | None:
    value = environment.get(name, "")
    if value and not value.startswith(schemes):
        # The value may hold a password, so it is not repeated.
        raise Refused(f"{environment.label(name)} must begin with {' or '.join(schemes)}.")
    return value or None


def _count(environment: Sources, name: str, default: int, most: int) -> int:
    value = environment.get(name) or str(default)
    if not value.isascii() or not value.isdigit() or not 1 <= int(value[:10]) <= most:
        raise Refused(f"{environment.label(name)} must be a number from 1 to {most}, not {value!r}.")
    return int(value)


#: The option that every command has that works on the data directory itself.
data_option = click.option(
    "--data",
    type=click.Path(path_type=Path, file_okay=False),
    help="The data directory [default: $STEERSMAN_DATA, else steersman in the user's data folder].",
)
#: Under which name a command's context has what its options say about the connection.
CONNECTION = "steersman.connection"


def _connects(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value:
        name = {"server": "STEERSMAN_SERVER_URL", "token": "STEERSMAN_TOKEN"}[str(parameter.name)]
        context.meta.setdefault(CONNECTION, {})[name] = value


def client_options(command: Command) -> Command:
    """Give a command that asks the service the options that say where that is, who asks, and how to print."""
    for option in (
        json_option,
        click.option(
            "--token", expose_value=False, callback=_connects, help="The token to show it [default: $STEERSMAN_TOKEN]."
        ),
        click.option(
            "--server", expose_value=False, callback=_connects, help="The service [default: $STEERSMAN_SERVER_URL]."
        ),
    ):
        command = option(command)
    return command


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
