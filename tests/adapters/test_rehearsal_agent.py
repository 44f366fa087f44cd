"""The rehearsal agent, spoken to over its own standard streams: every step, and crashes at any moment."""

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from steersman.adapters.rehearsal.script import own_steps, steps_of
from steersman.adapters.rehearsal.sessions import StoredSession
from steersman.tests.live_agents import is_alive, script, size_of, wait_until


class Agent:
    """A rehearsal agent's process and its protocol, with nothing of the product between."""

    def __init__(self, home: Path, cwd: Path) -> None:
        command = [sys.executable, "-P", "-m", "steersman.adapters.rehearsal.agent", "--home", str(home)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=cwd)
        self.updates: list[dict[str, Any]] = []
        self.permission = "allow"
        self.answer: dict[str, Any] = {"action": "accept", "content": {"answer": "42"}}
        self.session_id = ""
        self._cwd = cwd

    def open(self, session_id: str | None, *, form: bool) -> None:
        """Say hello, and open a session or the named one again."""
        capabilities: dict[str, Any] = {"elicitation": {"form": {}}} if form else {}
        self.hello = self.request("initialize", protocolVersion=1, clientCapabilities=capabilities)
        params: dict[str, Any] = {"cwd": str(self._cwd), "mcpServers": []}
        if session_id is None:
            self.session_id = self.request("session/new", **params)["result"]["sessionId"]
        else:
            self.session_id = session_id
            self.loaded = self.request("session/load", sessionId=session_id, **params)

    def send(self, **message: Any) -> None:
        assert self.process.stdin
        self.process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        self.process.stdin.flush()

    def read(self) -> dict[str, Any] | None:
        assert self.process.stdout
        line = self.process.stdout.readline()
        return json.loads(line) if line else None

    def request(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a request; return its whole answer, {} if the agent died first."""
        self.send(id=method, method=method, params=params)
        while message := self.read():
            if message.get("id") == method and "method" not in message:
                return message
            self.take(message)
        return {}

    def take(self, message: dict[str, Any]) -> None:
        match message["method"]:
            case "session/update":
                self.updates.append(message["params"]["update"])
            case "session/request_permission":
                outcome = {"outcome": "selected", "optionId": self.permission}
                if self.permission == "cancelled":
                    self.cancel()
                    outcome = {"outcome": "cancelled"}
                self.send(id=message["id"], result={"outcome": outcome})
            case _:
                self.send(id=message["id"], result=self.answer)

    def prompt(self, text: str) -> dict[str, Any]:
        self.updates.clear()
        return self.request("session/prompt", sessionId=self.session_id, prompt=[{"type": "text", "text": text}])

    def begin(self, text: str) -> None:
        """Send a prompt and do not wait for its end."""
        block = {"type": "text", "text": text}
        self.send(id="begun", method="session/prompt", params={"sessionId": self.session_id, "prompt": [block]})

    def cancel(self) -> None:
        self.send(method="session/cancel", params={"sessionId": self.session_id})

    def said(self) -> list[str]:
        return [u["content"]["text"] for u in self.updates if u["sessionUpdate"] == "agent_message_chunk"]

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def cwd(tmp_path: Path) -> Path:
    directory = tmp_path / "worktree"
    directory.mkdir()
    return directory


@pytest.fixture
def start(tmp_path: Path, cwd: Path) -> Iterator[Any]:
    """A function that starts an agent, or the same again for a session."""
    agents: list[Agent] = []

    def begin(session_id: str | None = None, *, form: bool = True) -> Agent:
        agent = Agent(tmp_path / "home", cwd)
        agents.append(agent)
        agent.open(session_id, form=form)
        return agent

    yield begin
    for agent in agents:
        agent.end()


def ended(answer: dict[str, Any]) -> str:
    return answer["result"]["stopReason"]


def test_files_are_written_appended_to_and_deleted(start: Any, cwd: Path) -> None:
    steps = (
        {"write": {"path": "deep/a.txt", "text": "a\n"}},
        {"append": {"path": "deep/a.txt", "text": "b\n", "times": 3, "every_ms": 1}},
        {"append": {"path": "new.txt", "text": "once"}},
        {"write": {"path": "gone.txt", "text": "x"}},
        {"delete": {"path": "gone.txt"}},
        {"delete": {"path": "never-there.txt"}},
    )
    assert ended(start().prompt(script(*steps))) == "end_turn"
    assert (cwd / "deep/a.txt").read_text() == "a\nb\nb\nb\n"
    assert (cwd / "new.txt").read_text() == "once"
    assert not (cwd / "gone.txt").exists()


@pytest.mark.parametrize("path", ["../out.txt", "/tmp/out.txt", "", ".", "link/out.txt"])
@pytest.mark.parametrize("step", ["write", "append", "delete", "echo_prompt", "spawn"])
def test_no_step_reaches_outside_the_working_directory(start: Any, cwd: Path, path: str, step: str) -> None:
    (cwd / "link").symlink_to("..")
    answer = start().prompt(script({step: {"path": path, "text": "x"}}))
    assert "is not inside the working directory" in answer["error"]["message"]


def test_messages_usage_and_waiting_are_reported(start: Any) -> None:
    agent = start()
    agent.prompt(script({"say": "hello"}, {"sleep_ms": 1}, {"usage": {"input": 10, "output": 5}}))
    message, usage = agent.updates
    assert message["content"]["text"] == "hello"
    assert (usage["used"], usage["_meta"]) == (15, {"inputTokens": 10, "outputTokens": 5})


@pytest.mark.parametrize(("permission", "status"), [("allow", "completed"), ("reject", "failed")])
def test_a_tool_asks_first_and_reports_its_result_or_its_denial(start: Any, permission: str, status: str) -> None:
    agent = start()
    agent.permission = permission
    assert ended(agent.prompt(script({"tool": {"name": "web_fetch", "input": {"u": 1}}}))) == "end_turn"
    call, result = agent.updates
    assert (call["sessionUpdate"], call["title"], call["rawInput"]) == ("tool_call", "web_fetch", {"u": 1})
    assert (result["sessionUpdate"], result["status"]) == ("tool_call_update", status)
    assert result["toolCallId"] == call["toolCallId"]


def test_a_turn_that_is_cancelled_at_a_permission_ends_there(start: Any) -> None:
    agent = start()
    agent.permission = "cancelled"
    assert ended(agent.prompt(script({"tool": {"name": "x"}}, {"say": "never"}))) == "cancelled"
    assert agent.said() == []


def test_a_question_is_asked_and_its_answer_said(start: Any) -> None:
    agent = start()
    agent.prompt(script({"ask": "What?"}))
    assert agent.said() == ["The answer to “What?” is: 42"]


def test_a_client_that_cannot_be_asked_is_not(start: Any) -> None:
    agent = start(form=False)
    agent.prompt(script({"ask": "What?"}))
    assert agent.said() == ["Nobody answered “What?”."]


def test_the_whole_prompt_is_echoed_and_only_its_last_block_obeyed(start: Any, cwd: Path) -> None:
    prompt = script({"write": {"path": "first.txt", "text": ""}}) + script({"echo_prompt": {"path": "prompt.txt"}})
    agent = start()
    agent.prompt(prompt)
    assert (cwd / "prompt.txt").read_text() == prompt
    assert not (cwd / "first.txt").exists()
    second = script({"echo_prompt": {"path": "prompt.txt"}}, turn="two")
    agent.prompt(second)
    assert (cwd / "prompt.txt").read_text() == prompt + second


@pytest.mark.parametrize(("command", "status"), [(["sh", "-c", "pwd; exit 0"], "completed"), (["false"], "failed")])
def test_a_command_runs_in_the_working_directory(start: Any, cwd: Path, command: list[str], status: str) -> None:
    agent = start()
    agent.prompt(script({"run": command}))
    _, result = agent.updates
    assert result["status"] == status
    assert status == "failed" or str(cwd) in result["content"][0]["content"]["text"]


def test_a_command_that_does_not_exist_is_a_failed_call(start: Any) -> None:
    agent = start()
    assert ended(agent.prompt(script({"run": ["no-such-command-here"]}))) == "end_turn"
    assert agent.updates[-1]["status"] == "failed"


def test_a_cancelled_command_is_killed(start: Any, cwd: Path) -> None:
    agent = start()
    agent.begin(script({"run": ["sh", "-c", "echo $$ > pid; exec sleep 1000"]}))
    pid = int(wait_until(lambda: (cwd / "pid").exists() and (cwd / "pid").read_text(), "the command runs"))
    agent.cancel()
    wait_until(lambda: not is_alive(pid), "the command is gone")


def test_a_cancelled_turn_keeps_its_remaining_steps_for_a_prompt_without_a_block(start: Any, cwd: Path) -> None:
    agent = start()
    agent.begin(script({"append": {"path": "a.txt", "text": "x", "times": 10, "every_ms": 60_000}}, {"say": "done"}))
    wait_until(lambda: size_of(cwd / "a.txt") == 1, "the first part is done")
    agent.cancel()
    while (message := agent.read()) and message.get("id") != "begun":
        pass
    assert message
    assert ended(message) == "cancelled"
    agent.begin("Go on, please.")
    wait_until(lambda: size_of(cwd / "a.txt") == 2, "the second part is done")


def test_a_new_block_replaces_what_a_cancelled_turn_left(start: Any) -> None:
    agent = start()
    agent.permission = "cancelled"
    agent.prompt(script({"tool": {"name": "x"}}, {"say": "old"}))
    agent.prompt(script({"say": "new"}))
    assert agent.said() == ["new"]


def test_a_hang_ends_by_a_cancel_and_one_that_ignores_everything_by_a_kill_alone(start: Any) -> None:
    agent = start()
    agent.begin(script({"say": "a"}, {"hang": {"ignore_cancel": True, "ignore_term": True}}))
    agent.read()
    agent.cancel()
    agent.process.send_signal(signal.SIGTERM)
    # An answer to a later request proves that the agent has had the signal and the cancel, and lives.
    assert agent.request("session/load", sessionId="none", cwd="/")["error"]["code"] == -32002
    assert agent.process.poll() is None
    agent.process.kill()
    assert agent.process.wait() == -signal.SIGKILL


def test_an_agent_ends_with_its_input_and_by_a_signal(start: Any) -> None:
    first, second = start(), start()
    first.process.stdin.close()
    assert first.process.wait(60) == 0
    first.process.stdin = None
    second.process.send_signal(signal.SIGTERM)
    assert second.process.wait(60) == 0


def test_a_spawned_writer_is_in_another_session_with_nothing_in_its_environment(start: Any, cwd: Path) -> None:
    agent = start()
    agent.prompt(script({"spawn": {"path": "canary.txt", "every_ms": 10, "detached": True}}))
    canary = cwd / "canary.txt"
    pid = int(wait_until(lambda: canary.exists() and canary.read_text().split(" ")[0], "the writer writes"))
    try:
        assert os.getsid(pid) != os.getsid(agent.process.pid)
        assert b"PATH" not in Path(f"/proc/{pid}/environ").read_bytes()
    finally:
        os.kill(pid, signal.SIGKILL)


def test_a_crash_is_not_repeated_by_the_one_who_comes_back(start: Any) -> None:
    agent = start()
    assert agent.prompt(script({"crash": {"exit": 3}}, {"say": "after"}, turn="t")) == {}
    assert agent.process.wait(60) == 3
    back = start(agent.session_id)
    back.prompt("Continue, you were interrupted.\nSteersman-Turn: t")
    assert back.said() == ["after"]


@pytest.mark.parametrize("reason", ["cancelled", "refusal", "max_tokens"])
def test_a_turn_ends_for_the_reason_that_it_is_told(start: Any, reason: str) -> None:
    agent = start()
    assert ended(agent.prompt(script({"end": reason}, {"say": "after"}, turn="t"))) == reason
    assert ended(agent.prompt("Continue, you were interrupted.\nSteersman-Turn: t")) == "end_turn"
    assert agent.said() == ["after"]


def test_a_failed_turn_is_an_error_with_its_words(start: Any) -> None:
    assert start().prompt(script({"fail": "no tokens left"}))["error"]["message"] == "no tokens left"


@pytest.mark.parametrize("block", ["{", "{}", "[1]", '[{"dance": true}]'])
def test_a_block_that_is_no_list_of_steps_is_an_error(start: Any, block: str) -> None:
    assert "error" in start().prompt(f"```rehearsal\n{block}\n```")


def test_a_verdict_ends_with_its_files_and_the_word(start: Any) -> None:
    agent = start()
    agent.prompt(script({"verdict": "REVISE", "feedback": "Too short.", "target_files": ["a.txt", "b.txt"]}))
    assert agent.said() == ["Too short.\nTARGET_FILES: a.txt, b.txt\nVERDICT: REVISE"]


def test_a_plan_is_a_fenced_array_even_if_a_scope_has_a_fence(start: Any) -> None:
    plan: list[dict[str, Any]] = [{"title": "One", "scope": script({"say": "x"}), "dependsOn": []}]
    agent = start()
    agent.prompt(script({"plan": plan}))
    fence, _, rest = agent.said()[0].partition("json\n")
    assert json.loads(rest.removesuffix("\n" + fence)) == plan


def test_without_a_block_it_writes_a_page_about_its_task(start: Any, cwd: Path) -> None:
    agent = start()
    agent.prompt("Steersman-Turn: t1\n\n# Add a health check\n\nIt answers 200.\n")
    page = (cwd / "rehearsal/add-a-health-check.md").read_text()
    assert page.startswith("# Add a health check\n")
    assert "> It answers 200." in page
    assert "Steersman-Turn" not in page
    assert agent.said() == ["I wrote rehearsal/add-a-health-check.md."]


def test_a_prompt_that_names_a_part_has_a_page_of_that_parts_name() -> None:
    prompt = "Steersman-Turn: t1\n\nYou are one of many.\n\n# The goal\n\nPages\n\n# Your part: Write about water\n\n"
    assert own_steps(prompt)[0]["write"]["path"] == "rehearsal/write-about-water.md"


@pytest.mark.parametrize("prompt", ["", "🙂", "../../etc/passwd", "a" * 10_000, "```\n```"])
def test_every_prompt_has_a_page_with_a_harmless_name(prompt: str) -> None:
    path = own_steps(prompt)[0]["write"]["path"]
    assert path.startswith("rehearsal/")
    assert ".." not in path
    assert len(path) < 80


def test_a_role_without_a_block_is_answered_in_its_form() -> None:
    assert own_steps("Steersman-Role: planner\nBuild it")[0]["plan"][0]["title"] == "Build it"
    assert own_steps("Steersman-Role: rai-reviewer\nRead it")[0]["verdict"] == "GREEN"


def test_a_block_in_a_longer_fence_may_hold_fences() -> None:
    inner = json.dumps([{"say": "```"}])
    assert steps_of(f"````rehearsal\n{inner}\n````") == [{"say": "```"}]
    assert steps_of(f"~~~rehearsal\n{inner}\n~~~") == [{"say": "```"}]
    assert steps_of("```python\nrehearsal\n```") is None


def test_a_loaded_session_replays_what_was_said_and_an_unknown_one_is_an_error(start: Any) -> None:
    agent = start()
    prompt = script({"say": "one"}, {"say": "two"}, turn="t1")
    agent.prompt(prompt)
    agent.end()
    loaded = start(agent.session_id)
    assert [(u["sessionUpdate"], u["content"]["text"]) for u in loaded.updates] == [
        ("user_message_chunk", prompt),
        ("agent_message_chunk", "one"),
        ("agent_message_chunk", "two"),
    ]
    for unknown in ("rehearsal-0", "../home", ""):
        assert start(unknown).loaded["error"]["code"] == -32002


def test_a_turn_that_was_done_to_the_end_is_answered_again_and_not_done_again(start: Any, cwd: Path) -> None:
    agent = start()
    prompt = script({"append": {"path": "a.txt", "text": "x"}}, {"verdict": "GREEN"}, turn="t1")
    agent.prompt(prompt)
    agent.end()
    back = start(agent.session_id)
    back.prompt("Continue, you were interrupted.\nSteersman-Turn: t1")
    assert (cwd / "a.txt").read_text() == "x"
    assert back.said() == ["VERDICT: GREEN"]


def test_a_half_written_part_is_cut_off_and_done_again(start: Any, tmp_path: Path, cwd: Path) -> None:
    session = StoredSession.create(tmp_path / "home", tmp_path)
    session.progress.steps = [{"append": {"path": "a.txt", "text": "line\n", "times": 2}}]
    session.progress.turn_id, session.progress.size = "t1", 5
    session.save()
    (cwd / "a.txt").write_text("line\nli")  # the kill struck within the write of the first part
    start(session.session_id).prompt("Continue.\nSteersman-Turn: t1")
    assert (cwd / "a.txt").read_text() == "line\nline\nline\n"


@pytest.mark.parametrize("seed", range(4))
def test_kills_at_any_moment_neither_lose_nor_double_a_line(start: Any, cwd: Path, seed: int) -> None:
    chance = random.Random(seed)
    file = cwd / "log.txt"
    steps = ({"append": {"path": "log.txt", "text": "a line\n", "times": 20}}, {"echo_prompt": {"path": "prompt.txt"}})
    agent = start()
    session_id: str = agent.session_id
    agent.begin(script(*steps, turn="t1"))
    for _ in range(6):
        # A line further on the file, then some instructions more: the kill may strike anywhere between two lines.
        goal = min(size_of(file) + chance.randint(0, 14), 140)
        wait_until(lambda goal=goal: size_of(file) >= goal, "the agent got on")
        for _ in range(chance.randint(0, 20_000)):
            pass
        agent.end()
        agent = start(session_id)
        agent.begin("Continue, you were interrupted.\nSteersman-Turn: t1")
    while (message := agent.read()) and message.get("id") != "begun":
        pass
    assert message
    assert ended(message) == "end_turn"
    assert file.read_text() == "a line\n" * 20
    assert (cwd / "prompt.txt").read_text().count("Steersman-Turn: t1") == 1
