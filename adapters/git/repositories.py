"""The port `Repositories` on git's own files, without a git: each call opens the repository for itself, in any thread."""

import os
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from dulwich.errors import NotGitRepository
from dulwich.file import FileLocked
from dulwich.filters import FilterError
from dulwich.objects import ObjectID
from dulwich.refs import Ref
from dulwich.repo import Repo, UnsupportedExtension, UnsupportedVersion

from ...application.git_port import (
    Branch,
    ChangedFile,
    CommitFailed,
    Contribution,
    FileView,
    GitConflict,
    Integrated,
    MergeOutcome,
    PathConflict,
    RepositoryState,
    RepositoryUnusable,
    TreeEntry,
)
from ...domain.git import Commit
from ...domain.workers import Fingerprint
from .. import settings_file
from ..workspace_hash import workspace_hash
from . import commits as git_commits
from . import diff as git_diff
from . import workspace as git_workspace
from . import worktrees as git_worktrees
from .checkout import ForbiddenPath
from .faults import typed_faults
from .landing import Landing, land, obstacle
from .merge import is_ancestor, merge_bases, merge_commits
from .objects import Objects, new_commit
from .refs import CONFLICTS, HEADS, MayMove, always, branch_ref, delete_ref, read_ref, swap_ref

T = TypeVar("T")


def hexadecimal(name: str) -> ObjectID:
    """Return a commit's name as the library wants it."""
    return ObjectID(name.encode())


@contextmanager
def opened(path: Path) -> Generator[Repo]:
    """Open a repository for one call. Raises RepositoryUnusable."""
    try:
        repo = Repo(os.path.realpath(path))
        if not os.path.isdir(os.path.join(repo.commondir(), "objects")):
            raise NotGitRepository(repo.commondir())
    except (UnsupportedVersion, UnsupportedExtension) as error:
        raise RepositoryUnusable("unsupported_repository", f"{path} needs a newer git format: {error}") from error
    except (NotGitRepository, OSError, ValueError) as error:
        # ValueError: `.git` or its configuration is no such file.
        code = "not_a_repository" if path.is_dir() else "workspace_missing"
        raise RepositoryUnusable(code, f"{path} is not the top of a git repository") from error
    with repo:
        yield repo


@typed_faults
class GitRepositories:
    """
    Git, through dulwich. It holds nothing between calls and may be shared by threads and repeated after a crash.

    *may_move* is asked last before a branch moves or a worktree's files are written or removed, each time anew after
    a lock was waited for, and raises where somebody else may be at work on them by now. What was begun then stays as
    after a crash; a checkout of the user's follows its branch to the end, under git's lock.
    """

    def __init__(self, may_move: MayMove = always) -> None:
        self._may_move = may_move

    def inspect(self, path: Path) -> RepositoryState:
        """Return the repository's state. Raises RepositoryUnusable."""
        if not path.is_dir():
            raise RepositoryUnusable("workspace_missing", f"{path} is not a directory")
        with opened(path) as repo:
            if repo.bare:
                raise RepositoryUnusable("bare_repository", f"{path} is bare: it has no files to work on")
            if repo.object_format.name != "sha1" or not hasattr(repo.refs, "read_loose_ref"):
                raise RepositoryUnusable("unsupported_repository", f"{path} does not use SHA-1 and files for refs")
            ref = self._checked_out(repo, path)
            tip = read_ref(repo, ref)
            if tip is None:
                code = "unborn_branch" if repo.get_refs() else "no_commit"
                raise RepositoryUnusable(code, f"{path} has no commit on {ref.decode(errors='replace')}")
            return RepositoryState(
                path=Path(os.path.realpath(repo.path)),
                branch=ref.removeprefix(HEADS).decode(errors="surrogateescape"),
                tip=Commit(commit=tip.decode(), tree=Objects(repo).tree_of(tip).decode()),
            )

    def tip(self, repository: Path, branch: str) -> Commit:
        """Return a branch's tip. Raises RepositoryUnusable (workspace_missing, not_a_repository, no_commit)."""
        with opened(repository) as repo:
            tip = read_ref(repo, branch_ref(branch))
            if tip is None:
                raise RepositoryUnusable("no_commit", f"{repository} has no branch {branch}")
            return Commit(commit=tip.decode(), tree=Objects(repo).tree_of(tip).decode())

    def obstacle(self, repository: Path, branch: str) -> str | None:
        """Return why a merge into *branch* would be blocked now, looking only; None if nothing stands in the way."""
        with opened(repository) as repo:
            return obstacle(repo, branch_ref(branch))

    def _checked_out(self, repo: Repo, path: Path) -> Ref:
        content = repo.refs.read_ref(Ref(b"HEAD")) or b""
        if not content.startswith(b"ref: " + HEADS):
            raise RepositoryUnusable("detached_head", f"{path} has no branch checked out")
        return Ref(content.removeprefix(b"ref: ").strip())

    def ensure_worktree(self, repository: Path, worktree: Path, branch: str, base: str) -> None:
        """
        Make *branch* (at *base* if it is new) and a worktree that has it checked out, or find both as they are.

        A worktree whose admin entry was pruned is taken back with its files. Raises GitConflict if something else
        is at its path.
        """
        with opened(repository) as repo:
            git_worktrees.ensure(repo, worktree, branch, hexadecimal(base), self._may_move)

    def commit_worktree(
        self, repository: Path, worktree: Path, branch: str, parent: str, at: datetime, message: str
    ) -> Commit:
        """
        Commit everything that is changed in the worktree on top of *parent* and move *branch* to it.

        Where the agent committed by itself, or moved the branch, its files are what counts: they become the one
        commit on *parent*, and the branch moves from wherever the agent left it. If a commit of ours of the same time
        and message stands on *parent* there already, that is this call, cut short, and what it made is returned.
        Another one is somebody who came first (GitConflict). A branch that the agent switched to is never moved; the
        worktree is back on *branch* afterwards.

        Submodules stay at the commit that is recorded. Of a repository that the agent made or cloned below, and did
        not register as a submodule, the files are committed.
        """
        try:
            with opened(repository) as repo:
                found = git_worktrees.find_worktree(repo, worktree)
                if found is None or not os.path.isdir(found.root):
                    raise CommitFailed(f"{worktree} is no worktree of {repository}")
                return git_commits.commit(found, branch_ref(branch), hexadecimal(parent), at, message, self._may_move)
        except (OSError, ForbiddenPath, FilterError, FileLocked, KeyError) as error:
            raise CommitFailed(f"{worktree} could not be committed: {error}") from error

    def reset_worktree(self, repository: Path, worktree: Path, branch: str, commit: str) -> None:
        """Put branch and files back to *commit*; whatever else is in the worktree, ignored files too, is gone."""
        with opened(repository) as repo:
            ref = branch_ref(branch)
            if not swap_ref(repo, ref, read_ref(repo, ref), hexadecimal(commit), may_move=self._may_move):
                raise GitConflict(f"{branch} moved meanwhile")
            git_worktrees.ensure(repo, worktree, branch, hexadecimal(commit), self._may_move)
            found = git_worktrees.find_worktree(repo, worktree)
            if found is not None:
                git_worktrees.reset(found, ref, self._may_move)

    def fingerprint(self, repository: Path, worktree: Path) -> Fingerprint:
        """Return the tree that a commit would have now, and a digest over every file; both empty without a worktree."""
        with opened(repository) as repo:
            found = git_worktrees.find_worktree(repo, worktree)
            if found is None or not os.path.isdir(found.root):
                return Fingerprint(tree_hash="", workspace_hash="")
            return Fingerprint(tree_hash=git_commits.tree_now(found), workspace_hash=workspace_hash(worktree))

    def remove_worktree(self, repository: Path, worktree: Path, branch: str | None) -> None:
        """Remove the worktree, its admin entry and, if named, its branch. Absent ones, the repository too, are no fault."""
        if Path(os.path.realpath(repository)).is_relative_to(os.path.realpath(worktree)):
            raise GitConflict(f"{worktree} holds the repository itself")
        try:
            with opened(repository) as repo:
                git_worktrees.remove(repo, worktree, branch, self._may_move)
        except RepositoryUnusable:
            git_worktrees.remove_directory(worktree, self._may_move, is_ours=False)

    def integrate(
        self,
        repository: Path,
        run_id: str,
        base: str,
        contributions: Sequence[Contribution],
        at: datetime,
        message: str,
    ) -> Integrated:
        """
        Merge the contributions onto *base* in the given order, moving no ref but refs/steersman/conflicts/{run_id}/*.

        What is contained already adds nothing; what continues the integrated commit is taken as it is. Of a merge
        with conflicts the integrated side stays reachable under a ref that is named by the merge commit.
        """
        with opened(repository) as repo:
            objects = Objects(repo)
            present, conflicts = hexadecimal(base), list[PathConflict]()
            for contribution in contributions:
                theirs = hexadecimal(contribution.commit)
                if is_ancestor(repo, theirs, present):
                    continue
                if is_ancestor(repo, present, theirs):
                    present = theirs
                    continue
                merged = merge_commits(repo, objects, present, theirs)
                made = objects.add(new_commit(merged.tree, [present, theirs], at, message))
                objects.flush()
                if merged.conflicts:
                    ref = Ref(f"{CONFLICTS}{run_id}/{made.decode()}".encode())
                    # The ref follows from the commit, so that a redo finds it done.
                    if not swap_ref(repo, ref, None, present):
                        raise GitConflict(f"{ref.decode()} is in use")
                    paths = tuple(git_diff.shown(path) for path in merged.conflicts)
                    conflicts.append(PathConflict(branch=contribution.branch, paths=paths, ref=ref.decode()))
                present = made
            tree = objects.tree_of(present)
            return Integrated(
                commit=present.decode(),
                tree=tree.decode(),
                has_changes=tree != objects.tree_of(hexadecimal(base)),
                conflicts=tuple(conflicts),
            )

    def remove_conflicts(self, repository: Path, run_id: str) -> None:
        """Remove every ref of the run's conflicts. Absent ones, the repository too, are no fault."""
        try:
            with opened(repository) as repo:
                for ref in repo.refs.subkeys(Ref(f"{CONFLICTS}{run_id}".encode())):
                    delete_ref(repo, Ref(f"{CONFLICTS}{run_id}/".encode() + ref), self._may_move)
        except RepositoryUnusable:
            return

    def point_branch(self, repository: Path, branch: str, old: str | None, new: str) -> None:
        """Move *branch* from *old* (None: it does not exist) to *new*; done already is fine. Raises GitConflict."""
        with opened(repository) as repo:
            before, after = hexadecimal(old) if old else None, hexadecimal(new)
            if not swap_ref(repo, branch_ref(branch), before, after, may_move=self._may_move):
                raise GitConflict(f"{branch} is at neither {old} nor {new}")

    def prepare_merge(
        self, repository: Path, branch: str, approved: Commit, at: datetime, message: str
    ) -> MergeOutcome:
        """
        Find out, moving nothing, what merging *approved* into *branch* gives.

        A branch that is gone is `blocked` with reason head_moved; one without a common ancestor conflicts.
        """
        with opened(repository) as repo:
            objects, theirs = Objects(repo), hexadecimal(approved.commit)
            if objects.tree_of(theirs).decode() != approved.tree:
                raise GitConflict(f"{approved.commit} has another tree than the approved one")
            tip = read_ref(repo, branch_ref(branch))
            if tip is None:
                return MergeOutcome(state="blocked", reason="head_moved")
            old = tip.decode()
            if is_ancestor(repo, theirs, tip):
                return MergeOutcome(state="merged", commit=old, old=old)
            if is_ancestor(repo, tip, theirs):
                return MergeOutcome(state="merged", commit=approved.commit, old=old)
            merged = merge_commits(repo, objects, tip, theirs)
            if merged.conflicts or not merge_bases(repo, tip, theirs):
                paths = tuple(git_diff.shown(path) for path in merged.conflicts)
                return MergeOutcome(state="conflicted", old=old, conflicting_paths=paths)
            made = objects.add(new_commit(merged.tree, [tip, theirs], at, message))
            objects.flush()
            return MergeOutcome(state="merged", commit=made.decode(), old=old)

    def merge(self, repository: Path, branch: str, old: str, new: str) -> MergeOutcome:
        """Move *branch* from *old* to *new*, with the files of a clean checkout of it, if there is one."""
        with opened(repository) as repo:
            return land(
                repo, Landing(ref=branch_ref(branch), old=hexadecimal(old), new=hexadecimal(new)), self._may_move
            )

    def changed_files(self, repository: Path, base: str, head: str | Path) -> Sequence[ChangedFile]:
        """Return the files that differ between two commits, or a commit and a worktree's files, ordered by path."""
        return self._compared(repository, base, head, git_diff.changed_files)

    def file(self, repository: Path, base: str, head: str | Path, path: str) -> FileView | None:
        """Return one file as a comparison of two commits; None if neither has it. Never reads outside the trees."""
        return self._compared(
            repository, base, head, lambda objects, old, new: git_diff.view_file(objects, old, new, path)
        )

    def tree(self, repository: Path, base: str, head: str | Path) -> Sequence[TreeEntry]:
        """Return every folder and file of *head* by path, each with how it differs from *base*; deleted files too."""
        return self._compared(repository, base, head, git_workspace.entries)

    def content(self, repository: Path, commit: str, path: str) -> bytes | None:
        """Return a file's bytes (a link's target), None if the commit has no such file."""
        with opened(repository) as repo:
            objects = Objects(repo)
            return git_workspace.content(objects, objects.tree_of(hexadecimal(commit)), path)

    def parent(self, repository: Path, commit: str) -> str | None:
        """Return a commit's first parent, None for one that has none."""
        with opened(repository) as repo:
            parents = Objects(repo).commit(hexadecimal(commit)).parents
            return parents[0].decode() if parents else None

    def branches(self, repository: Path) -> Sequence[Branch]:
        """Return the repository's branches, by name."""
        with opened(repository) as repo:
            return git_workspace.branches(repo)

    def settings(self, repository: Path) -> Mapping[str, Any]:
        """Return what the settings file in the repository's checkout says. Raises SettingsUnreadable."""
        return settings_file.read_settings(repository)

    def write_settings(self, repository: Path, changed: Mapping[str, Any]) -> None:
        """Make the settings file say this too; it is on disk whole or not at all. Raises SettingsUnreadable."""
        settings_file.write_settings(repository, changed)

    def diff(self, repository: Path, base: str, head: str, limit_bytes: int) -> str:
        """Return the unified diff between two commits, cut at *limit_bytes* with a line that says so."""
        return self._compared(
            repository, base, head, lambda objects, old, new: git_diff.whole_diff(objects, old, new, limit_bytes)
        )

    def _compared(
        self, repository: Path, base: str, head: str | Path, compare: Callable[[Objects, ObjectID, ObjectID], T]
    ) -> T:
        with opened(repository) as repo:
            if isinstance(head, Path):
                commit = hexadecimal(base)
                return git_workspace.look(
                    repo, head, commit, lambda objects, new: compare(objects, objects.tree_of(commit), new)
                )
            objects = Objects(repo)
            return compare(objects, objects.tree_of(hexadecimal(base)), objects.tree_of(hexadecimal(head)))
