"""The files of a project, as a branch of its repository has them: its checkout is not looked at."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import msgspec
from litestar import Request, get
from litestar.params import FromPath, QueryParameter

from ...application.looking.look import looked
from ...application.ports.git import Branch, FileView, TreeEntry
from ...domain.git import RUN_BRANCHES
from ...domain.rejected import NotFound, RunNotFound
from ..request.access import Access, is_uuid
from ..request.problems import refusals
from ..request.reading import Reads, only_once
from ..request.repository_paths import FileNotFound
from .files import wanted_path

Ref: TypeAlias = Annotated[
    str | None,
    QueryParameter(min_length=1, max_length=1000, description="A branch; the project's own, if none is named."),
]


class RefNotFound(NotFound):
    """The repository has no such branch. GET …/workspace/refs lists those that it has."""

    code = "ref_not_found"


class RefBody(msgspec.Struct, frozen=True, kw_only=True):
    """A branch."""

    name: str
    commit: str
    is_default: bool


@get("/api/projects/{project_id:str}/workspace/refs", sync_to_thread=True, responses=refusals(404, 409))
def list_workspace_refs(project_id: FromPath[str], reading: Reads) -> Sequence[RefBody]:
    """List the repository's branches, without those that runs of other projects work on in the same repository."""
    _, default, branches = _place(reading, project_id)
    return [RefBody(name=b.name, commit=b.commit, is_default=b.name == default) for b in branches]


@get("/api/projects/{project_id:str}/workspace", sync_to_thread=True, responses=refusals(404, 409))
def list_workspace(
    request: Request[Any, Any, Any], project_id: FromPath[str], reading: Reads, ref: Ref = None
) -> Sequence[TreeEntry]:
    """List every folder and file of a branch."""
    only_once(request, "ref")
    repository, commit = _commit(reading, project_id, ref)
    return looked(lambda: reading.services.repositories.tree(repository, commit, commit))


@get("/api/projects/{project_id:str}/workspace/files/{path:path}", sync_to_thread=True, responses=refusals(404, 409))
def show_workspace_file(
    request: Request[Any, Any, Any], project_id: FromPath[str], path: FromPath[Path], reading: Reads, ref: Ref = None
) -> FileView:
    """Return one file of a branch."""
    only_once(request, "ref")
    wanted = wanted_path(request, path, "/workspace/files")
    repository, commit = _commit(reading, project_id, ref)
    file = looked(lambda: reading.services.repositories.file(repository, commit, commit, wanted))
    if file is None:
        raise FileNotFound
    return file


def _commit(reading: Reads, project_id: str, ref: str | None) -> tuple[Path, str]:
    repository, default, branches = _place(reading, project_id)
    # Only a name from the list: what a client sends never becomes the name of a file.
    found = next((branch for branch in branches if branch.name == (ref or default)), None)
    if found is None:
        raise RefNotFound
    return repository, found.commit


def _place(reading: Reads, project_id: str) -> tuple[Path, str, Sequence[Branch]]:
    reading.await_log()
    project = reading.access.project(reading.principal, project_id)
    repository = Path(str(project.working_directory))
    branches = looked(lambda: reading.services.repositories.branches(repository))
    shown = [branch for branch in branches if _is_shown(reading.access, project_id, branch.name)]
    return repository, project.default_branch, shown


def _is_shown(access: Access, project_id: str, branch: str) -> bool:
    """Return whether the branch is a person's, or that of a run of this project: others work in this directory, too."""
    if not branch.startswith(RUN_BRANCHES):
        return True
    run_id = next((part for part in branch.split("/") if is_uuid(part)), None)
    if run_id is None:
        return True
    try:
        return access.place(run_id).project_id == project_id
    except RunNotFound:
        return False
