"""What every implementation of the port `Agents` keeps, here with the rehearsal agent as the real process behind it."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from steersman.adapters.acp.agents import AcpAgents
from steersman.adapters.processes.agents_file import read_agents
from steersman.adapters.processes.bubblewrap import find_box
from steersman.application.ports.agents import AgentFailed, Agents, AgentSession, SessionRequest
from steersman.tests.live_agents import (
    InBackground,
    Recorder,
    is_alive,
    outside,
    script,
    size_of,
    state_of,
    wait_until,
)


@pytest.fixture
def worktree(tmp_path: Path) -> Path:
    directory = tmp_path / "worktree"
    directory.mkdir()
    find_box().give(directory)
    return directory


@pytest.fixture(params=["bubblewrap", "none"])
def agents(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Agents]:
    data = tmp_path / "data"
    with AcpAgents(read_agents(None, data), data, box=find_box(request.param, hidden=[data])) as opened:
        yield opened


@pytest.fixture
def session(agents: Agents, worktree: Path) -> Iterator[AgentSession]:
    opened = agents.open(SessionRequest(model_id="rehearsal", run_id="run-1", cwd=worktree))
    yield opened
    opened.close()


def again(agents: Agents, session: AgentSession, worktree: Path) -> AgentSession:
    """Load the session in a new process."""
    return agents.open(
        SessionRequest(model_id="rehearsal", run_id="run-1", cwd=worktree, session_id=session.session_id)
    )


def spawn(session: AgentSession, worktree: Path) -> int:
    """Let the agent leave a detached writer behind; return its pid once it writes."""
    canary = worktree / "canary.txt"
    session.prompt(script({"spawn": {"path": "canary.txt", "every_ms": 100, "detached": True}}), Recorder())
    pid = int(wait_until(lambda: canary.exists() and canary.read_text().split(" ")[0], "the writer writes"))
    return outside(pid, worktree)


def test_the_default_is_first_among_the_known_and_is_what_none_resolves_to(agents: Agents) -> None:
    first = agents.known()[0]
    assert (first.name, first.is_default, first.installed) == ("rehearsal", True, True)
    assert agents.resolve(None) == "rehearsal"
    assert agents.resolve("rehearsal/any") == "rehearsal/any"
    assert [agents.resolve(name) for name in ("nobody", "nobody/model", "", "rehearsal/")] == [None] * 4


def test_a_turn_reports_in_order_from_one_thread_and_ends_with_what_was_said(
    session: AgentSession, worktree: Path
) -> None:
    observer = Recorder()
    ended = session.prompt(
        script({"say": "first"}, {"write": {"path": "a.txt", "text": "hi\n"}}, {"say": "last"}), observer
    )
    assert (ended.stop_reason, ended.message) == ("end_turn", "first\nlast")
    assert [update.kind for update in observer.updates] == ["message", "tool_call", "tool_result", "message"]
    assert "".join(update.text for update in observer.updates if update.kind == "message") == ended.message
    assert len(observer.threads) == 1
    assert (worktree / "a.txt").read_text() == "hi\n"


def test_several_turns_share_one_session(session: AgentSession) -> None:
    for number in range(3):
        assert session.prompt(script({"say": str(number)}), Recorder()).message == str(number)


@pytest.mark.parametrize("allowed", [True, False])
def test_the_observer_decides_whether_a_tool_is_called(session: AgentSession, allowed: bool) -> None:
    observer = Recorder(allows=allowed)
    session.prompt(script({"tool": {"name": "web_fetch", "input": {"url": "x"}}}), observer)
    assert [(asked.tool_name, asked.tool_input) for asked in observer.asked] == [("web_fetch", '{"url": "x"}')]
    (result,) = observer.of("tool_result")
    assert result.failed is not allowed


@pytest.mark.parametrize(("answer", "said"), [("blue", "is: blue"), (None, "Nobody answered")])
def test_a_question_reaches_the_observer_and_its_answer_the_agent(
    session: AgentSession, answer: str | None, said: str
) -> None:
    observer = Recorder(answer=answer)
    assert said in session.prompt(script({"ask": "Which colour?"}), observer).message
    assert observer.questions == ["Which colour?"]


def test_a_cancelled_turn_ends_as_cancelled_and_the_session_goes_on(session: AgentSession) -> None:
    observer = Recorder()
    turn = InBackground(lambda: session.prompt(script({"say": "now"}, {"hang": {}}, {"say": "later"}), observer))
    wait_until(lambda: observer.of("message"), "the turn is under way")
    session.cancel()
    assert turn.result().stop_reason == "cancelled"
    assert session.prompt("Go on.", Recorder()).message == "later"


def test_a_cancel_answers_what_the_observer_still_thinks_about(session: AgentSession) -> None:
    observer = Recorder()
    observer.may_answer.clear()
    turn = InBackground(lambda: session.prompt(script({"tool": {"name": "web_fetch"}}, {"say": "x"}), observer))
    assert observer.is_asked.wait(60)
    session.cancel()
    assert turn.result().stop_reason == "cancelled"
    seen = len(observer.updates)
    observer.may_answer.set()
    session.prompt(script({"say": "the next turn"}), Recorder())
    assert len(observer.updates) == seen, "the ended turn's observer was told something"


def test_a_cancel_without_a_turn_does_nothing(session: AgentSession) -> None:
    session.cancel()
    assert session.prompt(script({"say": "still here"}), Recorder()).message == "still here"


def test_a_turn_that_the_agent_fails_says_why_and_leaves_the_session_usable(session: AgentSession) -> None:
    with pytest.raises(AgentFailed, match="no more tokens") as failed:
        session.prompt(script({"fail": "no more tokens"}), Recorder())
    assert failed.value.code == "agent_turn_failed"
    assert session.prompt(script({"say": "better now"}), Recorder()).message == "better now"


def test_an_agent_that_dies_in_its_turn_is_told_with_its_exit_code(session: AgentSession) -> None:
    with pytest.raises(AgentFailed, match="code 3") as failed:
        session.prompt(script({"crash": {"exit": 3}}), Recorder())
    assert (failed.value.code, failed.value.retryable) == ("agent_exited", True)
    with pytest.raises(AgentFailed, match="code 3"):
        session.prompt("And now?", Recorder())


def test_what_the_observer_raises_ends_the_turn_and_is_raised_again(session: AgentSession) -> None:
    class Failing(Recorder):
        def update(self, update: object) -> None:
            raise OSError("the log cannot be written")

    with pytest.raises(OSError, match="the log"):
        session.prompt(script({"say": "x"}, {"hang": {}}), Failing())


def test_a_loaded_session_has_its_history_and_a_new_one_has_none(
    agents: Agents, session: AgentSession, worktree: Path
) -> None:
    assert session.history == ""
    session.prompt(script({"say": "an answer"}, turn="turn-17"), Recorder())
    session.close()
    loaded = again(agents, session, worktree)
    assert "Steersman-Turn: turn-17" in loaded.history
    assert "an answer" in loaded.history
    assert loaded.session_id == session.session_id
    assert loaded.prompt(script({"say": "go on"}), Recorder()).message == "go on"
    loaded.close()


def test_a_session_that_the_agent_never_had_is_not_found(agents: Agents, worktree: Path) -> None:
    with pytest.raises(AgentFailed) as failed:
        agents.open(SessionRequest(model_id="rehearsal", run_id="run-1", cwd=worktree, session_id="rehearsal-0"))
    assert failed.value.code == "session_not_found"


def test_stopped_processes_do_nothing_until_they_are_continued(session: AgentSession, worktree: Path) -> None:
    canary = worktree / "canary.txt"
    writer = spawn(session, worktree)
    session.stop_processes()
    assert state_of(writer) == "T"
    before = size_of(canary)
    session.stop_processes()
    session.continue_processes()
    wait_until(lambda: size_of(canary) > before, "the writer writes again")
    assert session.prompt(script({"say": "awake"}), Recorder()).message == "awake"


def test_a_kill_leaves_nothing_alive_and_names_whom_it_killed(session: AgentSession, worktree: Path) -> None:
    writer = spawn(session, worktree)
    assert writer in session.kill()
    assert not is_alive(writer)
    assert session.kill() == []


def test_a_kill_ends_the_turn_that_is_under_way(session: AgentSession) -> None:
    observer = Recorder()
    steps = ({"say": "now"}, {"hang": {"ignore_cancel": True, "ignore_term": True}})
    turn = InBackground(lambda: session.prompt(script(*steps), observer))
    wait_until(lambda: observer.of("message"), "the turn is under way")
    session.cancel()
    session.kill()
    with pytest.raises(AgentFailed) as failed:
        turn.result()
    assert failed.value.code == "agent_exited"


def test_a_kill_ends_a_turn_whose_observer_never_answers(session: AgentSession) -> None:
    observer = Recorder()
    observer.may_answer.clear()
    turn = InBackground(lambda: session.prompt(script({"tool": {"name": "web_fetch"}}), observer))
    assert observer.is_asked.wait(60)
    session.kill()
    with pytest.raises(AgentFailed):
        turn.result()
    observer.may_answer.set()


def test_a_kill_reaches_stopped_processes(session: AgentSession, worktree: Path) -> None:
    writer = spawn(session, worktree)
    session.stop_processes()
    assert writer in session.kill()
    assert not is_alive(writer)


@pytest.mark.parametrize("is_stopped", [False, True])
def test_closing_ends_the_agent_and_what_it_left_behind(
    session: AgentSession, worktree: Path, is_stopped: bool
) -> None:
    writer = spawn(session, worktree)
    if is_stopped:
        session.stop_processes()
    session.close()
    assert not is_alive(writer)
    session.close()


def test_closing_ends_an_agent_that_does_not_want_to(session: AgentSession, worktree: Path) -> None:
    observer = Recorder()
    steps = ({"run": ["sh", "-c", "echo $PPID"]}, {"hang": {"ignore_cancel": True, "ignore_term": True}})
    turn = InBackground(lambda: session.prompt(script(*steps), observer))
    told = int(wait_until(lambda: observer.of("tool_result"), "the agent told its pid")[0].text.split()[0])
    agent = outside(told, worktree)
    assert is_alive(agent)
    session.close()
    assert not is_alive(agent)
    with pytest.raises(AgentFailed):
        turn.result()


def test_the_agents_environment_holds_the_run_and_none_of_the_services_secrets(
    agents: Agents, worktree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEERSMAN_KEYS", "/secret")
    monkeypatch.setenv("STEERSMAN_DATABASE", "postgresql://secret")
    monkeypatch.setenv("GITHUB_TOKEN", "secret")
    monkeypatch.setenv("LC_TIME", "C")
    opened = agents.open(SessionRequest(model_id="rehearsal", run_id="run-77", cwd=worktree))
    observer = Recorder()
    opened.prompt(script({"run": ["env"]}), observer)
    opened.close()
    told = observer.of("tool_result")[0].text
    assert "STEERSMAN_RUN_ID=run-77" in told
    assert "LC_TIME=C" in told
    assert f"PATH={os.environ['PATH']}" in told
    assert "secret" not in told
    assert "TOKEN" not in told


def test_nothing_is_left_of_a_run_that_is_forgotten_and_everything_of_another(
    agents: Agents, worktree: Path, tmp_path: Path
) -> None:
    sessions: dict[str, str] = {}
    for run_id in ("kept", "one", "two"):
        session = agents.open(SessionRequest(model_id="rehearsal", run_id=run_id, cwd=worktree))
        session.prompt(script({"say": f"hello {run_id}"}), Recorder())
        sessions[run_id] = session.session_id
        session.close()
    agents.forget(["one", "two", "never there"])
    agents.forget(["one"])
    for run_id in ("one", "two"):
        request = SessionRequest(model_id="rehearsal", run_id=run_id, cwd=worktree, session_id=sessions[run_id])
        with pytest.raises(AgentFailed) as failed:
            agents.open(request)
        assert failed.value.code == "session_not_found"
    found = agents.open(SessionRequest(model_id="rehearsal", run_id="kept", cwd=worktree, session_id=sessions["kept"]))
    assert "hello kept" in found.history
    found.close()
    held = [path.read_bytes() for path in (tmp_path / "data" / "homes").rglob("*") if path.is_file()]
    assert held
    assert not [words for words in held if b"hello one" in words or b"hello two" in words]
