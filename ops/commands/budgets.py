"""`steersman budget`: what a run's agents may use from now on; and how a budget is written on the command line."""

import re
from typing import Any

import click

from ..output import plain, print_json
from ..settings import client_options, read_connection
from .client import Client, path_part
from .finding import find_run, run_path

MONEY = re.compile(r"([0-9]+(?:\.[0-9]{1,6})?) ?([A-Za-z]{3})?")


def budget_of(tokens: int | None, money: str | None, turns: int | None, minutes: int | None) -> dict[str, Any]:
    """Return a budget as requests have it; empty where nothing is limited."""
    budget: dict[str, Any] = {"tokens": tokens, "turns": turns, "minutes": minutes}
    budget = {name: value for name, value in budget.items() if value is not None}
    if money is not None:
        found = MONEY.fullmatch(money)
        if found is None:
            raise click.UsageError(f"Nothing was sent: {money!r} is no amount of money. Write 2.50, or 2.50EUR.")
        budget["money"] = found[1]
        if found[2]:
            budget["currency"] = found[2].upper()
    return budget


def usage_in_words(usage: dict[str, Any]) -> str:
    """Return what agents have used in one line."""
    words = [
        f"{usage['turns']} turns",
        f"{usage['minutes']} minutes",
        f"{usage['input_tokens']} tokens in, {usage['output_tokens']} out ({usage['total_tokens']} in all)",
    ]
    words += [f"{cost['amount']} {cost['currency']}" for cost in usage["costs"]]
    if usage["turns_without_cost"]:
        words.append(f"{usage['turns_without_cost']} turns without a reported cost")
    return ", ".join(words)


def budget_in_words(budget: dict[str, Any]) -> str:
    """Return what agents may use in one line."""
    words = [f"{budget[name]} {name}" for name in ("turns", "minutes", "tokens") if budget.get(name) is not None]
    if budget.get("money") is not None:
        words.append(f"{budget['money']} {budget['currency']}")
    return ", ".join(words) or "no limit"


@click.command()
@click.argument("run", metavar="ID")
@click.option("--tokens", help="Tokens in all, or none for no limit.")
@click.option("--money", help="Such as 2.50 (USD) or 2.50EUR, or none for no limit.")
@click.option("--turns", help="Turns in all, or none for no limit.")
@click.option("--minutes", help="Minutes of agents at work, added up, or none for no limit.")
@click.option("--of-project", is_flag=True, help="What all runs of the run's project may use together.")
@click.option("--key", help="The key of a command whose outcome was unknown: it is carried out once.")
@client_options
def command(
    run: str,
    tokens: str | None,
    money: str | None,
    turns: str | None,
    minutes: str | None,
    of_project: bool,
    key: str | None,
    as_json: bool,
) -> None:
    """Say what a run's agents may use from now on, with what they have used already: steersman budget ID --tokens 500000."""
    counts = {"tokens": tokens, "turns": turns, "minutes": minutes}
    body: dict[str, Any] = {name: _count(name, value) for name, value in counts.items() if value is not None}
    if money is not None:
        body |= {"money": None} if money == "none" else budget_of(None, money, None, None)
    if not body:
        raise click.UsageError("Nothing was sent: say what is to be limited, such as --tokens 500000.")
    with Client(read_connection()) as client:
        path = run_path(find_run(client, run))
        if of_project:
            project = f"/api/projects/{path_part(client.get(path)['project_id'])}"
            client.post(f"{project}/budget", body, key)
            found = client.get(project)
            told = {name: found.get(name) for name in ("project_id", "budget", "usage")}
        else:
            told = client.post(f"{path}/budget", body, key)
    if as_json:
        print_json(told)
        return
    whose = f"The runs of project {told['project_id']}" if of_project else f"The agents of run {told['run_id']}"
    click.echo(plain(f"{whose} may use: {budget_in_words(told['budget'])}."))
    if told["usage"]:
        click.echo(plain(f"Used so far: {usage_in_words(told['usage'])}."))


def _count(name: str, value: str) -> int | None:
    if value == "none":
        return None
    if not value.isascii() or not value.isdigit() or int(value) < 1:
        raise click.UsageError(f"Nothing was sent: --{name} is a number from 1, or none.")
    return int(value)
