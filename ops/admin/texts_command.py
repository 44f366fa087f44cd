"""`steersman texts`: forget words that were kept long enough. The facts that held them, and their proofs, stay."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click
import msgspec

from ...adapters.stores.memory import MemoryWakeups
from ...application.ports.log import EventLog, LogUnavailable, Undecodable
from ..output import print_json
from ..refused import Refused
from ..serving.wiring import open_stores
from ..settings import data_option, json_option, read_settings

PAGE = 500
#: How many runs' words are forgotten in one transaction.
RUNS_AT_ONCE = 100
MAX_DIGITS = 6
_AGE = re.compile(rf"([0-9]{{1,{MAX_DIGITS}}})([dh])")
_UNITS = {"d": "days", "h": "hours"}


class Age(click.ParamType[timedelta]):
    """A number of days or hours."""

    name = "age"

    def convert(self, value: str | timedelta, param: click.Parameter | None, ctx: click.Context | None) -> timedelta:
        """Return how long that is."""
        if isinstance(value, timedelta):
            return value
        found = _AGE.fullmatch(value)
        if found is None:
            self.fail(f"{value!r} is no age: write 90d or 12h.", param, ctx)
        return timedelta(**{_UNITS[found[2]]: int(found[1])})


class Expired(msgspec.Struct, frozen=True, kw_only=True):
    """What was forgotten."""

    texts: int
    runs: int
    before: str


@click.group()
def command() -> None:
    """Forget words for good."""


@command.command()
@click.option("--older-than", "age", type=Age(), required=True, help="Such as 90d or 12h.")
@click.option("--output-only", is_flag=True, help="Only what agents said. Nothing else can expire: runs go by it.")
@data_option
@json_option
def expire(age: timedelta, output_only: bool, data: Path | None, as_json: bool) -> None:
    """Forget what agents said longer ago than that, beside a running service or without one."""
    if not output_only:
        raise click.UsageError("Give --output-only: what people said belongs to their runs, and goes when those do.")
    settings = read_settings(data)
    if not settings.database and not (settings.data / "log.db").exists():
        raise Refused(f"There is no log in {settings.data}.")
    try:
        before = datetime.now(UTC) - age
    except OverflowError as error:
        raise Refused(f"Nothing is older than {age.days} days.") from error
    with open_stores(settings, MemoryWakeups()) as stores:
        try:
            expired = forget_output(stores.log, before)
        except LogUnavailable as error:
            raise Refused(str(error)) from error
    if as_json:
        print_json(expired)
    else:
        click.echo(f"Forgot {expired.texts} texts of {expired.runs} runs, from before {expired.before}.")


def forget_output(log: EventLog, before: datetime) -> Expired:
    """On return nothing that an agent said before that moment is kept. It may be repeated at any time."""
    texts, runs = 0, list(dict.fromkeys(_runs(log)))
    for start in range(0, len(runs), RUNS_AT_ONCE):
        texts += log.erase_texts(runs[start : start + RUNS_AT_ONCE], output_only=True, before=before)
    return Expired(texts=texts, runs=len(runs), before=before.isoformat(timespec="seconds"))


def _runs(log: EventLog) -> Iterator[str]:
    after = 0
    while True:
        try:
            page = log.read(after, PAGE)
        except Undecodable as undecodable:
            # Its words go with the others: it is the bytes of the fact that we cannot read.
            after = undecodable.position
            if undecodable.run is not None:
                yield undecodable.run
            continue
        if not page:
            return
        after = page[-1].position
        yield from (fact.run for fact in page if fact.run is not None)
