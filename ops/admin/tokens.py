"""`steersman token`: works on the table of tokens directly, so that it needs no token and runs beside the service."""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import click
import msgspec

from ...adapters.stores.token_store import IssuedToken, NoSuchToken, Scope, TokenStore, open_tokens
from ...application.ports.log import LogUnavailable
from ..output import print_json, print_table
from ..refused import Refused
from ..serving.data_dir import prepare_data_dir
from ..settings import data_option, json_option, read_settings


@contextmanager
def tokens(data: Path | None) -> Generator[TokenStore]:
    """Give the installation's tokens. Raises Refused."""
    settings = read_settings(data)
    try:
        store = open_tokens(prepare_data_dir(settings.data), settings.database)
        try:
            yield store
        finally:
            store.close()
    except LogUnavailable as error:
        raise Refused(str(error)) from error


@click.group()
def command() -> None:
    """Issue, list and revoke the tokens that clients send."""


@command.command()
@data_option
@click.option("--user", required=True, help="Who will act with the token.")
@click.option("--scope", type=click.Choice(["viewer", "operator"]), required=True, help="What it lets them do at most.")
def issue(data: Path | None, user: str, scope: Scope) -> None:
    """Print a new token, alone on one line. It is shown this once: only its digest is kept."""
    with tokens(data) as store:
        try:
            click.echo(store.issue(user, scope))
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="--user") from error


@command.command("list")
@data_option
@json_option
def list_tokens(data: Path | None, as_json: bool) -> None:
    """List the tokens that were issued, the oldest first."""
    with tokens(data) as store:
        issued = store.list()
    if as_json:
        print_json(issued)
        return
    print_table(("ID", "USER", "SCOPE", "ISSUED", "REVOKED"), [_cells(token) for token in issued])


@command.command()
@click.argument("id_prefix", metavar="ID")
@data_option
@json_option
def revoke(id_prefix: str, data: Path | None, as_json: bool) -> None:
    """End the token whose ID (see `list`) begins so; from now on it is refused."""
    with tokens(data) as store:
        try:
            token = store.revoke(id_prefix)
        except NoSuchToken as error:
            raise Refused(str(error)) from error
    if as_json:
        print_json(token)
    else:
        click.echo(f"Revoked {token.id} of {token.user}.")


def _cells(token: IssuedToken) -> tuple[str, ...]:
    return tuple(value or "" for value in msgspec.structs.astuple(token))
