"""Why something failed: the one place where an exception becomes a public word, its message, and who can mend it."""

from collections.abc import Iterator, Mapping
from errno import (
    EACCES,
    EDQUOT,
    EIO,
    ELOOP,
    EMFILE,
    ENAMETOOLONG,
    ENFILE,
    ENOENT,
    ENOMEM,
    ENOSPC,
    ENOTDIR,
    EPERM,
    EROFS,
)

import msgspec

from ...domain.facts.held import WaitsFor
from ...domain.facts.sandbox import PolicyUnreadable
from ...domain.rejected import Rejected
from ..ports.agents import AgentFailed
from ..ports.git import (
    CommitFailed,
    GitConflict,
    RepositoryUnusable,
    SettingsUnreadable,
    WorkplaceLost,
    WorkplaceUnmade,
    WorktreeBusy,
    WorktreeGone,
)
from ..ports.log import LogUnavailable, Undecodable

#: No message is kept longer.
MAX_CHARACTERS = 2_000
#: No chain of causes is followed further.
MAX_CAUSES = 8
UNEXPECTED = "unexpected"

#: What may be done about each kind of cause, for people. Whatever is not named here is a fault of the program.
ADVICE: Mapping[str, str] = {
    "workspace_missing": "The repository is not where it was registered. Move it back, or mount its disk again.",
    "not_a_repository": "There is no git repository any more. Put its `.git` back.",
    "bare_repository": "The repository has no files to work on. Register a clone of it that has.",
    "detached_head": "No branch is checked out in the repository. Check one out.",
    "unsupported_repository": "The repository needs something that this service does not know. Register a clone without it.",
    "repository_unreadable": "The repository cannot be read. Look at it with `git fsck`, and put it back from a copy.",
    "object_missing": "The repository lacks an object. Look at it with `git fsck`, and fetch or put back what is missing.",
    "no_commit": "A branch that is needed is gone. Put it back.",
    "unborn_branch": "The branch that is checked out has no commit. Make one, or check out another.",
    "repository_locked": "A lock file of git stands in the way. If no git is at work, remove it.",
    "history_replaced": "Objects of the repository stand for others. Register a clone of it, which has none such.",
    "git_failed": "git could not do it. Its words say why.",
    "took_too_long": "It took longer than it may. Look at what the machine does, and at the size of the repository.",
    "box_failed": "The box of an agent could not be made. `steersman doctor` says which box works here.",
    "repository_not_allowed": "The repository is outside of the directories that are allowed. Allow it, or move it.",
    "other_owner": "The repository belongs to another user. Give it to the service's, or register a clone.",
    "nested_too_deep": "Files lie too deep in folders to be worked with. Remove them.",
    "branch_moved": "Somebody else has moved a branch of the run. Put it back to where the run left it.",
    "disk_full": "The disk is full, or a quota is used up. Make room.",
    "permission_denied": "The service's user may not do this. Give it the rights to the repository and its own data.",
    "read_only": "The file system is read-only. Mount it writable.",
    "file_missing": "A file or program that is needed is gone. Put it back, or install it.",
    "name_too_long": "A path is longer than this file system takes. Shorten it, or move the data directory up.",
    "disk_failing": "The disk cannot be read or written. Look at the machine.",
    "too_many_open_files": "The service has too many files open. Raise its limit.",
    "memory_exhausted": "There is no memory left. Give the machine more, or run fewer agents.",
    "threads_exhausted": "The system gives no more threads. Raise its limit, or run fewer agents.",
    "os_error": "The operating system refuses. Its words say what.",
    "settings_unreadable": "The settings in the repository cannot be understood. Correct them.",
    "worktree_changing": "The files of a worktree change faster than they can be read. End what writes there.",
    "workplace_lost": "The workplace of a child run is not the one that was made. Abort the child, or put it back.",
    "commit_failed": "The files could not be committed; they are as they were. The message says why.",
    "log_unavailable": "The event log cannot be reached. Look at the database.",
    "agent_alive": "An agent does not end. Look for its processes.",
}

_ERRNO: Mapping[int, str] = {
    ENOSPC: "disk_full",
    EDQUOT: "disk_full",
    EACCES: "permission_denied",
    EPERM: "permission_denied",
    EROFS: "read_only",
    ENOENT: "file_missing",
    ENOTDIR: "file_missing",
    ENAMETOOLONG: "name_too_long",
    ELOOP: "file_missing",
    EIO: "disk_failing",
    EMFILE: "too_many_open_files",
    ENFILE: "too_many_open_files",
    ENOMEM: "memory_exhausted",
}
_PORTS: tuple[tuple[type[Exception], str], ...] = (
    (GitConflict, "branch_moved"),
    (SettingsUnreadable, "settings_unreadable"),
    (PolicyUnreadable, "settings_unreadable"),
    (WorktreeBusy, "worktree_changing"),
    (WorktreeGone, "workplace_lost"),
    (WorkplaceLost, "workplace_lost"),
    (CommitFailed, "commit_failed"),
    (LogUnavailable, "log_unavailable"),
    (MemoryError, "memory_exhausted"),
)


class StillAlive(Exception):
    """Something of an agent has not ended, and could still say or write something."""


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """Why something failed."""

    error_code: str
    waits_for: WaitsFor
    message: str


def advice(error_code: str, waits_for: WaitsFor) -> str:
    """Return what may be done about a cause."""
    if waits_for == "release":
        return "This is a fault of the program: report it, with what the service's log says."
    return ADVICE.get(error_code, "The words say why; mend that on the machine or in the repository.")


def cause_of(error: BaseException) -> Cause:
    """Return why something failed. Total: what nobody foresaw is a fault of the program."""
    code = _operators_code(error)
    if code is not None:
        return Cause(error_code=code, waits_for="operator", message=_words(error))
    if isinstance(error, Undecodable):
        return Cause(error_code="run_quarantined", waits_for="release", message=_words(error))
    code = error.code if isinstance(error, Rejected) else UNEXPECTED
    return Cause(error_code=code, waits_for="release", message=f"{type(error).__name__}: {_words(error)}")


def _operators_code(error: BaseException) -> str | None:
    """Return the word for what a person on the machine can mend, None if that is not known."""
    if isinstance(error, AgentFailed):
        return error.code
    if isinstance(error, OSError):
        return _ERRNO.get(error.errno or 0, "os_error")
    if isinstance(error, StillAlive):
        return "agent_alive"
    if isinstance(error, RuntimeError) and "start new thread" in str(error):
        return "threads_exhausted"
    if isinstance(error, RepositoryUnusable | WorkplaceUnmade):
        return _of_system(error) or error.code
    for kind, code in _PORTS:
        if isinstance(error, kind):
            return _of_system(error) or code
    return None


def _of_system(error: BaseException) -> str | None:
    """Return the word for what the system said, where that is behind the error."""
    for found in _behind(error):
        if isinstance(found, OSError) and _ERRNO.get(found.errno or 0) not in (None, "file_missing"):
            return _ERRNO[found.errno or 0]
    return None


def _behind(error: BaseException) -> Iterator[BaseException]:
    found = error.__cause__
    for _ in range(MAX_CAUSES):
        if found is None:
            return
        yield found
        found = found.__cause__


def _words(error: BaseException) -> str:
    """Return what the error says, in characters that can be stored: a file's name may hold any bytes."""
    words = str(error) or type(error).__name__
    return words[:MAX_CHARACTERS].encode(errors="backslashreplace").decode().replace("\0", "\\0")[:MAX_CHARACTERS]
