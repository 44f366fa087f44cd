"""`steersman rehearsal-agent`: the built-in agent, for whoever wants to talk to it directly."""

from pathlib import Path

import click

from ...adapters.rehearsal.agent import main


@click.command()
@click.option(
    "--home",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where its sessions are kept [default: below the home].",
)
@click.pass_context
def command(context: click.Context, home: Path | None) -> None:
    """Be the coding agent that needs no model: serve one ACP client on standard input and output."""
    context.exit(main(["--home", str(home)] if home else []))
