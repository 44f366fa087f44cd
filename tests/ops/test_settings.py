"""What the environment may say, and what is refused before anything is started."""

from pathlib import Path

import pytest

from steersman.ops.refused import Refused
from steersman.ops.serving.data_dir import alone_in, is_served, prepare_data_dir
from steersman.ops.settings import read_connection, read_settings


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
