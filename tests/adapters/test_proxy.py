"""The way out of a box: it leads where it may, and nowhere else, and nothing that an agent does to it closes it."""

import asyncio
import http.server
import ipaddress
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from steersman.adapters.processes.agents_file import Surroundings
from steersman.adapters.processes.box import Inside, Mount, run
from steersman.adapters.processes.bubblewrap import find_box
from steersman.adapters.processes.homes import Homes
from steersman.adapters.processes.kept_commands import KeptCommands
from steersman.adapters.processes.proxy import (
    Door,
    Refusal,
    WaysOut,
    is_below,
    is_public,
    near_ports,
    read_head,
    read_reach,
)


class Echo(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(f"{self.path} {self.headers.get('Connection')}".encode())

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(str(len(body)).encode())

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@pytest.fixture
def port() -> Iterator[int]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Echo) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "224.0.0.1",
        "255.255.255.255", "::1", "::", "fe80::1", "fc00::1", "ff02::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1",
        "64:ff9b::7f00:1", "2002:7f00:1::", "192.0.2.1",
    ],
)  # fmt: skip
def test_no_address_of_a_machine_or_a_private_network_is_public(address: str) -> None:
    assert not is_public(ipaddress.ip_address(address))


def test_public_addresses_are_public() -> None:
    assert is_public(ipaddress.ip_address("1.1.1.1"))
    assert is_public(ipaddress.ip_address("2606:4700:4700::1111"))
    assert is_public(ipaddress.ip_address("64:ff9b::101:101"))


def test_a_host_is_below_itself_and_its_parents_and_nothing_that_looks_alike() -> None:
    assert is_below("api.example.com", "example.com")
    assert is_below("example.com", "*.Example.com")
    assert not is_below("badexample.com", "example.com")
    assert not is_below("example.com.evil.org", "example.com")


def test_a_request_says_where_it_wants_to_go_and_goes_there_alone() -> None:
    assert read_head(b"CONNECT Api.Example.com:443 HTTP/1.1\r\n\r\n") == ("api.example.com", 443, None)
    host, port, onward = read_head(
        b"GET http://example.com/a?b HTTP/1.1\r\nHost: example.com\r\nProxy-Authorization: x\r\nConnection: keep-alive\r\n\r\n"
    )
    assert (host, port) == ("example.com", 80)
    assert onward == b"GET /a?b HTTP/1.1\r\nHost: example.com\r\nConnection: close\r\n\r\n"
    for nonsense in (
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET ftp://x/ HTTP/1.1\r\n\r\n",
        b"\xff\r\n\r\n",
        b"CONNECT : H\r\n\r\n",
    ):
        with pytest.raises(Refusal):
            read_head(nonsense)


def test_only_near_ports_that_anybody_may_listen_on_are_carried_by_their_number() -> None:
    reach = read_reach(["127.0.0.1:8080", "localhost:80", "10.0.0.1:9000", "127.0.0.1:3128"])
    assert near_ports(reach, 3128) == ((8080, "127.0.0.1:8080"),)
    for wrong in ("127.0.0.1", "http://x:1", "x:port"):
        with pytest.raises(ValueError, match=r".+"):
            read_reach([wrong])


CODE = """
import os, socket, struct, sys, urllib.request
del os.environ['no_proxy'], os.environ['NO_PROXY']
port = int(sys.argv[1])
for number in (port, 3128):
    for _ in range(50):  # ends in every rude way
        with socket.create_connection(("127.0.0.1", number)) as rude:
            rude.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            rude.sendall(b"POST / HTTP/1.1\\r\\nContent-Length: 9999999\\r\\n\\r\\n" + b"x" * 100_000)
for how in ({}, {"http": "http://127.0.0.1:3128"}):
    way = urllib.request.build_opener(urllib.request.ProxyHandler(how))
    print(way.open(f"http://127.0.0.1:{port}/x", timeout=60).read())
    print(way.open(f"http://127.0.0.1:{port}/x", data=b"x" * 5_000_000, timeout=60).read())
"""


def test_a_listed_address_is_reached_by_its_port_and_by_the_proxy_however_rude_others_were(
    port: int, tmp_path: Path
) -> None:
    box = find_box()
    box.give(tmp_path)
    commands = KeptCommands(box=box, around=Surroundings(reach=(f"127.0.0.1:{port}",)))
    result = commands.run([sys.executable, "-I", "-c", CODE, str(port)], tmp_path, 120)
    assert result.output.split("\n")[:4] == ["b'/x close'", "b'5000000'"] * 2, result.output
    elsewhere = KeptCommands(box=box, around=Surroundings(hosts=("example.com",)))
    code = (
        "import os, urllib.request, sys\n"
        "del os.environ['no_proxy'], os.environ['NO_PROXY']\n"
        "way = urllib.request.build_opener(urllib.request.ProxyHandler({'http': 'http://127.0.0.1:3128'}))\n"
        "for url in (f'http://127.0.0.1:{sys.argv[1]}/', 'http://elsewhere.example/'):\n"
        "    try: way.open(url, timeout=60)\n"
        "    except urllib.error.HTTPError as error: print(error.code, error.read().decode(), end='')\n"
    )
    told = elsewhere.run([sys.executable, "-I", "-c", code, str(port)], tmp_path, 120).output
    assert told.count("403") == 2
    assert "`hosts`" in told


async def silent_names(patch: pytest.MonkeyPatch, silence: threading.Event) -> int:
    """Have a box look up many names that nobody answers for; return what a thread for others says meanwhile."""
    loop, asked = asyncio.get_running_loop(), asyncio.Semaphore(0)
    loop.set_default_executor(ThreadPoolExecutor(2))

    def look_up(*_: object, **__: object) -> list[object]:
        loop.call_soon_threadsafe(asked.release)
        silence.wait()
        return []

    patch.setattr("socket.getaddrinfo", look_up)
    door = await Door(WaysOut()).begin()
    writers = [(await asyncio.open_unix_connection(door.path))[1] for _ in range(20)]
    try:
        for writer in writers:
            writer.write(b"CONNECT silent.example:443 HTTP/1.1\r\n\r\n")
        await asked.acquire()
        await asked.acquire()
        return await asyncio.wait_for(asyncio.to_thread(int, "7"), 20)
    finally:
        door.end()
        for writer in writers:
            writer.close()
        await asyncio.gather(*(writer.wait_closed() for writer in writers), return_exceptions=True)


def test_names_that_nobody_answers_for_hold_up_nobody_else_and_not_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    silence = threading.Event()
    watch = threading.Timer(40, silence.set)
    watch.start()
    try:
        assert asyncio.run(silent_names(monkeypatch, silence)) == 7
        assert not silence.is_set()
    finally:
        watch.cancel()
        silence.set()


@pytest.mark.parametrize("where", ["build", "agent"])
def test_a_home_is_removed_however_deep_it_is(tmp_path: Path, where: str) -> None:
    code = "import os\nos.chdir(os.environ['HOME'])\nfor _ in range(3000):\n    os.mkdir('d'); os.chdir('d')\nprint('deep')"
    box = find_box()
    box.give(tmp_path)
    command = [sys.executable, "-I", "-c", code]
    if where == "build":
        assert KeptCommands(box=box).run(command, tmp_path, 60).output == "deep\n"
        return
    homes = Homes(tmp_path / "homes", box)
    home = homes.make("mine")
    inside = Inside(cwd=home, env={"HOME": str(home)}, mounts=(Mount(source=home, writable=True),))
    assert run(box, command, inside, timeout_seconds=60).output == b"deep\n"
    homes.forget(["mine"])
    assert not home.exists()


def test_without_a_network_there_is_none(port: int, tmp_path: Path) -> None:
    box = find_box()
    box.give(tmp_path)
    code = "import os, socket, sys; print('PROXY' in str(os.environ).upper(), socket.socket().connect_ex(('127.0.0.1', int(sys.argv[1]))))"
    result = KeptCommands(box=box, around=Surroundings(network="none")).run(
        [sys.executable, "-I", "-c", code, str(port)], tmp_path, 60
    )
    assert result.output.split()[0] == "False"
    assert result.output.split()[1] != "0"


def test_a_build_has_a_home_of_its_own_and_leaves_nothing_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "mine"))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "login").write_text("secret")
    work = tmp_path / "work"
    work.mkdir()
    box = find_box()
    box.give(work)
    script = 'echo $HOME; touch $HOME/x && ls -A $HOME; cat "$1/login"; touch built'
    result = KeptCommands(box=box).run(["sh", "-c", script, "sh", str(tmp_path / "mine")], work, 60)
    home, listed, *rest = result.output.splitlines()
    assert (listed, result.exit_code) == ("x", 0)
    assert not Path(home).exists()
    assert "secret" not in "".join(rest)
    assert (work / "built").exists()
