"""The only place where ports meet adapters: everything that one process stands on, opened in order and closed in reverse."""

import random
from collections.abc import Callable, Generator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import msgspec
import psycopg
import structlog
from litestar import Litestar

from ...adapters.acp.agents import AcpAgents
from ...adapters.clock import SYSTEM_CLOCK
from ...adapters.feeds.feed_hub import FeedHub
from ...adapters.feeds.redis_wakeups import AddressInvalid, RedisWakeups
from ...adapters.git.inspection import Rules
from ...adapters.git.refs import MayMove, always
from ...adapters.git.repositories import GitRepositories, GitSettings
from ...adapters.git.staging import CommitLimits
from ...adapters.log.opening import sealed_by
from ...adapters.log.sequenced_log import SequencedLog
from ...adapters.log.sequencer import UNOBSERVED, Observer
from ...adapters.log.stored_log import Opens, to_read
from ...adapters.log_format.checkpoint_file import CheckpointFile
from ...adapters.log_format.keys import Keyring, KeysRefused
from ...adapters.outgoing.addresses import read_networks, refusal
from ...adapters.outgoing.notify_command import NotifyCommand
from ...adapters.outgoing.post import GuardedPost
from ...adapters.processes.agents_file import AgentsFileInvalid, KnownAgents, read_agents
from ...adapters.processes.box import Box
from ...adapters.processes.bubblewrap import BoxUnusable, box_problem, find_box
from ...adapters.processes.kept_commands import KeptCommands
from ...adapters.processes.lock import ProcessLock
from ...adapters.stores.crash_points import with_crash_point
from ...adapters.stores.memory import MemoryWakeups
from ...adapters.stores.postgres_log import PostgresLog
from ...adapters.stores.postgres_views import PostgresViews
from ...adapters.stores.receiver_store import ReceiverStore, open_receivers
from ...adapters.stores.schema_steps import SchemaUnfit
from ...adapters.stores.sqlite_log import SqliteLog
from ...adapters.stores.sqlite_views import SqliteViews
from ...adapters.stores.token_store import TokenStore, open_tokens
from ...application.notifying.notify import Notifier
from ...application.ports.log import LogUnavailable
from ...application.ports.outside import Wakeups
from ...application.views.keep_views import ViewKeeper
from ...application.writer.run_log import RunLog
from ...domain.kinds.catalogue import CATALOGUE
from ...http.app import create_app
from ...http.request.given import ApiSettings, Counts, Services
from ...http.service.metrics import Metrics
from ..refused import Refused
from ..settings import MIB, Settings
from .driving import Driving, Role
from .home_id import settle_home
from .host_network import check_host_network
from .tables import prepare_schema

#: Said wherever agents are refused because there can be no box.
WITHOUT_BOX = (
    "Agents are refused without a box, as they would have all rights of the service; "
    "STEERSMAN_ISOLATION=none lets them have these."
)

log = structlog.get_logger(__name__)


@dataclass(frozen=True, kw_only=True)
class Stores:
    """The log and the read models."""

    log: SequencedLog
    views: SqliteViews | PostgresViews


@dataclass(frozen=True, kw_only=True)
class Service:
    """What serves, once it is open."""

    app: Litestar
    feed: FeedHub
    tokens: TokenStore
    #: Refuse new work, and bring what is under way to a point where others can go on with it.
    drain: Callable[[], None]
    #: How many feeds it serves at most.
    max_feeds: int


@contextmanager
def open_stores(
    settings: Settings, wakeups: Wakeups, *, to_write: bool = False, observer: Observer = UNOBSERVED
) -> Generator[Stores]:
    """
    Give the log and the views, made if they are not there. Nothing is stored in the log unless it is opened to write.

    Raises:
        Refused: they cannot be reached, or the keys are not those that sign the log.
    """
    with ExitStack() as stack:
        try:
            seal = with_crash_point(sealing(settings)) if to_write else to_read(Keyring(settings.keys))
            facts = _open_log(settings, wakeups, seal, observer)
            stack.callback(facts.close)
            database = settings.database
            views = PostgresViews(database) if database else SqliteViews(settings.data / "views.db")
            stack.callback(views.close)
        except (LogUnavailable, OSError, psycopg.Error) as error:
            raise Refused(f"The log cannot be opened: {error}") from error
        except (KeysRefused, SchemaUnfit) as error:
            raise Refused(str(error)) from error
        yield Stores(log=facts, views=views)


@contextmanager
def open_service(settings: Settings, agents_file: Path | None, role: Role = "all") -> Generator[Service]:
    """
    Give a service that does from now on what its role says.

    Afterwards nothing of it is alive; what was under way is on the log, and the next start goes on from there.
    """
    prepare_schema(settings)
    metrics = Metrics()
    with ExitStack() as stack:
        wakeups = stack.enter_context(_open_wakeups(settings))
        stores = stack.enter_context(open_stores(settings, wakeups, to_write=True, observer=metrics))
        if stores.log.rolled_back is not None:
            # It serves all the same: whoever answers for the loss can look at what is there.
            log.error("the store was put back, so nothing is stored", reason=stores.log.rolled_back)
        if isinstance(wakeups, RedisWakeups):
            key = stores.log.key()
            # By the log's own name, so that installations may share a Redis, and replicas may write its address in
            # different ways.
            wakeups.start(key.origin if key else "unsigned")
        tokens = open_tokens(settings.data, settings.database)
        stack.callback(tokens.close)
        receivers = open_receivers(settings.data, settings.database)
        stack.callback(receivers.close)
        feed = FeedHub(stores.log, wakeups, max_clients=settings.max_feeds)
        feed.start()
        stack.callback(feed.close)
        keeper = ViewKeeper(stores.views, stores.log, wakeups)
        keeper.start()
        stack.callback(keeper.stop)
        process = stack.enter_context(closing(ProcessLock(settings.data / "processes"))) if settings.database else None
        known = known_agents(settings, agents_file)
        box = open_box(settings, known)
        if role != "api":
            check_box(box)
            check_host_network(box, known, settings)
        held = [process.descriptor] if process else []
        agents = stack.enter_context(closing(AcpAgents(known, settings.data, box=box, held=held)))
        commands = KeptCommands(held, box=box, around=known.build)
        runs = RunLog(stores.log, SYSTEM_CLOCK)
        git = _git(settings, box)
        driving = Driving(settings, role, runs, agents, commands, git, process, metrics.turn_failed)
        if driving.leases is not None:
            settle_home(settings.data, driving.leases)
        services = _services(settings, stores, tokens, receivers, feed, agents, driving, wakeups, git(always))
        stack.enter_context(driving.begun(stores.views, wakeups))
        if role != "api":
            notifier = _notifier(settings, stores, receivers)
            notifier.start(wakeups)
            stack.callback(notifier.stop)

        def drain() -> None:
            services.draining.set()
            driving.drain()

        yield Service(
            app=create_app(services, metrics, role), feed=feed, tokens=tokens, drain=drain, max_feeds=settings.max_feeds
        )


@contextmanager
def _open_wakeups(settings: Settings) -> Generator[MemoryWakeups | RedisWakeups]:
    """Give what wakes whoever waits for the log to grow: over Redis, if there is one. Raises Refused."""
    if settings.redis is None:
        yield MemoryWakeups()
        return
    try:
        wakeups = RedisWakeups(settings.redis)
    except AddressInvalid as error:
        raise Refused(f"STEERSMAN_REDIS: {error}") from error
    with closing(wakeups):
        yield wakeups


def _services(
    settings: Settings,
    stores: Stores,
    tokens: TokenStore,
    receivers: ReceiverStore,
    feed: FeedHub,
    agents: AcpAgents,
    driving: Driving,
    wakeups: MemoryWakeups | RedisWakeups,
    repositories: GitRepositories,
) -> Services:
    return Services(
        log=stores.log,
        runs=driving.runs,
        clock=SYSTEM_CLOCK,
        views=stores.views,
        repositories=repositories,
        agents=agents,
        tokens=tokens,
        receivers=receivers,
        refuses_receiver=lambda url: refusal(url, read_networks(settings.webhook_networks)),
        feed=feed,
        data_dir=settings.data,
        settings=ApiSettings(version=version("steersman")),
        counts=Counts(agents=lambda: agents.running, places=driving.places, leases=driving.counts),
        tenure=driving.tenure,
        holder=driving.holder,
        rounds=driving.rounds,
        redis=lambda: wakeups.state.state if isinstance(wakeups, RedisWakeups) else None,
    )


def _notifier(settings: Settings, stores: Stores, receivers: ReceiverStore) -> Notifier:
    return Notifier(
        stores.log,
        stores.views,
        receivers,
        GuardedPost(read_networks(settings.webhook_networks)),
        SYSTEM_CLOCK,
        random.random,
        tell=NotifyCommand(settings.notify_command) if settings.notify_command else None,
        alone=settings.database is None,
    )


def sealing(settings: Settings) -> Opens:
    """Return what opens the log with its keys, to be written. Raises Refused."""
    if settings.keys.is_relative_to(settings.data):
        raise Refused(f"STEERSMAN_KEYS ({settings.keys}) must be outside the data directory, which they vouch for.")
    return sealed_by(Keyring(settings.keys), CheckpointFile(settings.checkpoints))


def _open_log(settings: Settings, wakeups: Wakeups, seal: Opens, observer: Observer) -> SequencedLog:
    announce = wakeups.announce
    if settings.database:
        return PostgresLog(settings.database, CATALOGUE, announce=announce, seal=seal, observer=observer)
    return SqliteLog(settings.data / "log.db", CATALOGUE, announce=announce, seal=seal, observer=observer)


def _git(settings: Settings, box: Box) -> Callable[[MayMove], GitRepositories]:
    """Return what makes the git of this installation, for one who may be asked whether files and refs may be moved."""
    limits = CommitLimits(file_bytes=settings.max_file_mib * MIB, commit_bytes=settings.max_commit_mib * MIB)
    allowed = GitSettings(rules=Rules(roots=settings.repositories), limits=limits)
    if settings.commit_author is not None:
        allowed = msgspec.structs.replace(allowed, author=settings.commit_author.encode())
    return lambda may_move: GitRepositories(settings.data / "scratch", box, may_move, allowed)


def check_box(box: Box) -> None:
    """Return if agents can be run in it, and say it when it is none. Raises Refused."""
    if box.isolation == "none":
        log.warning("agents and builds have all rights of the service: isolation is none")
    elif problem := box_problem(box):
        raise Refused(f"No box works here: {problem}. {WITHOUT_BOX}")


def known_agents(settings: Settings, agents_file: Path | None) -> KnownAgents:
    """Return the agents of this installation. Raises Refused."""
    try:
        return read_agents(agents_file, settings.data)
    except AgentsFileInvalid as error:
        raise Refused(str(error)) from error


def open_box(settings: Settings, known: KnownAgents) -> Box:
    """Return what agents and builds run in; whether it works here was not looked at. Raises Refused."""
    isolation = settings.isolation or known.isolation or "bubblewrap"
    try:
        return find_box(isolation, hidden=(settings.data, settings.keys), agent_user=settings.agent_user)
    except BoxUnusable as error:
        raise Refused(f"{error}. {WITHOUT_BOX}") from error
