"""Agents are refused where no box works, and whoever lets them work without one, or in the machine's network, is told."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from steersman.adapters.processes.agents_file import read_agents
from steersman.adapters.processes.bubblewrap import Bubblewrap, find_box
from steersman.ops.refused import Refused
from steersman.ops.serving.agent_places import processes, room_for_agents
from steersman.ops.serving.host_network import check_host_network, let_in, without_secret
from steersman.ops.serving.wiring import check_box, open_box
from steersman.ops.settings import Settings, read_settings
from steersman.tests.redis_server import RedisServer


def settings(data: Path, **more: object) -> Settings:
    return read_settings(data, {"STEERSMAN_KEYS": str(data.parent / "keys"), **{k: str(v) for k, v in more.items()}})


def test_agents_are_refused_where_no_box_works_and_it_is_said_what_to_do(tmp_path: Path) -> None:
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho 'bwrap: Creating new namespace failed' >&2\nexit 1\n")
    broken.chmod(0o755)
    with pytest.raises(Refused) as refused:
        check_box(Bubblewrap(broken))
    assert "Creating new namespace failed" in refused.value.message
    assert "STEERSMAN_ISOLATION=none" in refused.value.message


@pytest.mark.parametrize(
    ("variable", "toml", "isolation"),
    [("", "", "bubblewrap"), ("none", "", "none"), ("", "none", "none"), ("bubblewrap", "none", "bubblewrap")],
)
def test_the_environment_says_more_of_isolation_than_the_file(
    tmp_path: Path, variable: str, toml: str, isolation: str
) -> None:
    (tmp_path / "agents.toml").write_text(f'isolation = "{toml}"\n' if toml else "")
    found = open_box(settings(tmp_path, STEERSMAN_ISOLATION=variable), read_agents(None, tmp_path))
    assert found.isolation == isolation
    if isolation == "none":
        check_box(found)


def test_isolation_is_one_of_two_words(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="STEERSMAN_ISOLATION"):
        settings(tmp_path, STEERSMAN_ISOLATION="docker")


def test_more_agents_than_the_machine_has_room_for_are_refused_with_the_number_that_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "4 agents" in room_for_agents(settings(tmp_path))
    monkeypatch.setattr(
        "steersman.ops.serving.agent_places._number", lambda path: 2_656 if path.endswith("pid_max") else 1_000_000
    )
    assert "of 100" in room_for_agents(settings(tmp_path, STEERSMAN_MAX_AGENTS=100))
    with pytest.raises(Refused, match=r"room for 100: .*kernel\.pid_max"):
        room_for_agents(settings(tmp_path, STEERSMAN_MAX_AGENTS=101))


def test_agents_that_rest_are_bounded_by_the_places_and_by_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("steersman.ops.serving.agent_places._room", lambda: ("files", 40))
    assert [processes(settings(tmp_path, STEERSMAN_MAX_AGENTS=n)) for n in (1, 4, 40)] == [8, 32, 40]


@pytest.fixture
def redis() -> Iterator[str]:
    """A server that lets everybody in."""
    server = RedisServer().start()
    yield server.url.replace("redis://", "redis://:opensesame@")
    server.kill()


def test_the_network_of_the_machine_is_refused_where_it_opens_the_database_or_redis(tmp_path: Path, redis: str) -> None:
    box = find_box()
    assert let_in(box, "postgresql://u:p@127.0.0.1:1/x", redis) == ["redis"]
    (tmp_path / "agents.toml").write_text('[agents.a]\ncommand = ["x"]\nnetwork = "host"\n')
    known = read_agents(None, tmp_path)
    with pytest.raises(Refused, match=r"network = .host.* \(a in agents.toml\) is refused.*STEERSMAN_REDIS"):
        check_host_network(box, known, settings(tmp_path, STEERSMAN_REDIS=redis))
    check_host_network(box, read_agents(None, tmp_path / "without"), settings(tmp_path, STEERSMAN_REDIS=redis))
    check_host_network(box, known, settings(tmp_path))
    check_host_network(find_box("none"), known, settings(tmp_path, STEERSMAN_REDIS=redis))


def test_a_database_that_trusts_its_socket_lets_nobody_in_from_a_box(new_database: Callable[[], str]) -> None:
    address = new_database()
    if "host=/" in address:
        assert let_in(find_box(), address, None) == []


def test_no_secret_is_tried(tmp_path: Path) -> None:
    assert without_secret("postgresql://u:p@h:1/x?password=y&sslmode=require") == "postgresql://u@h:1/x?sslmode=require"
    assert without_secret("redis://:p@h:1/0") == "redis://h:1/0"
    assert without_secret(None) is None
