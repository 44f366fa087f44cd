"""The keeper: nothing that an agent starts escapes a stop or a kill, or outlives the service."""

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from steersman.adapters.processes.agent_process import start_keeper
from steersman.tests.live_agents import WRITER, family_of, is_alive, size_of, state_of, wait_until

#: Leaves a writer behind, whose parent is gone, in a session of its own, with nothing in its environment.
DETACHED = """
import subprocess, sys, time
start = "import os, sys; os.setsid(); os.fork() and os._exit(0); os.execve(sys.executable, sys.argv[1:], {})"
subprocess.run([sys.executable, "-c", start, "python", "-c", sys.argv[1], sys.argv[2]], check=True)
time.sleep(3600)
"""


class Kept:
    """A keeper as the service sees it: its pipes, and commands that wait for their answer."""

    def __init__(self, argv: Sequence[str], cwd: Path, *, seconds: float | None = None) -> None:
        self.popen, self.pipes = start_keeper({"PATH": os.environ["PATH"]})
        self._reports = os.fdopen(self.pipes["status"], "rb")
        self._number = 0
        if seconds is not None:
            self.send(do="extend", until=time.monotonic() + seconds)
        self.send(do="start", path=argv[0], argv=list(argv), cwd=str(cwd), env={"PATH": os.environ["PATH"]})
        try:
            self.begin = self.report()
        except BaseException:
            self.end()
            raise

    @cached_property
    def inner(self) -> int:
        """The pid of the keeper's inner half, asked for while the agent lives."""
        return parent_of(self.agent)

    @property
    def agent(self) -> int:
        return int(self.begin["pid"])

    def send(self, **command: Any) -> None:
        os.write(self.pipes["control"], json.dumps(command).encode() + b"\n")

    def report(self) -> dict[str, Any]:
        line = self._reports.readline()
        assert line, "the keeper ended without a word"
        return json.loads(line)

    def command(self, verb: str) -> dict[str, Any]:
        self._number += 1
        self.send(id=self._number, do=verb)
        while (report := self.report()).get("id") != self._number:
            pass
        return report

    def close_control(self) -> None:
        os.close(self.pipes.pop("control"))

    def end(self) -> None:
        for name in ("control", "stdin", "stdout", "stderr"):
            if name in self.pipes:
                os.close(self.pipes.pop(name))
        self._reports.close()
        self.popen.wait(60)


@pytest.fixture
def keep(tmp_path: Path) -> Iterator[Any]:
    """A function that starts a keeper with some Python as its agent."""
    keepers: list[Kept] = []

    def start(code: str, *arguments: object, seconds: float | None = None) -> Kept:
        argv = [sys.executable, "-I", "-S", "-c", code, *map(str, arguments)]
        keepers.append(Kept(argv, tmp_path, seconds=seconds))
        return keepers[-1]

    yield start
    for keeper in keepers:
        keeper.end()


def writer_of(file: Path) -> int:
    """Wait for a writer's first line; return its pid."""
    return int(wait_until(lambda: file.exists() and file.read_text().split("\n")[0], "the writer writes"))


def test_a_detached_grandchild_is_killed_with_the_rest(keep: Any, tmp_path: Path) -> None:
    kept = keep(DETACHED, WRITER, tmp_path / "canary")
    writer = writer_of(tmp_path / "canary")
    assert os.getsid(writer) != os.getsid(kept.agent)
    assert set(kept.command("kill")["pids"]) >= {kept.agent, writer}
    assert not is_alive(writer)
    assert not is_alive(kept.agent)


def test_closing_the_control_pipe_kills_everything_and_ends_the_keeper(keep: Any, tmp_path: Path) -> None:
    kept = keep(DETACHED, WRITER, tmp_path / "canary")
    writer = writer_of(tmp_path / "canary")
    kept.close_control()
    kept.popen.wait(60)
    assert not is_alive(writer)
    assert not is_alive(kept.agent)


@pytest.mark.parametrize("half", ["guard", "inner"])
def test_a_kill_of_either_half_of_the_keeper_leaves_nothing_behind(keep: Any, tmp_path: Path, half: str) -> None:
    kept = keep(DETACHED, WRITER, tmp_path / "canary")
    writer, inner = writer_of(tmp_path / "canary"), kept.inner
    os.kill(kept.popen.pid if half == "guard" else inner, signal.SIGKILL)
    wait_until(lambda: not any(map(is_alive, (writer, kept.agent, inner))), "writer, agent and keeper are gone")


def test_a_kill_of_both_halves_at_once_still_takes_the_agent(keep: Any, tmp_path: Path) -> None:
    kept = keep(WRITER, tmp_path / "canary")
    writer_of(tmp_path / "canary")
    inner = kept.inner
    os.kill(kept.popen.pid, signal.SIGSTOP)  # so that it cannot act between the two kills
    os.kill(inner, signal.SIGKILL)
    os.kill(kept.popen.pid, signal.SIGKILL)
    wait_until(lambda: not is_alive(kept.agent), "the agent is gone")


def test_stopped_processes_stand_still_until_they_are_continued(keep: Any, tmp_path: Path) -> None:
    canary, clock = tmp_path / "canary", tmp_path / "clock"
    kept = keep(DETACHED, WRITER, canary)
    writer = writer_of(canary)
    assert set(kept.command("stop")["pids"]) >= {kept.agent, writer}
    assert {state_of(writer), state_of(kept.agent)} == {"T"}
    before = size_of(canary)
    with subprocess.Popen([sys.executable, "-c", WRITER, str(clock)]) as ticking:
        # Another writer with the same pace tells that time enough has passed for five lines.
        wait_until(lambda: clock.exists() and clock.read_text().count("\n") > 5, "five lines could have been written")
        ticking.kill()
    assert size_of(canary) == before
    kept.command("continue")
    wait_until(lambda: size_of(canary) > before, "the writer writes again")
    kept.command("kill")
    assert not is_alive(writer)


def test_a_storm_of_forks_is_stopped_to_the_last_process(keep: Any, tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    storm = """
import os, signal, sys, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
marks = os.open(sys.argv[1], os.O_CREAT | os.O_APPEND | os.O_WRONLY)
end = time.monotonic() + 120  # a storm that a broken keeper lets go must not blow for ever
for _ in range(4):
    if os.fork() == 0:
        while time.monotonic() < end:  # each process lives for one mark and passes the torch on
            os.write(marks, b".")
            if os.fork():
                os._exit(0)
        os._exit(0)
open(sys.argv[1] + ".ready", "w").close()
time.sleep(3600)
"""
    kept = keep(storm, marks)
    wait_until((tmp_path / "marks.ready").exists, "all four blow")
    for _ in range(5):
        before = size_of(marks)
        wait_until(lambda before=before: size_of(marks) > before, "the storm blows")
        kept.command("stop")
        stopped, size = family_of(kept.inner), size_of(marks)
        # The agent and the four, and those that were stopped after they had passed the torch on.
        assert len(stopped) >= 5
        assert {state_of(pid) for pid in stopped} == {"T"}
        assert family_of(kept.inner) == stopped
        assert size_of(marks) == size
        kept.command("continue")
    kept.command("kill")
    assert family_of(kept.popen.pid) == {kept.inner}


def test_a_parent_inside_vfork_does_not_keep_a_stop_waiting(keep: Any, tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    # The child opens the pipe before its exec and waits there for a writer; the parent sleeps in vfork() meanwhile.
    spawner = (
        "import os, sys\n"
        "os.posix_spawn('/bin/true', ['true'], {}, file_actions=[(os.POSIX_SPAWN_OPEN, 0, sys.argv[1], os.O_RDONLY, 0)])\n"
        "import time; time.sleep(3600)\n"
    )
    kept = keep(spawner, fifo)
    wait_until(lambda: state_of(kept.agent) == "D", "the agent waits in vfork")
    kept.command("stop")
    assert state_of(kept.agent) == "D"
    assert {state_of(pid) for pid in family_of(kept.agent)} == {"T"}
    kept.command("kill")
    assert not is_alive(kept.agent)


def test_a_kill_wins_over_a_stop_that_is_under_way(keep: Any, tmp_path: Path) -> None:
    kept = keep(WRITER, tmp_path / "canary")
    kept.send(id=1, do="stop")
    kept.send(id=2, do="kill")
    reports = [kept.report()]
    while reports[-1].get("id") != 2:
        reports.append(kept.report())
    assert reports[-1]["done"] == "kill"
    assert not is_alive(kept.agent)
    stop = next(report for report in reports if report.get("id") == 1)
    assert stop.get("done") == "stop" or stop.get("failed") == "superseded_by_kill"


def test_nobody_extends_the_deadline_and_everything_is_killed(keep: Any, tmp_path: Path) -> None:
    kept = keep(DETACHED, WRITER, tmp_path / "canary", seconds=2.0)
    writer = writer_of(tmp_path / "canary")
    assert kept.report() == {"event": "deadline"}
    kept.popen.wait(60)
    assert not is_alive(writer)


def test_an_extended_deadline_does_not_pass(keep: Any, tmp_path: Path) -> None:
    kept = keep(WRITER, tmp_path / "canary", seconds=60.0)
    kept.send(do="extend", until=None)
    writer_of(tmp_path / "canary")
    assert kept.command("stop")["done"] == "stop"


@pytest.mark.parametrize(("code", "told"), [("raise SystemExit(3)", 3), ("import os; os.kill(os.getpid(), 9)", -9)])
def test_the_agents_exit_code_is_reported(keep: Any, code: str, told: int) -> None:
    assert keep(code).report() == {"event": "exited", "code": told}


def test_orphans_are_buried(keep: Any, tmp_path: Path) -> None:
    code = "import os, time\nif os.fork() == 0:\n    os.fork() or os._exit(0)\n    os._exit(0)\ntime.sleep(3600)"
    kept = keep(code)
    wait_until(lambda: children_of(kept.inner) == {kept.agent}, "the orphan is gone from the process table")


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def children_of(pid: int) -> set[int]:
    found: set[int] = set()
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            if parent_of(int(name)) == pid:
                found.add(int(name))
    return found


def test_a_program_that_cannot_be_started_is_told(tmp_path: Path) -> None:
    kept = Kept([str(tmp_path / "nothing")], tmp_path)
    kept.end()
    assert kept.begin["event"] == "not_started"
    assert kept.begin["message"].startswith("exec: ")


def test_the_agent_can_neither_signal_the_keeper_with_its_group_nor_ignore_a_kill(keep: Any, tmp_path: Path) -> None:
    code = (
        "import os, signal, sys\n"
        "for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):\n"
        "    signal.signal(number, signal.SIG_IGN)\n"
        "os.kill(0, signal.SIGTERM)\n" + WRITER
    )
    kept = keep(code, tmp_path / "canary")
    writer_of(tmp_path / "canary")
    assert kept.agent in kept.command("kill")["pids"]


def test_a_keeper_has_no_number_of_the_services_and_starts_beyond_the_numbers_of_select(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4_096), hard))
    with ExitStack() as opened:
        opened.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        for _ in range(1_100):
            opened.callback(os.close, os.open(os.devnull, os.O_RDONLY))
        kept = Kept([sys.executable, "-I", "-S", "-c", "import time; time.sleep(3600)"], tmp_path)
        assert min(kept.pipes.values()) > 1_023
        for pid in (kept.popen.pid, kept.inner):
            assert max(map(int, os.listdir(f"/proc/{pid}/fd"))) < 16
        assert kept.command("stop")["pids"] == [kept.agent]
        assert kept.command("kill")["pids"] == [kept.agent]
        kept.end()
