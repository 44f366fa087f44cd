"""Give a project's team a goal."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from ...domain.event import Draft, Fact
from ...domain.facts.delivery import Delivery
from ...domain.facts.run import CoordinatorRun
from ...domain.facts.topology import with_topology
from ...domain.git import Commit, may_be_begun_from
from ...domain.projects.project import Project
from ...domain.rejected import Invalid, Rejected
from ...domain.runs.delivering import check_delivery
from ...domain.runs.orchestration import NoTeam, StartRun, start_run
from ..looking.look import looked
from ..looking.sandbox_policy import read_policy
from ..ports.agents import Agents
from ..ports.git import Repositories, RepositoryUnusable
from ..ports.log import EventLog
from ..ports.outside import Clock
from ..writer.caller import Answer, Caller
from ..writer.projects import load_project

#: What a run rests on that somebody asks for by itself.
NOTHING: Mapping[str, int] = {}


class UnknownBranch(Invalid):
    """The repository has no such branch that a run may begin from."""

    code = "unknown_branch"


class BranchExists(Rejected):
    """The repository has the branch already that the work is to go onto."""

    code = "branch_exists"


class UnknownModel(Invalid):
    """Nobody knows this model."""

    code = "unknown_model"


def start_orchestration(
    project_id: str,
    command: StartRun,
    by: Caller,
    log: EventLog,
    clock: Clock,
    repositories: Repositories,
    agents: Agents,
    *,
    pinned_model: str | None = None,
    rests_on: Mapping[str, int] = NOTHING,
    answer: Callable[[Sequence[Draft]], Answer] | None = None,
) -> Sequence[Fact]:
    """
    Store a coordinator run that starts at the tip of the branch it names, else of the project's default branch.

    *rests_on* are the versions of what else the caller has read to come to this.

    Raises:
        ConcurrencyConflict: something of that has moved, or the run is there already.
        ProjectNotFound, NoTeam, Invalid, InvalidPlan: see the decision.
        UnknownBranch: the branch that it names is not there, or is a run's own.
        DeliveryUnsupported, BranchExists: the work cannot go where it is to go.
        UnknownModel: no agent answers to a model id that is asked for.
        WorkspaceUnavailable: the repository is missing or broken.
        PolicyUnreadable: its settings cannot be understood, so nobody knows what its agents may do.
    """
    project = load_project(project_id, log)
    if not project.team:
        raise NoTeam
    models = _models(project, agents, pinned_model)
    repository = Path(str(project.working_directory))
    tip = looked(lambda: _tip(repositories, repository, command.base_branch, project.default_branch))
    policy = looked(lambda: read_policy(repositories, repository))
    delivery = command.delivery or project.delivery
    if delivery is not None:
        check_delivery(delivery)
        looked(lambda: _check_free(repositories, repository, delivery))
    command = msgspec.structs.replace(command, model_pinned=pinned_model is not None)
    started = start_run(command, project, tip, str(project.working_directory), models, policy)
    drafts = with_topology(CoordinatorRun(run_id=command.run_id), started)
    expected = {**rests_on, **{draft.stream: 0 for draft in drafts}}
    return log.append(by.append(drafts, expected, clock.now(), answer(drafts) if answer else None))


def _check_free(repositories: Repositories, repository: Path, delivery: Delivery) -> None:
    if delivery.branch is None:
        return
    try:
        repositories.tip(repository, delivery.branch)
    except RepositoryUnusable as unusable:
        if unusable.code != "no_commit":
            raise
        return
    raise BranchExists(f"The repository has a branch {delivery.branch!r} already. Name another one to deliver onto.")


def _tip(repositories: Repositories, repository: Path, branch: str | None, default: str) -> Commit:
    if branch is None:
        return repositories.tip(repository, default)
    if not may_be_begun_from(branch):
        raise UnknownBranch(f"No run can begin from a branch of the name {branch!r}.")
    try:
        return repositories.tip(repository, branch)
    except RepositoryUnusable as unusable:
        if unusable.code != "no_commit":
            raise
        raise UnknownBranch(f"The repository has no branch {branch!r}.") from unusable


def run_model(project: Project, agents: Agents, pinned: str | None) -> str:
    """Return the full model id of a run: the caller's, else the project's, else the installation's default."""
    wanted = pinned or project.default_model_github_copilot or project.default_model_microsoft_foundry
    return resolved(wanted, agents)


def _models(project: Project, agents: Agents, pinned: str | None) -> Mapping[str, str]:
    default = run_model(project, agents, pinned)
    return {
        member.name: resolved(member.model_id, agents) if member.model_id and not pinned else default
        for member in project.team
    }


def resolved(wanted: str | None, agents: Agents) -> str:
    """Return the full model id for what was asked for (None: the default). Raises UnknownModel."""
    found = agents.resolve(wanted)
    if found is None:
        known = ", ".join(agent.name for agent in agents.known())
        raise UnknownModel(f"No agent answers to {wanted!r}. Known agents: {known}; write `agent` or `agent/model`.")
    return found
