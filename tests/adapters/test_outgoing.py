"""Notices leave only to where they may, to the very address that was looked at, and within a bounded time."""

import socket
import sys
import time
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from steersman.adapters.outgoing.addresses import allowed_addresses, read_networks
from steersman.adapters.outgoing.notify_command import NotifyCommand
from steersman.adapters.outgoing.post import GuardedPost
from steersman.application.notifying.receiver_address import AddressRefused
from steersman.tests.http.receiver import receiving

LOOPBACK = read_networks(["127.0.0.0/8"])


def resolving(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
    """Let every name have these addresses."""

    def looked_up(host: str, port: int, *_: Any, **__: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in addresses]

    monkeypatch.setattr(socket, "getaddrinfo", looked_up)


@pytest.mark.parametrize(
    "address", ["127.0.0.1", "10.0.0.1", "169.254.169.254", "192.168.1.1", "100.64.0.1", "0.0.0.0"]
)
def test_a_name_that_leads_to_a_private_address_is_refused_whatever_it_is_called(
    monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    resolving(monkeypatch, address)
    with pytest.raises(AddressRefused):
        allowed_addresses("https://hooks.example.org/", ())
    assert GuardedPost().send("https://hooks.example.org/", {}, b"").word == "refused_address"
    assert allowed_addresses("http://hooks.example.org/", read_networks([f"{address}/32"])) == [address]


def test_of_the_addresses_of_a_name_only_those_that_may_be_are_used_and_plain_http_is_for_named_networks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    resolving(monkeypatch, "127.0.0.1", "93.184.216.34")
    assert allowed_addresses("https://hooks.example.org/", ()) == ["93.184.216.34"]
    with pytest.raises(AddressRefused):
        allowed_addresses("http://hooks.example.org/", ())


def test_a_name_is_looked_up_at_each_use(monkeypatch: pytest.MonkeyPatch) -> None:
    with receiving() as local:
        port = local.url.rpartition(":")[2]
        resolving(monkeypatch, "127.0.0.1")
        post = GuardedPost(LOOPBACK)
        sent = post.send(f"http://hooks.example.org:{port}/x?y=z", {"webhook-id": "1"}, b"{}")
        assert sent.state == "delivered"
        assert local.sent[0].path == "/x?y=z"
        assert local.sent[0].headers["host"] == f"hooks.example.org:{port}"
        resolving(monkeypatch, "10.0.0.1")
        assert post.send(f"http://hooks.example.org:{port}/", {}, b"{}").word == "refused_address"


def test_no_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    with receiving() as local:
        assert GuardedPost(LOOPBACK).send(f"{local.url}/", {}, b"").state == "delivered"


def test_nobody_listens_or_speaks_tls_or_http() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    assert GuardedPost(LOOPBACK).send(f"http://127.0.0.1:{port}/", {}, b"").word == "unreachable"
    with receiving() as local:
        assert GuardedPost(LOOPBACK).send(local.url.replace("http", "https"), {}, b"").word == "tls"


def test_a_receiver_that_answers_a_byte_at_a_time_is_given_up_after_the_time_for_all_of_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def drip() -> None:
            peer, _ = listener.accept()
            try:
                while True:
                    peer.sendall(b"x")
                    time.sleep(0.05)
            except OSError:
                peer.close()

        Thread(target=drip, daemon=True).start()
        post = GuardedPost(LOOPBACK, seconds=0.5)
        assert post.send(f"http://127.0.0.1:{listener.getsockname()[1]}/", {}, b"").word == "timed_out"


def test_what_is_being_sent_is_broken_off_when_it_is_closed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        post = GuardedPost(LOOPBACK)

        def close() -> None:
            peer, _ = listener.accept()
            with peer:
                peer.recv(1)
                post.close()

        Thread(target=close, daemon=True).start()
        assert post.send(f"http://127.0.0.1:{listener.getsockname()[1]}/", {}, b"").state == "failed"


def test_the_command_gets_the_event_on_its_input_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEERSMAN_TOKEN", "secret")
    heard = tmp_path / "heard"
    program = f"import os, sys; open({str(heard)!r}, 'w').write(sys.stdin.read() + repr(sys.argv[1:]) + str(sorted(os.environ)))"
    assert NotifyCommand([sys.executable, "-c", program]).tell(b'{"id":"1-1"}').state == "delivered"
    words = heard.read_text(encoding="utf-8")
    assert words.startswith('{"id":"1-1"}[]')
    assert "STEERSMAN" not in words


@pytest.mark.parametrize(
    ("command", "word"),
    [
        (["/bin/sh", "-c", "exit 3"], "exit_3"),
        (["/bin/sh", "-c", "kill -9 $$"], "signal_9"),
        (["/none"], "not_started"),
    ],
)
def test_a_command_that_fails_says_how(command: list[str], word: str) -> None:
    assert NotifyCommand(command).tell(b"x" * 1_000_000).word == word


def test_a_command_that_does_not_end_is_killed_with_whatever_it_started(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    command = ["/bin/sh", "-c", f"/bin/sh -c 'echo $$ > {pid}; exec sleep 600' & wait"]
    assert NotifyCommand(command, seconds=3).tell(b"").word == "timed_out"
    until = time.monotonic() + 60
    while Path(f"/proc/{pid.read_text().strip()}/cwd").exists():
        assert time.monotonic() < until
        time.sleep(0.02)
