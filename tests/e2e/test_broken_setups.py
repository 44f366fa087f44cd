"""What docs/broken-setups.md says that people see, they see, word for word."""

import json
import re
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from steersman.adapters.processes.bubblewrap import Bubblewrap
from steersman.ops.refused import Refused
from steersman.ops.serving.wiring import check_box
from steersman.tests.e2e.conftest import Repository
from steersman.tests.e2e.served import STEERSMAN, Api, Service, environment, part, wait_until, write
from steersman.tests.e2e.test_first_hour import Person
from steersman.tests.live_agents import agents_toml, python_agent

PAGE = (Path(__file__).parents[2] / "docs/broken-setups.md").read_text(encoding="utf-8")
#: Heading, and the words below it. `…` stands for whatever is another one each time.
SHOWN = dict(re.findall(r"^## (.+?)\n.*?```text\n(.*?)```", PAGE, re.DOTALL | re.MULTILINE))

FAILS = "hello(); new(); send(id=recv()['id'], error={'code': -32603, 'message': %r})"
AGENTS = {
    "locked": python_agent(
        "send(id=recv()['id'], result={'protocolVersion': 1, 'authMethods': [{'id': 'api-key', 'name': 'Key'}]})\n"
        "send(id=recv()['id'], error={'code': -32000, 'message': 'Authentication required'})\n"
    ),
    "lost": python_agent(FAILS % "model not found: scripted/nope"),
    "offline": python_agent(
        FAILS % "Cannot connect to API: Unable to connect. Is the computer able to access the url?"
    ),
    "absent": ["no-such-agent"],
}


def check(name: str, seen: str) -> None:
    """Return if what is written below a heading is seen, line by line, in order."""
    lines = [line.strip() for line in seen.splitlines() if line.strip()]
    for line in SHOWN[name].splitlines():
        pattern = ".*".join(re.escape(words) for words in line.strip().split("…"))
        while lines and not re.fullmatch(pattern, lines[0]):
            lines.pop(0)
        assert lines, f"{name}: {line!r} is not in:\n{seen}"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service with one place, and agents that cannot work."""
    home = tmp_path_factory.mktemp("broken")
    service = Service(home, STEERSMAN_KEYS=str(home / "keys"), STEERSMAN_MAX_AGENTS="1")
    agents_toml(service.data, **AGENTS)
    yield service.start()
    service.close()


@pytest.fixture
def person(service: Service, repository: Repository, tmp_path: Path) -> Person:
    """Somebody with a repository."""
    return Person(service, repository, tmp_path)


def ended(*arguments: object, path: Path | None = None, **variables: str) -> str:
    """Return what a command says that is refused."""
    surroundings = environment(**variables)
    if path is not None:
        surroundings["PATH"] = f"{path}:{surroundings['PATH']}"
    done = subprocess.run(
        [*STEERSMAN, *map(str, arguments)], env=surroundings, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize(
    ("name", "agent"),
    [("No login", "locked"), ("A wrong model", "lost"), ("No agent", "absent"), ("No network", "offline")],
)
def test_an_agent_that_cannot_work(person: Person, name: str, agent: str) -> None:
    run = person.runs(part("Write", write("a.txt", "a\n")), more=("--agent", agent))
    check(name, person.says("show", run["run_id"]))


def test_a_dirty_checkout(person: Person) -> None:
    run = person.runs(part("Write", write("README.md", "changed\n")))
    (person.repository.path / "README.md").write_text("not committed\n", encoding="utf-8")
    check("A dirty checkout", person.says("approve", run["run_id"], expect=1))


def test_no_team(service: Service, repository: Repository) -> None:
    api = Api(service)
    body = {"name": "x", "origin": "blank", "working_directory": str(repository.path)}
    project_id = api.post("/api/projects", body, 201)["project_id"]
    told = api.post(f"/api/projects/{project_id}/orchestrations", {"goal": "x"}, 409)
    check("No team", told["message"])


def test_no_box(tmp_path: Path) -> None:
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho 'bwrap: Creating new namespace failed: Operation not permitted' >&2\nexit 1\n")
    broken.chmod(0o755)
    with pytest.raises(Refused) as refused:
        check_box(Bubblewrap(broken))
    check("No box", f"Error: {refused.value.message}")


def test_a_wrong_token(service: Service) -> None:
    check("A wrong token", ended("runs", "ls", STEERSMAN_SERVER_URL=service.url, STEERSMAN_TOKEN="steersman_wrong"))


def test_a_second_server(service: Service) -> None:
    check("A second server", ended("serve", "--port", 0, "--data", service.data, **service.variables))


def test_an_old_git(tmp_path: Path) -> None:
    git = tmp_path / "bin" / "git"
    git.parent.mkdir()
    git.write_text("#!/bin/sh\necho git version 2.30.2\n")
    git.chmod(git.stat().st_mode | stat.S_IXUSR)
    variables = {"STEERSMAN_DATA": str(tmp_path / "data"), "STEERSMAN_KEYS": str(tmp_path / "keys")}
    check("An old git", ended("doctor", path=git.parent, **variables))


def test_every_set_up_is_made_here_or_it_is_said_where(tmp_path: Path) -> None:
    elsewhere = {"A full disk": "tests/e2e/test_full_disk.py"}
    assert len(SHOWN) == 12
    here = Path(__file__).read_text(encoding="utf-8")
    for name in SHOWN:
        assert f'"{name}"' in here
        assert name not in elsewhere or elsewhere[name] in PAGE


def test_no_place(person: Person) -> None:  # the last one: its agent keeps the place
    plan = person.folder / "plan.json"
    plan.write_text(json.dumps([part("Long", {"hang": {}})]), encoding="utf-8")
    person.json("run", "Long", "--repo", person.repository.path, "--plan", plan)
    wait_until(lambda: any(one["session_id"] for one in person.json("fleet", "ls")), "the first one is at work")
    second = person.json("run", "Short", "--repo", person.repository.path)

    def seen() -> str:
        told = person.says("runs", "explain", second["run_id"])
        return told if "place" in told else ""

    check("No place", wait_until(seen, "the second one waits for a place"))
