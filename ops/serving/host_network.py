"""A check of what an agent reaches that shares the machine's network: all of it must ask for a secret."""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from ...adapters.processes.agents_file import KnownAgents
from ...adapters.processes.box import Box, CommandTooLong, Inside, run
from ..refused import Refused
from ..settings import Settings

TRY_SECONDS = 60.0
#: Run inside, as an agent would: prints what lets it in without a secret.
TRIES = """
import json, sys
database, redis_url = json.loads(sys.argv[1])
if database:
    import psycopg
    try:
        psycopg.connect(database, connect_timeout=5).close()
        print("database")
    except Exception as error: pass
if redis_url:
    import redis
    try:
        redis.Redis.from_url(redis_url, socket_timeout=5, socket_connect_timeout=5).ping()
        print("redis")
    except Exception as error: pass
"""
NAMES = {"database": "STEERSMAN_DATABASE", "redis": "STEERSMAN_REDIS"}


def check_host_network(box: Box, known: KnownAgents, settings: Settings) -> None:
    """Return if nobody has the machine's network, or nothing of ours lets them in by it. Raises Refused."""
    having = [name for name, command in sorted(known.commands.items()) if command.network == "host"]
    having += ["build"] if known.build.network == "host" else []
    if box.isolation == "none" or not having:
        return
    open_to_all = let_in(box, settings.database, settings.redis)
    if open_to_all:
        names = " and ".join(NAMES.get(name, name) for name in open_to_all)
        raise Refused(
            f'`network = "host"` ({", ".join(having)} in agents.toml) is refused: tried from inside a box, what {names} '
            "names lets anybody in without a secret. Have it ask for a password, or leave these agents the proxy."
        )


def let_in(box: Box, database: str | None, redis: str | None) -> Sequence[str]:
    """Return which of them lets somebody in who has the machine's network and no secret. Raises Refused."""
    inside = Inside(cwd=Path("/"), env={"PATH": os.defpath}, network="host")
    addresses = json.dumps([without_secret(database), without_secret(redis)])
    try:
        ended = run(box, [sys.executable, "-I", "-c", TRIES, addresses], inside, timeout_seconds=TRY_SECONDS)
    except CommandTooLong as error:
        raise Refused(f"It could not be tried what an agent reaches: {error}") from error
    if ended.code != 0:
        raise Refused(f"It could not be tried what an agent reaches: {ended.words.strip()}")
    return ended.output.decode().split()


def without_secret(address: str | None) -> str | None:
    """Return an address with the name that it has, and without its password."""
    if address is None:
        return None
    parts = urlsplit(address)
    user = f"{parts.username}@" if parts.username else ""
    query = "&".join(part for part in parts.query.split("&") if not part.startswith(("password=", "passfile=")))
    return urlunsplit(parts._replace(netloc=user + parts.netloc.rpartition("@")[2], query=query))
