"""`steersman runs watch` against a service that is not there, goes away, or is something else."""

import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Event, Thread

import pytest

from steersman.ops.commands.client import Client, Patience
from steersman.ops.refused import Refused
from steersman.ops.settings import Connection
from steersman.tests.e2e.served import STEERSMAN, environment
from steersman.tests.ports import free_port

FEED = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
EVENT = b'id: 7\nevent: run.started\ndata: {"subtaskId": 1, "agentName": "x"}\n\n'
PAGE = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n<p>Hello"


@contextmanager
def answering(*answers: bytes, then: Callable[[], object] = lambda: None) -> Iterator[str]:
    """Give the address of a server that says each of these once, and then listens no more; *then* is called before."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            for answer in answers:
                connection, _ = listener.accept()
                with connection:
                    connection.recv(65_536)
                    connection.sendall(answer)
                    if answer is answers[-1]:
                        then()
                        listener.shutdown(socket.SHUT_RDWR)

        thread = Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        thread.join(30)


QUICK = Patience(reconnect=0.1)


def watched(url: str, patience: Patience = QUICK) -> list[int | None]:
    """Follow a feed to its end."""
    with Client(Connection(url=url, token="steersman_x"), patience) as one:
        return [event.id for event in one.follow("/feed")]


def test_a_service_that_was_never_there_is_told_at_once() -> None:
    # Whoever tried again would not come to an end here.
    with pytest.raises(Refused, match="cannot be reached"):
        watched(f"http://127.0.0.1:{free_port()}", Patience(reconnect=3_600.0))


def test_a_service_that_goes_away_is_tried_again_in_words_and_given_up_after_as_long_as_is_said(
    capsys: pytest.CaptureFixture[str],
) -> None:
    began = time.monotonic()
    with (
        answering(FEED + EVENT) as url,
        pytest.raises(Refused, match=r"after event 7, .* stayed away for 1 s: .*refused"),
    ):
        watched(url, Patience(reconnect=0.1, away=1.0))
    assert time.monotonic() - began > 1.0
    said = capsys.readouterr().err.splitlines()
    assert [line.partition(" (")[2] for line in said] == [
        "the feed broke off), trying again",
        f"{_refused()}), trying again",
    ]


def test_a_service_that_is_starting_is_waited_for() -> None:
    starting = b'HTTP/1.1 503 X\r\nContent-Length: 36\r\n\r\n{"error": "draining", "message": ""} '
    with answering(starting, FEED + EVENT, FEED + b"event: done\ndata: {}\n\n") as url:
        assert watched(url) == [7, None]


def test_a_server_of_something_else_is_no_feed() -> None:
    with answering(PAGE) as url, pytest.raises(Refused, match="is no Steersman"):
        watched(url)
    with (
        answering(PAGE) as url,
        Client(Connection(url=url, token="steersman_x")) as one,
        pytest.raises(Refused, match="is no Steersman"),
    ):
        one.get("/api/projects")


@pytest.fixture
def interruptible() -> Iterator[None]:
    """A process that is started here can be interrupted, also where these tests run in a shell's background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_whoever_ends_it_hears_how_to_go_on() -> None:
    is_over = Event()
    with answering(FEED + EVENT.replace(b"7", b"6") + EVENT, then=is_over.wait) as url:
        command: Sequence[str] = [*STEERSMAN, "runs", "watch", "r-1"]
        variables = environment(STEERSMAN_SERVER_URL=url, STEERSMAN_TOKEN="steersman_x")
        with subprocess.Popen(
            command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as watching:
            assert watching.stdout is not None
            for _ in range(2):
                watching.stdout.readline()
            watching.send_signal(signal.SIGINT)
            try:
                _, said = watching.communicate(timeout=60)
            finally:
                watching.kill()
                is_over.set()
    # Behind the last that was shown for certain: in doubt one is shown again, and none is left out.
    assert re.search(r"^To go on: steersman runs watch r-1 --after [67]$", said, re.MULTILINE), said
    assert "Traceback" not in said


def _refused() -> str:
    """What the system calls a port that nobody listens at."""
    with pytest.raises(Refused) as caught:
        watched(f"http://127.0.0.1:{free_port()}")
    return caught.value.message.partition(": ")[2]
