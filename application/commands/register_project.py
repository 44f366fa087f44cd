"""Register a repository as a project, and build its team."""

from collections.abc import Callable, Sequence
from pathlib import Path

from ...domain.event import Draft, Fact
from ...domain.git import RUN_BRANCHES
from ...domain.projects.project import (
    AddMember,
    CreateProject,
    add_member,
    create_project,
)
from ...domain.rejected import Busy, Invalid, Rejected
from ..looking.look import looked
from ..ports.git import Repositories, RepositoryState, RepositoryUnusable
from ..ports.log import ConcurrencyConflict, EventLog
from ..ports.outside import Clock
from ..writer.caller import Answer, Caller
from ..writer.projects import load_project
from ..writer.run_log import MAX_ATTEMPTS


class ProjectExists(Rejected):
    """You have registered this repository under this name already. Use that project, or choose another name."""

    code = "project_exists"


class UnusableDirectory(Invalid):
    """The working directory cannot serve as a repository."""

    code = "working_directory_unusable"


def register_project(
    command: CreateProject,
    by: Caller,
    log: EventLog,
    clock: Clock,
    repositories: Repositories,
    answer: Callable[[Draft], Answer] | None = None,
    known_as: Callable[[str, str], str | None] = lambda name, path: None,
) -> Sequence[Fact]:
    """
    Store the project; its default branch is the one that is checked out now.

    Raises:
        Invalid: a bad name.
        ProjectExists: *known_as* names a project of the same owner with this name and repository.
        UnusableDirectory: not an absolute path, missing, no repository, bare, without a commit, or a run's own.
    """
    path = Path(command.working_directory)
    if not path.is_absolute() or "\0" in command.working_directory:
        raise UnusableDirectory("`working_directory` must be an absolute path.")
    state = looked(lambda: _inspected(path, repositories))
    if state.branch.startswith(RUN_BRANCHES):
        # Whoever could begin from here would be shown what the agents of somebody else's run have made.
        raise UnusableDirectory(f"A run works on the branch {state.branch!r} that is checked out there.")
    fields = {name: getattr(command, name) for name in CreateProject.__struct_fields__}
    fields |= {"default_branch": state.branch, "working_directory": str(state.path)}
    draft = create_project(CreateProject(**fields))
    if (there := known_as(command.name, str(state.path))) is not None:
        raise ProjectExists(project_id=there)
    return log.append(by.append((draft,), {draft.stream: 0}, clock.now(), answer(draft) if answer else None))


def _inspected(path: Path, repositories: Repositories) -> RepositoryState:
    try:
        return repositories.inspect(path)
    except RepositoryUnusable as unusable:
        raise UnusableDirectory(str(unusable), reason=unusable.code) from unusable
    except (OSError, ValueError) as error:
        # What a file system says about a name that is too long, or about a directory that is closed to us.
        raise UnusableDirectory(f"`working_directory` cannot be looked at: {error}") from error


def join_team(
    project_id: str,
    command: AddMember,
    by: Caller,
    log: EventLog,
    clock: Clock,
    answer: Callable[[Draft], Answer] | None = None,
) -> Sequence[Fact]:
    """Add the member to the team. Raises ProjectNotFound, Invalid, MemberExists, TeamFull, Busy."""
    for _ in range(MAX_ATTEMPTS):
        project = load_project(project_id, log)
        draft = add_member(project, command)
        told = answer(draft) if answer else None
        append = by.append((draft,), {draft.stream: project.version}, clock.now(), told)
        try:
            return log.append(append)
        except ConcurrencyConflict:
            continue
    raise Busy
