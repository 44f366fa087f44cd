"""A box: what is seen in it, whose it is, and that nothing of it outlives whoever keeps it."""

import ctypes
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from steersman.adapters.processes.agent_process import start_keeper
from steersman.adapters.processes.box import Box, BoxExit, BoxLimits, Inside, Mount, run
from steersman.adapters.processes.bubblewrap import (
    BoxUnusable,
    Bubblewrap,
    box_problem,
    explain,
    find_box,
    find_program,
    give_to,
)
from steersman.adapters.removal import remove_tree
from steersman.tests.adapters.test_agent_keeper import DETACHED
from steersman.tests.live_agents import WRITER, family_of, is_alive, outside, size_of, wait_until

IS_ROOT = os.getuid() == 0


@pytest.fixture
def data(tmp_path: Path) -> Path:
    data = tmp_path / "data"
    (data / "worktrees" / "mine").mkdir(parents=True)
    (data / "worktrees" / "other").mkdir()
    (data / "log.db").write_text("the log")
    return data


@pytest.fixture
def box(data: Path) -> Box:
    box = find_box(hidden=[data])
    box.give(data / "worktrees" / "mine")
    return box


def inside(data: Path, **more: Any) -> Inside:
    mine = data / "worktrees" / "mine"
    return Inside(cwd=mine, env={"PATH": os.defpath}, mounts=(Mount(source=mine, writable=True),), **more)


def shell(box: Box, data: Path, script: str, **more: Any) -> BoxExit:
    return run(box, ["/bin/sh", "-c", script], inside(data, **more), timeout_seconds=60)


def test_a_box_works_here_and_nothing_is_said_of_it(box: Box) -> None:
    assert box_problem(box) is None


def test_its_directory_is_where_it_is_outside_and_its_neighbours_are_not_there(box: Box, data: Path) -> None:
    ended = shell(box, data, "pwd; echo new >new.txt; ls .. ../..; id -u; cat /etc/hostname >/dev/null")
    mine = data / "worktrees" / "mine"
    assert ended.code == 0, ended.words
    assert ended.output.decode().split()[0] == str(mine)
    assert "other" not in ended.output.decode()
    assert "log.db" not in ended.output.decode()
    assert (mine / "new.txt").read_text() == "new\n"
    assert ended.output.decode().split()[-1] != "0"


def test_what_is_hidden_is_not_seen_where_something_around_it_is(box: Box, data: Path) -> None:
    around = inside(data)
    seen = Inside(cwd=around.cwd, env=around.env, mounts=around.mounts)
    assert "log" not in run(box, ["/bin/cat", str(data / "log.db")], seen, timeout_seconds=60).output.decode()
    program = find_program()
    assert program is not None
    nested = Bubblewrap(program, hidden=[Path("/usr/share")], user=(65534, 65534) if IS_ROOT else None)
    ended = shell(nested, data, "ls -A /usr/share; touch /usr/share/x")
    assert ended.output == b""
    assert "Read-only" in ended.words


def test_only_what_may_be_written_can_be(box: Box, data: Path) -> None:
    for place in ("/", "/usr", "/etc", "/dev", "/run", "/var"):
        assert shell(box, data, f"touch {place}/x").code != 0, place
    assert shell(box, data, "touch /tmp/x /var/tmp/y /dev/shm/z && echo x >/dev/null").code == 0


def test_the_end_of_a_command_is_told_with_its_code(box: Box, data: Path) -> None:
    assert shell(box, data, "exit 7").code == 7
    assert shell(box, data, "kill -9 $$").code == 128 + 9
    ended = run(box, ["/bin/no-such-program"], inside(data), timeout_seconds=60)
    assert ended.code == 126
    assert "steersman: /bin/no-such-program does not start" in ended.words


def test_limits_hold_in_the_box_alone(box: Box, data: Path) -> None:
    limits = BoxLimits(processes=20, memory_bytes=200 << 20, file_bytes=1 << 20, open_files=64, scratch_bytes=1 << 20)
    bomb = (
        "import os, sys, time\n"
        "n = 0\n"
        "try:\n"
        "    while n < 500:\n"
        "        if os.fork() == 0: time.sleep(60); os._exit(0)\n"
        "        n += 1\n"
        "except OSError as error: print(n < 30, error.strerror)\n"
    )
    tries = {
        bomb: "True Resource temporarily unavailable",
        "try: b'x' * (400 << 20)\nexcept MemoryError: print('no memory')": "no memory",
        "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "try: open('big', 'wb').write(b'x' * (2 << 20))\nexcept OSError as e: print(e.strerror)": "File too large",
        "f = []\ntry:\n  while True: f.append(open('/dev/null'))\nexcept OSError as e: print(len(f) < 64)": "True",
        "try:\n  for n in 'abc': open('/tmp/' + n, 'wb', 0).write(b'x' * (600 << 10))\n"
        "except OSError as e: print(e.strerror)": "No space left on device",
    }
    for code, told in tries.items():
        ended = run(box, [sys.executable, "-I", "-S", "-c", code], inside(data, limits=limits), timeout_seconds=60)
        assert told in ended.output.decode(), (code, ended)


def test_a_file_with_a_name_elsewhere_and_what_a_link_leads_to_are_not_given(tmp_path: Path) -> None:
    theirs, home = tmp_path / "theirs", tmp_path / "home"
    theirs.mkdir()
    (theirs / "secret").write_text("x")
    (theirs / "linked").write_text("x")
    (home / "a" / "b").mkdir(parents=True)
    (home / "a" / "own").write_text("x")
    (home / "way").symlink_to(theirs)
    (home / "a" / "file").symlink_to(theirs / "linked")
    os.link(theirs / "secret", home / "a" / "b" / "planted")
    user = (65534, 65534) if IS_ROOT else (os.getuid(), os.getgid())
    give_to(home, *user)
    assert {(p.lstat().st_uid, p.lstat().st_gid) for p in (home, home / "a", home / "a" / "own", home / "way")} == {
        user
    }
    assert {(p.stat().st_uid) for p in (theirs, theirs / "secret", theirs / "linked")} == {os.getuid()}


def test_fifty_thousand_files_are_given_in_less_than_twice_the_time_they_took_to_make(tmp_path: Path) -> None:
    begun = time.monotonic()
    for folder in range(50):
        (tmp_path / str(folder)).mkdir()
        for name in range(1_000):
            (tmp_path / str(folder) / str(name)).touch()
    made = time.monotonic()
    give_to(tmp_path, *((65534, 65534) if IS_ROOT else (os.getuid(), os.getgid())))
    assert time.monotonic() - made < 2 * (made - begun)
    assert (tmp_path / "49" / "999").stat().st_uid == (65534 if IS_ROOT else os.getuid())


@pytest.mark.parametrize("shape", ["wide", "deep"])
def test_more_directories_than_can_be_open_are_given(tmp_path: Path, shape: str) -> None:
    top = tmp_path / "home"
    top.mkdir()
    most = 64 + max(int(name) for name in os.listdir("/proc/self/fd"))
    here = os.open(top, os.O_RDONLY)
    for number in range(2 * most):
        os.mkdir(str(number), dir_fd=here)
        if shape == "deep":
            below = os.open(str(number), os.O_RDONLY, dir_fd=here)
            os.close(here)
            here = below
    os.close(here)
    user = (65534, 65534) if IS_ROOT else (os.getuid(), os.getgid())
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    try:
        give_to(top, *user)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    found = subprocess.run(["find", top, "!", "-uid", str(user[0])], capture_output=True, check=True)
    assert found.stdout == b""
    remove_tree(top)


def test_the_agents_user_is_never_root_and_must_be_there() -> None:
    if IS_ROOT:
        for name in ("root", "0", "nobody-of-that-name"):
            with pytest.raises(BoxUnusable, match="STEERSMAN_AGENT_USER"):
                find_box(agent_user=name)
    assert find_box("none").isolation == "none"


def test_it_is_said_why_no_box_can_be_made_and_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    broken.chmod(0o755)
    problem = box_problem(Bubblewrap(broken))
    assert problem is not None
    assert "No permissions to create new namespace" in problem
    for name, value, told in (
        ("max_user_namespaces", 0, "sysctl user.max_user_namespaces"),
        ("unprivileged_userns_clone", 0, "sysctl kernel.unprivileged_userns_clone"),
        ("apparmor_restrict_unprivileged_userns", 1, "apparmor_parser"),
    ):
        monkeypatch.setattr(
            "steersman.adapters.processes.bubblewrap._number",
            lambda path, name=name, value=value: value if path.endswith(name) else None,
        )
        assert told in explain("bwrap: no")


# Who dies, and what follows


class Kept:
    """A keeper with a box, in which a writer was left behind in a session and an environment of its own."""

    def __init__(self, box: Box, data: Path) -> None:
        self.canary = data / "worktrees" / "mine" / "canary"
        command = box.command([sys.executable, "-I", "-S", "-c", DETACHED, WRITER, str(self.canary)], inside(data))
        self.popen, self.pipes = start_keeper({"PATH": os.environ["PATH"]})
        start = {"do": "start", "path": command[0], "argv": command, "cwd": "/", "env": {"PATH": os.defpath}}
        os.write(self.pipes["control"], json.dumps(start).encode() + b"\n")
        pid = int(wait_until(lambda: self.canary.exists() and self.canary.read_text().split("\n")[0], "it writes"))
        self.writer = outside(pid, self.canary.parent)
        with open(f"/proc/{self.popen.pid}/task/{self.popen.pid}/children") as file:
            self.inner = int(file.read().split()[0])
        self.everything = family_of(self.popen.pid)

    def first_of_box(self) -> int:
        """Return the box's own first process: the one that calls itself 1."""
        for pid in self.everything:
            told = Path(f"/proc/{pid}/status").read_text().partition("NSpid:")[2].split("\n")[0].split()
            if len(told) > 1 and told[-1] == "1":
                return pid
        raise AssertionError("there is no box")

    def outermost(self) -> int:
        """Return the process that the keeper started."""
        with open(f"/proc/{self.inner}/task/{self.inner}/children") as file:
            return int(file.read().split()[0])

    def end(self) -> None:
        for descriptor in self.pipes.values():
            os.close(descriptor)
        self.popen.wait(60)


@pytest.fixture
def kept(box: Box, data: Path) -> Iterator[Kept]:
    started = Kept(box, data)
    yield started
    started.end()


def kill(*pids: Callable[[Kept], int]) -> Callable[[Kept], None]:
    def strike(kept: Kept) -> None:
        chosen = [pid(kept) for pid in pids]
        for pid in chosen:
            os.kill(pid, signal.SIGSTOP)  # so that none of them acts between the kills
        for pid in chosen:
            os.kill(pid, signal.SIGKILL)

    return strike


@pytest.mark.parametrize(
    "strike",
    [
        pytest.param(kill(lambda kept: kept.popen.pid), id="guard"),
        pytest.param(kill(lambda kept: kept.inner), id="inner"),
        pytest.param(kill(lambda kept: kept.popen.pid, lambda kept: kept.inner), id="both"),
        pytest.param(kill(Kept.outermost), id="outermost"),
        pytest.param(kill(Kept.first_of_box), id="first-of-box"),
        pytest.param(
            kill(lambda kept: kept.popen.pid, lambda kept: kept.inner, Kept.outermost), id="keeper-and-outermost"
        ),
    ],
)
def test_a_detached_writer_with_an_empty_environment_dies_with_whoever_dies(
    kept: Kept, strike: Callable[[Kept], None]
) -> None:
    assert is_alive(kept.writer)
    strike(kept)
    wait_until(lambda: not is_alive(kept.writer), "the writer is gone")
    wait_until(lambda: not any(map(is_alive, kept.everything - {kept.inner})), "everything of the box is gone")


def test_a_detached_writer_dies_with_the_service(data: Path, box: Box) -> None:
    canary = data / "worktrees" / "mine" / "canary"
    command = box.command([sys.executable, "-I", "-S", "-c", DETACHED, WRITER, str(canary)], inside(data))
    service = (
        "import json, os, sys, time\n"
        "from steersman.adapters.processes.agent_process import start_keeper\n"
        "popen, pipes = start_keeper({'PATH': os.environ['PATH']})\n"
        "command = json.loads(sys.argv[1])\n"
        "start = {'do': 'start', 'path': command[0], 'argv': command, 'cwd': '/', 'env': {'PATH': os.defpath}}\n"
        "os.write(pipes['control'], json.dumps(start).encode() + b'\\n')\n"
        "time.sleep(3600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", service, json.dumps(command)]) as process:
        pid = int(wait_until(lambda: canary.exists() and canary.read_text().split("\n")[0], "it writes"))
        writer = outside(pid, canary.parent)
        process.kill()
    wait_until(lambda: not is_alive(writer), "the writer is gone")


def test_a_short_command_in_a_box_dies_with_the_service(data: Path, box: Box) -> None:
    canary = data / "worktrees" / "mine" / "canary"
    service = (
        "import os, sys\nfrom pathlib import Path\n"
        "from steersman.adapters.processes.box import Inside, Mount, run\n"
        "from steersman.adapters.processes.bubblewrap import find_box\n"
        "cwd = Path(sys.argv[1])\n"
        "inside = Inside(cwd=cwd, env={'PATH': os.defpath}, mounts=(Mount(source=cwd, writable=True),))\n"
        "run(find_box(), [sys.executable, '-I', '-S', '-c', sys.argv[2], sys.argv[3]], inside, timeout_seconds=3600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", service, canary.parent, WRITER, canary]) as process:
        pid = int(wait_until(lambda: canary.exists() and canary.read_text().split("\n")[0], "it writes"))
        writer = outside(pid, canary.parent)
        process.kill()
    wait_until(lambda: not is_alive(writer), "the writer is gone")


@pytest.mark.parametrize("verb", ["stop", "kill"])
def test_a_pause_and_an_abort_reach_everything_in_the_box_from_outside(kept: Kept, verb: str) -> None:
    os.write(kept.pipes["control"], json.dumps({"id": 1, "do": verb}).encode() + b"\n")
    with os.fdopen(os.dup(kept.pipes["status"]), "rb") as reports:
        while (report := json.loads(reports.readline())).get("id") != 1:
            pass
    assert kept.writer in report["pids"]
    assert report["refused"] == []
    before = size_of(kept.canary)
    if verb == "kill":
        assert not is_alive(kept.writer)
    else:
        os.write(kept.pipes["control"], json.dumps({"id": 2, "do": "continue"}).encode() + b"\n")
        wait_until(lambda: size_of(kept.canary) > before, "the writer writes again")


def test_where_no_user_namespaces_are_allowed_that_is_said() -> None:
    """In a namespace of this test's own, in which there may be no further ones."""
    clone_newuser, somebody = 0x10000000, 61_234 if IS_ROOT else os.getuid()
    libc = ctypes.CDLL(None, use_errno=True)
    reading, writing = os.pipe()
    explain("")  # with everything loaded that somebody else may not read
    pid = os.fork()
    if pid == 0:
        told = "the test itself failed"
        try:
            if IS_ROOT:
                os.setgroups([])
                os.setgid(somebody)
                os.setuid(somebody)
                libc.prctl(4, 1, 0, 0, 0)  # dumpable again, so that our own /proc is ours
            assert libc.unshare(clone_newuser) == 0, os.strerror(ctypes.get_errno())
            Path("/proc/self/uid_map").write_text(f"{somebody} {somebody} 1")
            Path("/proc/sys/user/max_user_namespaces").write_text("0")
            program = find_program()
            assert program is not None
            command = [program, "--unshare-user", "--ro-bind", "/", "/", "/bin/true"]
            tried = subprocess.run(command, capture_output=True, text=True, check=False)
            assert tried.returncode != 0
            told = explain(tried.stderr.strip())
        except BaseException as error:  # noqa: BLE001 -- a fork must never return into the test
            told = repr(error)
        finally:
            os.write(writing, told.encode()[:4_000])
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as file:
        told = file.read()
    os.waitpid(pid, 0)
    assert "user namespaces are switched off" in told
    assert "sysctl user.max_user_namespaces" in told
