"""The port `Repositories`: git does what git does; each call opens the repository for itself, in any thread."""

import os
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from dulwich.refs import Ref

from ...application.ports.git import (
    Branch,
    ChangedFile,
    Contribution,
    FileView,
    GitConflict,
    Integrated,
    MergeOutcome,
    PathConflict,
    RepositoryState,
    RepositoryUnusable,
    TreeEntry,
    WorkplaceLost,
    WorkplaceState,
)
from ...domain.git import Commit
from ...domain.work.workers import Fingerprint
from .. import settings_file
from ..processes.box import Bare, Box
from . import comparing, landing, merging, staging, workplaces
from .boxed import Boxed
from .configuration import content
from .conversion import convert
from .faults import typed_faults
from .inspection import Opened, Rules, opened
from .looking import look
from .objects import Trees, hexadecimal
from .program import Program
from .refs import CONFLICTS, HEADS, IDENTITY, MERGED, MayMove, always, branch_ref, delete_ref, read_ref, swap_ref
from .staging import CommitLimits, Work

T = TypeVar("T")

#: A file's whole content that is asked for is at most so long.
CONTENT_BYTES = 64 * 1024 * 1024


class GitSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What an installation allows: where repositories may be, how much one commit may hold, how long a box may work."""

    rules: Rules = Rules()
    limits: CommitLimits = CommitLimits()
    box_seconds: float = 1_800.0
    #: Who made every commit that is made here, and its author.
    author: bytes = IDENTITY


@typed_faults
class GitRepositories:
    """
    Git. It holds nothing between calls and may be shared by threads and repeated after a crash.

    What touches a working tree, or runs what a repository or an agent chooses, runs in the *box*, with what it needs on
    disk below *scratch*. *may_move* is asked last before a branch moves or a workplace is removed, and raises where
    somebody else may be at work there by now. What was begun then stays as after a crash; a checkout of the user's
    follows its branch to the end, under git's lock.
    """

    def __init__(
        self,
        scratch: Path,
        box: Box | None = None,
        may_move: MayMove = always,
        settings: GitSettings | None = None,
    ) -> None:
        self._settings = settings or GitSettings()
        self._boxed = Boxed(box or Bare(), scratch, self._settings.box_seconds)
        self._may_move = may_move

    def inspect(self, path: Path) -> RepositoryState:
        """Return the repository's state. Raises RepositoryUnusable."""
        with opened(path, self._settings.rules) as found:
            return _state(found, path)

    def tip(self, repository: Path, branch: str) -> Commit:
        """Return a branch's tip. Raises RepositoryUnusable (workspace_missing, not_a_repository, no_commit)."""
        with opened(repository, self._settings.rules) as found:
            tip = read_ref(found.repo, branch_ref(branch))
            if tip is None:
                raise RepositoryUnusable("no_commit", f"{repository} has no branch {branch}")
            _check_refs(found)
            return Commit(commit=tip.decode(), tree=Trees(found.repo).tree_of(tip.decode()))

    def obstacle(self, repository: Path, branch: str) -> str | None:
        """Return why a merge into *branch* would be blocked now, looking only; None if nothing stands in the way."""
        with opened(repository, self._settings.rules) as found:
            return landing.obstacle(self._boxed, found, branch_ref(branch))

    def lends(self, repository: Path) -> Sequence[Path]:
        """Return the directories of objects that a workplace of this repository reads: its own, and those it borrows."""
        with opened(repository, self._settings.rules) as found:
            return [mount.source for mount in staging.lent(found)]

    def make_workplace(self, repository: Path, workplace: Path, base: str) -> None:
        """Make a workplace with the files of *base*; what stood there before is gone. Raises WorkplaceUnmade."""
        _check_apart(repository, workplace)
        with opened(repository, self._settings.rules) as found:
            workplaces.make(self._boxed, found, workplace, base, self._may_move)

    def look_at(self, repository: Path, workplace: Path) -> WorkplaceState:
        """Return what stands there; a linked worktree of an earlier release is made a workplace first."""
        with opened(repository, self._settings.rules) as found:
            convert(self._boxed, found, workplace, self._may_move)
        return workplaces.state_of(workplace)

    def commit_workplace(self, repository: Path, workplace: Path, parent: str, at: datetime, message: str) -> Commit:
        """Commit everything that is changed in the workplace on top of *parent*. Raises CommitFailed, WorkplaceLost."""
        state = self.look_at(repository, workplace)
        if state != "whole":
            raise WorkplaceLost(state, f"{workplace} is not the workplace that was made: it is {state}")
        with opened(repository, self._settings.rules) as found:
            work = Work(workplace=workplace, parent=parent, at=at, message=message, author=self._settings.author)
            return staging.commit(self._boxed, found, work, self._settings.limits, self._may_move)

    def count_ignored(self, repository: Path, workplace: Path) -> int:
        """Return how many files of the workplace git ignores; 0 where it is not whole."""
        if self.look_at(repository, workplace) != "whole":
            return 0
        with opened(repository, self._settings.rules) as found:
            parent = workplaces.last_commit(found, workplace)
            limits = self._settings.limits
            staged = staging.stage(self._boxed, found, workplace, parent, limits, None, strict=False, ignored=True)
            return int(staged.said["ignored"])

    def fingerprint(self, repository: Path, workplace: Path) -> Fingerprint:
        """Return the tree that a commit would have now, and a digest over every file; both empty without a workplace."""
        if self.look_at(repository, workplace) != "whole":
            return Fingerprint(tree_hash="", workspace_hash="")
        with opened(repository, self._settings.rules) as found:
            parent = workplaces.last_commit(found, workplace)
            limits = self._settings.limits
            staged = staging.stage(self._boxed, found, workplace, parent, limits, None, strict=False, hashes=True)
            return Fingerprint(tree_hash=str(staged.said["tree"]), workspace_hash=str(staged.said["workspace_hash"]))

    def remove_workplace(self, repository: Path, workplace: Path, branch: str | None) -> None:
        """Remove the workplace, the refs of its name and, if named, a branch. Absent ones, the repository too, are no fault."""
        _check_apart(repository, workplace)
        try:
            with opened(repository, self._settings.rules) as found:
                workplaces.remove(found, workplace, branch, self._may_move)
        except RepositoryUnusable:
            workplaces.remove(None, workplace, branch, self._may_move)

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
        Merge the contributions onto *base* in the given order, moving no ref but the run's own below refs/steersman:
        what is made stays reachable until `remove_merged`.

        What is contained already adds nothing; what continues the integrated commit is taken as it is. Of a merge
        with conflicts the integrated side stays reachable under a ref that is named by the merge commit.
        """
        with opened(repository, self._settings.rules) as found:
            commits = [contribution.commit for contribution in contributions]
            making = merging.Making(run_id=run_id, at=at, message=message, author=self._settings.author, resolves=True)
            merged = merging.merge(self._boxed, found, base, commits, making, self._may_move)
            conflicts = list[PathConflict]()
            for step in merged.steps:
                if step.paths:
                    # The ref follows from the commit, so that a redo finds it done.
                    ref = Ref(f"{CONFLICTS}{run_id}/{step.commit}".encode())
                    if not swap_ref(found.repo, ref, None, hexadecimal(step.before)):
                        raise GitConflict(f"{ref.decode()} is in use")
                    of = contributions[step.number]
                    conflict = PathConflict(
                        branch=of.branch,
                        paths=step.paths,
                        ref=ref.decode(),
                        subtask_id=of.subtask_id,
                        replaced=step.before,
                    )
                    conflicts.append(conflict)
            trees = Trees(found.repo)
            tree = trees.tree_of(merged.commit)
            has_changes = tree != trees.tree_of(base)
            return Integrated(commit=merged.commit, tree=tree, has_changes=has_changes, conflicts=tuple(conflicts))

    def remove_conflicts(self, repository: Path, run_id: str) -> None:
        """Remove every ref of the run's conflicts. Absent ones, the repository too, are no fault."""
        self._remove_refs(repository, f"{CONFLICTS}{run_id}".encode())

    def remove_merged(self, repository: Path, run_id: str) -> None:
        """Let go of what was merged for the run. What is absent, the repository too, is no fault."""
        self._remove_refs(repository, MERGED + run_id.encode())

    def _remove_refs(self, repository: Path, below: bytes) -> None:
        try:
            with opened(repository, self._settings.rules) as found:
                for ref in found.repo.refs.subkeys(Ref(below)):
                    delete_ref(found.repo, Ref(below + b"/" + ref), self._may_move)
        except RepositoryUnusable:
            return

    def point_branch(self, repository: Path, branch: str, old: str | None, new: str) -> None:
        """Move *branch* from *old* (None: it does not exist) to *new*; done already is fine. Raises GitConflict."""
        with opened(repository, self._settings.rules) as found:
            before, after = hexadecimal(old) if old else None, hexadecimal(new)
            if not swap_ref(found.repo, branch_ref(branch), before, after, may_move=self._may_move):
                raise GitConflict(f"{branch} is at neither {old} nor {new}")

    def prepare_merge(
        self,
        repository: Path,
        run_id: str,
        branch: str,
        approved: Commit,
        at: datetime,
        message: str,
        base: str | None = None,
    ) -> MergeOutcome:
        """
        Find out, moving no branch, what merging *approved*, which was seen as a change of *base*, into *branch* gives; it
        stays reachable until `remove_merged`.

        A branch that is gone is `blocked` with reason head_moved; one without a common ancestor conflicts.
        """
        with opened(repository, self._settings.rules) as found:
            if Trees(found.repo).tree_of(approved.commit) != approved.tree:
                raise GitConflict(f"{approved.commit} has another tree than the approved one")
            tip = read_ref(found.repo, branch_ref(branch))
            if tip is None:
                return MergeOutcome(state="blocked", reason="head_moved")
            old = tip.decode()
            making = merging.Making(run_id=run_id, at=at, message=message, author=self._settings.author, resolves=False)
            merged = merging.merge(self._boxed, found, old, [approved.commit], making, self._may_move)
            paths = merged.steps[0].paths if merged.steps else ()
            trees = Trees(found.repo)
            at_old = trees.tree_of(old)
            if paths or (merged.steps and not merging.are_related(found, old, approved.commit)):
                return MergeOutcome(state="conflicted", old=old, old_tree=at_old, conflicting_paths=paths)
            is_merge = merged.commit not in (old, approved.commit)
            meets = comparing.meeting(found.git, old, approved.commit, merged.commit) if is_merge else ()
            brings_back = ()
            if base is not None and not merging.contains(found, old, base):
                brings_back = comparing.brought_back(found.git, (base, approved.commit), (old, merged.commit))
            return MergeOutcome(
                state="merged",
                commit=merged.commit,
                old=old,
                old_tree=at_old,
                tree=trees.tree_of(merged.commit),
                meets=meets,
                brings_back=brings_back,
            )

    def seal(self, repository: Path, run_id: str, onto: str, approved: Commit, at: datetime, message: str) -> str:
        """Return a merge commit of both that has the tree of *approved*; it stays reachable until `remove_merged`."""
        with opened(repository, self._settings.rules) as found:
            if Trees(found.repo).tree_of(approved.commit) != approved.tree:
                raise GitConflict(f"{approved.commit} has another tree than the approved one")
            making = merging.Making(run_id=run_id, at=at, message=message, author=self._settings.author)
            return merging.seal(found, onto, approved.commit, approved.tree, making, self._may_move)

    def merge(self, repository: Path, branch: str, old: str, new: str) -> MergeOutcome:
        """Move *branch* from *old* to *new*, with the files of a clean checkout of it, if there is one."""
        with opened(repository, self._settings.rules) as found:
            move = landing.Landing(ref=branch_ref(branch), old=hexadecimal(old), new=hexadecimal(new))
            return landing.land(self._boxed, found, move, self._may_move)

    def changed_files(self, repository: Path, base: str, head: str | Path) -> Sequence[ChangedFile]:
        """Return the files that differ between two commits, or a commit and a workplace's files, ordered by path."""
        return self._compared(repository, base, head, lambda git, _, old, new: comparing.changed_files(git, old, new))

    def file(self, repository: Path, base: str, head: str | Path, path: str) -> FileView | None:
        """Return one file as a comparison of two commits; None if neither has it. Never reads outside the trees."""
        return self._compared(
            repository, base, head, lambda git, trees, old, new: comparing.view_file(git, trees, old, new, path)
        )

    def tree(self, repository: Path, base: str, head: str | Path) -> Sequence[TreeEntry]:
        """Return every folder and file of *head* by path, each with how it differs from *base*; deleted files too."""
        return self._compared(repository, base, head, lambda git, _, old, new: comparing.entries(git, old, new))

    def content(self, repository: Path, commit: str, path: str) -> bytes | None:
        """Return a file's bytes (a link's target), None if the commit has no such file."""
        with opened(repository, self._settings.rules) as found:
            trees = Trees(found.repo)
            named = trees.find(trees.tree_of(commit), path)
            if named is None:
                return None
            return comparing.beginning(found.git, named[1], CONTENT_BYTES)[0]

    def parent(self, repository: Path, commit: str) -> str | None:
        """Return a commit's first parent, None for one that has none."""
        with opened(repository, self._settings.rules) as found:
            parents = Trees(found.repo).commit(commit).parents
            return parents[0].decode() if parents else None

    def branches(self, repository: Path) -> Sequence[Branch]:
        """Return the repository's branches, by name."""
        with opened(repository, self._settings.rules) as found:
            return comparing.branches(found.git)

    def settings(self, repository: Path) -> Mapping[str, Any]:
        """Return what the settings file in the repository's checkout says. Raises SettingsUnreadable."""
        return settings_file.read_settings(repository)

    def write_settings(self, repository: Path, changed: Mapping[str, Any]) -> None:
        """Make the settings file say this too; it is on disk whole or not at all. Raises SettingsUnreadable."""
        settings_file.write_settings(repository, changed)

    def diff(self, repository: Path, base: str, head: str, limit_bytes: int) -> str:
        """Return the unified diff between two commits, cut at *limit_bytes* with a line that says so."""
        return self._compared(
            repository, base, head, lambda git, _, old, new: comparing.diff(git, old, new, limit_bytes)
        )

    def _compared(
        self,
        repository: Path,
        base: str,
        head: str | Path,
        compare: Callable[[Program, Trees, str, str], T],
    ) -> T:
        with opened(repository, self._settings.rules) as found:
            old = Trees(found.repo).tree_of(base)
            if isinstance(head, Path):
                convert(self._boxed, found, head, self._may_move)
                limits = self._settings.limits
                return look(
                    self._boxed, found, head, base, limits, lambda git, trees, new: compare(git, trees, old, new)
                )
            trees = Trees(found.repo)
            return compare(found.git, trees, old, trees.tree_of(head))


def _state(found: Opened, path: Path) -> RepositoryState:
    # A bare one may have checkouts beside it, each of which is as good as any.
    is_bare = found.control == found.common and dict(found.settings).get("core.bare") == "true"
    if is_bare or found.control == found.root:
        raise RepositoryUnusable("bare_repository", f"{path} is bare: it has no files to work on")
    head = found.repo.refs.read_ref(Ref(b"HEAD")) or b""
    if not head.startswith(b"ref: " + HEADS):
        raise RepositoryUnusable("detached_head", f"{path} has no branch checked out")
    ref = Ref(head.removeprefix(b"ref: ").strip())
    tip = read_ref(found.repo, ref)
    if tip is None:
        code = "unborn_branch" if found.repo.get_refs() else "no_commit"
        raise RepositoryUnusable(code, f"{path} has no commit on {ref.decode(errors='replace')}")
    _check_refs(found)
    return RepositoryState(
        path=Path(found.root),
        branch=ref.removeprefix(HEADS).decode(errors="surrogateescape"),
        tip=Commit(commit=tip.decode(), tree=Trees(found.repo).tree_of(tip.decode())),
    )


def _check_refs(found: Opened) -> None:
    """
    Raise RepositoryUnusable where a branch has the name of the directory that those of runs are in, or commits are not
    what they are named after: what git shows its user then is not what it stores.
    """
    if found.repo.refs.subkeys(Ref(b"refs/replace")) or content(os.path.join(found.common, "info", "grafts")):
        raise RepositoryUnusable(
            "history_replaced",
            f"{found.root} has objects that stand for others (`git replace -l`, `info/grafts`). Register a clone of it, "
            "which has none.",
        )
    if read_ref(found.repo, branch_ref("steersman")) is not None:
        raise RepositoryUnusable(
            "branch_in_the_way",
            f"{found.root} has a branch `steersman`, so that no branch `steersman/…` can be made for a run. Rename it: "
            "git branch -m steersman another-name",
        )


def _check_apart(repository: Path, workplace: Path) -> None:
    if repository.resolve().is_relative_to(workplace.resolve()):
        raise GitConflict(f"{workplace} holds the repository itself")
