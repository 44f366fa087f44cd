"""The sandbox policy of a project, by the path of its repository."""

from pathlib import Path
from posixpath import normpath
from typing import Annotated, Any

import msgspec
from litestar import Request, get, put
from litestar.params import JSONBody, QueryParameter
from msgspec import Meta

from ...application.looking.look import looked
from ...application.looking.sandbox_policy import read_policy, replace_policy
from ...domain.facts.sandbox import MAX_PATTERNS, MAX_ROOTS, SandboxPolicy, is_absolute
from ...domain.rejected import Forbidden, Invalid, ProjectNotFound
from ...projections import project_view
from ..request.problems import refusals
from ..request.reading import MAX_PAGE, NotReached, Reads, only_once

PATH = "Absolute path of the repository of one of your projects."


class SandboxPolicyBody(SandboxPolicy, frozen=True, kw_only=True):
    """The policy that holds for runs which start from now on."""

    repository_path: str


class SandboxPolicyRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The whole policy; nothing of the one before is kept."""

    repository_path: Annotated[str, Meta(min_length=1, max_length=4096, description=PATH)]
    shell_enabled: bool
    allowed_repository_roots: Annotated[list[str], Meta(max_length=MAX_ROOTS)]
    destructive_command_patterns: Annotated[list[str], Meta(max_length=MAX_PATTERNS)]
    require_approval_for_all_shell: bool
    redact_pii: bool
    max_output_bytes: Annotated[int, Meta(ge=1, le=2**53)]


class InvalidRepositoryPath(Invalid):
    """`repository_path` must be the absolute path of a repository. Give it once."""

    code = "invalid_repository_path"


class SharedRepository(Forbidden):
    """The policy holds for other projects with this repository, too, in which you may change nothing. Ask their owners."""


@get("/api/sandbox-policy", sync_to_thread=True, responses=refusals(404, 409))
def show_sandbox_policy(
    request: Request[Any, Any, Any],
    reading: Reads,
    repository_path: Annotated[str | None, QueryParameter(description=PATH)] = None,
) -> SandboxPolicyBody:
    """Return a repository's policy, or the default one where its settings say nothing."""
    only_once(request, "repository_path")
    repository = _repository(reading, repository_path, change=False)
    return _body(repository, looked(lambda: read_policy(reading.services.repositories, Path(repository))))


@put("/api/sandbox-policy", sync_to_thread=True, responses=refusals(403, 404, 409, 413))
def put_sandbox_policy(data: JSONBody[SandboxPolicyRequest], reading: Reads) -> SandboxPolicyBody:
    """
    Replace a repository's policy, in its settings file: commit that file to keep a history of it.

    It holds for every project that is registered with this repository, so the caller must be one who may change them.
    """
    repository = _repository(reading, data.repository_path, change=True)
    _refuse_for_others(reading, repository)
    policy = SandboxPolicy(
        shell_enabled=data.shell_enabled,
        allowed_repository_roots=tuple(data.allowed_repository_roots),
        destructive_command_patterns=tuple(data.destructive_command_patterns),
        require_approval_for_all_shell=data.require_approval_for_all_shell,
        redact_pii=data.redact_pii,
        max_output_bytes=data.max_output_bytes,
    )
    return _body(repository, looked(lambda: replace_policy(reading.services.repositories, Path(repository), policy)))


def _body(repository: str, policy: SandboxPolicy) -> SandboxPolicyBody:
    return SandboxPolicyBody(repository_path=repository, **msgspec.structs.asdict(policy))


def _repository(reading: Reads, given: str | None, *, change: bool) -> str:
    """Return the repository as its project has it. Raises InvalidRepositoryPath, ProjectNotFound, Forbidden."""
    if given is None or not is_absolute(given):
        raise InvalidRepositoryPath
    group = project_view.user_group(reading.principal.user)
    for _, role in reading.rows(project_view.ROLES_VIEW, group, limit=MAX_PAGE):
        row = reading.row(project_view.VIEW, role.project_id)
        if row is not None and row.working_directory == (repository := normpath(given)):
            # By the log: a role that was taken away a moment ago counts no more.
            reading.access.project(reading.principal, role.project_id, change=change)
            return repository
    raise ProjectNotFound("You have no project with this repository.")


def _refuse_for_others(reading: Reads, repository: str) -> None:
    """Return if the caller may change every project that has this repository. Raises SharedRepository, NotReached."""
    views, head = reading.services.views, reading.services.log.head()
    # A project that was registered a moment ago counts, and the log has no list of them.
    if not views.wait(project_view.VIEW.name, head, reading.services.settings.min_position_seconds):
        raise NotReached(expected=head, actual=views.position(project_view.VIEW.name))
    for group in (project_view.ACTIVE, project_view.DELETING):
        before: int | None = None
        while rows := reading.rows(project_view.VIEW, group, before=before):
            for _, row in rows:
                if row.working_directory == repository and not _may_change(reading, row.project_id):
                    raise SharedRepository
            before = rows[-1][0]


def _may_change(reading: Reads, project_id: str) -> bool:
    try:
        reading.access.project(reading.principal, project_id, change=True)
    except (Forbidden, ProjectNotFound):
        return False
    return True
