"""A `steersman serve` as a child process."""

import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from ...adapters.processes.agents_file import Isolation
from ..refused import Refused

END_SECONDS = 20.0


class Served(msgspec.Struct, frozen=True):
    """What the first line of `serve` says."""

    url: str
    data: str


@contextmanager
def serving(
    data: Path, log: Path, isolation: Isolation = "bubblewrap"
) -> Generator[tuple[Served, subprocess.Popen[str]]]:
    """
    Give a service of its own on a free port, set up by nothing but its data directory and its isolation; afterwards it has ended.

    It logs to the file *log*. Raises Refused when it does not start.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("STEERSMAN_")}
    environment["STEERSMAN_ISOLATION"] = isolation
    environment["STEERSMAN_SETTINGS"] = os.devnull
    command = [sys.executable, "-P", "-m", "steersman.ops.command_line", "serve", "--port", "0", "--data", str(data)]
    with (
        log.open("w", encoding="utf-8") as errors,
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
    ):
        try:
            yield _started(process, log), process
        finally:
            process.terminate()
            try:
                process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()


def _started(process: subprocess.Popen[str], log: Path) -> Served:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise Refused(f"The service did not start; its log is {log}:\n{log.read_text(encoding='utf-8')[-2_000:]}")
    return msgspec.json.decode(line, type=Served)
