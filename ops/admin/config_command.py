"""`steersman config`: what holds for commands on this machine, and who says so."""

import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import click
import msgspec

from ..output import note, print_json, print_table
from ..settings import DEFAULT_SERVER_URL, Settings, data_option, json_option, settings_of
from ..settings_sources import FILE_VARIABLE, NAMES, PREFIX, SECRET, Sources, read_sources, settings_file


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """What a setting is, and who says so: a variable, the file, an option of this command, or nobody (`default`)."""

    name: str
    value: str | int | list[str] | None
    origin: str


@click.command()
@data_option
@json_option
def command(data: Path | None, as_json: bool) -> None:
    """
    Show every setting, and where it comes from: the environment, the settings file, or nowhere. What opens doors is not
    shown. Whether the service can use it all, `steersman doctor` says.
    """
    sources = read_sources(os.environ)
    found = list(_settings(sources, settings_of(sources, data), is_named=data is not None))
    path = settings_file(os.environ)
    if as_json:
        print_json({"file": str(path) if sources.path else None, "settings": found})
        return
    print_table(("SETTING", "VALUE", "FROM"), [(one.name, _words(one.value), one.origin) for one in found])
    if sources.path is None:
        note(f"There is no settings file{f' at {path}' if path else ''}; {FILE_VARIABLE} names another one.")


def _settings(sources: Sources, settings: Settings, *, is_named: bool) -> Iterator[Setting]:
    for name in NAMES:
        if name == "data" and is_named:
            origin = "--data"
        else:
            match sources.origin(name):
                case "environment":
                    origin = f"{PREFIX}{name.upper()}"
                case "file":
                    origin = str(sources.path)
                case _:
                    origin = "default"
        yield Setting(name=name, value=_value(name, sources, settings), origin=origin)


def _value(name: str, sources: Sources, settings: Settings) -> str | int | list[str] | None:
    if name == "token":
        return "(set)" if sources.get("STEERSMAN_TOKEN") else None
    if name == "server_url":
        return sources.get("STEERSMAN_SERVER_URL") or DEFAULT_SERVER_URL
    value = getattr(settings, name)
    if name in SECRET:
        return _without_secret(value)
    if isinstance(value, tuple):
        parts: tuple[object, ...] = value  # pyright: ignore[reportUnknownVariableType]
        return [str(part) for part in parts]
    return str(value) if isinstance(value, Path) else value


def _without_secret(address: str | None) -> str | None:
    """Return what of an address tells where it leads: a password may stand before the host or behind the path."""
    if address is None:
        return None
    parts = urlsplit(address)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _words(value: str | int | list[str] | None) -> str:
    if value is None:
        return "-"
    return " ".join(value) or "-" if isinstance(value, list) else str(value)
