"""
Measure how long a service takes to be there again: with long logs, and with corrections that nobody has looked at yet.

A log of whole lives of runs, most of it what agents said, is stored by the thousand facts a transaction. Then:

- rebuild: every view is folded from nothing, in facts a second, all views together;
- start: `steersman serve` is started on it, until it accepts requests, until its views are at the log's head, and
  until each of the outstanding directives is closed.

    python ops/bench/recover.py [--facts 100000 1000000] [--directives 1000] [--store sqlite postgres]

PostgreSQL is $STEERSMAN_DATABASE (use an empty database), or a server of our own for the time of the run.
"""

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import httpx
import psycopg
from psycopg import sql

sys.path.insert(0, str(Path(__file__).parent))
from append import postgres
from lives import fill

from steersman.adapters.clock import SYSTEM_CLOCK
from steersman.adapters.stores.memory import MemoryWakeups
from steersman.application.views.project_views import catch_up
from steersman.ops.serving.tables import prepare_schema
from steersman.ops.serving.wiring import open_stores, sealing
from steersman.ops.settings import Settings
from steersman.projections.catalogue import VIEWS

#: Each run that waits at its gate has so many directives.
DIRECTIVES_A_RUN = 10
PATIENCE_SECONDS = 1_800.0
OUTSTANDING = re.compile(r"^steersman_outstanding_directives\{[^}]*\} ([0-9.e+]+)$", re.MULTILINE)


class Moment(NamedTuple):
    """How long after its start a service was so far, and how long it had had a processor by then: busy machines differ."""

    seconds: float
    processor_seconds: float


class Start(NamedTuple):
    """When a service accepted requests, had its views at the head and every directive closed; its memory then."""

    accepts: Moment
    views: Moment
    settled: Moment
    mebibytes: float


def build(settings: Settings, facts: int, directives: int) -> tuple[int, Moment, Moment]:
    """Make a log of so many facts and its views; return how many there are, and what storing and folding took."""
    prepare_schema(settings)
    with open_stores(settings, MemoryWakeups(), to_write=True) as stores:
        recorder: Any = stores.log._recorder  # pyright: ignore[reportPrivateUsage]
        began = now()
        seal = sealing(settings)(recorder, SYSTEM_CLOCK)
        at_gate = directives // DIRECTIVES_A_RUN
        fill(stores.log, recorder, seal, facts=facts, at_gate=at_gate, directives=DIRECTIVES_A_RUN)
        stored = now()
        catch_up(stores.views, stores.log, VIEWS)
        folded = now()
        head = stores.log.head()
    return head, since(began, stored), since(stored, folded)


def now() -> Moment:
    """Return this moment in this process."""
    return Moment(time.perf_counter(), time.process_time())


def since(began: Moment, ended: Moment) -> Moment:
    """Return the time between two moments."""
    return Moment(ended.seconds - began.seconds, ended.processor_seconds - began.processor_seconds)


def start(settings: Settings) -> Start:
    """Start a service and return how long it took."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("STEERSMAN_")}
    variables = kept | {"STEERSMAN_KEYS": str(settings.keys)}
    if settings.database:
        variables["STEERSMAN_DATABASE"] = settings.database
    command = [sys.executable, "-P", "-m", "steersman.ops.command_line", "serve", "--port", "0"]
    said = settings.data.parent / "service.log"
    with said.open("ab") as log:
        began = time.perf_counter()
        process = subprocess.Popen(
            [*command, "--data", str(settings.data)], env=variables, stdout=subprocess.PIPE, stderr=log, text=True
        )

    def after() -> Moment:
        fields = Path(f"/proc/{process.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        return Moment(time.perf_counter() - began, (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"))

    with process:
        assert process.stdout is not None
        try:
            first = process.stdout.readline()
            if not first:
                raise SystemExit(f"the service did not start:\n{said.read_text(encoding='utf-8')}")
            url = json.loads(first)["url"]
            accepts = after()
            with httpx.Client(base_url=url, timeout=60) as http:
                until(lambda: all(view["lag"] == 0 for view in http.get("/health").json()["views"].values()))
                views = after()
                until(lambda: sum(float(found) for found in OUTSTANDING.findall(http.get("/metrics").text)) == 0)
                settled = after()
            status = Path(f"/proc/{process.pid}/status").read_text(encoding="ascii")
        finally:
            process.terminate()
    return Start(accepts, views, settled, int(status.split("VmRSS:")[1].split()[0]) / 1_024)


def until(condition: Callable[[], bool]) -> None:
    """Return as soon as it holds."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > end:
            raise SystemExit("it takes far too long")
        time.sleep(0.05)


@contextmanager
def installation(store: str, url: Callable[[], str]) -> Generator[Settings]:
    """Give the settings of an empty installation, which is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="steersman-bench-") as home:
        data, keys = Path(home) / "data", Path(home) / "keys"
        for directory in (data, keys):
            directory.mkdir(mode=0o700)
        if store == "sqlite":
            yield Settings(data=data, keys=keys)
            return
        name = f"recover_{uuid4().hex}"
        with psycopg.connect(url(), autocommit=True) as connection:
            connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(name)))
            separator = "&" if "?" in url() else "?"
            yield Settings(data=data, keys=keys, database=f"{url()}{separator}options=-csearch_path%3D{name}")
            connection.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(name)))


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Measure how long a service takes to be there again.")
    parser.add_argument("--facts", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--directives", type=int, default=1_000)
    parser.add_argument("--store", nargs="+", choices=("sqlite", "postgres"), default=["sqlite"])
    given = parser.parse_args()
    print("each figure: a second; in brackets, a second of a processor. `again` is a start with nothing left to do")
    columns = ("facts", "stored/s", "rebuilt/s", "accepts", "views", "settled", "MiB", "again", "MiB")
    print(f"{'store':<9}" + "".join(f"{column:>15}" for column in columns))
    with ExitStack() as stack:
        server: list[str] = []

        def url() -> str:
            if not server:
                server.append(stack.enter_context(postgres()))
            return server[0]

        for store in given.store:
            for facts in given.facts:
                with installation(store, url) as settings:
                    head, stored, rebuilt = build(settings, facts, given.directives)
                    first, again = start(settings), start(settings)
                figures = [
                    f"{head}",
                    *(f"{head / took.seconds:.0f} ({head / took.processor_seconds:.0f})" for took in (stored, rebuilt)),
                    *(f"{m.seconds:.1f} ({m.processor_seconds:.1f})" for m in first[:3]),
                    f"{first.mebibytes:.0f}",
                    f"{again.accepts.seconds:.1f} ({again.accepts.processor_seconds:.1f})",
                    f"{again.mebibytes:.0f}",
                ]
                print(f"{store:<9}" + "".join(f"{figure:>15}" for figure in figures), flush=True)
    print(f"most memory of this process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1_024} MiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
