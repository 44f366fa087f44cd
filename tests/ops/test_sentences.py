"""Whatever goes wrong around a command, it ends with 1 and a sentence; a traceback is for mistakes of ours."""

import subprocess
from pathlib import Path

import pytest

from steersman.tests.e2e.served import STEERSMAN, environment

NOWHERE = {"STEERSMAN_SERVER_URL": "http://127.0.0.1:9", "STEERSMAN_TOKEN": "steersman_x"}


def ended(line: str, *arguments: object, **variables: str) -> tuple[int, str]:
    """Return how a line of the shell ended, and what it said on standard error; `"$@"` in it is the command."""
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {line}", "-", *STEERSMAN, *map(str, arguments)],
        env=environment(**variables),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("arguments", "variables", "words"),
    [
        (("runs", "ls"), {"STEERSMAN_SERVER_URL": "http://[::1"}, "http://[::1 is no address of a service"),
        (("runs", "ls"), {"STEERSMAN_SERVER_URL": "http://.nowhere"}, "http://.nowhere "),
        (("runs", "watch", "x"), {"STEERSMAN_SERVER_URL": "http://.nowhere"}, "http://.nowhere "),
        (("runs", "ls"), {"STEERSMAN_TOKEN": "steersman_ü"}, "STEERSMAN_TOKEN is no token"),
        (("runs", "ls"), {"STEERSMAN_TOKEN": "steersman_\nx"}, "STEERSMAN_TOKEN is no token"),
        (("fleet", "ls"), {"STEERSMAN_TOKEN": "steersman_ü"}, "STEERSMAN_TOKEN is no token"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_in_a_sentence(
    arguments: tuple[str, ...], variables: dict[str, str], words: str
) -> None:
    code, said = ended('"$@"', *arguments, **NOWHERE | variables)
    assert (code, said.count("\n")) == (1, 1), said
    assert said.startswith("Error: ")
    assert words in said
    assert "ü" not in said


@pytest.mark.parametrize("command", [("--help",), ("--version",), ("agents", "--json"), ("token", "list"), ("serve",)])
def test_a_full_standard_output_is_told_in_a_sentence(command: tuple[str, ...], tmp_path: Path) -> None:
    data = tmp_path / "data"
    arguments = (*command, "--port", 0) if command == ("serve",) else command
    code, said = ended('"$@" >/dev/full', *arguments, STEERSMAN_DATA=str(data), STEERSMAN_KEYS=str(tmp_path / "keys"))
    assert code == 1, said
    assert [line for line in said.splitlines() if not line.startswith("{")][-1].endswith("No space left on device.")
    assert "Traceback" not in said
    if command[0] != "serve":
        code, said = ended('PYTHONUNBUFFERED= "$@" >/dev/full', *arguments, STEERSMAN_DATA=str(data))
        assert (code, said) == (1, "Error: Standard output cannot be written: No space left on device.\n")
        assert ended('"$@" >&-', *arguments, STEERSMAN_DATA=str(data)) == (0, ""), "nobody wants to read it"


def test_a_service_that_can_tell_nobody_where_it_is_ends(tmp_path: Path) -> None:
    data, keys = str(tmp_path / "data"), str(tmp_path / "keys")
    # `true` may end before or after the line is written, so the pipe is closed for certain before.
    line = 'exec 3> >(exit); wait $!; "$@" >&3'
    code, said = ended(line, "serve", "--port", 0, STEERSMAN_DATA=data, STEERSMAN_KEYS=keys)
    assert (code, said.splitlines()[-1]) == (1, "Error: Nobody can be told where the service is: Broken pipe.")
    assert "Traceback" not in said
    code, said = ended(line, "agents", STEERSMAN_DATA=data)
    assert (code, said) == (1, ""), "whoever read along has heard enough"


def test_a_lock_that_cannot_be_used_is_told_in_a_sentence(tmp_path: Path) -> None:
    data = tmp_path / "data"
    (data / "serve.lock").mkdir(parents=True, mode=0o700)
    for command in (("serve", "--port", 0), ("doctor",)):
        code, said = ended('"$@"', *command, STEERSMAN_DATA=str(data), STEERSMAN_KEYS=str(tmp_path / "keys"))
        assert code == 1
        assert "Traceback" not in said
    code, said = ended('"$@"', "serve", "--port", 0, STEERSMAN_DATA=str(data), STEERSMAN_KEYS=str(tmp_path / "keys"))
    assert said == f"Error: {data}/serve.lock cannot be used: Is a directory.\n"
