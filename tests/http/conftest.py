"""A served API: a real uvicorn in a thread, over the in-memory twins, a real repository and the real agents file."""

import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread
from typing import Any, cast
from uuid import uuid4

import httpx
import pytest
import uvicorn

from steersman.adapters.acp.agents import AcpAgents
from steersman.adapters.clock import SystemClock
from steersman.adapters.feeds.feed_hub import FeedHub
from steersman.adapters.git.repositories import GitRepositories
from steersman.adapters.outgoing.addresses import read_networks, refusal
from steersman.adapters.processes.agents_file import read_agents
from steersman.adapters.stores.memory import MemoryLog, MemoryWakeups
from steersman.adapters.stores.memory_views import MemoryViews
from steersman.adapters.stores.receiver_store import open_receivers
from steersman.adapters.stores.token_store import open_tokens
from steersman.application.views.keep_views import ViewKeeper
from steersman.application.writer.caller import service
from steersman.application.writer.run_log import RunLog
from steersman.domain.event import Draft, Text
from steersman.domain.facts.agent_output import MessageDelta
from steersman.domain.facts.assembly import ConflictAutoResolved
from steersman.domain.facts.child_run import output_stream
from steersman.domain.facts.run import CoordinatorRun
from steersman.domain.git import Commit
from steersman.domain.kinds.catalogue import CATALOGUE
from steersman.domain.process import dispatch
from steersman.domain.runs import review
from steersman.domain.work import child_ends, turns
from steersman.http.app import create_app
from steersman.http.request.given import ApiSettings, Services
from steersman.http.service.metrics import Metrics
from steersman.ops.serving.connections import ClientLimits, GuardedServer

PLAN = {"subtasks": [{"title": "Build", "scope": "All of it"}, {"title": "Test", "dependsOn": [0]}]}
#: Receivers of this machine's own may be told.
LOOPBACK = read_networks(["127.0.0.0/8"])
#: Short, so that tests of silence and of waiting in vain are quick; none of them measures it.
SETTINGS = ApiSettings(keepalive_seconds=0.2, min_position_seconds=0.3, effect_seconds=0.3, draft_seconds=0.2)


class Server(GuardedServer):
    """The server of `steersman serve`, saying when it serves."""

    def __init__(self, config: uvicorn.Config, limits: ClientLimits | None) -> None:
        super().__init__(config, limits)
        self.serving = Event()

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets=sockets)
        self.serving.set()


class Api:
    """One service as one test sees it: its people are nobody else's, so that tests can share a server."""

    def __init__(self, services: Services, url: str) -> None:
        self.services = services
        self.url = url
        self.stack = ExitStack()
        self._suffix = uuid4().hex[:8]

    def name(self, user: str) -> str:
        """The name that one of this test's people has."""
        return f"{user}-{self._suffix}"

    @property
    def tokens(self) -> Any:
        """The tokens, with everything that the command line can do to them."""
        return self.services.tokens

    def client(self, user: str = "alice", scope: str = "operator") -> httpx.Client:
        """A client with a token of its own."""
        headers = {"Authorization": f"Bearer {self.tokens.issue(self.name(user), scope)}"}
        return self.stack.enter_context(httpx.Client(base_url=self.url, headers=headers, timeout=60, verify=False))

    def anonymous(self) -> httpx.Client:
        """A client without a token."""
        return self.stack.enter_context(httpx.Client(base_url=self.url, timeout=60, verify=False))

    def settled(self) -> dict[str, str]:
        """Headers that make a read wait for everything that is stored now."""
        return {"Steersman-Min-Position": str(self.services.log.head())}


class Story:
    """A project with a team of two and one run, taken on step by step by what the domain decides."""

    def __init__(self, api: Api, repository: Path) -> None:
        self.api = api
        self.repository = repository
        self.client = api.client()
        self.project_id = ""
        self.projects = 0
        self.run_id = ""
        self.link_out = False

    def project(self) -> str:
        """Register the repository, under a name of its own each time, and build the team."""
        self.projects += 1
        name = "Shop" if self.projects == 1 else f"Shop {self.projects}"
        body = {"name": name, "origin": "blank", "working_directory": str(self.repository)}
        self.project_id = self.client.post("/api/projects", json=body).raise_for_status().json()["project_id"]
        for role in ("software-engineer", "tester"):
            self.client.post(f"/api/projects/{self.project_id}/team/members", json={"role_id": role}).raise_for_status()
        return self.project_id

    def start(self) -> str:
        """Give the team a goal, with a plan of two parts."""
        self.project()
        body = {"goal": "Sell things", "start_mode": "direct", "plan": PLAN}
        response = self.client.post(f"/api/projects/{self.project_id}/orchestrations", json=body).raise_for_status()
        self.run_id = response.json()["runId"]
        return self.run_id

    def decide(self, decision: Callable[[CoordinatorRun], Any]) -> None:
        """Store what is decided about the run."""
        self.api.services.runs.decide(self.run_id, decision, service(str(uuid4())))

    @property
    def run(self) -> CoordinatorRun:
        """The run as it is now."""
        return self.api.services.runs.run(self.run_id)

    def advance(self) -> None:
        """Decide everything that follows from the log alone."""
        while dispatch.advance(self.run, self.api.services.clock.now()):
            self.decide(lambda run: dispatch.advance(run, self.api.services.clock.now()))

    def child(self, subtask_id: int) -> str:
        """The child run of a subtask."""
        plan = self.run.plan
        assert plan is not None
        child_id = plan.subtasks[subtask_id].child_run_id
        assert child_id is not None
        return child_id

    def say(self, run_id: str, *words: str) -> None:
        """Let a run's agent say something."""
        drafts = tuple(
            Draft(
                stream=output_stream(run_id),
                event=MessageDelta(delta=Text(w), message_id="m"),
                run=run_id,
                root=self.run_id,
            )
            for w in words
        )
        now = self.api.services.clock.now()
        self.api.services.log.append(service(str(uuid4())).append(drafts, {}, now))

    def work(self, subtask_id: int) -> str:
        """Take a subtask's child run to its end; nothing in it is changed."""
        child, at = self.child(subtask_id), self.api.services.clock.now()
        base = self.run.base
        self.decide(lambda run: turns.prepare_worktree(run, child, base, "/trees/x", at))
        self.decide(lambda run: turns.open_session(run, child, "session", ()))
        self.decide(lambda run: turns.open_turn(run, child))
        self.decide(lambda run: turns.start_turn(run, child))
        self.say(child, "Looking.", "Done.")
        self.decide(lambda run: turns.end_turn(run, child, "end_turn"))
        self.decide(lambda run: turns.commit_tree(run, child, base))
        self.decide(lambda run: child_ends.settle_child(run, child, at))
        return child

    def to_gate(self, *conflicts: ConflictAutoResolved) -> Commit:
        """Start a run and take it to its human gate; return what stands there."""
        self.start()
        return self.take_to_gate(*conflicts)

    def take_to_gate(self, *conflicts: ConflictAutoResolved) -> Commit:
        """Take a run that was started to its human gate; return what stands there."""
        self.advance()
        self.work(1)
        self.advance()
        self.work(2)
        self.advance()
        made = self.assembled()
        self.decide(
            lambda run: review.integrate(run, made, of_round=run.assembly.round, has_changes=True, conflicts=conflicts)
        )
        self.decide(review.pass_gates)
        return made

    def assembled(self) -> Commit:
        """Make a commit that adds a file and changes one, on a branch of its own."""
        tree = self.repository.parent / "assembled"
        git(self.repository, "worktree", "add", "-q", "-b", "made", str(tree))
        (tree / "new folder").mkdir()
        (tree / "new folder" / "ä file.txt").write_text("made\n", encoding="utf-8")
        (tree / "README").write_text("changed\n")
        if self.link_out:
            (tree / "link").symlink_to("/etc/passwd")
        git(tree, "add", "-A")
        git(tree, "commit", "-q", "-m", "Made")
        return Commit(commit=git(tree, "rev-parse", "HEAD"), tree=git(tree, "rev-parse", "HEAD^{tree}"))

    def merge(self, made: Commit) -> None:
        """Make the merge that was approved, on the log only."""
        self.decide(lambda run: review.prepare_merge(run, run.base.commit, made.commit))
        self.decide(lambda run: review.complete_merge(run, made.commit))


def git(where: Path, *arguments: str) -> str:
    """Run git and return what it says."""
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", *identity, *arguments], cwd=where, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@contextmanager
def served(
    services: Services,
    *,
    send_buffer: int | None = None,
    measured: Metrics | None = None,
    limits: ClientLimits | None = None,
) -> Iterator[str]:
    """Serve the API, at the URL that is given, until the block ends."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        if send_buffer is not None:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
        config = uvicorn.Config(create_app(services, measured), log_level="error", timeout_graceful_shutdown=2)
        server = Server(config, limits)
        thread = Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        assert server.serving.wait(60)
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(60)


@contextmanager
def own_feed(services: Services, **knobs: Any) -> Iterator[FeedHub]:
    """A hub that hears of nothing and finds everything by looking."""
    hub = FeedHub(services.log, MemoryWakeups(), **({"poll_seconds": 0.02} | knobs))
    try:
        yield hub
    finally:
        hub.close()


@contextmanager
def opened(data: Path) -> Iterator[Services]:
    """Open what an API stands on, in memory but for the repositories, the agents file and the tokens."""
    wakeups, clock = MemoryWakeups(), SystemClock()
    log = MemoryLog(CATALOGUE, clock=clock, announce=wakeups.announce)
    views = MemoryViews()
    keeper = ViewKeeper(views, log, wakeups)
    keeper.start()
    tokens = open_tokens(data)
    yield Services(
        log=log,
        runs=RunLog(log, clock),
        clock=clock,
        views=views,
        repositories=GitRepositories(data / "scratch"),
        agents=AcpAgents(read_agents(None, data), data),
        tokens=tokens,
        receivers=open_receivers(data),
        refuses_receiver=lambda url: refusal(url, LOOPBACK),
        feed=FeedHub(log, wakeups, poll_seconds=0.1),
        data_dir=data,
        settings=SETTINGS,
    )
    keeper.stop()
    tokens.close()


@contextmanager
def patient(services: Services) -> Iterator[str]:
    """A server that waits for as long as it takes for what is to be seen in its answers; the address."""
    settings = replace(services.settings, effect_seconds=600.0, draft_seconds=600.0)
    with served(replace(services, settings=settings)) as url:
        yield url


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    """Everything that the module's server stands on."""
    with opened(tmp_path_factory.mktemp("data")) as services:
        yield services


@pytest.fixture(scope="module")
def url(services: Services) -> Iterator[str]:
    """Where the module's server is."""
    with served(services) as url:
        yield url
        cast(FeedHub, services.feed).close()


@pytest.fixture
def api(services: Services, url: str) -> Iterator[Api]:
    """The module's server, with people of this test's own."""
    api = Api(services, url)
    with api.stack:
        yield api


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with one commit, made once."""
    path = tmp_path_factory.mktemp("template") / "shop"
    path.mkdir()
    git(path, "init", "-q", "-b", "main")
    (path / "README").write_text("shop\n")
    git(path, "add", "-A")
    git(path, "commit", "-q", "-m", "First")
    return path


@pytest.fixture
def repository(template: Path, tmp_path: Path) -> Path:
    """A repository with one commit, this test's own."""
    return Path(shutil.copytree(template, tmp_path / "shop"))


@pytest.fixture
def story(api: Api, repository: Path) -> Story:
    """A story that has not begun."""
    return Story(api, repository)
