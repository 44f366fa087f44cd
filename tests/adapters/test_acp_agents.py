"""Agents that misbehave: each gets a typed failure, none fills the memory or keeps the service waiting."""

import asyncio
import errno
import itertools
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from steersman.adapters.acp.agents import START_TIMEOUT_SECONDS, AcpAgents
from steersman.adapters.acp.session import CLOSE_SECONDS
from steersman.adapters.processes import agent_process
from steersman.adapters.processes.agent_process import start_keeper
from steersman.adapters.processes.agents_file import AgentsFileInvalid, read_agents
from steersman.adapters.processes.bubblewrap import find_box
from steersman.adapters.processes.kept_commands import KeptCommands
from steersman.application.effects.timings import Timings
from steersman.application.ports.agents import AgentFailed, AgentUpdate, SessionRequest
from steersman.tests.live_agents import (
    PATIENCE_SECONDS,
    InBackground,
    Recorder,
    agents_toml,
    family_of,
    is_alive,
    python_agent,
    script,
    wait_until,
)

#: Opens a rehearsal agent, lets it leave a detached writer behind, and then only lives.
SERVICE = """
import sys, time
from pathlib import Path
from steersman.adapters.acp.agents import AcpAgents
from steersman.adapters.processes.agents_file import read_agents
from steersman.application.ports.agents import (SessionRequest)
from steersman.tests.live_agents import Recorder, script

directory = Path(sys.argv[1])
agents = AcpAgents(read_agents(None, directory / "data"), directory / "data")
if len(sys.argv) > 2:
    agents.renew(time.monotonic() + float(sys.argv[2]))
session = agents.open(SessionRequest(model_id="rehearsal", run_id="run-1", cwd=directory))
session.prompt(script({"spawn": {"path": "canary.txt", "every_ms": 100, "detached": True}}), Recorder())
print("ready", flush=True)
time.sleep(3600)
"""
MEGABYTE = 1024 * 1024


@pytest.fixture
def open_agent(tmp_path: Path) -> Iterator[Any]:
    """A function that opens a session with an agent that is some Python."""
    opened: list[AcpAgents] = []

    def start(body: str, *, model: str = "", seconds: float = 60.0, session_id: str | None = None, **table: Any) -> Any:
        file = agents_toml(tmp_path, odd={"command": python_agent(body), **table})
        agents = AcpAgents(read_agents(file, tmp_path / "data"), tmp_path / "data", start_timeout_seconds=seconds)
        opened.append(agents)
        model_id = f"odd/{model}" if model else "odd"
        return agents.open(SessionRequest(model_id=model_id, run_id="run-1", cwd=tmp_path, session_id=session_id))

    yield start
    for agents in opened:
        agents.close()


def failure(call: Any) -> AgentFailed:
    """Return the failure that a call ends with."""
    with pytest.raises(AgentFailed) as failed:
        call()
    return failed.value


# Starting


def test_a_command_that_is_not_on_the_path_is_not_installed(tmp_path: Path) -> None:
    with AcpAgents(
        read_agents(agents_toml(tmp_path, gone=["no-such-agent-here", "acp"]), tmp_path), tmp_path
    ) as agents:
        assert {agent.name: agent.installed for agent in agents.known()} == {"gone": False, "rehearsal": True}
        failed = failure(lambda: agents.open(SessionRequest(model_id="gone", run_id="r", cwd=tmp_path)))
        assert (failed.code, failed.retryable) == ("agent_not_installed", False)


def test_a_file_that_is_no_program_is_not_installed(tmp_path: Path) -> None:
    program = tmp_path / "agent"
    program.write_bytes(b"\x00\x01")
    program.chmod(0o755)
    with AcpAgents(read_agents(agents_toml(tmp_path, bad=[str(program)]), tmp_path), tmp_path) as agents:
        failed = failure(lambda: agents.open(SessionRequest(model_id="bad", run_id="r", cwd=tmp_path)))
    assert failed.code == "agent_not_installed"


def test_a_working_directory_that_is_gone_is_told(tmp_path: Path) -> None:
    with AcpAgents(read_agents(None, tmp_path), tmp_path) as agents:
        failed = failure(lambda: agents.open(SessionRequest(model_id="rehearsal", run_id="r", cwd=tmp_path / "gone")))
    assert "working directory" in str(failed)


def test_an_agent_that_says_nothing_is_given_up_and_killed(open_agent: Any, tmp_path: Path) -> None:
    body = "open('pid', 'w').write(str(os.getpid()))\ntime.sleep(3600)"
    failed = failure(lambda: open_agent(body, seconds=1.0))
    assert (failed.code, failed.retryable) == ("agent_start_timeout", True)
    pid = tmp_path / "pid"
    assert not pid.exists() or not is_alive(int(pid.read_text()))


def test_an_agent_that_answers_each_request_late_gets_no_more_time_than_one_that_says_nothing(open_agent: Any) -> None:
    slow = "hello()\n" + "".join(
        f"request = recv()\ntime.sleep(0.8)\nsend(id=request['id'], result={result})\n"
        for result in ({"sessionId": "s1", "models": {"currentModelId": "x"}}, {}, {})
    )
    failed = failure(lambda: open_agent(slow + "time.sleep(3600)", model="m", seconds=1.5))
    assert (failed.code, failed.retryable) == ("agent_start_timeout", True)
    assert not family_of(os.getpid())


def test_whoever_ends_an_agent_waits_for_longer_than_it_may_take_to_start() -> None:
    assert START_TIMEOUT_SECONDS + CLOSE_SECONDS <= Timings().open / 1.5


def test_an_agent_that_exits_at_once_is_told_with_its_last_words(open_agent: Any) -> None:
    failed = failure(lambda: open_agent("print('no licence found', file=sys.stderr)\nsys.exit(7)"))
    assert failed.code == "agent_exited"
    assert "code 7" in str(failed)
    assert "no licence found" in str(failed)


@pytest.mark.parametrize(
    "stray",
    [
        b"Welcome to Agent 2000!",
        b"[1, 2]",
        b'{"level": "info", "id": {}}',
        b"\xff\xfe no text at all \x00",
        b"z" * 20_000_000,
    ],
    ids=["banner", "array", "log", "bytes", "long"],
)
def test_a_line_that_was_not_meant_for_us_is_left_out_and_told_like_words_on_stderr(
    open_agent: Any, tmp_path: Path, stray: bytes
) -> None:
    (tmp_path / "stray").write_bytes(stray)
    write = "os.write(1, b''); sys.stdout.buffer.write(open('stray', 'rb').read() + bytes([10])); sys.stdout.flush()\n"
    session = open_agent(
        f"{write}hello()\n{write}new()\nasked = recv()['id']\n{write}say('done')\n"
        "send(id=asked, result={'stopReason': 'end_turn'})\nrecv()"
    )
    observer = Recorder()
    assert session.prompt("go", observer).message == "done"
    told = "".join(update.text for update in observer.of("stderr"))
    assert stray[:20].decode(errors="replace") in told
    assert len(told) < 3_000


def test_a_message_with_bytes_that_are_no_text_is_a_message_all_the_same(open_agent: Any) -> None:
    said = (
        "line = {'jsonrpc': '2.0', 'method': 'session/update', 'params': {'sessionId': 's1', 'update': {"
        "'sessionUpdate': 'agent_message_chunk', 'content': {'type': 'text', 'text': 'a HERE b'}}}}\n"
        "sys.stdout.buffer.write(json.dumps(line).encode().replace(b'HERE', bytes([255])) + bytes([10]))\n"
    )
    session = open_agent(
        f"hello()\nnew()\nasked = recv()['id']\n{said}send(id=asked, result={{'stopReason': 'end_turn'}})\nrecv()"
    )
    assert session.prompt("go", Recorder()).message == "a \ufffd b"


@pytest.mark.parametrize(
    "nonsense",
    ['{"jsonrpc": "2.0", "id": {}}', '{"jsonrpc": "2.0", "method": 7}', '{"jsonrpc": "2.0", "id": 0, "error": 1}'],
)
def test_nonsense_on_stdout_breaks_the_protocol(open_agent: Any, nonsense: str) -> None:
    failed = failure(lambda: open_agent(f"print({nonsense!r}, flush=True)\ntime.sleep(3600)"))
    assert (failed.code, failed.retryable) == ("agent_protocol_error", False)


@pytest.mark.parametrize("result", ["None", "{'protocolVersion': 'x'}", "[]"])
def test_a_hello_in_another_form_breaks_the_protocol(open_agent: Any, result: str) -> None:
    failed = failure(lambda: open_agent(f"send(id=recv()['id'], result={result})\ntime.sleep(3600)"))
    assert failed.code == "agent_protocol_error"


def test_an_agent_without_load_session_says_so_in_its_capabilities_and_has_no_old_session(open_agent: Any) -> None:
    session = open_agent("hello(promptCapabilities={'image': True})\nnew()\nrecv()")
    assert session.capabilities == ("image",)
    failed = failure(lambda: open_agent("hello()\nrecv()", session_id="s1"))
    assert (failed.code, failed.retryable) == ("session_not_found", False)


def test_a_load_that_fails_for_a_session_which_is_still_listed_is_no_lost_session(open_agent: Any) -> None:
    body = (
        "hello(loadSession=True, sessionCapabilities={'list': {}})\n"
        "send(id=recv()['id'], error={'code': -32603, 'message': 'busy'})\n"
        "send(id=recv()['id'], result={'sessions': [{'sessionId': 'SESSION', 'cwd': '/'}]})\nrecv()\n"
    )
    assert failure(lambda: open_agent(body.replace("SESSION", "s1"), session_id="s1")).code == "agent_turn_failed"
    assert failure(lambda: open_agent(body.replace("SESSION", "s2"), session_id="s1")).code == "session_not_found"


# Models


def test_a_model_is_chosen_by_the_option_that_the_agent_offers(open_agent: Any, tmp_path: Path) -> None:
    body = (
        "hello()\n"
        "options = [{'id': 'llm', 'category': 'model', 'type': 'select', 'name': 'M', 'currentValue': 'a', 'options': []}]\n"
        "send(id=recv()['id'], result={'sessionId': 's1', 'configOptions': options})\n"
        "asked = recv()\n"
        "open('asked', 'w').write(json.dumps([asked['method'], asked['params']]))\n"
        "send(id=asked['id'], result={'configOptions': options})\nrecv()\n"
    )
    open_agent(body, model="provider/big")
    asked = (tmp_path / "asked").read_text()
    assert '"session/set_config_option"' in asked
    assert '"configId": "llm"' in asked
    assert '"value": "provider/big"' in asked


def test_a_model_that_nobody_can_choose_is_refused_and_not_ignored(open_agent: Any) -> None:
    assert "provider/big" in str(failure(lambda: open_agent("hello()\nnew()\nrecv()", model="provider/big")))


def test_a_model_may_be_named_in_the_environment_of_the_agent(open_agent: Any, tmp_path: Path) -> None:
    body = "open('told', 'w').write(os.environ['MODEL'])\nhello()\nnew()\nrecv()"
    open_agent(body, model="provider/big", env={"MODEL": "use {model}"})
    assert (tmp_path / "told").read_text() == "use provider/big"


# Turns


def test_an_agent_that_dies_in_its_turn_has_its_last_messages_heard(open_agent: Any) -> None:
    session = open_agent("hello()\nnew()\nrecv()\nsay('almost done')\nsys.exit(4)")
    observer = Recorder()
    assert "code 4" in str(failure(lambda: session.prompt("go", observer)))
    assert [update.text for update in observer.of("message")] == ["almost done"]


def test_an_agent_that_closes_its_stdout_and_lives_breaks_the_protocol(open_agent: Any) -> None:
    session = open_agent("hello()\nnew()\nrecv()\nos.close(1)\ntime.sleep(3600)")
    assert failure(lambda: session.prompt("go", Recorder())).code == "agent_protocol_error"


def test_an_agent_whose_child_holds_its_stdout_is_still_seen_to_exit(open_agent: Any) -> None:
    session = open_agent("hello()\nnew()\nrecv()\nif os.fork() == 0:\n    time.sleep(3600)\nos._exit(5)")
    assert "code 5" in str(failure(lambda: session.prompt("go", Recorder())))


def test_an_error_after_a_cancel_is_a_cancelled_turn(open_agent: Any) -> None:
    body = "hello()\nnew()\nturn = recv()\nsay('hm')\nrecv()\nsend(id=turn['id'], error={'code': 1, 'message': 'aborted'})\nrecv()"
    session = open_agent(body)
    observer = Recorder()
    turn = InBackground(lambda: session.prompt("go", observer))
    wait_until(lambda: observer.updates, "the turn is under way")
    session.cancel()
    assert turn.result().stop_reason == "cancelled"


class TurnGivenUp(Exception):
    """What an observer raises that has heard enough."""


def test_a_turn_that_is_given_up_when_its_agent_has_just_hung_up_ends_with_why_it_was_given_up(open_agent: Any) -> None:
    session = open_agent("hello()\nnew()\nrecv()\nsay('hm')\nsys.stdout.flush()\nos.close(1)\ntime.sleep(600)")

    class GivesUp(Recorder):
        def update(self, update: AgentUpdate) -> None:
            wait_until(lambda: session._connection._disconnected, "the agent has hung up")
            raise TurnGivenUp

    with pytest.raises(TurnGivenUp):
        session.prompt("go", GivesUp())


def test_what_this_release_does_not_know_is_passed_over(open_agent: Any) -> None:
    body = (
        "hello()\nnew()\nturn = recv()\n"
        "send(method='session/update', params={'sessionId': 's1', 'update': {'sessionUpdate': 'dance'}})\n"
        "send(method='_vendor/news', params={})\n"
        "send(id='q', method='fs/read_text_file', params={'sessionId': 's1', 'path': '/etc/passwd'})\n"
        "say(str(recv()['error']['code']))\n"
        "send(id=turn['id'], result={'stopReason': 'end_turn'})\nrecv()\n"
    )
    assert open_agent(body).prompt("go", Recorder()).message == "-32601"


def test_the_chunks_of_a_message_are_one_and_messages_are_apart(open_agent: Any) -> None:
    body = (
        "hello()\nnew()\nturn = recv()\nsay('one ')\nsay('message')\n"
        "send(method='session/update', params={'sessionId': 's1', 'update':\n"
        "    {'sessionUpdate': 'tool_call', 'toolCallId': 'c', 'title': 't'}})\n"
        "say('another')\nsend(id=turn['id'], result={'stopReason': 'end_turn'})\nrecv()\n"
    )
    assert open_agent(body).prompt("go", Recorder()).message == "one message\nanother"


def test_what_an_agent_says_late_of_a_call_its_plan_and_what_it_used_is_told(open_agent: Any) -> None:
    """As OpenCode does it: the input of a call in a later update, the file's name as the title of what is asked."""
    body = (
        "hello()\nnew()\nturn = recv()\n"
        "def update(which, **fields):\n"
        "    send(method='session/update', params={'sessionId': 's1', 'update': {'sessionUpdate': which, **fields}})\n"
        "update('plan', entries=[{'content': 'Write it', 'priority': 'high', 'status': 'in_progress'}])\n"
        "update('tool_call', toolCallId='c', title='write', kind='edit', status='pending', rawInput={})\n"
        "late = dict(toolCallId='c', status='in_progress', title='/w/a.txt', rawInput={'path': 'a.txt'})\n"
        "update('tool_call_update', **late, locations=[{'path': '/w/a.txt', 'line': 3}])\n"
        "update('tool_call_update', **late)\n"
        "asked = {'sessionId': 's1', 'toolCall': {'toolCallId': 'c', 'title': '/w/a.txt'}, 'options': [\n"
        "    {'optionId': 'y', 'name': 'Yes', 'kind': 'allow_once'}]}\n"
        "send(id='q', method='session/request_permission', params=asked)\nrecv()\n"
        "diff = {'type': 'diff', 'path': '/w/a.txt', 'newText': 'hi'}\n"
        "update('tool_call_update', toolCallId='c', status='completed', content=[diff])\n"
        "update('usage_update', used=5000, size=200000, cost={'amount': 0.0125, 'currency': 'usd'})\n"
        "usage = {'inputTokens': 10, 'outputTokens': 5, 'totalTokens': 18, 'cachedReadTokens': 2, 'thoughtTokens': 1}\n"
        "send(id=turn['id'], result={'stopReason': 'end_turn', 'usage': usage})\nrecv()\n"
    )
    observer = Recorder()
    assert open_agent(body).prompt("go", observer).stop_reason == "end_turn"
    kinds = [update.kind for update in observer.updates]
    assert kinds == ["plan", "tool_call", "tool_update", "tool_result", "usage", "usage"]
    plan, begun, late, result, cost, tokens = observer.updates
    assert [(step.content, step.status, step.priority) for step in plan.plan] == [("Write it", "in_progress", "high")]
    assert (begun.title, begun.text, begun.call_kind) == ("write", "{}", "edit")
    assert (late.call_id, late.title, late.text) == ("c", "/w/a.txt", '{"path": "a.txt"}')
    assert [(at.path, at.line) for at in late.locations] == [("/w/a.txt", 3)]
    (asked,) = observer.asked
    assert (asked.tool_name, asked.tool_input, asked.kind, asked.call_id) == ("write", '{"path": "a.txt"}', "edit", "c")
    assert [at.path for at in asked.locations] == ["/w/a.txt"]
    assert [(diff.path, diff.old, diff.new) for diff in result.diffs] == [("/w/a.txt", None, "hi")]
    assert (cost.session_cost_micros, cost.currency, cost.context_tokens, cost.input_tokens) == (
        12_500,
        "USD",
        5000,
        None,
    )
    assert (tokens.input_tokens, tokens.output_tokens, tokens.total_tokens) == (10, 5, 18)
    assert (tokens.cached_read_tokens, tokens.cached_write_tokens, tokens.thought_tokens) == (2, None, 1)


@pytest.mark.parametrize(
    "cost", ["{'amount': -1, 'currency': 'USD'}", "{'amount': 1e300, 'currency': 'USD'}", "'much'"]
)
def test_a_cost_that_is_none_is_none(open_agent: Any, cost: str) -> None:
    body = (
        "hello()\nnew()\nturn = recv()\n"
        "send(method='session/update', params={'sessionId': 's1', 'update':\n"
        f"    {{'sessionUpdate': 'usage_update', 'used': 1, 'size': 2, 'cost': {cost}}}}})\n"
        "send(id=turn['id'], result={'stopReason': 'end_turn', 'usage': 'plenty'})\nrecv()\n"
    )
    observer = Recorder()
    assert open_agent(body).prompt("go", observer).stop_reason == "end_turn"
    assert [update.session_cost_micros for update in observer.updates] in ([None], [])


# Floods


def grown_memory(before: int) -> int:
    """Return by how many bytes this process has grown at its largest."""
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024


def test_a_flood_on_stderr_neither_blocks_the_agent_nor_fills_the_memory(open_agent: Any) -> None:
    body = (
        "hello()\nnew()\nturn = recv()\nblock = b'x' * 65535 + b'\\n'\n"
        "for _ in range(3200):\n    os.write(2, block)\n"
        "send(id=turn['id'], result={'stopReason': 'end_turn'})\nrecv()\n"
    )
    session = open_agent(body)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    observer = Recorder()
    assert session.prompt("go", observer).stop_reason == "end_turn"
    assert grown_memory(before) < 64 * MEGABYTE
    words = observer.of("stderr")
    assert sum(len(update.text) for update in words) < MEGABYTE
    assert "more bytes on stderr were not kept" in words[-1].text


def test_a_flood_of_messages_waits_for_a_slow_observer_and_is_delivered_whole(open_agent: Any, tmp_path: Path) -> None:
    body = (
        "hello()\nnew()\nturn = recv()\ntext = 'y' * 100_000\n"
        "for number in range(2000):\n"
        "    say(text)\n"
        "    open('sent.new', 'w').write(str(number))\n"
        "    os.replace('sent.new', 'sent')\n"
        "send(id=turn['id'], result={'stopReason': 'end_turn'})\nrecv()\n"
    )

    class Counting(Recorder):
        characters = 0

        def update(self, update: AgentUpdate) -> None:
            self.is_asked.set()
            self.may_answer.wait()
            self.characters += len(update.text)

    session = open_agent(body)
    observer = Counting()
    observer.may_answer.clear()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    turn = InBackground(lambda: session.prompt("go", observer))
    assert observer.is_asked.wait(60)
    sent = tmp_path / "sent"
    seen: list[str] = []

    def stands_still() -> bool:
        seen.append(sent.read_text() if sent.exists() else str(len(seen)))
        return len(set(seen[-50:])) == 1 and len(seen) > 50

    wait_until(stands_still, "the agent sends no more")
    assert int(sent.read_text()) < 500
    session.stop_processes()  # an agent that is blocked on its full pipe can be stopped, and goes on
    session.continue_processes()
    observer.may_answer.set()
    ended = turn.result()
    assert observer.characters == 200_000_000
    assert len(ended.message) == 256 * 1024
    assert grown_memory(before) < 128 * MEGABYTE


def test_a_line_without_an_end_breaks_the_protocol_and_is_not_kept(open_agent: Any) -> None:
    session = open_agent("hello()\nnew()\nrecv()\nblock = b'z' * 65536\nwhile True:\n    os.write(1, block)\n")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    failed = failure(lambda: session.prompt("go", Recorder()))
    assert failed.code == "agent_protocol_error"
    assert "no JSON-RPC messages" in str(failed)
    assert grown_memory(before) < 128 * MEGABYTE


# The service's own end


@contextmanager
def start_service(directory: Path, *arguments: str) -> "Iterator[subprocess.Popen[str]]":
    command = [sys.executable, "-c", SERVICE, str(directory), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as service:
        try:
            assert service.stdout
            assert service.stdout.readline() == "ready\n"
            yield service
        finally:
            service.kill()


def test_a_kill_of_the_service_leaves_no_agent_and_no_detached_writer(tmp_path: Path) -> None:
    with start_service(tmp_path) as service:
        canary = tmp_path / "canary.txt"
        wait_until(lambda: canary.exists() and canary.read_text(), "the writer writes")
        # The service, the two halves of the keeper, the agent and the writer.
        family = family_of(service.pid)
        assert int(canary.read_text().split(" ")[0]) in family
        assert len(family) >= 4
        service.send_signal(signal.SIGKILL)
        wait_until(lambda: not any(map(is_alive, family)), "nothing of the service lives")


def test_a_service_that_hangs_loses_its_agents_at_the_deadline(tmp_path: Path) -> None:
    with start_service(tmp_path, "10") as service:
        family = family_of(service.pid)
        service.send_signal(signal.SIGSTOP)
        # The guard, a child of the service, stays as a zombie until the service runs again.
        wait_until(lambda: not any(map(is_alive, family)), "nothing under the service lives")
        service.kill()


def test_a_renewed_deadline_does_not_pass(tmp_path: Path) -> None:
    with AcpAgents(read_agents(None, tmp_path / "data"), tmp_path / "data") as agents:
        agents.renew(time.monotonic() + 30.0)
        session = agents.open(SessionRequest(model_id="rehearsal", run_id="r", cwd=tmp_path))
        turn = InBackground(lambda: session.prompt(script({"sleep_ms": 6000}, {"say": "alive"}), Recorder()))
        while turn.runs_on(0.2):
            agents.renew(time.monotonic() + 3.0)
        assert turn.result().message == "alive"


def test_closing_all_ends_every_session_and_their_turns(tmp_path: Path) -> None:
    agents = AcpAgents(read_agents(None, tmp_path / "data"), tmp_path / "data")
    sessions = [agents.open(SessionRequest(model_id="rehearsal", run_id=f"r{n}", cwd=tmp_path)) for n in range(3)]
    observer = Recorder()
    turn = InBackground(lambda: sessions[0].prompt(script({"say": "x"}, {"hang": {"ignore_cancel": True}}), observer))
    wait_until(lambda: observer.updates, "the turn is under way")
    agents.close()
    assert failure(turn.result).code == "agent_exited"
    assert failure(lambda: sessions[1].prompt("x", Recorder())).code == "agent_exited"
    assert not family_of(os.getpid())


@pytest.mark.parametrize("asked_again", [True, False], ids=["asked again", "by itself"])
def test_an_agent_that_takes_too_long_to_end_is_counted_until_it_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked_again: bool
) -> None:
    monkeypatch.setattr(agent_process, "COMMAND_SECONDS", 0.2)
    with AcpAgents(read_agents(None, tmp_path / "data"), tmp_path / "data") as agents:
        session = agents.open(SessionRequest(model_id="rehearsal", run_id="r", cwd=tmp_path))
        family = family_of(os.getpid())
        for pid in family:
            os.kill(pid, signal.SIGSTOP)
        try:
            assert failure(session.close).code == "agent_processes_unruly"
            # Nobody is told that it is stopped or dead as long as it is not.
            assert failure(session.kill).code == "agent_processes_unruly"
            assert failure(session.stop_processes).code == "agent_processes_unruly"
            assert agents.running == 1
        finally:
            monkeypatch.undo()
            for pid in family:
                # The first that goes on may end the others before their turn comes.
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
        if asked_again:
            session.close()
            assert agents.running == 0
        wait_until(lambda: agents.running == 0, "it is forgotten")
        assert session.kill() == []
        assert not family_of(os.getpid())


@pytest.fixture
def slow_keeper(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[threading.Event, threading.Event]]:
    """A keeper that takes long to start: the first event says that it is being started, the second lets it go on."""
    asked, go_on = threading.Event(), threading.Event()

    def slowly(*arguments: Any) -> Any:
        asked.set()
        assert go_on.wait(PATIENCE_SECONDS)
        return start_keeper(*arguments)

    monkeypatch.setattr(agent_process, "start_keeper", slowly)
    yield asked, go_on
    go_on.set()


def test_closing_waits_for_an_agent_that_is_just_being_started_and_ends_it(
    tmp_path: Path, slow_keeper: tuple[threading.Event, threading.Event]
) -> None:
    asked, go_on = slow_keeper
    agents = AcpAgents(read_agents(None, tmp_path / "data"), tmp_path / "data")
    request = SessionRequest(model_id="rehearsal", run_id="r", cwd=tmp_path)
    opening = InBackground(lambda: agents.open(request))
    assert asked.wait(PATIENCE_SECONDS)
    closing = InBackground(agents.close)
    assert closing.runs_on(0.1)
    go_on.set()
    closing.result()
    assert failure(opening.result).code == "agent_exited"
    assert not family_of(os.getpid())


def test_an_agent_that_is_given_up_while_its_keeper_starts_leaves_nothing_behind(
    tmp_path: Path, slow_keeper: tuple[threading.Event, threading.Event]
) -> None:
    asked, go_on = slow_keeper
    before = os.listdir("/proc/self/fd")
    with AcpAgents(read_agents(None, tmp_path / "data"), tmp_path / "data", start_timeout_seconds=0.1) as agents:
        request = SessionRequest(model_id="rehearsal", run_id="r", cwd=tmp_path)
        opening = InBackground(lambda: agents.open(request))
        assert asked.wait(PATIENCE_SECONDS)
        assert opening.runs_on(0.3)
        go_on.set()
        assert failure(opening.result).code == "agent_start_timeout"
    assert not family_of(os.getpid())
    assert os.listdir("/proc/self/fd") == before


@pytest.mark.parametrize(
    ("place", "name", "nth"),
    [
        *((os, "pipe", nth) for nth in range(1, 6)),
        (subprocess, "Popen", 1),
        *((asyncio.BaseEventLoop, "connect_read_pipe", nth) for nth in range(1, 4)),
        (asyncio.BaseEventLoop, "connect_write_pipe", 1),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_an_agent_that_cannot_be_started_leaves_no_descriptor_and_no_keeper(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: Any, name: str, nth: int
) -> None:
    with AcpAgents(read_agents(None, tmp_path / "data"), tmp_path / "data") as agents:
        before, real, calls = os.listdir("/proc/self/fd"), getattr(place, name), itertools.count(1)

        def fail(*args: Any, **kwargs: Any) -> Any:
            if next(calls) == nth:
                raise OSError(errno.EMFILE, "Too many open files")
            return real(*args, **kwargs)

        monkeypatch.setattr(place, name, fail)
        with pytest.raises(OSError, match="Too many"):
            agents.open(SessionRequest(model_id="rehearsal", run_id="r", cwd=tmp_path))
        monkeypatch.undo()
        assert not family_of(os.getpid())
        assert os.listdir("/proc/self/fd") == before


def test_a_command_that_is_interrupted_while_it_starts_leaves_nothing_behind(
    tmp_path: Path, slow_keeper: tuple[threading.Event, threading.Event]
) -> None:
    asked, go_on = slow_keeper
    commands = KeptCommands()
    running = InBackground(lambda: commands.run(["sleep", "3600"], tmp_path, 3600))
    assert asked.wait(PATIENCE_SECONDS)
    commands.close()
    assert running.runs_on(0.1)
    go_on.set()
    assert running.result().state == "interrupted"
    assert not family_of(os.getpid())


# agents.toml


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("default = 'x'", "'x' is not among rehearsal"),
        ("isolaton = 'none'", "isolaton"),
        ("[agents.a]\ncommand = ['x']\nreach = ['nowhere']", "HOST:PORT"),
        ("[agents.a]\ncommand = ['x']\nnetwrk = 'none'", "netwrk"),
        ("[agents.a]\ncommand = ['x']\nlimits = { processes = 0 }", "processes"),
        ("[agents.a]\ncommand = ['x']\nmounts = [{ path = 'x' }]", "absolute"),
        ("[agents.a]\ncommand = ['x']\nmounts = [{ path = '/x', mode = 'copy' }]", "target"),
        ("agents = 1", "object"),
        ("[agents.a]\n", "command"),
        ("[agents.a]\ncommand = []", "empty"),
        ("[agents.a]\ncommand = 'opencode acp'", "array"),
        ("[agents.a]\ncommand = ['x']\nenv = { A = 1 }", "env"),
        ("[agents.'a/b']\ncommand = ['x']", "slash"),
        ("[agents", "agents.toml"),
    ],
)
def test_an_invalid_agents_file_says_what_is_wrong(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "agents.toml").write_text(text)
    with pytest.raises(AgentsFileInvalid, match=told):
        read_agents(None, tmp_path)


def test_a_file_that_is_named_must_exist_and_the_data_directorys_own_need_not(tmp_path: Path) -> None:
    assert read_agents(None, tmp_path).default == "rehearsal"
    with pytest.raises(AgentsFileInvalid, match=r"none\.toml"):
        read_agents(tmp_path / "none.toml", tmp_path)


def test_the_default_of_the_file_comes_first(tmp_path: Path) -> None:
    (tmp_path / "agents.toml").write_text("default = 'zed'\n[agents.zed]\ncommand = ['zed', 'acp']\n")
    with AcpAgents(read_agents(None, tmp_path), tmp_path) as agents:
        assert [agent.name for agent in agents.known()] == ["zed", "rehearsal"]
        assert agents.resolve(None) == "zed"


@pytest.mark.parametrize("place", ["workplace", "home"])
def test_an_agent_that_fills_the_disk_is_ended_and_it_is_said_why(
    tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("steersman.adapters.acp.disk_watch.LOOK_SECONDS", 0.05)
    data, work = tmp_path / "data", tmp_path / "a" / "work"
    work.mkdir(parents=True)
    box = find_box(hidden=[data])
    box.give(work)
    where = "'big'" if place == "workplace" else "os.environ['HOME'] + '/big'"
    body = (
        "hello(); new(); recv()\n"
        f"with open({where}, 'wb') as file:\n"
        "    while True: file.write(os.urandom(1 << 20)); file.flush(); os.fsync(file.fileno()); time.sleep(0.02)\n"
    )
    table = {"command": python_agent(body), "limits": {"disk_bytes": 32 << 20}}
    known = read_agents(agents_toml(tmp_path, greedy=table), data)
    with AcpAgents(known, data, box=box) as agents:
        session = agents.open(SessionRequest(model_id="greedy", run_id="run-1", cwd=work))
        failed = failure(lambda: session.prompt("go", Recorder()))
        assert (failed.code, failed.retryable) == ("agent_disk_limit", False)
        assert "32 may be" in str(failed)
        session.close()
