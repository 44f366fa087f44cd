"""The settings that a repository holds for us: one YAML file, read and written without following a link."""

import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import yaml

from ..application.ports.git import SettingsUnreadable

FOLDER, NAME = ".steersman", "settings.yml"
#: Looked into as well, for repositories that come from elsewhere; ours wins.
FOLDERS = (FOLDER, ".agentweaver")
MAX_BYTES = 64 * 1024


def read_settings(repository: Path) -> Mapping[str, Any]:
    """Return what the settings file says; nothing where there is none. Raises SettingsUnreadable."""
    for folder in FOLDERS:
        content = _content(repository / folder)
        if content is not None:
            return _parsed(content)
    return {}


def write_settings(repository: Path, changed: Mapping[str, Any]) -> None:
    """Make the settings file say this, and whatever else it said before; it is there whole or not at all."""
    folder = repository / FOLDER
    try:
        folder.mkdir(exist_ok=True)
        with suppress(SettingsUnreadable):
            changed = {**_parsed(_content(folder) or b""), **changed}
        _refuse_link(folder)
        text = yaml.safe_dump(dict(changed), sort_keys=False, allow_unicode=True)
        prepared = folder / f".{NAME}.new"
        prepared.unlink(missing_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        with open(os.open(prepared, flags, 0o644), "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        # A link in its place is replaced, and what it led to stays as it was.
        os.replace(prepared, folder / NAME)
    except OSError as error:
        raise SettingsUnreadable(f"the settings cannot be written: {error.strerror}") from error


def _content(folder: Path) -> bytes | None:
    try:
        _refuse_link(folder)
        with open(os.open(folder / NAME, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise SettingsUnreadable("the settings are no file")
            content = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SettingsUnreadable(f"the settings cannot be read: {error.strerror}") from error
    if len(content) > MAX_BYTES:
        raise SettingsUnreadable(f"the settings have more than {MAX_BYTES} bytes")
    return content


def _refuse_link(folder: Path) -> None:
    if folder.is_symlink():
        raise SettingsUnreadable(f"{folder.name} is a link")


def _parsed(content: bytes) -> Mapping[str, Any]:
    try:
        found: Any = yaml.safe_load(content)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise SettingsUnreadable("the settings are no YAML") from error
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise SettingsUnreadable("the settings are no mapping")
    return {str(key): value for key, value in cast("dict[object, Any]", found).items()}
