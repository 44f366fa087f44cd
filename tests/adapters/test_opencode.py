"""
OpenCode, a real coding agent, driven through the port with a scripted model behind it.

It runs where `opencode` is on PATH. Elsewhere `__test__` is false and pytest collects nothing from this module: what
cannot run is neither a failure nor a skip that one gets used to.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from steersman.adapters.acp.agents import AcpAgents
from steersman.adapters.processes.agents_file import read_agents
from steersman.adapters.processes.bubblewrap import find_box
from steersman.application.ports.agents import AgentFailed, AgentSession, SessionRequest
from steersman.tests.e2e.scripted_model import CLOSING, ScriptedModel, opencode_agent
from steersman.tests.live_agents import Recorder, agents_toml

__test__ = shutil.which("opencode") is not None

TASK = 'Write a greeting.\nSteersman-Turn: turn-1\n\n```scripted\n{"path": "hello.txt", "text": "hello\\n"}\n```\n'
START_SECONDS = 240.0


@pytest.fixture
def model() -> Iterator[ScriptedModel]:
    with ScriptedModel() as running:
        yield running


@pytest.fixture
def worktree(tmp_path: Path) -> Path:
    directory = tmp_path / "worktree"
    directory.mkdir()
    find_box().give(directory)
    return directory


@pytest.fixture
def agents(tmp_path: Path, model: ScriptedModel) -> Iterator[AcpAgents]:
    data = tmp_path / "data"
    known = read_agents(agents_toml(tmp_path, opencode=opencode_agent(tmp_path, model)), data)
    with AcpAgents(known, data, box=find_box(hidden=[data]), start_timeout_seconds=START_SECONDS) as opened:
        yield opened


def open_session(agents: AcpAgents, worktree: Path, session_id: str | None = None) -> AgentSession:
    request = SessionRequest(model_id="opencode/scripted/model", run_id="run-1", cwd=worktree, session_id=session_id)
    return agents.open(request)


def test_opencode_asks_writes_the_file_and_reports_it(agents: AcpAgents, worktree: Path) -> None:
    session = open_session(agents, worktree)
    assert "load_session" in session.capabilities
    observer = Recorder()
    ended = session.prompt(TASK, observer)
    assert (ended.stop_reason, CLOSING in ended.message) == ("end_turn", True)
    assert (worktree / "hello.txt").read_text() == "hello\n"
    assert [asked.kind for asked in observer.asked] == ["edit"]
    assert [update.failed for update in observer.of("tool_result")] == [False]


def test_opencode_writes_nothing_that_was_denied(agents: AcpAgents, worktree: Path) -> None:
    observer = Recorder(allows=False)
    open_session(agents, worktree).prompt(TASK, observer)
    assert len(observer.asked) == 1
    assert not (worktree / "hello.txt").exists()
    assert [update.failed for update in observer.of("tool_result")] == [True]


def test_opencode_knows_its_turn_again_after_a_kill(agents: AcpAgents, worktree: Path) -> None:
    session = open_session(agents, worktree)
    session.prompt(TASK, Recorder())
    session.kill()
    loaded = open_session(agents, worktree, session.session_id)
    assert "Steersman-Turn: turn-1" in loaded.history
    assert loaded.prompt("Anything else?", Recorder()).stop_reason == "end_turn"


def test_a_session_that_opencode_does_not_have_is_not_found(agents: AcpAgents, worktree: Path) -> None:
    with pytest.raises(AgentFailed) as failed:
        open_session(agents, worktree, "ses_none")
    assert failed.value.code == "session_not_found"
