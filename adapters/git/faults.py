"""
What git's files, and the library that reads them, can be wrong with, in the words of the port.

Nothing else of the library's leaves this folder: whoever calls knows only what the port says.
"""

import functools
import inspect
import struct
import zlib
from collections.abc import Callable
from typing import Any, TypeVar

from dulwich.errors import (
    ApplyDeltaError,
    ChecksumMismatch,
    FileFormatException,
    HookError,
    MissingCommitError,
    NotGitRepository,
    ObjectMissing,
    PackedRefsException,
    RefFormatError,
    WorkingTreeModifiedError,
    WrongObjectException,
)
from dulwich.file import FileLocked

from ...application.ports.git import RepositoryUnusable
from .boxed import Unable
from .program import GitFailed

T = TypeVar("T")

#: Object names are as long as this in bytes of hexadecimal.
NAME_LENGTHS = (40, 64)
_MISSING = (ObjectMissing, MissingCommitError)
_UNREADABLE = (
    ApplyDeltaError,
    ChecksumMismatch,
    FileFormatException,
    HookError,
    NotGitRepository,
    PackedRefsException,
    RefFormatError,
    WorkingTreeModifiedError,
    WrongObjectException,
    zlib.error,
    struct.error,
    # What the library says of bytes that are not what it expects.
    LookupError,
    ValueError,
    AssertionError,
    EOFError,
)

#: What git says in the language that it is called in, and what that comes to.
_OF_THE_MACHINE = (
    ("No space left on device", "disk_full"),
    ("Disk quota exceeded", "disk_full"),
    ("Input/output error", "disk_failing"),
    ("Too many open files", "too_many_open_files"),
    ("Cannot allocate memory", "memory_exhausted"),
)
_OF_THE_REPOSITORY = (
    ("Read-only file system", "read_only"),
    ("Permission denied", "permission_denied"),
    (".lock': File exists", "repository_locked"),
    ("not a git repository", "not_a_repository"),
    ("dubious ownership", "other_owner"),
)
_WORDS = (
    *_OF_THE_MACHINE,
    *_OF_THE_REPOSITORY,
    ("missing blob", "object_missing"),
    ("missing tree", "object_missing"),
    ("bad object", "object_missing"),
    ("unable to read ", "object_missing"),
    ("is corrupt", "repository_unreadable"),
)


def typed_faults(adapter: type[T]) -> type[T]:
    """Have every public method of an adapter raise RepositoryUnusable for what is wrong with a repository."""
    for name, member in list(vars(adapter).items()):
        if inspect.isfunction(member) and not name.startswith("_"):
            setattr(adapter, name, _typed(member))
    return adapter


def _typed(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return method(*args, **kwargs)
        except FileLocked as locked:
            message = f"a lock of git stands in the way: {locked}"
            raise RepositoryUnusable("repository_locked", message) from locked
        except RecursionError as deep:
            raise RepositoryUnusable("nested_too_deep", "the files lie too deep in folders") from deep
        except GitFailed as failed:
            raise RepositoryUnusable(_said(failed.words), str(failed)) from failed
        except Unable as unable:
            code = _said(str(unable), unable.code)
            raise RepositoryUnusable(code, f"git's helper in the box: {unable}") from unable
        except _MISSING as missing:
            raise RepositoryUnusable("object_missing", f"an object is missing: {missing}") from missing
        except _UNREADABLE as error:
            if isinstance(error, KeyError) and (name := _object_name(error)) is not None:
                raise RepositoryUnusable("object_missing", f"the object {name} is missing") from error
            message = f"it cannot be read: {type(error).__name__}: {error}"
            raise RepositoryUnusable("repository_unreadable", message) from error

    return call


def _said(words: str, otherwise: str = "git_failed") -> str:
    """Return the word for what git's own words say of the system or the repository, where they say it."""
    return next((code for part, code in _WORDS if part in words), otherwise)


def agents_doing(error: Unable | GitFailed) -> bool:
    """
    Return whether a workplace's files are not taken because of what is in them, which their author may change.

    Otherwise the machine or the project's repository is in the way, and only an operator can mend that. Of what is said
    in a box only the machine's words count: an agent may well close a file of its own.
    """
    if isinstance(error, Unable):
        return not is_the_machines(str(error))
    return not is_the_machines(error.words) and not any(part in error.words for part, _ in _OF_THE_REPOSITORY)


def is_the_machines(words: str) -> bool:
    """Return whether what was said is that the machine is in the way: with room again, say, the same may well be done."""
    return any(part in words for part, _ in _OF_THE_MACHINE)


def _object_name(error: KeyError) -> str | None:
    """Return the name of the object that was not found, None if it was something else."""
    name = error.args[0] if error.args else None
    if not isinstance(name, bytes) or len(name) not in NAME_LENGTHS:
        return None
    return name.decode(errors="replace")
