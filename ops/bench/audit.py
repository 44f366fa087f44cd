"""
Show that an audit of a long log takes no more memory than one of a short log, and how fast it goes.

A signed log is filled with lives of runs, its views are folded, and `steersman audit verify --data` looks at all of it
in a process of its own, whose peak of memory is told:

    python ops/bench/audit.py [--facts 10000 100000 1000000]

On SQLite; a terminal shows the audit's own bar.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parent))
from lives import fill

from steersman.adapters.log.opening import sealed_by
from steersman.adapters.log_format.checkpoint_file import CheckpointFile
from steersman.adapters.log_format.keys import Keyring
from steersman.adapters.stores.sqlite_log import SqliteLog
from steersman.adapters.stores.sqlite_views import SqliteViews
from steersman.application.views.project_views import catch_up
from steersman.domain.kinds.catalogue import CATALOGUE
from steersman.projections.catalogue import VIEWS

#: How many times the memory of the shortest log an audit of the longest may take.
MOST_MEMORY = 1.5
CORRECTIONS = 3
RUNS_AT_GATE = 5


class Result(NamedTuple):
    """What one audit took."""

    facts: int
    seconds: float
    megabytes: float
    verdict: str
    views: int


def write_log(home: Path, facts: int) -> None:
    """On return the data directory holds so many facts, or a few more, and views of all of them."""
    (home / "data").mkdir()
    seal = sealed_by(Keyring(home / "keys"), CheckpointFile(home / "data" / "checkpoints.log"))
    log = SqliteLog(home / "data" / "log.db", CATALOGUE, seal=seal)
    inside: Any = log
    recorder, sealing = inside._recorder, inside._sealing
    fill(log, recorder, sealing, facts=facts, at_gate=RUNS_AT_GATE, directives=CORRECTIONS)
    views = SqliteViews(home / "data" / "views.db")
    catch_up(views, log, VIEWS)
    views.close()
    log.close()


def run_audit(home: Path) -> Result:
    """Audit the data directory in another process."""
    began = time.perf_counter()
    process = subprocess.Popen(
        [
            sys.executable,
            "-P",
            "-m",
            "steersman.ops.command_line",
            "audit",
            "verify",
            "--json",
            "--data",
            home / "data",
        ],
        env=os.environ | {"STEERSMAN_KEYS": str(home / "keys")},
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    with process.stdout:
        found = json.loads(process.stdout.read())
    _, _, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - began
    return Result(found["facts"], seconds, usage.ru_maxrss / 1024, found["verdict"], found["views"] or 0)


def main() -> int:
    """Print what each audit took; return 0 if all are sound and the memory does not grow."""
    parser = argparse.ArgumentParser(description="Audit logs of growing length.")
    parser.add_argument("--facts", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    given = parser.parse_args()
    results: list[Result] = []
    print(f"{'facts':>10}{'filled s':>10}{'audited s':>11}{'facts/s':>10}{'peak MB':>9}{'verdict':>10}{'views':>7}")
    for facts in given.facts:
        with tempfile.TemporaryDirectory(prefix="steersman-bench-") as folder:
            began = time.perf_counter()
            write_log(Path(folder), facts)
            filled = time.perf_counter() - began
            result = run_audit(Path(folder))
        results.append(result)
        rate = result.facts / result.seconds
        print(
            f"{result.facts:>10}{filled:>10.1f}{result.seconds:>11.1f}{rate:>10.0f}{result.megabytes:>9.0f}"
            f"{result.verdict:>10}{result.views:>7}",
            flush=True,
        )
    is_sound = all(result.verdict == "steered" and result.views == len(VIEWS) for result in results)
    return 0 if is_sound and results[-1].megabytes <= MOST_MEMORY * results[0].megabytes else 1


if __name__ == "__main__":
    sys.exit(main())
