"""
The contestants of feed.py, each in a process of its own: our feed of one run, and the least that a litestar endpoint for
server-sent events can be. Each is told on standard input how many frames to make, and how fast.
"""

import asyncio
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Thread
from typing import Any
from uuid import uuid4

import httpx
import uvicorn
from litestar import Litestar, get
from litestar.response import ServerSentEvent, ServerSentEventMessage

from steersman.adapters.acp.agents import AcpAgents
from steersman.adapters.clock import SYSTEM_CLOCK
from steersman.adapters.feeds.feed_hub import FeedHub
from steersman.adapters.git.repositories import GitRepositories
from steersman.adapters.log.opening import sealed_by
from steersman.adapters.log_format.checkpoint_file import CheckpointFile
from steersman.adapters.log_format.keys import Keyring
from steersman.adapters.processes.agents_file import read_agents
from steersman.adapters.stores.memory import MemoryWakeups
from steersman.adapters.stores.receiver_store import open_receivers
from steersman.adapters.stores.sqlite_log import SqliteLog
from steersman.adapters.stores.sqlite_views import SqliteViews
from steersman.adapters.stores.token_store import open_tokens
from steersman.application.views.keep_views import ViewKeeper
from steersman.application.writer.caller import service
from steersman.application.writer.run_log import RunLog
from steersman.domain.event import Draft, Text
from steersman.domain.facts.agent_output import MessageDelta
from steersman.domain.facts.child_run import output_stream
from steersman.domain.kinds.catalogue import CATALOGUE
from steersman.http.app import create_app
from steersman.http.request.given import Services

#: How many frames are stored, or handed out, in one go when they are made as fast as they can be.
GROUP = 10
WORDS = "a few words of an agent, as they come one by one"


def words() -> str:
    """Return the text of a frame that is made now: it names the moment."""
    return f"at={time.time_ns()} {WORDS}"


def serve_ours() -> None:
    """Serve our API over a log on SQLite; frames are what an agent of one run says."""
    with opened() as (services, token), listening(create_app(services)) as url:
        run_id = started_run(url, token)

        def make(count: int) -> None:
            drafts = tuple(
                Draft(
                    stream=output_stream(run_id),
                    event=MessageDelta(delta=Text(words()), message_id="m"),
                    run=run_id,
                    root=run_id,
                )
                for _ in range(count)
            )
            services.log.append(service(str(uuid4())).append(drafts, {}, services.clock.now()))

        def about() -> dict[str, str]:
            return {"url": f"{url}/api/runs/{run_id}/stream?after={services.log.run_head(run_id)}", "token": token}

        obey(about, make)


@contextmanager
def opened() -> Generator[Any]:
    """Give everything that the API stands on, and a token, in a directory that is gone afterwards."""
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="steersman-bench-")))
        wakeups = MemoryWakeups()
        seal = sealed_by(Keyring(home / "keys"), CheckpointFile(home / "checkpoints.log"))
        log = SqliteLog(home / "log.db", CATALOGUE, announce=wakeups.announce, seal=seal)
        stack.callback(log.close)
        views = SqliteViews(home / "views.db")
        stack.callback(views.close)
        tokens = open_tokens(home)
        stack.callback(tokens.close)
        feed = FeedHub(log, wakeups)
        feed.start()
        stack.callback(feed.close)
        keeper = ViewKeeper(views, log, wakeups)
        keeper.start()
        stack.callback(keeper.stop)
        subprocess.run(["git", "init", "--quiet", home / "repository"], check=True)
        identity = ["-c", "user.name=bench", "-c", "user.email=bench@localhost"]
        commit = ["git", *identity, "commit", "--quiet", "--allow-empty", "--message", "The beginning"]
        subprocess.run(commit, cwd=home / "repository", check=True)
        os.chdir(home / "repository")
        services = Services(
            log=log,
            runs=RunLog(log, SYSTEM_CLOCK),
            clock=SYSTEM_CLOCK,
            views=views,
            repositories=GitRepositories(home / "scratch"),
            agents=AcpAgents(read_agents(None, home), home),
            tokens=tokens,
            receivers=open_receivers(home),
            feed=feed,
            data_dir=home,
        )
        yield services, tokens.issue("bench", "operator")


def started_run(url: str, token: str) -> str:
    """Return a run that has begun, and that nobody drives on."""
    with httpx.Client(base_url=f"{url}/api", headers={"Authorization": f"Bearer {token}"}, timeout=60) as http:
        body: dict[str, Any] = {"name": "bench", "origin": "blank", "working_directory": os.getcwd()}
        project_id = http.post("/projects", json=body).raise_for_status().json()["project_id"]
        http.post(f"/projects/{project_id}/team/members", json={"role_id": "software-engineer"}).raise_for_status()
        body = {"goal": "x", "start_mode": "direct", "plan": {"subtasks": [{"title": "x"}]}}
        started = http.post(f"/projects/{project_id}/orchestrations", json=body).raise_for_status()
        run_id: str = started.json()["runId"]
        return run_id


def serve_bare() -> None:
    """Serve the least that a litestar endpoint for server-sent events can be."""
    queues: set[asyncio.Queue[tuple[int, str]]] = set()
    made = 0
    loop: list[asyncio.AbstractEventLoop] = []

    @get("/stream")
    async def stream() -> ServerSentEvent:
        queue: asyncio.Queue[tuple[int, str]] = asyncio.Queue()

        async def events() -> AsyncIterator[ServerSentEventMessage]:
            queues.add(queue)
            loop[:] = [asyncio.get_running_loop()]
            try:
                yield ServerSentEventMessage(comment="here", data=None)
                while True:
                    number, text = await queue.get()
                    yield ServerSentEventMessage(
                        id=str(number), event="agent.message.delta", data=f'{{"delta":"{text}","messageId":"m"}}'
                    )
            finally:
                queues.discard(queue)

        return ServerSentEvent(events())

    async def hand_out(count: int) -> None:
        nonlocal made
        for _ in range(count):
            made += 1
            frame = (made, words())
            for queue in queues:
                queue.put_nowait(frame)

    def make(count: int) -> None:
        asyncio.run_coroutine_threadsafe(hand_out(count), loop[0]).result()

    with listening(Litestar([stream], logging_config=None)) as url:
        obey(lambda: {"url": f"{url}/stream", "token": ""}, make)


@contextmanager
def listening(app: Litestar) -> Generator[str]:
    """Serve an application, as `steersman serve` does; give its address."""
    config = uvicorn.Config(app, port=0, log_config=None, access_log=False, timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join(10)


def obey(about: Callable[[], dict[str, str]], make: Callable[[int], None]) -> None:
    """Make frames as standard input says, until it ends. Say each time how to listen to those that come next."""
    print(json.dumps(about()), flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        due = time.monotonic()
        group = 1 if order["rate"] else GROUP
        for _ in range(order["frames"] // group):
            make(group)
            if order["rate"]:
                due += 1 / order["rate"]
                time.sleep(max(0.0, due - time.monotonic()))
        print(json.dumps(about()), flush=True)


if __name__ == "__main__":
    logging.disable()
    {"ours": serve_ours, "bare": serve_bare}[sys.argv[1]]()
