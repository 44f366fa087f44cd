"""How commands show themselves on a terminal: in colours unless NO_COLOR is set, long text in a pager; plain elsewhere."""

import os
import shutil
import sys
from datetime import UTC, datetime

import click

from ..output import plain

#: What a state is shown in.
COLOURS = {
    "completed": "green",
    "merged": "green",
    "awaiting_review": "yellow",
    "waiting": "yellow",
    "failed": "red",
    "merge_failed": "red",
    "declined": "red",
    "blocked": "red",
    "assembly_blocked": "red",
}


def coloured(words: str, as_what: str | None = None) -> str:
    """Return the words in the colour of a state; of what an agent said nothing else can reach a terminal."""
    colour = None if os.environ.get("NO_COLOR") else COLOURS.get(as_what or words)
    return click.style(plain(words), fg=colour) if colour else plain(words)


def show_long(text: str) -> None:
    """Print a text, in a pager where it is longer than the terminal. Its control characters are made harmless."""
    lines = [plain(line) for line in text.splitlines()]
    if not os.environ.get("NO_COLOR") and sys.stdout.isatty():
        lines = [_of_diff(line) for line in lines]
    if sys.stdout.isatty() and len(lines) >= shutil.get_terminal_size().lines:
        click.echo_via_pager("\n".join(lines) + "\n")
    else:
        for line in lines:
            click.echo(line)


def _of_diff(line: str) -> str:
    if line.startswith(("+++", "---", "diff ")):
        return click.style(line, bold=True)
    colour = {"+": "green", "-": "red", "@": "cyan"}.get(line[:1])
    return click.style(line, fg=colour) if colour else line


def age(since: str, now: datetime | None = None) -> str:
    """Return for how long something has been so, in the largest unit that fits."""
    seconds = max(0, int(((now or datetime.now(UTC)) - datetime.fromisoformat(since)).total_seconds()))
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"
