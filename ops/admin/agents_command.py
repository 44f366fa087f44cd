"""`steersman agents`: what agents.toml says, checked against this machine."""

from collections.abc import Sequence
from pathlib import Path

import click

from ...adapters.processes.agents_file import AgentsFileInvalid, find_command, read_agents
from ...application.ports.agents import AgentInfo
from ..output import print_json, print_table
from ..refused import Refused
from ..settings import Settings, data_option, json_option, read_settings
from .check_agents import check_agents

agents_option = click.option(
    "--agents",
    "agents_file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="The file that names the agents [default: agents.toml in the data directory, if there is one].",
)


def agents_shown(settings: Settings, agents_file: Path | None) -> list[AgentInfo]:
    """Return every agent that can be named, the default first. Raises Refused."""
    try:
        agents = read_agents(agents_file, settings.data)
    except AgentsFileInvalid as error:
        raise Refused(str(error)) from error
    return [
        AgentInfo(
            name=name,
            command=command.command,
            installed=find_command(command) is not None,
            is_default=name == agents.default,
        )
        for name, command in sorted(agents.commands.items(), key=lambda item: (item[0] != agents.default, item[0]))
    ]


@click.command()
@click.argument("names", nargs=-1, metavar="[AGENT]...")
@click.option("--check", is_flag=True, help="Start each, or those that are named, up to where a model is needed.")
@data_option
@agents_option
@json_option
def command(names: tuple[str, ...], check: bool, data: Path | None, agents_file: Path | None, as_json: bool) -> None:
    """List the known agents and whether their command is on PATH, the default first."""
    settings = read_settings(data)
    agents = agents_shown(settings, agents_file)
    if strange := [name for name in names if name not in {agent.name for agent in agents}]:
        raise Refused(f"agents.toml names no agent {', '.join(strange)}.")
    agents = [agent for agent in agents if not names or agent.name in names]
    if check:
        _check(settings, agents_file, [agent.name for agent in agents], as_json)
        return
    if as_json:
        print_json(agents)
        return
    rows = [
        (
            agent.name + (" (default)" if agent.is_default else ""),
            "installed" if agent.installed else "not on PATH",
            " ".join(agent.command),
        )
        for agent in agents
    ]
    print_table(("AGENT", "STATE", "COMMAND"), rows)


def _check(settings: Settings, agents_file: Path | None, names: Sequence[str], as_json: bool) -> None:
    """Start each agent, open a session, and say what it can do, or what it lacks. Raises Refused: one of them lacks it."""
    found = [*check_agents(settings, agents_file, names)]
    if as_json:
        print_json(found)
    else:
        print_table(
            ("AGENT", "STATE", "WHAT"), [(one.name, "starts" if one.ok else one.code, one.detail) for one in found]
        )
    if lacking := [one.name for one in found if not one.ok]:
        raise Refused(f"{', '.join(lacking)}: see above.")
