"""What the environment and the settings file may say, and what is refused before anything is started."""

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from steersman.ops.admin.config_command import command
from steersman.ops.refused import Refused
from steersman.ops.serving.data_dir import alone_in, is_served, prepare_data_dir
from steersman.ops.settings import read_connection, read_settings
from steersman.ops.settings_sources import FILE_ONLY, NAMES


def test_an_empty_environment_means_sqlite_in_the_users_data_folder() -> None:
    settings = read_settings(environment={"XDG_DATA_HOME": "/somewhere"})
    assert settings.data == Path("/somewhere/steersman")
    assert (settings.database, settings.redis, settings.max_agents) == (None, None, 4)


def test_a_named_data_directory_wins_over_the_environment() -> None:
    assert read_settings(Path("/named"), {"STEERSMAN_DATA": "/other"}).data == Path("/named")
    assert read_settings(environment={"STEERSMAN_DATA": "/other"}).data == Path("/other")


@pytest.mark.parametrize("value", ["0", "-1", "many", "1001", "4.0", "٣", "9" * 5000])
def test_a_number_of_agents_that_is_none_is_refused(value: str) -> None:
    with pytest.raises(Refused, match="STEERSMAN_MAX_AGENTS"):
        read_settings(environment={"STEERSMAN_MAX_AGENTS": value})


@pytest.mark.parametrize("value", ["0", "100001", "1e3"])
def test_a_number_of_feeds_that_is_none_is_refused(value: str) -> None:
    assert read_settings(environment={"STEERSMAN_MAX_FEEDS": "100000"}).max_feeds == 100_000
    with pytest.raises(Refused, match="STEERSMAN_MAX_FEEDS"):
        read_settings(environment={"STEERSMAN_MAX_FEEDS": value})


def test_an_address_that_is_none_is_refused_without_repeating_what_may_be_a_password() -> None:
    with pytest.raises(Refused) as refused:
        read_settings(environment={"STEERSMAN_DATABASE": "mysql://user:hunter2@host"})
    assert "hunter2" not in refused.value.message


def test_a_client_command_without_a_token_says_how_to_get_one() -> None:
    with pytest.raises(Refused, match="token issue"):
        read_connection({})
    with pytest.raises(Refused, match="http"):
        read_connection({"STEERSMAN_TOKEN": "t", "STEERSMAN_SERVER_URL": "ftp://host"})


def test_a_data_directory_is_closed_to_others(tmp_path: Path) -> None:
    assert prepare_data_dir(tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700
    opened = tmp_path / "opened"
    opened.mkdir(mode=0o755)
    (opened / "agents.toml").touch()
    assert prepare_data_dir(opened).stat().st_mode & 0o777 == 0o700


def test_a_directory_that_may_be_somebody_elses_is_left_alone(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "thesis.txt").touch()
    with pytest.raises(Refused, match=r"thesis\.txt"):
        prepare_data_dir(tmp_path)
    assert tmp_path.stat().st_mode & 0o777 == 0o755


def test_a_file_in_the_way_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Refused):
        prepare_data_dir(tmp_path / "file" / "data")


def test_only_one_process_serves_a_data_directory(tmp_path: Path) -> None:
    assert not is_served(tmp_path)
    with alone_in(tmp_path):
        assert is_served(tmp_path)
        with pytest.raises(Refused, match="serves"), alone_in(tmp_path):
            pass
    assert not is_served(tmp_path)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A settings file where it is looked for."""
    path = tmp_path / "steersman" / "settings.toml"
    path.parent.mkdir()
    path.touch(mode=0o600)
    return path


def test_a_settings_file_says_what_the_environment_does_not(file: Path, tmp_path: Path) -> None:
    file.write_text(
        'data = "/kept"\nmax_agents = 7\nmax_feeds = 9\nrepositories = ["/a", "/b"]\nwebhook_networks = ["10.0.0.0/8", "fd00::/8"]\n'
        'notify_command = ["tell", "me"]\nserver_url = "http://elsewhere:1"\ntoken = "t"\n',
        encoding="utf-8",
    )
    environment = {"XDG_CONFIG_HOME": str(tmp_path), "STEERSMAN_MAX_AGENTS": "3", "STEERSMAN_MAX_FEEDS": ""}
    settings = read_settings(environment=environment)
    assert (settings.data, settings.max_agents, settings.max_feeds) == (Path("/kept"), 3, 9)
    assert settings.repositories == (Path("/a"), Path("/b"))
    assert settings.webhook_networks == ("10.0.0.0/8", "fd00::/8")
    assert settings.notify_command == ("tell", "me")
    connection = read_connection(environment)
    assert (connection.url, connection.token) == ("http://elsewhere:1", "t")
    elsewhere = {"HOME": str(tmp_path / "nobody"), "STEERSMAN_SETTINGS": str(file)}
    assert read_settings(environment=elsewhere).max_agents == 7


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("max_agent = 3", r"there is no setting `max_agent`\. Did you mean `max_agents`\?"),
        ("STEERSMAN_MAX_AGENTS = 3", "Did you mean `max_agents`"),
        ("colour = 3", "It takes: data, database"),
        ('max_agents = "3"', "`max_agents` must be a number"),
        ("max_agents = true", "`max_agents` must be a number"),
        ("max_agents = 0", r"`max_agents` in .*settings\.toml must be a number from 1 to 1000, not '0'"),
        ('isolation = "box"', r"`isolation` in .*settings\.toml must be bubblewrap or none"),
        ("notify_command = []", "`notify_command` must be a list of texts"),
        ('notify_command = "tell me"', "`notify_command` must be a list of texts"),
        ('webhook_networks = ["10.0.0.1/8"]', "`webhook_networks` in .*must name networks"),
        ('[service]\ndata = "/x"', "there is no setting `service`"),
        ("data = ", "is no TOML"),
    ],
)
def test_a_settings_file_that_cannot_be_understood_is_refused_by_name(file: Path, content: str, words: str) -> None:
    file.write_text(content, encoding="utf-8")
    with pytest.raises(Refused, match=words):
        read_settings(environment={"STEERSMAN_SETTINGS": str(file)})


def test_a_settings_file_that_is_named_has_to_be_there(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="STEERSMAN_SETTINGS"):
        read_settings(environment={"STEERSMAN_SETTINGS": str(tmp_path / "none.toml")})
    assert read_settings(environment={"XDG_CONFIG_HOME": str(tmp_path)}).max_agents == 4


@pytest.mark.parametrize(
    ("content", "mode", "words"),
    [
        ('notify_command = ["tell"]', 0o620, "chmod go-w"),
        ('notify_command = ["tell"]', 0o602, "chmod go-w"),
        ('token = "secret words"', 0o644, "chmod 600"),
        ('database = "postgresql://u:secret words@h/d"', 0o640, "chmod 600"),
    ],
)
def test_a_file_that_others_can_use_against_us_is_refused(file: Path, content: str, mode: int, words: str) -> None:
    file.write_text(content, encoding="utf-8")
    file.chmod(mode)
    with pytest.raises(Refused, match=words) as refused:
        read_settings(environment={"STEERSMAN_SETTINGS": str(file)})
    assert "secret words" not in refused.value.message


def test_a_command_that_is_told_of_what_waits_is_named_in_the_file_alone() -> None:
    assert read_settings(environment={"STEERSMAN_NOTIFY_COMMAND": "tell"}).notify_command == ()


def test_config_shows_what_holds_and_who_says_so_and_no_secret(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text(
        'max_feeds = 9\ntoken = "steersman_secret"\nredis = "redis://u:secret@host:1/0?password=secret"\n',
        encoding="utf-8",
    )
    for name in [name for name in os.environ if name.startswith("STEERSMAN_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("STEERSMAN_SETTINGS", str(file))
    monkeypatch.setenv("STEERSMAN_MAX_AGENTS", "3")
    shown = CliRunner().invoke(command, ["--json", "--data", str(tmp_path)])
    assert shown.exit_code == 0, shown.output
    assert "secret" not in shown.output
    answer = json.loads(shown.output)
    assert answer["file"] == str(file)
    found = {one["name"]: (one["value"], one["origin"]) for one in answer["settings"]}
    assert found["data"] == (str(tmp_path), "--data")
    assert found["max_agents"] == (3, "STEERSMAN_MAX_AGENTS")
    assert found["max_feeds"] == (9, str(file))
    assert found["stall_seconds"] == (300, "default")
    assert found["token"] == ("(set)", str(file))
    assert found["redis"] == ("redis://host:1/0", str(file))
    assert found["database"] == (None, "default")
    lines = CliRunner().invoke(command, []).output.splitlines()
    assert lines[0].split() == ["SETTING", "VALUE", "FROM"]
    assert ["max_feeds", "9", str(file)] in [line.split() for line in lines]


def test_every_setting_has_its_line_in_the_documents() -> None:
    page = (Path(__file__).parents[2] / "docs" / "settings.md").read_text(encoding="utf-8")
    for name in NAMES:
        variable = f"`STEERSMAN_{name.upper()}`"
        assert variable in page or (name in FILE_ONLY and f"`{name}`" in page), name
