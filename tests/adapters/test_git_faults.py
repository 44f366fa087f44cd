"""What is wrong with a repository leaves the adapter in the port's own words, and what is wrong with us does not."""

import zlib
from pathlib import Path

import pytest
from dulwich.errors import ObjectMissing
from dulwich.file import FileLocked

from steersman.adapters.git.boxed import Unable
from steersman.adapters.git.faults import typed_faults
from steersman.adapters.git.program import GitFailed
from steersman.application.looking.cause import cause_of
from steersman.application.ports.git import GitConflict, RepositoryUnusable


@typed_faults
class Adapter:
    """One whose only method fails."""

    def look(self, error: Exception) -> None:
        """Fail."""
        raise error


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (KeyError(b"0" * 40), "object_missing"),
        (ObjectMissing(b"0" * 40), "object_missing"),
        (KeyError("a key of ours, or of a file that is not what it was"), "repository_unreadable"),
        (zlib.error("Error -3"), "repository_unreadable"),
        (AssertionError("a length"), "repository_unreadable"),
        (RecursionError(), "nested_too_deep"),
        (FileLocked(b"index", b"index.lock"), "repository_locked"),
        (GitFailed("read-tree", "error: unable to write file a: No space left on device"), "disk_full"),
        (GitFailed("read-tree", "fatal: could not open 'b' for writing: Permission denied"), "permission_denied"),
        (GitFailed("rev-list", "fatal: missing blob object '0000'"), "object_missing"),
        (GitFailed("merge", "what nobody has read yet"), "git_failed"),
        (Unable("took_too_long", "it took more than 60 s"), "took_too_long"),
        (Unable("box_failed", "mkdir: Read-only file system"), "read_only"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_what_is_wrong_with_a_repository_is_told_in_the_words_of_the_port(error: Exception, code: str) -> None:
    with pytest.raises(RepositoryUnusable) as told:
        Adapter().look(error)
    cause = cause_of(told.value)
    assert (told.value.code, cause.error_code, cause.waits_for) == (code, code, "operator")


@pytest.mark.parametrize("error", [AttributeError("x"), TypeError("x"), NameError("x")])
def test_what_is_wrong_with_the_program_stays_what_it_is(error: Exception) -> None:
    with pytest.raises(type(error)):
        Adapter().look(error)
    assert cause_of(error).waits_for == "release"


def test_what_the_port_says_already_is_said_by_it() -> None:
    for error in (
        GitConflict("moved"),
        RepositoryUnusable("no_commit", "gone"),
        FileNotFoundError(2, "gone", Path("x")),
    ):
        with pytest.raises(type(error)):
            Adapter().look(error)


def test_a_name_of_any_bytes_can_be_stored_in_a_message() -> None:
    cause = cause_of(OSError(13, "Permission denied", "a\udcff\0b"))
    assert cause.message.encode()
    assert "\0" not in cause.message
