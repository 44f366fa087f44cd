"""The assembled work of a coordinator run: its files, and the human gate over them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
from litestar import Request, Response, get, post
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import FromPath, JSONBody
from msgspec import Meta

from ..application.git_port import ChangedFile, FileView
from ..application.look import looked
from ..application.review_assembly import review_assembly
from ..application.steer import request_changes
from ..domain.event import Draft, Fact
from ..domain.gate_signals import RequestChanges
from ..domain.rejected import Invalid, NotFound, Rejected
from ..domain.review import ReviewAssembly
from ..domain.run import Run
from .approved_again import approve_once
from .decided import telling_the_winner
from .etags import IfMatch, check
from .idempotency import Asking, Asks, Command, directive_id
from .problems import refusals
from .reading import Reads
from .runs import run_row

FILES = "/assembly/files"
MAX_TARGET_FILES = 1_000
MAX_PATH_CHARACTERS = 4_096


DEFERRED = "The decision is on the log; the process that drives the run takes it from there."


class ReviewRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A decision about the assembled work."""

    approved: bool
    request_changes: bool = False
    feedback: Annotated[str, Meta(description="At most 16384 bytes.")] | None = None
    target_files: (
        Annotated[list[Annotated[str, Meta(max_length=MAX_PATH_CHARACTERS)]], Meta(max_length=MAX_TARGET_FILES)] | None
    ) = None
    tree_hash: Annotated[str, Meta(max_length=128, description="The tree that was reviewed.")] | None = None


class ReviewedBody(msgspec.Struct, frozen=True, kw_only=True):
    """The decision is stored. It is deferred where another process drives the run, and takes it from the log."""

    runId: str
    accepted: bool = True
    deferred: bool = False
    message: str | msgspec.UnsetType = msgspec.UNSET


class ConflictBody(msgspec.Struct, frozen=True, kw_only=True):
    """Two sides changed this file in the same places: the version of `branch` stands, the other is kept at `ref`."""

    branch: str
    ref: str


class AssembledFile(ChangedFile, frozen=True, kw_only=True):
    """A file of the assembled work. `status` is `unchanged` for one that conflicted and is as it was before the run."""

    conflicts: tuple[ConflictBody, ...] = ()


class AssembledFileView(FileView, frozen=True, kw_only=True):
    """One file of the assembled work."""

    conflicts: tuple[ConflictBody, ...] = ()


class UseCoordinator(Rejected):
    """This is a child run. The assembly, and the decision about it, belong to its coordinator."""

    code = "use_coordinator"


class FileNotFound(NotFound):
    """Neither side of the comparison has this file. GET …/assembly/files lists the files."""

    code = "file_not_found"


class InvalidPath(Invalid):
    """The path must be relative to the repository, without empty, `.`, `..` or `.git` parts."""

    code = "invalid_path"


@get("/api/runs/{run_id:str}/assembly/files", sync_to_thread=True, responses=refusals(404, 409))
def list_files(run_id: FromPath[str], reading: Reads) -> Sequence[AssembledFile]:
    """List the files that the assembled work changes, or that conflicted in it; empty before there is an assembly."""
    place = compared(reading, run_id)
    if place is None:
        return []
    changed = looked(lambda: reading.services.repositories.changed_files(*place))
    conflicts = _conflicts(reading, run_id)
    files = {
        file.path: AssembledFile(**msgspec.structs.asdict(file), conflicts=conflicts.pop(file.path, ()))
        for file in changed
    }
    files |= {
        path: AssembledFile(path=path, status="unchanged", added_lines=0, removed_lines=0, conflicts=found)
        for path, found in conflicts.items()
    }
    return [files[path] for path in sorted(files)]


@get("/api/runs/{run_id:str}/assembly/files/{path:path}", sync_to_thread=True, responses=refusals(404, 409))
def show_file(
    request: Request[Any, Any, Any], run_id: FromPath[str], path: FromPath[Path], reading: Reads
) -> AssembledFileView:
    """Return one file of the assembled work: how it differs from the originating branch, and its content."""
    # As it was sent: *path* has been cleaned of dots already, so that it may name what nobody asked for.
    wanted = checked_path(request.scope["path"].partition(FILES)[2] or path.as_posix())
    place = compared(reading, run_id)
    if place is None:
        raise FileNotFound
    found = looked(lambda: reading.services.repositories.file(*place, wanted))
    if found is None:
        raise FileNotFound
    return AssembledFileView(**msgspec.structs.asdict(found), conflicts=_conflicts(reading, run_id).get(wanted, ()))


def _conflicts(reading: Reads, run_id: str) -> dict[str, tuple[ConflictBody, ...]]:
    by_path: dict[str, tuple[ConflictBody, ...]] = {}
    for conflict in run_row(reading, run_id, hides=True).conflicts:
        for path in conflict.paths:
            by_path[path] = (*by_path.get(path, ()), ConflictBody(branch=conflict.branch, ref=conflict.ref))
    return by_path


@post(
    "/api/runs/{run_id:str}/assembly/review",
    status_code=200,
    sync_to_thread=True,
    responses={
        200: ResponseSpec(ReviewedBody, description="The decision is stored", generate_examples=False),
        202: ResponseSpec(
            ReviewedBody, description="It is stored; another process acts on it", generate_examples=False
        ),
    }
    | refusals(403, 404, 409, 412, 413, 422),
)
def review_run(
    run_id: FromPath[str], data: JSONBody[ReviewRequest], asking: Asks, if_match: IfMatch = None
) -> Response[bytes]:
    """Approve the assembled work, which merges it, or decline it. The first decision wins."""
    place = asking.access.run(asking.principal, run_id, change=True)
    if not place.is_coordinator:
        raise UseCoordinator(coordinator_run_id=place.root)
    if data.approved and data.request_changes:
        raise Invalid("Send either `approved` or `request_changes`, not both.")

    services = asking.services

    def carry_out(command: Command, tree: str | None = None) -> Sequence[Fact]:
        # Whoever approves the same tree again has met their precondition when they did so first.
        wanted = if_match if tree is None else None

        def told(run: Run, _: Sequence[Draft]) -> Any:
            # Here, under the fold that is decided on, so that nothing can come between the look and the append.
            check(wanted, run)
            if services.tenure.holds(place.run_id):
                return command.tell(200, ReviewedBody(runId=place.run_id))
            return command.tell(202, ReviewedBody(runId=place.run_id, accepted=False, deferred=True, message=DEFERRED))

        check(wanted, services.runs.run(place.run_id))
        store = (command.by, services.runs, services.repositories, told)
        if data.request_changes:
            return request_changes(place.run_id, changes(data, asking), *store)
        return review_assembly(place.run_id, decision(data, asking, tree), *store)

    with telling_the_winner(services, place.run_id):
        return approve_once(asking, place.run_id, carry_out) if data.approved else asking.once(carry_out)


def decision(data: ReviewRequest, asking: Asking, tree: str | None) -> ReviewAssembly:
    """Return the decision that is asked for: about this tree, if one is given, else about the one that the body names."""
    return ReviewAssembly(
        approved=data.approved,
        reviewer=asking.principal.user,
        feedback=data.feedback or "",
        tree_hash=tree or data.tree_hash,
    )


def changes(data: ReviewRequest, asking: Asking) -> RequestChanges:
    """Return the request for changes that is asked for."""
    return RequestChanges(
        directive_id=directive_id(),
        feedback=data.feedback or "",
        reviewer=asking.principal.user,
        target_files=tuple(data.target_files or ()),
        tree_hash=data.tree_hash,
    )


def checked_path(given: str) -> str:
    """Return a path parameter as a path within a repository. Raises InvalidPath."""
    path = given.removeprefix("/")
    strange = any(part in ("", ".", "..") or part.lower() == ".git" for part in path.split("/"))
    if strange or "\0" in path or len(path) > MAX_PATH_CHARACTERS:
        raise InvalidPath
    return path


def compared(reading: Reads, run_id: str) -> tuple[Path, str, str] | None:
    """Return the repository and the two commits between which the assembled work lies, None before it is there."""
    row = run_row(reading, run_id, hides=True)
    if row.parent_run_id is not None:
        raise UseCoordinator(coordinator_run_id=row.kept.root)
    kept = row.kept
    if kept.base is None or kept.head is None or kept.repository_path is None:
        return None
    return Path(kept.repository_path), kept.base.commit, kept.head.commit
