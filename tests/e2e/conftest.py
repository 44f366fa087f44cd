"""Services on both stores, and repositories made by plain git."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from steersman.tests.e2e.served import Api, Service
from steersman.tests.live_agents import agents_toml, python_agent

#: Agents that do what no agent should. Under the flood the service must neither grow nor fall behind for ever.
BROKEN_AGENTS = {
    "missing": ["steersman-no-such-agent"],
    "nonsense": python_agent("send(id=recv()['id'], result='I am not a protocol'); time.sleep(600)"),
    # It can load no session, so nothing that it did can be revised in place.
    "forgetful": python_agent(
        "hello(); new()\n"
        "while True:\n"
        "    asked = recv()\n"
        "    with open('attempts.txt', 'a') as file: file.write('once more' + chr(10))\n"
        "    if 'FINISH IT' in json.dumps(asked): open('finished.txt', 'w').write('x')\n"
        "    say('done')\n"
        "    send(id=asked['id'], result={'stopReason': 'end_turn'})\n"
    ),
    "leaver": python_agent("hello(); sys.exit(7)"),
    "flood": python_agent(
        "hello(); new(); prompt = recv()['id']\n"
        "for _ in range(2_000):\n"
        "    say('x' * 100_000)\n"
        "    sys.stderr.write('y' * 10_000 + chr(10))\n"
        "send(id=prompt, result={'stopReason': 'end_turn'})\n"
        "recv()\n"
    ),
}

#: As in a real installation: one that is killed is missed at once, and a shorter lease lapses on a machine that is busy.
LEASES = {"STEERSMAN_LEASE_STALE_SECONDS": "15"}


class Repository:
    """A git repository on branch `main` with one commit, made and looked at with the real git."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()
        (path / "README.md").write_text("# A repository\n", encoding="utf-8")
        self.git("init", "--quiet")
        self.git("symbolic-ref", "HEAD", "refs/heads/main")
        self.git("config", "user.name", "Somebody")
        self.git("config", "user.email", "somebody@localhost")
        self.commit("The first commit")

    def git(self, *arguments: str) -> str:
        """Return what git says."""
        done = subprocess.run(["git", "-C", self.path, *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"git {arguments}: {done.stderr}"
        return done.stdout.strip()

    def commit(self, message: str) -> str:
        """Commit everything and return the commit."""
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", message)
        return self.git("rev-parse", "HEAD")

    @property
    def files(self) -> dict[str, str]:
        """What `main` holds, by path."""
        names = self.git("ls-tree", "-r", "--name-only", "main").splitlines()
        return {name: self.git("show", f"main:{name}") for name in names}

    def changes_of(self, path: str) -> list[str]:
        """Return the commits of `main` in which a path differs from every parent."""
        return self.git("log", "--format=%H", "--", path).splitlines()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Tests run on both stores, or on those that their module names in STORES: what rests on no store needs but one."""
    if "store" in metafunc.fixturenames:
        stores = getattr(metafunc.module, "STORES", ("sqlite", "postgres"))
        metafunc.parametrize("store", stores, indirect=True, scope="session")


@pytest.fixture(scope="session")
def store(request: pytest.FixtureRequest) -> Callable[[], dict[str, str]]:
    """A function that returns the environment of a service with an empty store of its own."""
    if request.param == "sqlite":
        return dict
    new_database: Callable[[], str] = request.getfixturevalue("new_database")
    return lambda: {"STEERSMAN_DATABASE": new_database(), **LEASES}


@pytest.fixture(scope="session")
def shared_service(store: Callable[[], dict[str, str]], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service that many tests use, each with projects of its own."""
    service = Service(tmp_path_factory.mktemp("service"), STEERSMAN_MAX_AGENTS="12", **store())
    agents_toml(service.data, **BROKEN_AGENTS)
    try:
        yield service.start()
    finally:
        service.close()


@pytest.fixture
def api(shared_service: Service) -> Api:
    """A client of a service that this test may not disturb."""
    return Api(shared_service)


@pytest.fixture
def service(store: Callable[[], dict[str, str]], tmp_path: Path) -> Iterator[Service]:
    """A service that belongs to this test alone; it is not started yet."""
    home = tmp_path / "service"
    home.mkdir()
    service = Service(home, **store())
    try:
        yield service
    finally:
        service.close()


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    """A repository that belongs to this test alone."""
    return Repository(tmp_path / "repository")
