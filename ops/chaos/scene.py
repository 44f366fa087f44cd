"""Where a campaign takes place: a data directory, repositories, and the service's answers to what its clients need."""

import json
import random
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .client import ReplicaClient
from .replicas import PATIENCE_SECONDS, STEERSMAN, environment
from .steers import Situation
from .work import BUILD

AGENT = (*STEERSMAN[:3], "steersman.ops.chaos.agent")
#: An approval that its agent waits for, on the coordinator's feed.
ASKED = "coordinator.child_approval_required"
PAGE = 500


def steersman(*arguments: object, variables: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a command of ours to its end."""
    return subprocess.run(
        [*STEERSMAN, *map(str, arguments)],
        env=environment(variables),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=10 * PATIENCE_SECONDS,
        check=False,
    )


def git(repository: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run git in a repository."""
    command = ["git", "-C", str(repository), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)


def make_repository(path: Path) -> Path:
    """Make a repository with one commit on `main`, which is checked out."""
    path.mkdir()
    (path / "README.md").write_text("# Chaos\n", encoding="utf-8")
    for arguments in (
        ("init", "--quiet"),
        ("symbolic-ref", "HEAD", "refs/heads/main"),
        ("config", "user.name", "Chaos"),
        ("config", "user.email", "chaos@localhost"),
        ("add", "--all"),
        ("commit", "--quiet", "--message", "The first commit"),
    ):
        git(path, *arguments).check_returncode()
    return path


def make_data(home: Path) -> Path:
    """Make a data directory whose agents are watched."""
    data = home / "data"
    data.mkdir(mode=0o700)
    command = json.dumps(AGENT)
    (data / "agents.toml").write_text(f'default = "chaos"\n\n[agents.chaos]\ncommand = {command}\n', encoding="utf-8")
    return data


def make_project(client: ReplicaClient, repository: Path, *, builds: bool, chance: random.Random) -> str:
    """Register a repository with a team of two, and return the project's id."""
    body: dict[str, Any] = {"name": repository.name, "origin": "blank", "working_directory": str(repository)}
    if builds:
        body["build_test"] = {"command": BUILD}
    project: str = client.post("/api/projects", body, f"project-{repository.name}", chance).body["project_id"]
    for role in ("software-engineer", "tester"):
        client.post(f"/api/projects/{project}/team/members", {"role_id": role}, f"{role}-{repository.name}", chance)
    return project


def look(client: ReplicaClient, run_id: str, chance: random.Random) -> Situation:
    """Return how a run stands, as some replica shows it."""
    run: dict[str, Any] = client.get(f"/api/runs/{run_id}", chance)
    return Situation(
        run=run,
        workers=client.get(f"/api/fleet?run={run_id}", chance) or (),
        children=client.get(f"/api/runs/{run_id}/children", chance) or (),
        directives=client.get(f"/api/runs/{run_id}/steering", chance) or (),
        requests=[] if run["auto_approve_tools"] else requests(client, run_id, chance),
    )


def requests(client: ReplicaClient, run_id: str, chance: random.Random) -> list[dict[str, Any]]:
    """Return what the agents of a run have asked of people, answered or not."""
    return [asked["payload"] for asked in client.get(f"/api/runs/{run_id}/events?type={ASKED}", chance) or ()]


def events_of(client: ReplicaClient, run_id: str, chance: random.Random) -> list[dict[str, Any]]:
    """Return all facts of a run."""
    return _pages(client, f"/api/runs/{run_id}/events", "sequence", chance, None)


def whole_log(client: ReplicaClient, url: str, chance: random.Random) -> list[dict[str, Any]]:
    """Return all facts of the log, as one replica shows them."""
    return _pages(client, "/api/events", "position", chance, url)


def _pages(
    client: ReplicaClient, path: str, number: str, chance: random.Random, url: str | None
) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    # Ends: the log is at rest.
    while page := client.get(f"{path}?after={found[-1][number] if found else 0}&limit={PAGE}", chance, url=url):
        found += page
    return found
