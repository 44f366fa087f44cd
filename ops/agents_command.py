"""`steersman agents`: what agents.toml says, checked against this machine."""

from pathlib import Path

import click

from ..adapters.agents_file import AgentsFileInvalid, find_command, read_agents
from ..application.agent_port import AgentInfo
from .output import print_json, print_table
from .refused import Refused
from .settings import Settings, data_option, json_option, read_settings

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
@data_option
@agents_option
@json_option
def command(data: Path | None, agents_file: Path | None, as_json: bool) -> None:
    """List the known agents and whether their command is on PATH, the default first."""
    agents = agents_shown(read_settings(data), agents_file)
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
