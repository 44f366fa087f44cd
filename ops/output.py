"""What commands print: aligned text for people, JSON for programs."""

import sys
from collections.abc import Sequence

import click
import msgspec


def print_json(value: object) -> None:
    """Print a value as JSON on one line."""
    click.echo(msgspec.json.encode(value))


def print_table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows in columns under their titles, or nothing but the titles."""
    cells = [tuple(map(plain, row)) for row in rows]
    widths = [max(len(row[i]) for row in (titles, *cells)) for i in range(len(titles))]
    for row in (titles, *cells):
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def plain(words: str) -> str:
    """Return the words without what would move a terminal's cursor or change its colours: an agent may have said them."""
    return "".join(letter if letter.isprintable() else " " for letter in words)


def note(words: str) -> None:
    """Say something that is not the answer."""
    print(words, file=sys.stderr, flush=True)
