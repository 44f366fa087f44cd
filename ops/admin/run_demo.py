"""`steersman demo`: a goal becomes a merged commit, over the API of a service that is started for it."""

import os
import shlex
import sys
import tempfile
import time
from pathlib import Path
from subprocess import Popen

import click
import msgspec

from ...adapters.processes.agents_file import Isolation
from ...adapters.processes.bubblewrap import BoxUnusable, box_problem, find_box
from ...adapters.stores.token_store import open_tokens
from ..commands.client import Client
from ..refused import Refused
from ..serving.data_dir import prepare_data_dir
from ..settings import Connection
from .child_service import serving
from .demo_project import FILES, GOAL, git, make_repository, plan
from .demo_screen import Screen, screen

GATE = "coordinator.assembly_review_requested"
MERGED = "coordinator.assembly_completed"
#: What clearing away the worktrees gets.
TIDY_SECONDS = 30.0
#: After one of these nothing is merged any more without a person.
STUCK = frozenset({"coordinator.assembly_blocked", "coordinator.assembly_merge_failed", "coordinator.assembly_failed"})


class ShownEntry(msgspec.Struct, frozen=True):
    """What the demo looks at of an element of the whole log's feed."""

    type: str
    run: str | None
    root: str | None
    payload: dict[str, object]


@click.command()
@click.option("--serve", "keeps_serving", is_flag=True, help="Keep the service running afterwards, until Ctrl-C.")
def command(keeps_serving: bool) -> None:
    """Show the whole way from a goal to a merged commit: real agents' worktrees, a gate and a merge, without a model."""
    home = Path(tempfile.mkdtemp(prefix="steersman-demo-"))
    repository, data, log = home / "repository", prepare_data_dir(home / "data"), home / "service.log"
    make_repository(repository)
    tokens = open_tokens(data)
    token = tokens.issue("demo", "operator")
    tokens.close()
    isolation = demo_isolation(data)
    with serving(data, log, isolation) as (served, process):
        with Client(Connection(url=served.url, token=token)) as client:
            run_id = orchestrate(client, repository)
        _conclude(repository, home)
        if keeps_serving:
            _keep_serving(process, served.url, token, run_id)
        else:
            click.echo(f"API         {_serve_again(data, isolation)}")


def demo_isolation(data: Path) -> Isolation:
    """Return what keeps the demo's agents apart, and say so. They are ours, and do only what the demo tells them."""
    try:
        problem = box_problem(find_box(hidden=[data]))
    except BoxUnusable as error:
        problem = str(error)
    if problem is None:
        click.echo("Agents:     each in a box of its own (bubblewrap)")
        return "bubblewrap"
    click.echo(f"Agents:     with all rights of the service, as no box works here: {problem}")
    return "none"


def _serve_again(data: Path, isolation: Isolation) -> str:
    """Return the line for a shell, this one's environment and all, that serves what the demo has made."""
    installed = Path(sys.executable).with_name("steersman")
    command = [str(installed)] if installed.exists() else [sys.executable, "-P", "-m", "steersman.ops.command_line"]
    # The demo's service was set up by nothing but its data directory, see child_service.
    ours = sorted(name for name in os.environ if name.startswith("STEERSMAN_"))
    without = ["env", *(f"--unset={name}" for name in ours)] if ours else []
    if isolation == "none":
        without = [*(without or ["env"]), "STEERSMAN_ISOLATION=none"]
    return shlex.join([*without, *command, "serve", "--port", "0", "--data", str(data)])


def orchestrate(client: Client, repository: Path) -> str:
    """Take the goal to a merged commit before the user's eyes; return the run's id. Raises Refused."""
    project = client.post(
        "/api/projects", {"name": "greetings", "origin": "blank", "working_directory": str(repository)}
    )
    project_id = project["project_id"]
    for role in ("software-engineer", "technical-writer"):
        client.post(f"/api/projects/{project_id}/team/members", {"role_id": role})
    goal = {"goal": GOAL, "start_mode": "direct", "plan": plan()}
    run_id: str = client.post(f"/api/projects/{project_id}/orchestrations", goal)["runId"]
    with screen() as shown:
        shown.say(f"Goal: {GOAL}\nRun:  {run_id}")
        _watch(client, run_id, shown)
    return run_id


def _watch(client: Client, run_id: str, shown: Screen) -> None:
    names: dict[str | None, str] = {run_id: "coordinator"}
    for event in client.follow("/api/events/stream"):
        entry = msgspec.json.decode(event.data, type=ShownEntry)
        if entry.root != run_id:
            continue
        if entry.type == "run.started":
            names[entry.run] = f"{entry.payload['subtaskId']} {entry.payload['agentName']}"
        shown.show(names.get(entry.run, ""), entry.type, entry.payload)
        if entry.type == GATE:
            _approve(client, run_id, shown)
        elif entry.type in STUCK or (entry.type == "run.failed" and entry.run == run_id):
            raise Refused(f"The run ended with {entry.type}: {msgspec.json.encode(entry.payload).decode()}")
        elif entry.type == MERGED:
            return


def _approve(client: Client, run_id: str, shown: Screen) -> None:
    files = client.get(f"/api/runs/{run_id}/assembly/files")
    listed = ", ".join(f"{file['path']} +{file['added_lines']}" for file in files)
    shown.say(f"The gate: {listed}. You would look at it now; the demo approves.")
    client.post(f"/api/runs/{run_id}/assembly/review", {"approved": True, "feedback": "Looks good."})


def _conclude(repository: Path, home: Path) -> None:
    _await_tidiness(repository)
    missing = set(FILES) - set(git(repository, "ls-files").splitlines())
    if missing:
        raise Refused(f"The merge lacks {', '.join(sorted(missing))}.")
    click.echo(f"\nMerged      {git(repository, 'log', '-1', '--format=%H')}")
    click.echo(git(repository, "log", "--graph", "--oneline"))
    click.echo(f"Repository  {repository}")
    click.echo(f"Log         {home / 'data' / 'log.db'}")


def _await_tidiness(repository: Path) -> None:
    """Wait for what follows the merge: the children's worktrees and branches are cleared away."""
    deadline = time.monotonic() + TIDY_SECONDS
    while git(repository, "branch", "--list", "steersman/*"):
        if time.monotonic() > deadline:
            raise Refused(f"The run's worktrees are still in {repository}.")
        time.sleep(0.1)


def _keep_serving(process: Popen[str], url: str, token: str, run_id: str) -> None:
    click.echo(f"API         {url}  (OpenAPI: {url}/schema)")
    click.echo(f"Token       {token}\n\nTry:")
    for arguments in (
        f"{url}/api/projects",
        f"{url}/api/runs/{run_id}/children",
        f"-N {url}/api/runs/{run_id}/stream",
    ):
        click.echo(f"  curl -H 'Authorization: Bearer {token}' {arguments}")
    click.echo("\nCtrl-C ends the service.")
    try:
        process.wait()
    except KeyboardInterrupt:
        click.echo("")
