"""`steersman doctor`: what the service needs of this machine, looked at one by one."""

import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import msgspec
import psycopg
import redis

from ...adapters.log.opening import put_back
from ...adapters.log.sealing import REMEDY
from ...adapters.log_format.checkpoint_file import CheckpointFile
from ...adapters.log_format.entry import Bad
from ...adapters.log_format.keys import Keyring, KeysRefused
from ...adapters.processes.bubblewrap import find_program
from ...adapters.stores import postgres_schema
from ..output import print_json, print_table
from ..refused import Refused
from ..serving.agent_places import room_for_agents
from ..serving.data_dir import is_served, prepare_data_dir
from ..serving.wiring import check_box, known_agents, open_box, sealing
from ..settings import Settings, data_option, json_option, read_settings
from .agents_command import agents_option, agents_shown
from .audit_sources import reading

LEAST_FREE_BYTES = 512 * 1024 * 1024
REACH_SECONDS = 5
LEAST_GIT = (2, 39)


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """What one look came to. `ok` None: nothing is wrong, and something could be better."""

    name: str
    ok: bool | None
    detail: str


@click.command()
@data_option
@agents_option
@json_option
def command(data: Path | None, agents_file: Path | None, as_json: bool) -> None:
    """Check that this machine has what the service needs; exit 1 if it lacks something."""
    settings = read_settings(data)
    findings = list(examine(settings, agents_file))
    if as_json:
        print_json(findings)
    else:
        words = {True: "ok", False: "FAILED", None: "note"}
        print_table(("STATE", "WHAT", "DETAIL"), [(words[f.ok], f.name, f.detail) for f in findings])
    failed = [finding.name for finding in findings if finding.ok is False]
    if failed:
        raise Refused(f"{', '.join(failed)}: see above.")


def examine(settings: Settings, agents_file: Path | None) -> Iterator[Diagnosis]:
    """Look at everything; no look changes anything but that it makes the data directory."""
    yield Diagnosis(name="python", ok=sys.version_info >= (3, 11), detail=platform.python_version())
    yield Diagnosis(
        name="processes",
        ok=Path("/proc/self/stat").exists() and hasattr(os, "pidfd_open"),
        detail="agents are kept by means of /proc and pidfds (Linux)",
    )
    yield _attempt("data directory", lambda: _data_dir(settings))
    yield _attempt("keys", lambda: _keys(settings))
    yield _attempt("log", lambda: _log(settings))
    if settings.redis:
        yield _attempt("redis", lambda: _redis(str(settings.redis)))
    yield from _agents(settings, agents_file)
    yield _attempt("box", lambda: _box(settings, agents_file))
    yield _attempt("places", lambda: room_for_agents(settings))
    yield _attempt("git", _git)


def _box(settings: Settings, agents_file: Path | None) -> str:
    box = open_box(settings, known_agents(settings, agents_file))
    if box.isolation == "none":
        return "isolation is none: agents and builds have all rights of the service"
    check_box(box)
    return f"agents work in boxes of {find_program()}"


def _git() -> str:
    git = shutil.which("git")
    if git is None:
        raise Refused("git is not on PATH.")
    told = subprocess.run([git, "--version"], capture_output=True, text=True, check=False, timeout=REACH_SECONDS).stdout
    found = re.search(r"(\d+)\.(\d+)", told)
    if found is None or (int(found[1]), int(found[2])) < LEAST_GIT:
        raise Refused(f"{git} is {told.strip() or 'no git'}; 2.39 or later is needed.")
    return f"{git}, {found[0]}"


def _attempt(name: str, look: Callable[[], str]) -> Diagnosis:
    try:
        return Diagnosis(name=name, ok=True, detail=look())
    except Refused as refused:
        return Diagnosis(name=name, ok=False, detail=refused.message)


def _data_dir(settings: Settings) -> str:
    prepare_data_dir(settings.data)
    free = shutil.disk_usage(settings.data).free
    if free < LEAST_FREE_BYTES:
        raise Refused(f"{settings.data} has only {free // 1024**2} MiB left.")
    served = "; a process serves it now" if is_served(settings.data) else ""
    return f"{settings.data}, {free // 1024**2} MiB free{served}"


def _keys(settings: Settings) -> str:
    sealing(settings)  # refuses keys that lie in the data directory
    try:
        pairs = len(Keyring(settings.keys).all())
    except (KeysRefused, OSError) as error:
        raise Refused(str(error)) from error
    return f"{settings.keys}, {pairs} made" if pairs else f"{settings.keys}, none yet: the first start makes them"


def _log(settings: Settings) -> str:
    """Look at the log as `serve` does before it writes: its keys are here, and it holds what was signed last."""
    place, is_begun = _postgres(settings.database) if settings.database else _sqlite(settings.data / "log.db")
    if not is_begun and not settings.checkpoints.exists():
        return f"{place}, with nothing in it yet"
    try:
        with reading(settings) as recorder:
            reason = put_back(recorder, Keyring(settings.keys), CheckpointFile(settings.checkpoints))
            facts = recorder.head()
    except (KeysRefused, Bad) as error:
        raise Refused(str(error)) from error
    except (LookupError, TypeError, ValueError) as error:
        raise Refused(f"{place} holds no log, or its head is gone: {error!r}") from error
    if reason is not None:
        raise Refused(f"{reason}. {REMEDY}")
    return f"{place}, {facts} facts"


def _sqlite(path: Path) -> tuple[str, bool]:
    """Return what the store is called, and whether there is a log in it."""
    return f"SQLite, {path}", path.exists() and path.stat().st_size > 0


def _postgres(database: str) -> tuple[str, bool]:
    try:
        with psycopg.connect(database, connect_timeout=REACH_SECONDS) as connection:
            place = f"PostgreSQL {connection.info.server_version // 10_000} at {connection.info.host}"
        return place, bool(postgres_schema.applied(database))
    except psycopg.Error as error:
        raise Refused(f"STEERSMAN_DATABASE cannot be reached: {error}") from error


def _redis(url: str) -> str:
    try:
        client = redis.Redis.from_url(url, socket_timeout=REACH_SECONDS, socket_connect_timeout=REACH_SECONDS)  # pyright: ignore[reportUnknownMemberType]
        client.ping()  # pyright: ignore[reportUnknownMemberType]
        client.close()
    except (redis.RedisError, ValueError) as error:
        raise Refused(f"STEERSMAN_REDIS cannot be reached: {error}") from error
    return "answers"


def _agents(settings: Settings, agents_file: Path | None) -> Iterator[Diagnosis]:
    try:
        agents = agents_shown(settings, agents_file)
    except Refused as refused:
        yield Diagnosis(name="agents", ok=False, detail=refused.message)
        return
    for agent in agents:
        missing = False if agent.is_default else None
        detail = agent.command[0] if agent.installed else f"{agent.command[0]} is not on PATH"
        yield Diagnosis(name=f"agent {agent.name}", ok=True if agent.installed else missing, detail=detail)
