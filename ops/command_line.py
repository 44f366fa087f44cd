"""
The command `steersman`: its groups are imported when they are asked for, so that each starts as fast as it can.

Every command ends with 0 when it is done, 1 when it was refused or could not reach what it needs, 2 when it was
called wrongly, 3 when it was sent and its outcome is unknown. What it was asked for is on standard output; everything else is on standard error.
"""

import os
import sys
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import version
from typing import Any, NoReturn, TextIO

import click

from .refused import Refused

#: Name, the module here whose `command` it is (or `module:name`), and what it does.
COMMANDS = {
    "run": ("commands.start_run", "Give a goal to the agents of this repository."),
    "waiting": ("commands.show_waiting", "List what waits for you, and how to answer it."),
    "show": ("commands.show_run:show", "Show how a run stands, and why what failed has failed."),
    "diff": ("commands.show_run:diff", "Show what a run has changed."),
    "approve": ("commands.decide:approve", "Approve the work of a run: it is merged."),
    "decline": ("commands.decide:decline", "Decline the work of a run: nothing is merged."),
    "changes": ("commands.decide:changes", "Ask for changes of the work of a run."),
    "answer": ("commands.answer_agent:answer", "Answer an agent's question."),
    "allow": ("commands.answer_agent:allow", "Let an agent use a tool, or run a command."),
    "deny": ("commands.answer_agent:deny", "Deny an agent a tool or a command."),
    "retry": ("commands.decide:retry", "Try again what failed, or is blocked."),
    "cancel": ("commands.decide:cancel", "Stop a run, and keep its record."),
    "budget": ("commands.budgets", "Say what the agents of a run may use."),
    "steer": ("commands.decide:steer", "Correct a run while it works."),
    "completion": ("commands.completion", "Print what a shell needs to complete all this."),
    "serve": ("admin.serve", "Run the service."),
    "config": ("admin.config_command", "Show every setting, and where it comes from."),
    "demo": ("admin.run_demo", "Show the whole way from a goal to a merged commit."),
    "token": ("admin.tokens", "Issue, list and revoke the tokens that clients send."),
    "agents": ("admin.agents_command", "List the known agents and whether they are installed."),
    "runs": ("commands.runs_command", "List, show and watch runs."),
    "fleet": ("commands.fleet_command", "Steer running workers, one or many, and list them."),
    "audit": ("admin.audit_command", "Prove that the log is what was signed; keep its keys."),
    "texts": ("admin.texts_command", "Forget what agents said long ago."),
    "backup": ("admin.backup", "Copy a data directory while it is served, to be put back."),
    "migrate": ("admin.migrate", "Change the tables of the store before and after a release takes over."),
    "replay": ("admin.replay", "Build the read models anew from the log, or check them against it."),
    "doctor": ("admin.doctor", "Check that this machine has what the service needs."),
    "rehearsal-agent": (
        "admin.rehearsal",
        "Be the coding agent that needs no model (ACP on standard input and output).",
    ),
}


class CommandGroup(click.Group):
    """The commands of the table, each imported when it is called."""

    def main(self, *args: Any, **extra: Any) -> NoReturn:
        """Run the command and end: what the system refused, wherever that was, is told in a sentence."""
        try:
            super().main(*args, **extra)
        except OSError as error:  # but for a closed pipe, which whoever reads has closed: click ends without a word
            Refused(f"{_what_failed(error)}: {error.strerror or error}.").show()
            sys.exit(1)
        finally:
            _is_broken_off()
        raise AssertionError("click ends the process")

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return the command."""
        if cmd_name not in COMMANDS:
            close = " or ".join(f"`steersman {name}`" for name in get_close_matches(cmd_name, COMMANDS, n=2))
            if close:
                ctx.fail(f"No such command {cmd_name!r}. Did you mean {close}?")
            return None
        module, _, name = COMMANDS[cmd_name][0].partition(":")
        found: click.Command = getattr(import_module(f".{module}", __package__), name or "command")
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the table without importing what is in it."""
        with formatter.section("CommandGroup"):
            formatter.write_dl([(name, words) for name, (_, words) in COMMANDS.items()])


def _what_failed(error: OSError) -> str:
    if _is_broken_off():
        return "Standard output cannot be written"
    return f"{error.filename} cannot be used" if error.filename else "The system refused to read or write"


def _is_broken_off() -> bool:
    """Whether standard output holds what it cannot write; on return Python, which tries as it ends, cannot fail at that."""
    out: TextIO | None = sys.stdout  # None: whoever started us closed it
    try:
        if out is not None:
            out.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return True
    return False


@click.command(cls=CommandGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(version("steersman"), prog_name="steersman")
def main() -> None:
    """Run and steer fleets of coding agents, from a goal to a merged commit."""


if __name__ == "__main__":
    main()
