"""
Measure a durable steer over HTTP: ours, against a service that stores the same rows and decides nothing.

Closed loops of 1, 8 and 64 callers send guidance to workers that wait, each command with a key of its own; a call
counts when its receipt is durable. Both contestants start from an empty store and run in the same minutes. Beside rate
and latency it says what a steer costs the server in processor time, how many facts one transaction took, and how long a
read of another run took meanwhile (p50), and before, while nobody steered.

    python ops/bench/steer.py [--store sqlite postgres] [--callers 1 8 64] [--seconds 5] [--rounds 1] [--only ours]

PostgreSQL is $STEERSMAN_DATABASE (its databases `steer_ours` and `steer_limit` are dropped and made), or a server of
our own for the time of the run.
"""

import argparse
import asyncio
import itertools
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httpx
import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

sys.path.insert(0, str(Path(__file__).parent))
from append import postgres

WARM_UP_SECONDS = 2.0
WORDS = "Keep the public names; prefer the smaller change."
#: A worker that takes nothing holds 128 corrections; then it answers 429.
QUEUE = 120
WORKERS_A_RUN = 150
READ_EVERY_SECONDS = 0.1
PATIENCE_SECONDS = 300.0
#: An agent that takes a prompt and never finishes it.
SLEEPER = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked or asked["method"] == "session/prompt":
        continue
    known = {
        "initialize": {"protocolVersion": 1, "agentCapabilities": {"loadSession": True}, "authMethods": []},
        "session/new": {"sessionId": "s1"},
    }
    answer = {"jsonrpc": "2.0", "id": asked["id"], "result": known.get(asked["method"], {})}
    sys.stdout.write(json.dumps(answer) + "\\n")
    sys.stdout.flush()
"""
FACTS = re.compile(r"^steersman_append_batch_facts_(sum|count)\S* ([0-9.e+]+)$", re.MULTILINE)


class Contestant(NamedTuple):
    """A service that was started."""

    process: subprocess.Popen[str]
    url: str
    token: str
    tasks: Sequence[str]
    #: How many facts and transactions it counts so far; zeros if it does not.
    stored: Callable[[], tuple[float, float]]
    #: Where a run can be read that nobody steers; empty if there is none.
    other: str = ""


class SteerRound(NamedTuple):
    """One measurement."""

    rate: float
    p50_ms: float
    p99_ms: float
    processor_ms: float
    facts: float
    idle_read_ms: float
    read_ms: float


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Measure a durable steer over HTTP.")
    parser.add_argument("--store", nargs="+", choices=("sqlite", "postgres"), default=["sqlite", "postgres"])
    parser.add_argument("--callers", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--room", type=int, default=2_500, help="commands a second for which workers are made")
    parser.add_argument("--only", choices=("ours", "limit"))
    given = parser.parse_args()
    print(
        f"{'store':<10}{'':<7}{'callers':>8}{'steers/s':>10}{'p50 ms':>9}{'p99 ms':>9}{'cpu ms':>8}{'facts':>8}{'read ms':>9}{'idle':>7}"
    )
    with ExitStack() as stack:
        url = stack.enter_context(postgres()) if "postgres" in given.store else ""
        for store, callers in itertools.product(given.store, given.callers):
            rounds: dict[str, list[SteerRound]] = {}
            for _, name in itertools.product(range(given.rounds), ("limit", "ours")):
                if given.only in (None, name):
                    room = int((given.seconds + WARM_UP_SECONDS + 1) * min(given.room, 900 * callers))
                    with started(name, url if store == "postgres" else "", room) as contestant:
                        rounds.setdefault(name, []).append(measure(contestant, callers, given.seconds))
            for name, found in rounds.items():
                rate, p50, p99, cpu, facts, idle, read = (statistics.median(each) for each in zip(*found, strict=True))
                print(
                    f"{store:<10}{name:<7}{callers:>8}{rate:>10.0f}{p50:>9.2f}{p99:>9.2f}{cpu:>8.3f}{facts:>8.1f}"
                    f"{read:>9.2f}{idle:>7.2f}",
                    flush=True,
                )
    return 0


def measure(contestant: Contestant, callers: int, seconds: float) -> SteerRound:
    """Let so many callers send commands as fast as they are answered; return what came of it."""
    calls: list[tuple[float, float]] = []
    idle = asyncio.run(reads(contestant, time.perf_counter() + WARM_UP_SECONDS))
    opens = time.perf_counter() + WARM_UP_SECONDS
    closes = opens + seconds
    marks: list[tuple[float, tuple[float, float]]] = []

    async def mark(at: float) -> None:
        await asyncio.sleep(at - time.perf_counter())
        stored = await asyncio.to_thread(contestant.stored)
        marks.append((processor_seconds(contestant.process.pid), stored))

    async def everybody() -> None:
        numbers = itertools.count()
        callers_at_work = (call(contestant, numbers, closes, calls) for _ in range(callers))
        await asyncio.gather(mark(opens), mark(closes), look(), *callers_at_work)

    async def look() -> None:
        busy.extend(await reads(contestant, closes))

    busy: list[float] = []
    asyncio.run(everybody())
    inside = [took for ended, took in calls if opens <= ended <= closes]
    late = sorted(took for ended, took in calls if ended >= opens)
    (cpu, (facts, batches)), (cpu_then, (facts_then, batches_then)) = marks
    return SteerRound(
        rate=len(inside) / seconds,
        p50_ms=late[len(late) // 2] * 1_000,
        p99_ms=late[int(len(late) * 0.99)] * 1_000,
        processor_ms=(cpu_then - cpu) / len(inside) * 1_000,
        facts=(facts_then - facts) / max(1.0, batches_then - batches),
        idle_read_ms=statistics.median(idle) * 1_000,
        read_ms=statistics.median(busy) * 1_000,
    )


async def reads(contestant: Contestant, until: float) -> list[float]:
    """Read the other run now and then, and return what each read took; zero where there is none."""
    took = [] if contestant.other else [0.0]
    async with httpx.AsyncClient(headers={"Authorization": f"Bearer {contestant.token}"}, timeout=60) as client:
        while contestant.other and (began := time.perf_counter()) < until:
            (await client.get(contestant.other)).raise_for_status()
            took.append(time.perf_counter() - began)
            await asyncio.sleep(READ_EVERY_SECONDS)
    return took


async def call(contestant: Contestant, numbers: Iterator[int], closes: float, calls: list[tuple[float, float]]) -> None:
    """Send one command after the other over one connection until the window closes."""
    place = urlsplit(contestant.url)
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    for number in numbers:
        path = f"/tasks/{contestant.tasks[number % len(contestant.tasks)]}/steer"
        content = json.dumps({"kind": "guidance", "guidance": f"{WORDS} {number}"}).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nHost: {place.netloc}\r\nAuthorization: Bearer {contestant.token}\r\n"
            f"Idempotency-Key: {time.time_ns()}-{number}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(content)}\r\n\r\n"
        )
        began = time.perf_counter()
        if began >= closes:
            break
        writer.write(head.encode() + content)
        answer = await reader.readuntil(b"\r\n\r\n")
        length = int(answer.lower().split(b"content-length:", 1)[1].split(b"\r\n", 1)[0])
        text = await reader.readexactly(length)
        if not answer.startswith(b"HTTP/1.1 201"):
            raise SystemExit(f"{path}: {answer.splitlines()[0].decode()} {text[:300].decode()}")
        ended = time.perf_counter()
        calls.append((ended, ended - began))
    writer.close()


def processor_seconds(pid: int) -> float:
    """Return how long a process has had a processor."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def started(name: str, server: str, room: int) -> Generator[Contestant]:
    """Give a contestant on an empty store, with workers for so many commands; afterwards it has ended."""
    with tempfile.TemporaryDirectory(prefix="steersman-bench-") as home, ExitStack() as stack:
        url = ""
        if server:
            url = make_conninfo(server, dbname=f"steer_{name}")
            with psycopg.connect(server, autocommit=True) as connection:
                for statement in ("DROP DATABASE IF EXISTS {} WITH (FORCE)", "CREATE DATABASE {}"):
                    connection.execute(sql.SQL(statement).format(sql.Identifier(f"steer_{name}")))
        yield stack.enter_context((ours if name == "ours" else limit)(Path(home), url, room))


@contextmanager
def limit(home: Path, database: str, room: int) -> Generator[Contestant]:
    """Give the service that decides nothing."""
    command = [sys.executable, "-P", str(Path(__file__).parent / "steer_limit.py"), database or str(home / "limit.db")]
    with served(command, os.environ, home / "limit.log") as (process, url):
        yield Contestant(process, url, "operator", [f"{n}" for n in range(64)], lambda: (0, 0))


@contextmanager
def ours(home: Path, database: str, room: int) -> Generator[Contestant]:
    """Give our service, with runs of workers that wait."""
    agents = home / "agents.toml"
    (home / "sleeper.py").write_text(SLEEPER)
    command = json.dumps([sys.executable, "-S", "-E", str(home / "sleeper.py")])
    agents.write_text(f'default = "rehearsal"\n[agents.sleeper]\ncommand = {command}\n')
    variables = {name: value for name, value in os.environ.items() if not name.startswith("STEERSMAN_")} | {
        "STEERSMAN_KEYS": str(home / "keys"),
        "STEERSMAN_MAX_AGENTS": "1000",
        "STEERSMAN_ISOLATION": "none",
        "STEERSMAN_STALL_SECONDS": "3600",
    }
    if database:
        variables["STEERSMAN_DATABASE"] = as_url(database)
    program = [sys.executable, "-P", "-m", "steersman.ops.command_line"]
    data = ["--data", str(home / "data")]
    issue = [*program, "token", "issue", *data, "--user", "bench", "--scope", "operator"]
    token = subprocess.run(issue, env=variables, check=True, capture_output=True, text=True).stdout.split()[-1]
    serve = [*program, "serve", "--port", "0", *data, "--agents", str(agents)]
    with (
        served(serve, variables, home / "serve.log") as (process, url),
        httpx.Client(base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=60) as http,
    ):
        workers, runs = working(http, home / "project", room // QUEUE + 1)

        def stored() -> tuple[float, float]:
            found = dict(FACTS.findall(httpx.get(f"{url}/metrics", headers=http.headers).text))
            return float(found.get("sum", 0)), float(found.get("count", 0))

        # The newest is a run of a single worker whom nobody steers.
        yield Contestant(process, url, token, workers[:-1], stored, f"{url}/api/runs/{runs[-1]}")
        for run in runs:
            http.post(f"/api/runs/{run}/steer", json={"kind": "stop", "instruction": "It is over."}).raise_for_status()


def working(http: httpx.Client, repository: Path, workers: int) -> tuple[list[str], list[str]]:
    """Return so many workers that have begun their turn, and one more in a run of its own; and their runs."""
    repository.mkdir()
    git = ["git", "-C", str(repository), "-c", "user.name=A", "-c", "user.email=a@example.com"]
    for arguments in (["init", "-q", "-b", "main"], ["commit", "-q", "--allow-empty", "-m", "start"]):
        subprocess.run([*git, *arguments], check=True)

    def post(path: str, body: dict[str, Any]) -> Any:
        return http.post(path, json=body).raise_for_status().json()

    place = {"name": "bench", "origin": "blank", "working_directory": str(repository)}
    project = post("/api/projects", place)["project_id"]
    role = http.get("/api/catalog/roles").json()[0]["id"]
    post(f"/api/projects/{project}/team/members", {"role_id": role, "model_id": "sleeper"})
    runs: list[str] = []
    sizes = [min(WORKERS_A_RUN, workers - first) for first in range(0, workers, WORKERS_A_RUN)]
    for size in (*sizes, 1):
        parts = [{"title": f"Worker {i}", "scope": "Wait."} for i in range(size)]
        goal = {"goal": "be steered", "start_mode": "direct", "plan": {"subtasks": parts}}
        runs.append(post(f"/api/projects/{project}/orchestrations", goal)["runId"])
    end = time.monotonic() + PATIENCE_SECONDS
    while True:
        children = [child for run in runs for child in http.get(f"/api/runs/{run}/children").json()]
        at_work: Sequence[str] = [child["childRunId"] for child in children if child["subtaskStatus"] == "running"]
        if len(at_work) == workers + 1:
            time.sleep(1)
            return list(at_work), runs
        if time.monotonic() > end:
            raise SystemExit(f"only {len(at_work)} of {workers + 1} workers have begun")
        time.sleep(0.5)


def as_url(conninfo: str) -> str:
    """Return a connection string as the address that the service takes."""
    from psycopg.conninfo import conninfo_to_dict

    parts = conninfo_to_dict(conninfo)
    host, port = parts.get("host", "127.0.0.1"), parts.get("port", "5432")
    if str(host).startswith("/"):
        return f"postgresql://{parts.get('user', 'postgres')}@/{parts['dbname']}?host={host}&port={port}"
    password = f":{parts['password']}" if parts.get("password") else ""
    return f"postgresql://{parts.get('user', 'postgres')}{password}@{host}:{port}/{parts['dbname']}"


@contextmanager
def served(command: Sequence[str], variables: Any, log: Path) -> Generator[tuple[subprocess.Popen[str], str]]:
    """Give a process whose first line says its url; afterwards it has ended."""
    with log.open("w", encoding="utf-8") as said:
        process = subprocess.Popen(command, env=dict(variables), stdout=subprocess.PIPE, stderr=said, text=True)
    with process:
        try:
            assert process.stdout is not None
            first = process.stdout.readline()
            if not first:
                raise SystemExit(f"the service did not start:\n{log.read_text(encoding='utf-8')[-3000:]}")
            yield process, json.loads(first)["url"]
        finally:
            process.terminate()


if __name__ == "__main__":
    sys.exit(main())
