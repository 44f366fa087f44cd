"""Where settings come from: the environment, and a file in TOML for whatever the environment does not say."""

import os
import tomllib
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, cast

from .refused import Refused

#: The variable that names the file.
FILE_VARIABLE = "STEERSMAN_SETTINGS"
PREFIX = "STEERSMAN_"
#: What the file may say: the variables by their own names, without the prefix.
NAMES: Mapping[str, Literal["text", "number", "list", "command"]] = {
    "data": "text",
    "database": "text",
    "redis": "text",
    "keys": "text",
    "repositories": "list",
    "max_agents": "number",
    "stall_seconds": "number",
    "turn_output_mib": "number",
    "max_file_mib": "number",
    "max_commit_mib": "number",
    "max_feeds": "number",
    "lease_stale_seconds": "number",
    "commit_author": "text",
    "approved_by": "text",
    "isolation": "text",
    "agent_user": "text",
    "webhook_networks": "list",
    "notify_command": "command",
    "server_url": "text",
    "token": "text",
}
#: What stands between the parts of a list in its variable.
SEPARATORS = {"repositories": os.pathsep, "webhook_networks": ","}
#: Whoever may write what is run is whoever runs it, so these stand in the file alone.
FILE_ONLY = frozenset({"notify_command"})
#: What opens doors. `steersman config` does not show it, and a file that has it is closed to others.
SECRET = frozenset({"token", "database", "redis"})
MAX_BYTES = 64 * 1024
OTHERS_WRITE, OTHERS_READ = 0o022, 0o044


class Sources(Mapping[str, str]):
    """What is set, by the variables' names, whether a variable or the file says so; a variable wins."""

    def __init__(self, environment: Mapping[str, str], path: Path | None, said: Mapping[str, Any]) -> None:
        #: The file that was read, or None.
        self.path = path
        self.command: tuple[str, ...] = tuple(said.get("notify_command", ()))
        self._from_file = {
            _variable(name): _as_text(name, value) for name, value in said.items() if name not in FILE_ONLY
        }
        self._environment = {name: value for name, value in environment.items() if value}

    def __getitem__(self, name: str) -> str:
        """Return what is set."""
        return self._environment[name] if name in self._environment else self._from_file[name]

    def __iter__(self) -> Iterator[str]:
        """Give the names of what is set."""
        return iter({**self._from_file, **self._environment})

    def __len__(self) -> int:
        """Return how much is set."""
        return len({**self._from_file, **self._environment})

    def label(self, name: str) -> str:
        """Return what whoever set this calls it."""
        if name in self._from_file and name not in self._environment:
            return f"`{key_of(name)}` in {self.path}"
        return name

    def origin(self, key: str) -> Literal["environment", "file", "default"]:
        """Return who says what a key of the file means here."""
        if key in FILE_ONLY:
            return "file" if self.command else "default"
        name = _variable(key)
        return "environment" if name in self._environment else "file" if name in self._from_file else "default"


def read_sources(environment: Mapping[str, str]) -> Sources:
    """Return what is set. Raises Refused: the file that is named is not there, or says what nobody understands."""
    path = settings_file(environment)
    if path is None:
        return Sources(environment, None, {})
    try:
        with path.open("rb") as file:
            mode, content = os.fstat(file.fileno()).st_mode, file.read(MAX_BYTES + 1)
    except FileNotFoundError as error:
        if environment.get(FILE_VARIABLE):
            raise Refused(f"{path}, which {FILE_VARIABLE} names, is not there.") from error
        return Sources(environment, None, {})
    except OSError as error:
        raise Refused(f"{path} cannot be read: {error.strerror}.") from error
    said = _parsed(path, content)
    for name, value in said.items():
        _check(path, name, value, mode)
    return Sources(environment, path, said)


def settings_file(environment: Mapping[str, str]) -> Path | None:
    """Return where the file is, or would be."""
    if named := environment.get(FILE_VARIABLE):
        return Path(named).expanduser().absolute()
    base = environment.get("XDG_CONFIG_HOME") or (f"{home}/.config" if (home := environment.get("HOME")) else "")
    return Path(base) / "steersman" / "settings.toml" if base else None


def key_of(variable: str) -> str:
    """Return what a variable is called in the file."""
    return variable.removeprefix(PREFIX).lower()


def _variable(key: str) -> str:
    return PREFIX + key.upper()


def _parsed(path: Path, content: bytes) -> Mapping[str, Any]:
    if len(content) > MAX_BYTES:
        raise Refused(f"{path} has more than {MAX_BYTES} bytes.")
    try:
        return tomllib.loads(content.decode())
    except (ValueError, RecursionError) as error:
        raise Refused(f"{path} is no TOML: {error}.") from error


def _check(path: Path, name: str, value: Any, mode: int) -> None:
    """Return if the file may say that. Raises Refused."""
    kind = NAMES.get(name)
    if kind is None:
        plain = name.lower().removeprefix(PREFIX.lower())
        close = [plain] if plain in NAMES else get_close_matches(plain, NAMES, n=1)
        hint = f"Did you mean `{close[0]}`?" if close else f"It takes: {', '.join(NAMES)}."
        raise Refused(f"{path}: there is no setting `{name}`. {hint}")
    if kind in ("list", "command"):
        words = cast("list[Any]", value) if isinstance(value, list) else []
        is_fit = isinstance(value, list) and all(isinstance(word, str) and word for word in words)
        is_fit = is_fit and (kind == "list" or bool(words))
        wanted = "a list of texts"
    elif kind == "number":
        is_fit, wanted = isinstance(value, int) and not isinstance(value, bool), "a number"
    else:
        is_fit, wanted = isinstance(value, str), "a text"
    if not is_fit:
        raise Refused(f"{path}: `{name}` must be {wanted}.")
    if name in FILE_ONLY and mode & OTHERS_WRITE:
        raise Refused(f"{path}: others can write to it, so `{name}` is not run. First: chmod go-w {path}")
    if name in SECRET and mode & OTHERS_READ:
        raise Refused(f"{path}: others can read it, and `{name}` opens doors. First: chmod 600 {path}")


def _as_text(name: str, value: Any) -> str:
    """Return a value as its variable would have it."""
    return SEPARATORS[name].join(value) if name in SEPARATORS else str(value)
