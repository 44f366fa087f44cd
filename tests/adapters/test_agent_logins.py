"""An agent gets the keys that agents.toml hands it, and no others; it is logged in as it says; what it lacks is said."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from steersman.adapters.acp.agents import AcpAgents
from steersman.adapters.processes.agents_file import AgentsFileInvalid, read_agents
from steersman.application.ports.agents import AgentFailed, SessionRequest
from steersman.domain.facts.bad_ends import way_of
from steersman.tests.live_agents import Recorder, agents_toml, python_agent

#: Lets nobody in before somebody has asked to be logged in by a key; then it tells the key.
LOCKED = python_agent(
    "send(id=recv()['id'], result={'protocolVersion': 1, 'authMethods': [\n"
    "    {'id': 'api-key', 'name': 'Key'}, {'id': 'browser', 'name': 'Browser'}]})\n"
    "is_in = False\n"
    "while True:\n"
    "    asked = recv()\n"
    "    if asked['method'] == 'authenticate':\n"
    "        is_in = asked['params'] == {'methodId': 'api-key'} and bool(os.environ.get('A_KEY'))\n"
    "        if is_in: send(id=asked['id'], result={})\n"
    "        else: send(id=asked['id'], error={'code': -32603, 'message': 'No key'})\n"
    "    elif not is_in:\n"
    "        send(id=asked['id'], error={'code': -32000, 'message': 'Authentication required'})\n"
    "    elif asked['method'] == 'session/new':\n"
    "        send(id=asked['id'], result={'sessionId': 's1'})\n"
    "    else:\n"
    "        say(os.environ['A_KEY'])\n"
    "        send(id=asked['id'], result={'stopReason': 'end_turn'})\n"
)


@pytest.fixture
def open_agent(tmp_path: Path) -> Iterator[Any]:
    """A function that opens a session with an agent that lets nobody in without a login."""
    opened: list[AcpAgents] = []

    def start(**table: Any) -> Any:
        file = agents_toml(tmp_path, odd={"command": LOCKED, **table})
        agents = AcpAgents(read_agents(file, tmp_path / "data"), tmp_path / "data")
        opened.append(agents)
        return agents.open(SessionRequest(model_id="odd", run_id="run-1", cwd=tmp_path))

    yield start
    for agents in opened:
        agents.close()


def said(session: Any) -> str:
    """Return what the agent says when it is asked something."""
    words: str = session.prompt("Do this.", Recorder()).message
    return words


def test_a_key_of_the_services_environment_is_passed_on_and_logs_the_agent_in(
    open_agent: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_KEY", "key-1")
    assert said(open_agent(authenticate="api-key", **{"pass": ["A_KEY"]})) == "key-1"


def test_a_secret_is_read_from_its_file_at_each_start(open_agent: Any, tmp_path: Path) -> None:
    secret = tmp_path / "key"
    for value in ("key-1", "key-2"):
        secret.write_text(f"{value}\n")
        assert said(open_agent(authenticate="api-key", secrets={"A_KEY": str(secret)})) == value


def test_an_agent_that_lets_nobody_in_says_which_logins_it_offers_and_is_not_tried_again(open_agent: Any) -> None:
    with pytest.raises(AgentFailed, match=r"Authentication required.*api-key, browser.*`authenticate`") as failed:
        open_agent()
    assert (failed.value.code, failed.value.retryable) == ("agent_login_required", False)
    assert way_of(failed.value.code).then == "ask a person"


@pytest.mark.parametrize(("method", "told"), [("api-key", "No key"), ("none-such", "none-such.*does not offer")])
def test_a_login_that_fails_says_why(open_agent: Any, method: str, told: str) -> None:
    with pytest.raises(AgentFailed, match=told) as failed:
        open_agent(authenticate=method)
    assert failed.value.code == "agent_login_required"


def test_what_is_to_be_passed_on_and_is_not_there_is_named_before_the_agent_starts(
    open_agent: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("A_KEY", raising=False)
    empty = tmp_path / "empty"
    empty.write_text("\n")
    for table, told in (
        ({"pass": ["A_KEY"]}, "A_KEY, which the service does not have"),
        ({"secrets": {"A_KEY": str(tmp_path / "nowhere")}}, "cannot be read"),
        ({"secrets": {"A_KEY": str(empty)}}, "holds no secret"),
    ):
        with pytest.raises(AgentFailed, match=told) as failed:
            open_agent(**table)
        assert failed.value.code == "agent_not_configured"
        assert way_of(failed.value.code).then == "ask a person"


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ({"pass": ["STEERSMAN_TOKEN"]}, "the service's own"),
        ({"secrets": {"STEERSMAN_KEYS": "/x"}}, "the service's own"),
        ({"pass": ["A B"]}, "no name of a variable"),
        ({"pass": ["A"], "env": {"A": "b"}}, "more than once"),
        ({"secrets": {"A": "here"}}, "absolute path"),
        ({"envs": {"A": "b"}}, "envs"),
        ({"auth": "api-key"}, "auth"),
    ],
)
def test_what_can_mean_nothing_is_refused_by_name(tmp_path: Path, table: dict[str, Any], told: str) -> None:
    with pytest.raises(AgentsFileInvalid, match=told):
        read_agents(agents_toml(tmp_path, odd={"command": ["x"], **table}), tmp_path)
