"""`steersman completion`: what a shell needs to complete the names of commands and options."""

import click
from click.shell_completion import get_completion_class

SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def command(context: click.Context, shell: str) -> None:
    """
    Print what SHELL needs to complete this command; write it to

    \b
    bash  ~/.local/share/bash-completion/completions/steersman
    zsh   a folder of $fpath, as _steersman
    fish  ~/.config/fish/completions/steersman.fish
    """
    kind = get_completion_class(shell)
    if kind is None:
        raise AssertionError(f"click completes in {shell}")
    click.echo(kind(context.find_root().command, {}, "steersman", "_STEERSMAN_COMPLETE").source())
