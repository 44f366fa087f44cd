"""Nobody gets out of a box: an agent tries everything that it knows, under a service that is root and under any other."""

import asyncio
import ctypes
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from steersman.adapters.processes.agents_file import Surroundings
from steersman.adapters.processes.box import Box
from steersman.adapters.processes.bubblewrap import (
    PACKAGE,
    PROXY_PORT,
    Bubblewrap,
    find_box,
    find_program,
    give_to,
)
from steersman.adapters.processes.homes import Homes
from steersman.adapters.processes.surroundings import surrounded
from steersman.application.ports.agents import AgentFailed

AGENT = Path(__file__).with_name("escapes.py")
SECRET = "the-service-s-own-secret"
IS_ROOT = os.getuid() == 0
#: Some user that is nobody's: what an ordinary service is, where the tests are root.
SOMEBODY = 61_234
KEYCTL = {"x86_64": (248, 250), "aarch64": (217, 219)}[os.uname().machine]

#: Becomes an ordinary user who may pass through what is root's alone, in a mount namespace of its own; then the command.
AS_SOMEBODY = """
import json, os, sys
from steersman.adapters.processes import as_agents_user as tools
needs, closed, uid, *command = json.loads(sys.argv[1])
tools.must(tools.libc.unshare(tools.CLONE_NEWNS), "unshare")
tools.mount("none", "/", None, tools.MS_REC | tools.MS_PRIVATE)
opened = [(path, os.open(path, os.O_PATH)) for path in needs]
for path in closed:
    tools.mount("tmpfs", path, "tmpfs", 0, "mode=0755")
for path, descriptor in opened:
    os.makedirs(path, exist_ok=True)
    tools.mount(f"/proc/self/fd/{descriptor}", path, None, tools.MS_BIND | tools.MS_REC)
    os.close(descriptor)
os.setgroups([]), os.setgid(uid), os.setuid(uid), os.chdir("/")
os.execv(command[0], command)
"""


class World:
    """A service's files, a project, and servers of all kinds, each of which is somebody's secret."""

    def __init__(self, root: Path, uid: int) -> None:
        self.data, self.keys, self.project = root / "data", root / "keys", root / "project"
        self.mine = self.data / "worktrees" / "mine"
        for directory in (self.mine, self.data / "worktrees" / "other", self.data / "homes" / "other", self.keys):
            directory.mkdir(parents=True)
        for file in (
            self.data / "log.db",
            self.data / "agents.toml",
            self.data / "worktrees" / "other" / "file",
            self.data / "homes" / "other" / "login",
            self.keys / "private.pem",
        ):
            file.write_text(SECRET)
        for command in (["init", "-q", str(self.project)], ["-C", str(self.project), "config", "a.b", SECRET]):
            subprocess.run(["git", *command], check=True)
        (self.project / "file").write_text(SECRET)
        (self.project / ".env").write_text(SECRET)
        (self.project / ".git" / "info" / "exclude").write_text(".env\n")
        self.login = root / "login"
        self.login.write_text("the login\n")
        (root / "tools").mkdir()
        (root / "tools" / "hook").write_text("the hook\n")
        give_to(root, uid, uid)
        for parent in (root, *root.parents):
            if parent.stat().st_uid == os.getuid() and not parent.stat().st_mode & 0o001:
                parent.chmod(parent.stat().st_mode | 0o011)


def listening(stack: ExitStack, family: int, address: Any) -> socket.socket:
    listener = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
    listener.bind(address)
    listener.listen()
    return listener


def place_of(server: str) -> str | int:
    """Return where a PostgreSQL lets everybody in: its socket, or its port on loopback."""
    parts = urlsplit(server)
    directory = parse_qs(parts.query).get("host", [""])[0]
    return f"{directory}/.s.PGSQL.{parts.port or 5432}" if directory.startswith("/") else parts.port or 5432


def own_address() -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        with suppress(OSError):
            probe.connect(("192.0.2.1", 9))
        return probe.getsockname()[0] if probe.getsockname()[0] != "0.0.0.0" else "127.0.0.2"


@pytest.fixture(params=["service", "somebody"] if IS_ROOT else ["service"])
def who(request: pytest.FixtureRequest) -> str:
    """The service as it is here; and, where it is root, an ordinary one as well."""
    return request.param


@pytest.fixture
def world(who: str) -> Iterator[World]:
    root = Path(tempfile.mkdtemp(prefix="steersman-world-"))
    try:
        yield World(root, SOMEBODY if who == "somebody" else os.getuid())
    finally:
        shutil.rmtree(root)


@pytest.fixture
def box(world: World, who: str) -> Box:
    hidden = [world.data, world.keys]
    program = find_program()
    assert program is not None
    return Bubblewrap(program, hidden=hidden) if who == "somebody" else find_box(hidden=hidden)


def started_as(who: str, command: Sequence[str]) -> list[str]:
    if who == "service":
        return list(command)
    needs = sorted({sys.prefix, sys.base_prefix, str(PACKAGE)})
    closed = {
        next((str(up) for up in reversed(Path(need).parents) if not up.stat().st_mode & 0o001), "") for need in needs
    }
    return [sys.executable, "-I", "-c", AS_SOMEBODY, json.dumps([needs, sorted(closed - {""}), SOMEBODY, *command])]


def test_an_agent_that_tries_everything_gets_hold_of_nothing(
    world: World, box: Box, who: str, postgres_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEERSMAN_DATABASE", f"postgresql://{SECRET}")
    # A key in the session of whoever started the service.
    libc = ctypes.CDLL(None)
    key = libc.syscall(KEYCTL[0], b"user", b"steersman-escape", SECRET.encode(), len(SECRET), ctypes.c_int(-3))
    homes = Homes(world.data / "homes", box)
    home = homes.make("mine")
    if who == "somebody":
        give_to(home, SOMEBODY, SOMEBODY)
    else:
        box.give(world.mine)
    place = place_of(postgres_server)
    if isinstance(place, str):
        assert Path(place).is_socket()
    with ExitStack() as stack:
        tcp = listening(stack, socket.AF_INET, ("0.0.0.0", 0)).getsockname()[1]
        tcp6 = listening(stack, socket.AF_INET6, ("::1", 0)).getsockname()[1] if socket.has_ipv6 else tcp
        listening(stack, socket.AF_UNIX, "\0steersman-escape")
        listening(stack, socket.AF_UNIX, str(world.keys.parent / "socket"))
        (world.keys.parent / "socket").chmod(0o777)
        outsider = stack.enter_context(subprocess.Popen(["sleep", "3600"], env={"SECRET": SECRET}))
        stack.callback(outsider.kill)
        told = {
            "secret": SECRET,
            "tcp": tcp,
            "tcp6": tcp6,
            "address": own_address(),
            "postgres": place,
            "abstract": "steersman-escape",
            "socket": str(world.keys.parent / "socket"),
            "data": str(world.data),
            "keys": str(world.keys),
            "project": str(world.project),
            "pid": outsider.pid,
            "uid": os.getuid() if who == "service" else SOMEBODY,
            "proxy_port": PROXY_PORT,
        }
        around = Surroundings(network="proxy")
        environment = {"PATH": os.environ["PATH"], "HOME": str(home)}
        work = surrounded(
            [sys.executable, "-P", str(AGENT), json.dumps(told)],
            environment,
            around,
            cwd=world.mine,
            home=home,
            reads=[world.project / ".git" / "objects"],
        )

        async def tried() -> tuple[bytes, bytes]:
            door = await work.open_door(box)
            assert door is not None
            if who == "somebody":
                os.chown(door.path, SOMEBODY, SOMEBODY)
                door.path.parent.chmod(0o711)
            try:
                launch = work.launch(box, door)
                process = await asyncio.create_subprocess_exec(
                    *started_as(who, launch.argv),
                    env=dict(launch.env) | {"PYTHONDONTWRITEBYTECODE": "1"},
                    cwd="/",
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.PIPE,
                )
                return await process.communicate()
            finally:
                door.end()

        output, words = asyncio.run(tried())
    if key > 0:
        libc.syscall(KEYCTL[1], 21, key)  # invalidate
    assert output, words.decode()
    results: dict[str, str | None] = json.loads(output)
    print("\n".join(f"{'held' if got is None else 'ESCAPED'}  {name}" for name, got in results.items()))
    assert len(results) >= 30
    assert {name: got for name, got in results.items() if got is not None} == {}
    # What only shows outside.
    assert not (world.data / "tokens.db").exists()
    assert outsider.returncode is not None
    assert not (world.project / ".git" / "objects" / "planted").exists()
    _assert_that_traps_catch_nobody(world, homes, who)


def _assert_that_traps_catch_nobody(world: World, homes: Homes, who: str) -> None:
    """The agent left a link to the project, and a FIFO, where copies go in before the next start."""
    root = world.keys.parent
    copies = [(world.login, Path(".login")), (root / "tools", Path(".tools"))]
    done = threading.Event()
    failure: list[BaseException] = []

    def copy() -> None:
        try:
            if who == "service":
                homes.copy_into("mine", copies)
        except AgentFailed as failed:
            failure.append(failed)
        done.set()

    threading.Thread(target=copy, daemon=True).start()
    assert done.wait(60), "the service hangs at a FIFO"
    assert not failure
    assert not (world.project / "hook").exists()
    assert (root / "tools" / "hook").read_text() == "the hook\n"
    assert world.login.read_text() == "the login\n"
    if who == "service":
        home = homes.of("mine")
        assert (home / ".login").read_text() == "the login\n"
        assert (home / ".tools" / "hook").read_text() == "the hook\n"
        assert not (home / ".tools").is_symlink()
    homes.forget(["mine"])
    assert (world.data / "log.db").read_text() == SECRET
