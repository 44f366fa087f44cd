"""The files of a run's assembled work: what it changes, and what conflicted in it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from litestar import Request, get
from litestar.params import FromPath

from ...application.looking.look import looked
from ...application.ports.git import ChangedFile, FileView
from ..request.one_run import UseCoordinator, run_row
from ..request.problems import refusals
from ..request.reading import Reads
from ..request.repository_paths import FileNotFound, checked_path

FILES = "/assembly/files"


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


def compared(reading: Reads, run_id: str) -> tuple[Path, str, str] | None:
    """Return the repository and the two commits between which the assembled work lies, None before it is there."""
    row = run_row(reading, run_id, hides=True)
    if row.parent_run_id is not None:
        raise UseCoordinator(coordinator_run_id=row.kept.root)
    kept = row.kept
    if kept.base is None or kept.head is None or kept.repository_path is None:
        return None
    return Path(kept.repository_path), kept.base.commit, kept.head.commit
