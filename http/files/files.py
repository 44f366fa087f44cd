"""The files that a run works on: its worktree as it is now, and what it has changed, without a look outside of it."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

from litestar import Request, Response, get
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import FromPath, QueryParameter

from ...application.looking.look import looked
from ...application.ports.git import ChangedFile, FileView, TreeEntry, WorktreeBusy, WorktreeGone
from ...domain.rejected import NotFound, Rejected
from ...projections.run_detail import RunDetail
from ..request.one_run import run_row
from ..request.problems import refusals
from ..request.reading import Reads, only_once
from ..request.repository_paths import FileNotFound, checked_path
from .assembly_files import compared

T = TypeVar("T")

#: The statuses of a run that has ended; its worktree may be gone by then.
ENDED = frozenset({"completed", "declined", "merge_failed", "failed", "assemble_ready", "merged"})
#: A larger file is not sent whole.
MAX_CONTENT_BYTES = 32 * 1024 * 1024

Filter: TypeAlias = Annotated[
    Literal["all", "committed", "uncommitted", "last-commit"],
    QueryParameter(name="filter", description="Which changes: `all` are those committed and those not yet."),
]


class WorktreeNotFound(NotFound):
    """This run has no worktree any more. What it made is shown by …/files and, once assembled, by …/assembly/files."""

    code = "worktree_not_found"


class WorktreeNotReady(Rejected):
    """This run's worktree does not exist yet, or its files are changing too fast to be shown. Ask again."""

    code = "worktree_not_ready"
    retryable = True


class FileTooLarge(Rejected):
    """The file is too large to be sent whole. GET …/assembly/files/{path} shows its beginning."""

    code = "file_too_large"


@get("/api/runs/{run_id:str}/workspace", sync_to_thread=True, responses=refusals(403, 404, 409))
def show_workspace(run_id: FromPath[str], reading: Reads) -> Sequence[TreeEntry]:
    """List every folder and file of a run's worktree, each with how it differs from where the run began."""
    row = run_row(reading, run_id)
    if row.status == "pending":
        return []
    worktree, base = _worktree(row), row.kept.base
    gone = WorktreeNotFound if row.status in ENDED else WorktreeNotReady
    if worktree is None or base is None:
        raise gone
    try:
        return looked_now(lambda: reading.services.repositories.tree(_repository(row), base.commit, worktree))
    except WorktreeGone:
        raise gone from None


@get("/api/runs/{run_id:str}/files", sync_to_thread=True, responses=refusals(403, 404, 409))
def list_changed_files(
    request: Request[Any, Any, Any], run_id: FromPath[str], reading: Reads, filter: Filter = "all"
) -> Sequence[ChangedFile]:
    """List the files that a child run has changed; of a coordinator none: …/assembly/files has what it assembled."""
    only_once(request, "filter")
    row = run_row(reading, run_id)
    kept, worktree, repositories = row.kept, _worktree(row), reading.services.repositories
    if row.parent_run_id is None or kept.base is None or worktree is None:
        return []
    repository, base, head = _repository(row), kept.base.commit, (kept.head or kept.base).commit

    def listed() -> Sequence[ChangedFile]:
        if filter == "last-commit":
            before = repositories.parent(repository, head) if head != base else None
            return repositories.changed_files(repository, before, head) if before else []
        if filter != "committed":
            try:
                return repositories.changed_files(repository, base if filter == "all" else head, worktree)
            except WorktreeGone:
                # All that is left of it is what was committed.
                if filter == "uncommitted":
                    return []
        return repositories.changed_files(repository, base, head)

    return looked_now(listed)


@get("/api/runs/{run_id:str}/files/{path:path}", sync_to_thread=True, responses=refusals(403, 404, 409))
def show_changed_file(
    request: Request[Any, Any, Any], run_id: FromPath[str], path: FromPath[Path], reading: Reads
) -> FileView:
    """Return one file of a child run: how it differs from where the run began, and its content."""
    wanted = wanted_path(request, path, "/files")
    row = run_row(reading, run_id)
    kept, worktree, repositories = row.kept, _worktree(row), reading.services.repositories
    if row.parent_run_id is None or kept.base is None or worktree is None:
        raise FileNotFound
    repository, base, head = _repository(row), kept.base.commit, (kept.head or kept.base).commit

    def found() -> FileView | None:
        try:
            return repositories.file(repository, base, worktree, wanted)
        except WorktreeGone:
            return repositories.file(repository, base, head, wanted)

    file = looked_now(found)
    if file is None:
        raise FileNotFound
    return file


@get("/api/runs/{run_id:str}/assembly/workspace", sync_to_thread=True, responses=refusals(404, 409))
def show_assembly(run_id: FromPath[str], reading: Reads) -> Sequence[TreeEntry]:
    """List every folder and file of the assembled work; empty before there is an assembly."""
    place = compared(reading, run_id)
    return [] if place is None else looked_now(lambda: reading.services.repositories.tree(*place))


@get(
    "/api/runs/{run_id:str}/assembly/content/{path:path}",
    sync_to_thread=True,
    media_type="application/octet-stream",
    responses={
        200: ResponseSpec(
            bytes, description="The file's bytes", media_type="application/octet-stream", generate_examples=False
        )
    }
    | refusals(404, 409),
)
def show_content(
    request: Request[Any, Any, Any], run_id: FromPath[str], path: FromPath[Path], reading: Reads
) -> Response[bytes]:
    """Return a file of the assembled work as it is; of a symbolic link, its target."""
    wanted = wanted_path(request, path, "/assembly/content")
    place = compared(reading, run_id)
    if place is None:
        raise FileNotFound
    repository, _, head = place
    found = looked_now(lambda: reading.services.repositories.content(repository, head, wanted))
    if found is None:
        raise FileNotFound
    return raw(found)


def raw(content: bytes) -> Response[bytes]:
    """Return a file's bytes as an answer that no browser takes for a page. Raises FileTooLarge."""
    if len(content) > MAX_CONTENT_BYTES:
        raise FileTooLarge(limit_bytes=MAX_CONTENT_BYTES, size_bytes=len(content))
    headers = {"X-Content-Type-Options": "nosniff", "Content-Disposition": "attachment"}
    return Response(content, media_type="application/octet-stream", headers=headers)


def wanted_path(request: Request[Any, Any, Any], path: Path, below: str) -> str:
    """Return the path as it was sent: *path* was cleaned of dots already, so that it may name what nobody asked for."""
    return checked_path(request.scope["path"].partition(f"{below}/")[2] or path.as_posix())


def looked_now(look: Callable[[], T]) -> T:
    """Return what a look into a repository gives. Raises WorktreeNotReady, WorkspaceUnavailable."""
    try:
        return looked(look)
    except WorktreeBusy as busy:
        raise WorktreeNotReady from busy


def _worktree(row: RunDetail) -> Path | None:
    return Path(row.worktree_path) if row.worktree_path else None


def _repository(row: RunDetail) -> Path:
    return Path(row.kept.repository_path or "")
