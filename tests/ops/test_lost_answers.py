"""A command whose answer is lost is asked about again under its own key, and never told as a refusal."""

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread
from uuid import uuid4

import pytest
from click.testing import CliRunner

from steersman.ops.commands import fleet_command, runs_command
from steersman.ops.commands.client import Client, Patience
from steersman.ops.commands.following import outcome_code
from steersman.ops.refused import OutcomeUnknown, Refused
from steersman.ops.settings import Connection
from steersman.tests.ports import free_port


def said(code: int, /, **body: object) -> bytes:
    words = json.dumps(body).encode()
    return b"HTTP/1.1 %d X\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (code, len(words), words)


DONE = said(201, directive_id="d")
IN_FLIGHT = said(409, error="idempotency_key_in_flight", message="x")
CUT_SHORT = said(503, error="cut_short", message="x")
REFUSED = said(409, error="run_not_active", message="It has ended.")


@contextmanager
def answering(*answers: bytes) -> Iterator[tuple[str, list[str]]]:
    """Give the address of a server that says each of these once, b"" by hanging up, and the keys that it is sent."""
    keys: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            for answer in answers:
                connection, _ = listener.accept()
                with connection:
                    head = connection.recv(65_536).decode()
                    keys.extend(
                        line.split(": ")[1] for line in head.split("\r\n") if line.startswith("Idempotency-Key")
                    )
                    connection.sendall(answer)
            listener.shutdown(socket.SHUT_RDWR)

        thread = Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", keys
        thread.join(30)


def post(url: str, unknown: float = 60.0) -> object:
    with Client(Connection(url=url, token="steersman_x"), Patience(reconnect=0.01, unknown=unknown)) as one:
        return one.post("/tasks/t/steer", {"kind": "pause"})


@pytest.mark.parametrize("before", [(b"",), (b"", b""), (IN_FLIGHT,), (CUT_SHORT,), (b"", IN_FLIGHT, CUT_SHORT)])
def test_a_lost_answer_is_asked_for_again_under_the_same_key(before: tuple[bytes, ...]) -> None:
    with answering(*before, DONE) as (url, keys):
        assert post(url) == {"directive_id": "d"}
    assert len(keys) == len(before) + 1
    assert len(set(keys)) == 1


def test_two_commands_have_keys_of_their_own() -> None:
    with answering(DONE, DONE) as (url, keys):
        assert post(url) == post(url)
    assert len(set(keys)) == 2


def test_a_refusal_is_a_refusal_also_behind_a_lost_answer() -> None:
    with answering(b"", REFUSED) as (url, _), pytest.raises(Refused, match="run_not_active") as refused:
        post(url)
    assert refused.value.exit_code == 1


def test_what_a_service_says_that_begins_nothing_now_does_not_tell_of_the_try_before() -> None:
    draining = said(503, error="draining", message="x")
    with answering(draining) as (url, _), pytest.raises(Refused, match="draining") as refused:
        post(url)
    assert refused.value.exit_code == 1
    with answering(b"", draining, DONE) as (url, keys):
        assert post(url) == {"directive_id": "d"}
    assert len(keys) == 3


def test_a_service_that_was_never_reached_has_done_nothing() -> None:
    with pytest.raises(Refused, match="cannot be reached") as refused:
        post(f"http://127.0.0.1:{free_port()}")
    assert refused.value.exit_code == 1


@pytest.mark.parametrize("answer", [b"", CUT_SHORT, IN_FLIGHT])
def test_an_outcome_that_nobody_tells_is_unknown_and_has_an_exit_code_of_its_own(
    answer: bytes,
) -> None:
    with answering(answer) as (url, keys), pytest.raises(OutcomeUnknown, match="outcome unknown") as unknown:
        post(url, unknown=0.05)
    assert unknown.value.exit_code == 3
    assert f"--key {keys[0]}" in unknown.value.message


def test_a_command_is_sent_again_under_the_key_that_was_told() -> None:
    answer = said(201, task_id="t", kind="pause", mailbox_seq=7, payload_hash="h", directive_id="d", status="queued")
    with answering(answer) as (url, keys):
        done = CliRunner().invoke(
            fleet_command.command, ["steer", "t", "pause", "--key", "again", "--server", url, "--token", "steersman_x"]
        )
    assert (done.exit_code, keys) == (0, ["again"]), done.output


@pytest.mark.parametrize(
    ("status", "result", "code"),
    [
        ("completed", None, 0),
        ("assemble_ready", None, 0),
        ("failed", "x", 4),
        ("merge_failed", "x", 5),
        ("declined", None, 6),
        ("failed", "steering_stop", 7),
    ],
)
def test_watching_a_run_ends_with_its_outcome(
    status: str, result: str | None, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert outcome_code(status, result) == code
    feed = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\nevent: done\ndata: {}\n\n"
    with answering(feed, said(200, position=1), said(200, status=status, result=result)) as (url, _):
        monkeypatch.setenv("STEERSMAN_SERVER_URL", url)
        monkeypatch.setenv("STEERSMAN_TOKEN", "steersman_x")
        assert CliRunner().invoke(runs_command.command, ["watch", str(uuid4())]).exit_code == code
