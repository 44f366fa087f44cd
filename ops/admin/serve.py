"""`steersman serve`: the service, until it is told to end."""

import faulthandler
import ipaddress
import os
import resource
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from types import FrameType
from typing import Any

import click
import structlog
import uvicorn

from ...adapters.stores.token_store import TokenStore
from ...application.ports.log import LogUnavailable
from ..interpreter import tune
from ..output import print_json
from ..refused import Refused
from ..serving.agent_places import files_wanted, room_for_agents
from ..serving.connections import ClientLimits, GuardedServer
from ..serving.data_dir import alone_in, prepare_data_dir
from ..serving.driving import Role
from ..serving.logs import configure_logs
from ..serving.wiring import Service, open_service
from ..settings import Settings, data_option, read_settings
from .agents_command import agents_option

#: What open requests get to end by themselves; a feed ends at once and its client resumes by id.
GRACE_SECONDS = 3
BACKLOG = 512
#: How many connections may be open besides those of feeds.
OTHER_CONNECTIONS = 512

log = structlog.get_logger(__name__)


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--port", type=click.IntRange(0, 65_535), default=8420, show_default=True, help="0: any that is free.")
@data_option
@click.option(
    "--role",
    type=click.Choice(["all", "api", "worker"]),
    default="all",
    show_default=True,
    help="What this process does.",
)
@agents_option
def command(host: str, port: int, data: Path | None, role: Role, agents_file: Path | None) -> None:
    """
    Run the service. With PostgreSQL there may be many of them on one data directory: `api` takes commands and answers
    questions, `worker` drives runs, `all` does both.

    The first line on standard output is {"url": …, "data": …}, printed as soon as requests are accepted.
    Logs are JSON lines on standard error. SIGTERM or SIGINT ends it; what it was doing, the next start goes on with.
    SIGUSR1 makes it say, between its logs, where each of its threads is.
    """
    configure_logs()
    # Asked for by whoever wonders why nothing moves: where each thread is, on standard error.
    faulthandler.register(signal.SIGUSR1)
    settings = read_settings(data)
    prepare_data_dir(settings.data)
    if role != "all" and settings.database is None:
        raise Refused(
            f"--role {role} needs STEERSMAN_DATABASE: on SQLite there is one process, and it does everything."
        )
    if role != "api":
        room_for_agents(settings)
    allow_open_files(files_wanted(settings))
    shared = settings.database is not None
    with alone_in(settings.data, shared=shared), open_service(settings, agents_file, role) as service:
        check_exposure(host, service.tokens)
        with listen(host, port) as listener:
            url = address_of(listener)
            tune()
            run(service, listener, lambda: _announce(url, settings, role))
    log.info("ended", url=url)


def allow_open_files(wanted: int) -> None:
    """Let this process have so many files open, as far as the system lets us."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        if most < wanted:
            log.warning(
                "fewer files may be open than STEERSMAN_MAX_FEEDS and STEERSMAN_MAX_AGENTS ask for",
                limit=most,
                wanted=wanted,
            )


def check_exposure(host: str, tokens: TokenStore) -> None:
    """Refuse to be reached from other machines before anybody has a token. Raises Refused."""
    try:
        usable = any(token.revoked_at is None for token in tokens.list())
    except LogUnavailable as error:
        raise Refused(str(error)) from error
    if not usable and not _is_loopback(host):
        addresses_of(host, 0)  # one that there is not can be reached from nowhere
        raise Refused(
            f"{host} can be reached from other machines, and no token is issued yet. "
            "First: steersman token issue --user YOU --scope operator"
        )
    if not usable:
        log.warning("no token is issued: every request is refused until `steersman token issue` has made one")


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens there. Raises Refused."""
    family, kind, protocol, _, address = addresses_of(host, port)[0]
    try:
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        raise Refused(f"{host} port {port} cannot be listened on: {error.strerror}.") from error
    return listener


def addresses_of(host: str, port: int) -> list[Any]:
    """Return what `getaddrinfo` says of a host to listen at. Raises Refused."""
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise Refused(f"{host} port {port} cannot be listened on: {error.strerror}.") from error


def address_of(listener: socket.socket) -> str:
    """Return the URL at which a listening socket is reached."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def run(service: Service, listener: socket.socket, on_started: Callable[[], None]) -> None:
    """Serve until a signal says to end; on return no request is open any more."""
    config = uvicorn.Config(
        service.app,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    limits = ClientLimits(connections=service.max_feeds + OTHER_CONNECTIONS)
    Server(config, limits, on_started, service).run(sockets=[listener])


class Server(GuardedServer):
    """uvicorn, telling when it has started, draining before it ends, and ending the feeds before it waits for requests."""

    def __init__(
        self, config: uvicorn.Config, limits: ClientLimits, on_started: Callable[[], None], service: Service
    ) -> None:
        super().__init__(config, limits)
        self._on_started = on_started
        self._service = service
        self._is_draining = False

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to accept requests."""
        await super().startup(sockets=sockets)
        if self.started:
            try:
                self._on_started()
            except OSError as error:
                await self.shutdown(sockets=sockets)
                raise Refused(f"Nobody can be told where the service is: {error.strerror}.") from error

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the feeds, then every other request, within the grace."""
        self._service.feed.close()
        await super().shutdown(sockets=sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """End in order; told again, end now. uvicorn would die of the signal afterwards; to us it is the ordinary end."""
        self.force_exit = self.should_exit and sig == signal.SIGINT
        if self._is_draining:
            self.should_exit = True
            return
        self._is_draining = True
        Thread(target=self._drain, name="drain", daemon=True).start()

    def _drain(self) -> None:
        """Answer a little longer, so that clients and proxies go elsewhere while what is under way comes to an end."""
        try:
            self._service.drain()
        finally:
            self.should_exit = True


def _announce(url: str, settings: Settings, role: str) -> None:
    print_json({"url": url, "data": str(settings.data)})
    store = "postgresql" if settings.database else "sqlite"
    log.info("serving", url=url, data=str(settings.data), store=store, role=role, pid=os.getpid())


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
