"""`steersman run`: the whole way from a goal to a run, in the repository that one stands in."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from ..output import note, plain, print_json
from ..refused import Refused, RefusedByService
from ..settings import client_options, read_connection
from .budgets import budget_of
from .client import Client, path_part
from .following import wait_for

#: The member of a team that nobody has made one for; it works with the default agent.
ROLE = "software-engineer"
#: Who writes one of these means the runs that there are, and wants nothing done.
OF_RUNS = ("ls", "list", "show", "watch", "explain")
MAX_NAME = 200


@click.command()
@click.argument("words", nargs=-1, required=True, metavar="GOAL")
@click.option(
    "--repo",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    default=".",
    help="The repository, or a folder in it [default: here].",
)
@click.option("--project", help="The id of a project, instead of a repository.")
@click.option("--base", help="The branch to begin from and to merge into [default: the project's].")
@click.option("--agent", help="Who does it: an agent, or agent/model [default: the project's].")
@click.option(
    "--plan",
    "plan_file",
    type=click.File("rb"),
    help="A JSON file with the parts of the goal, - for standard input; without it the planner makes them.",
)
@click.option("--define", is_flag=True, help="Have what the goal means written down, and confirmed by you, first.")
@click.option(
    "--deliver",
    type=click.Choice(["merge", "branch", "push"]),
    help="Where approved work goes [default: the project's, else merge].",
)
@click.option("--deliver-branch", help="The new branch that it goes onto [default: one named after the run].")
@click.option("--budget-tokens", type=click.IntRange(1), help="How many tokens its agents may use.")
@click.option("--budget-money", help="What its agents may cost, such as 2.50 (USD) or 2.50EUR.")
@click.option("--budget-turns", type=click.IntRange(1), help="How many turns its agents may take.")
@click.option("--budget-minutes", type=click.IntRange(1), help="How many minutes its agents may work, added up.")
@click.option("--wait", is_flag=True, help="Follow the run to where it waits for you, or to its end.")
@click.option("--key", help="The key of a start whose outcome was unknown: it is carried out once.")
@client_options
def command(
    words: tuple[str, ...],
    repo: Path,
    project: str | None,
    base: str | None,
    agent: str | None,
    plan_file: Any,
    define: bool,
    deliver: str | None,
    deliver_branch: str | None,
    budget_tokens: int | None,
    budget_money: str | None,
    budget_turns: int | None,
    budget_minutes: int | None,
    wait: bool,
    key: str | None,
    as_json: bool,
) -> None:
    """
    Give a goal to the agents of a repository: steersman run "Make the build reproducible".

    The repository is registered, and gets a team of one, if it has none. Nothing is merged before you approve it.
    """
    body: dict[str, Any] = {"goal": _goal(words), "start_mode": "define_outcome" if define else "direct"}
    if plan_file is not None:
        body["plan"] = _plan(plan_file.read())
    if agent is not None:
        body["modelId"] = agent
    if base is not None:
        body["base_branch"] = base
    if deliver is not None or deliver_branch is not None:
        body["deliver"] = {"mode": deliver or "branch", "branch": deliver_branch}
    if budget := budget_of(budget_tokens, budget_money, budget_turns, budget_minutes):
        body["budget"] = budget
    with Client(read_connection()) as client:
        project_id = project or _project_of(client, _repository(repo))
        _have_team(client, project_id)
        run_id = client.post(f"/api/projects/{path_part(project_id)}/orchestrations", body, key)["runId"]
        if not wait:
            _tell(run_id, project_id, as_json)
            return
        note(f"Run {run_id} has begun.")
        sys.exit(wait_for(client, run_id, as_json))


def _goal(words: Sequence[str]) -> str:
    if words[0] in OF_RUNS:
        raise click.UsageError(f"Nothing was started. Did you mean `steersman runs {' '.join(words)}`?")
    if len(words) > 1:
        raise click.UsageError(f'Nothing was started. Put the goal in quotes: steersman run "{" ".join(words)}"')
    return words[0]


def _plan(read: bytes) -> Any:
    try:
        plan: Any = msgspec.json.decode(read)
    except msgspec.DecodeError as error:
        raise Refused(f"Nothing was started: the plan is no JSON: {error}.") from error
    # The parts alone are a plan, too.
    return plan if isinstance(plan, dict) else {"subtasks": plan}  # pyright: ignore[reportUnknownVariableType]


def _repository(place: Path) -> Path:
    """Return the working directory that a place is in. Raises Refused."""
    place = place.resolve()
    found = next((folder for folder in (place, *place.parents) if (folder / ".git").exists()), None)
    if found is None:
        raise Refused(
            f"Nothing was started: {place} is in no git repository. Make one (git init, and a first commit), or name one "
            "with --repo."
        )
    return found


def _project_of(client: Client, repository: Path) -> str:
    """Return the id of the repository's project; on return it is registered. Raises Refused."""
    known = [p for p in client.pages("/api/projects") if Path(p["working_directory"] or "").resolve() == repository]
    if len(known) > 1:
        lines = "\n".join(f"  --project {project['project_id']}  ({plain(project['name'])})" for project in known)
        raise Refused(f"Nothing was started: {repository} is registered more than once. Name the project:\n{lines}")
    if known:
        return str(known[0]["project_id"])
    body = {"name": repository.name[:MAX_NAME], "origin": "blank", "working_directory": str(repository)}
    project = client.post("/api/projects", body)
    note(f"Registered {repository} as project {project['project_id']}, default branch {project['default_branch']}.")
    return str(project["project_id"])


def _have_team(client: Client, project_id: str) -> None:
    """On return the project has a team. Raises Refused."""
    path = f"/api/projects/{path_part(project_id)}/team"
    try:
        client.get(path)
    except RefusedByService as refused:
        if refused.error != "team_not_found":
            raise
        name = client.post(f"{path}/members", {"role_id": ROLE})["name"]
        note(f"Put {name} on its team, who works with the default agent.")


def _tell(run_id: str, project_id: str, as_json: bool) -> None:
    if as_json:
        print_json({"run_id": run_id, "project_id": project_id})
        return
    click.echo(f"Run {run_id} has begun.")
    click.echo(f"Follow it:       steersman runs watch {run_id} --until-waits")
    click.echo("What waits:      steersman waiting")
