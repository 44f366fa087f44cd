"""What the use cases need of git."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, Protocol

import msgspec

from ...domain.git import Commit
from ...domain.work.workers import Fingerprint


class RepositoryUnusable(Exception):
    """
    The directory cannot serve as a project's repository.

    `code` is one of workspace_missing, not_a_repository, bare_repository, no_commit, unborn_branch, detached_head,
    unsupported_repository (SHA-256, reftable or an extension that the adapter does not know), partial_clone,
    repository_not_allowed (outside of the directories that are allowed), other_owner, worktree_elsewhere
    (`core.worktree`), configuration_elsewhere (`include`), borrows_elsewhere (alternates), branch_in_the_way (a branch
    `steersman`), history_replaced (`refs/replace`, `info/grafts`), repository_unreadable, object_missing, repository_locked, nested_too_deep. The message says what to do.

    Every method of `Repositories` may raise it: nothing else that is wrong with a repository is told in another way.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class GitConflict(Exception):
    """A ref is at neither the old nor the new value of a prepared move: somebody else moved it. Nothing was changed."""


class CommitFailed(Exception):
    """The workplace could not be committed; its files are as they were."""


WorkplaceState = Literal["whole", "vanished", "replaced", "unfinished"]


class WorkplaceLost(Exception):
    """The workplace is not the one that was made, or not whole: what is there is never taken for a run's work."""

    def __init__(self, state: WorkplaceState, message: str) -> None:
        super().__init__(message)
        self.state = state


class WorkplaceUnmade(Exception):
    """A workplace could not be made. `code` is the public word for why; nothing of the project's was changed."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Contribution(msgspec.Struct, frozen=True, kw_only=True):
    """A child's work, to be taken into the integration branch."""

    subtask_id: int
    branch: str
    commit: str


class PathConflict(msgspec.Struct, frozen=True, kw_only=True):
    """Paths on which a later child's version won over what was integrated before it; the other side is kept at `ref`."""

    #: Branch and subtask of the contribution whose version stands.
    branch: str
    paths: tuple[str, ...]
    ref: str
    subtask_id: int | None = None
    #: The commit at `ref`: what was integrated before.
    replaced: str | None = None


class Integrated(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of an integration."""

    commit: str
    tree: str
    has_changes: bool
    conflicts: tuple[PathConflict, ...] = ()


class ChangedFile(msgspec.Struct, frozen=True, kw_only=True):
    """One file that differs between two trees. `status` is added, modified or deleted."""

    path: str
    status: str
    added_lines: int
    removed_lines: int
    is_binary: bool = False


class FileView(msgspec.Struct, frozen=True, kw_only=True):
    """One file of a comparison. `content` is None for a binary or a deleted file."""

    path: str
    #: added, modified, deleted or unchanged
    status: str
    diff: str
    content: str | None
    is_binary: bool


class TreeEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One folder or file of a tree; `status` and the line counts are null where it does not differ."""

    path: str
    is_folder: bool
    #: added, modified or deleted
    status: str | None = None
    added_lines: int | None = None
    removed_lines: int | None = None


class Branch(msgspec.Struct, frozen=True, kw_only=True):
    """A branch and its tip."""

    name: str
    commit: str


class WorktreeGone(Exception):
    """There is no such worktree."""


class SettingsUnreadable(Exception):
    """The settings that a repository holds cannot be understood, or not be written."""


class WorktreeBusy(Exception):
    """The worktree's files changed under every look at them. Look again later."""


class MergeOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """
    What an attempt to merge into the originating branch came to.

    `state` is merged (commit set), blocked (nothing moved, may be tried again; reason says why) or
    conflicted (nothing moved; conflicting_paths names the files that a person must resolve).
    """

    state: str
    commit: str | None = None
    #: Where the branch stood when this was found out.
    old: str | None = None
    reason: str | None = None
    conflicting_paths: tuple[str, ...] = ()
    #: The tree of `old`.
    old_tree: str | None = None
    #: The tree of `commit`.
    tree: str | None = None
    #: Paths on which the two sides meet although they merge cleanly, so that nobody has seen the outcome there: both
    #: have changed them since they parted, or what stands there is not simply one side's version.
    meets: tuple[str, ...] = ()
    #: Paths that the merge would change beyond what was shown as a change of *base*, because the branch has let go of it
    #: (somebody dropped, amended or reset commits): what they have taken out comes back with the work.
    brings_back: tuple[str, ...] = ()


class RepositoryState(msgspec.Struct, frozen=True, kw_only=True):
    """A usable repository: its real path, the branch that is checked out, and that branch's tip."""

    path: Path
    branch: str
    tip: Commit


class Repositories(Protocol):
    """
    Git, as the runs need it. Every method may be repeated after a crash at any point inside it and then
    ends with the same commits, refs and files. No call touches a branch or checkout that it does not name.
    """

    def inspect(self, path: Path) -> RepositoryState:
        """Return the repository's state. Raises RepositoryUnusable."""
        ...

    def tip(self, repository: Path, branch: str) -> Commit:
        """Return a branch's tip. Raises RepositoryUnusable (workspace_missing, not_a_repository, no_commit)."""
        ...

    def obstacle(self, repository: Path, branch: str) -> str | None:
        """
        Return why a merge into *branch* would be blocked now, looking only: repository_dirty or
        operation_in_progress where it is checked out, checkout_missing where it is checked out and that checkout is not
        where git was told last; None if nothing stands in the way.
        """
        ...

    def lends(self, repository: Path) -> Sequence[Path]:
        """Return the directories of objects that a workplace of this repository reads: its own, and those it borrows."""
        ...

    def make_workplace(self, repository: Path, workplace: Path, base: str) -> None:
        """
        Make a workplace: a repository of its own at *workplace*, with the files of *base*, that borrows the project's objects.

        What stood there before is gone. Before anything borrows it, *base* is held by a ref of the workplace's name,
        until `remove_workplace`. Raises WorkplaceUnmade; what the machine has no room or right for is no reason for that,
        but an OSError or RepositoryUnusable: the same call may do it later.
        """
        ...

    def look_at(self, repository: Path, workplace: Path) -> WorkplaceState:
        """
        Return what stands there: `whole` (the one that was made last under this name, whatever its agent did in it),
        `vanished`, `replaced` (something else stands there), or `unfinished` (it was never made to its end).

        A linked worktree of an earlier release is made a workplace first, with its files as they are.
        """
        ...

    def commit_workplace(self, repository: Path, workplace: Path, parent: str, at: datetime, message: str) -> Commit:
        """
        Commit everything that is changed in the workplace on top of *parent*; no branch moves.

        Whatever the agent did to its own git, its files become the one commit on *parent*, and that is held by a ref of
        the workplace's name until the next such call or `remove_workplace`, with everything below it checked to be there.
        Without a change *parent* is returned. Nobody may write in the workplace meanwhile. Raises CommitFailed, WorkplaceLost.
        """
        ...

    def count_ignored(self, repository: Path, workplace: Path) -> int:
        """Return how many files of the workplace git ignores, so that no commit takes them in; 0 where it is not whole."""
        ...

    def fingerprint(self, repository: Path, workplace: Path) -> Fingerprint:
        """
        Return what the workplace holds now, changing nothing: the tree that `commit_workplace` would commit, and a digest
        over every file in it, ignored ones too: SHA-256 over sorted lines of relative path, NUL, SHA-256 of the
        content in hex, LF; without `.git`, links and what cannot be read. Both are empty if there is no workplace.
        """
        ...

    def remove_workplace(self, repository: Path, workplace: Path, branch: str | None) -> None:
        """Remove the workplace, the refs of its name and, if named, a branch. Absent ones, the repository too, are no fault."""
        ...

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

        Clean hunks of both sides are kept; only on conflicting paths does the later child's version win, and the
        other side stays reachable under the conflict's ref.
        """
        ...

    def remove_conflicts(self, repository: Path, run_id: str) -> None:
        """Remove every ref of the run's conflicts. Absent ones, the repository too, are no fault."""
        ...

    def remove_merged(self, repository: Path, run_id: str) -> None:
        """
        Let go of what `integrate` and `prepare_merge` made for the run: only what a branch, or a ref of another kind,
        leads to stays. What is absent, the repository too, is no fault.
        """
        ...

    def point_branch(self, repository: Path, branch: str, old: str | None, new: str) -> None:
        """Move *branch* from *old* (None: it does not exist) to *new*; done already is fine. Raises GitConflict."""
        ...

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
        Find out, moving no branch, what merging *approved* into *branch* gives: `merged` with the commit that the
        branch would move to (*approved* itself when that is a fast-forward, the present tip when it is contained).
        It stays reachable until `remove_merged`. *approved* was seen as a change of *base*.
        """
        ...

    def seal(self, repository: Path, run_id: str, onto: str, approved: Commit, at: datetime, message: str) -> str:
        """
        Return a merge commit of *onto* and *approved* that has exactly the tree of *approved*, moving no branch: the commit
        of what was approved that says more than it could before. It stays reachable until `remove_merged`.
        """
        ...

    def merge(self, repository: Path, branch: str, old: str, new: str) -> MergeOutcome:
        """
        Move *branch* from *old* to *new*, with the files of a clean checkout of it, if there is one.

        A dirty checkout or an operation in progress there blocks the move: then neither branch nor files move.
        A branch that is at *new* already is `merged`; one that is elsewhere is `blocked` with reason head_moved.
        """
        ...

    # Where *head* is a path, the comparison is with that worktree's files as they are now, ignored ones left out; that
    # raises WorktreeGone, WorktreeBusy. Links are never followed, so nothing outside of it is read.

    def changed_files(self, repository: Path, base: str, head: str | Path) -> Sequence[ChangedFile]:
        """Return the files that differ between two commits, ordered by path."""
        ...

    def file(self, repository: Path, base: str, head: str | Path, path: str) -> FileView | None:
        """
        Return one file as a comparison of two commits; None if neither has it. Never reads outside the trees.

        What is too long to show is cut, and its last line says so.
        """
        ...

    def tree(self, repository: Path, base: str, head: str | Path) -> Sequence[TreeEntry]:
        """Return every folder and file of *head* by path, each with how it differs from *base*; deleted files too."""
        ...

    def content(self, repository: Path, commit: str, path: str) -> bytes | None:
        """Return a file's bytes (a link's target), None if the commit has no such file."""
        ...

    def parent(self, repository: Path, commit: str) -> str | None:
        """Return a commit's first parent, None for one that has none."""
        ...

    def branches(self, repository: Path) -> Sequence[Branch]:
        """Return the repository's branches, by name."""
        ...

    def settings(self, repository: Path) -> Mapping[str, Any]:
        """Return what the settings file in the repository's checkout says. Raises SettingsUnreadable."""
        ...

    def write_settings(self, repository: Path, changed: Mapping[str, Any]) -> None:
        """Make the settings file say this too; it is on disk whole or not at all. Raises SettingsUnreadable."""
        ...

    def diff(self, repository: Path, base: str, head: str, limit_bytes: int) -> str:
        """Return the unified diff between two commits, cut at *limit_bytes* with a line that says so."""
        ...
