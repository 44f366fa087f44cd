"""A branch and its clean checkout move together; whatever is not clean, or not ours, is neither moved nor touched."""

import fcntl
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from steersman.adapters.git.repositories import GitRepositories, GitSettings
from steersman.adapters.processes.bubblewrap import find_box
from steersman.application.ports.git import MergeOutcome

from .conftest import Scratch


def everything(root: Path) -> dict[str, tuple[bytes, int]]:
    """Every file of a checkout but git's own, with content and permissions."""
    return {
        str(path.relative_to(root)): (
            os.fsencode(os.readlink(path)) if path.is_symlink() else path.read_bytes(),
            path.lstat().st_mode,
        )
        for path in root.rglob("*")
        if ".git" not in path.relative_to(root).parts and (path.is_symlink() or path.is_file())
    }


def land(scratch: Scratch, old: str, new: str, branch: str = "main") -> MergeOutcome:
    return scratch.repositories.merge(scratch.path, branch, old, new)


def moved(scratch: Scratch) -> tuple[str, str]:
    """A base, checked out on main, and a commit to move main to that changes everything that can change."""
    old = scratch.commit(
        {"run.sh": "#!\n", "gone/deep/x": "x\n", "kind": "file\n", "dir/x": "x\n", "still": "still\n", "link": "was\n"}
    )
    path = scratch.home / "made"
    scratch.git("worktree", "add", "-q", "-b", "made", str(path))
    (path / "run.sh").chmod(0o755)
    shutil.rmtree(path / "gone")
    (path / "kind").unlink()
    shutil.rmtree(path / "dir")
    (path / "link").unlink()
    (path / "link").symlink_to("README")
    new = scratch.commit({"README": "two\n", "kind/now": "dir\n", "dir": "file\n", "new/deep/y": "y\n"}, path)
    scratch.git("worktree", "remove", str(path))
    return old, new


def test_branch_files_and_index_move_together(scratch: Scratch) -> None:
    old, new = moved(scratch)
    scratch.write({"untracked": "mine\n", "gone/deep/mine": "mine\n"})

    assert land(scratch, old, new) == MergeOutcome(state="merged", commit=new, old=old)

    assert scratch.rev("main") == new
    assert scratch.status() == "?? gone/\n?? untracked\n"
    assert (scratch.path / "link").is_symlink()
    assert scratch.git("diff-files") == "", "git trusts our stat data without a refresh"
    assert scratch.git("reflog", "-1", "--format=%H %gs").strip() == f"{new} merge: Steersman"
    assert scratch.git("reflog", "show", "-1", "--format=%H", "main").strip() == new
    assert land(scratch, old, new).state == "merged"
    assert scratch.is_sound()


def stage(scratch: Scratch) -> None:
    scratch.write({"README": "staged\n"})
    scratch.git("add", "README")
    scratch.write({"README": "one\n"})


def conflicted_stash(scratch: Scratch) -> None:
    scratch.write({"still": "stashed\n"})
    scratch.git("stash", "-q")
    scratch.write({"still": "other\n"})
    scratch.git("commit", "-q", "-a", "-m", "x")
    scratch.git("stash", "pop", "-q", ok=(1,))
    scratch.git("update-ref", "refs/heads/main", "HEAD~1")


DIRT: dict[str, Callable[[Scratch], object]] = {
    "edited": lambda scratch: scratch.write({"README": "edited\n"}),
    "edited elsewhere": lambda scratch: scratch.write({"still": "edited\n"}),
    "edited within the size": lambda scratch: scratch.write({"still": "STILL\n"}),
    "deleted": lambda scratch: scratch.write({"still": None}),
    "made executable": lambda scratch: (scratch.path / "still").chmod(0o755),
    "staged and put back": stage,
    "added": lambda scratch: scratch.write({"mine": "1\n"}) or scratch.git("add", "mine"),
    "intended": lambda scratch: scratch.write({"mine": "1\n"}) or scratch.git("add", "-N", "mine"),
    "untracked again": lambda scratch: scratch.git("rm", "-q", "--cached", "still"),
    "conflicted": conflicted_stash,
}


@pytest.mark.parametrize("dirt", DIRT)
def test_a_dirty_checkout_blocks_and_nothing_moves(scratch: Scratch, dirt: str) -> None:
    old, new = moved(scratch)
    DIRT[dirt](scratch)
    before, status = everything(scratch.path), scratch.status()
    index = (scratch.path / ".git/index").read_bytes()

    assert scratch.repositories.obstacle(scratch.path, "main") == "repository_dirty"
    assert land(scratch, old, new) == MergeOutcome(state="blocked", old=old, reason="repository_dirty")

    assert scratch.rev("main") == old
    assert everything(scratch.path) == before
    assert (scratch.path / ".git/index").read_bytes() == index
    assert scratch.status() == status
    assert scratch.is_sound()
    assert not list((scratch.path / ".git").glob("steersman-*"))


@pytest.mark.parametrize("directory", ["dir", "gone/deep", "."])
def test_a_directory_that_may_not_be_written_to_blocks_and_is_not_called_dirty(
    scratch: Scratch, directory: str
) -> None:
    old, new = moved(scratch)
    before = everything(scratch.path)
    # In a box root may write as little as anybody else.
    repositories = GitRepositories(scratch.home / "room", find_box())
    (scratch.path / directory).chmod(0o555)
    outcome = repositories.merge(scratch.path, "main", old, new)
    for path in (scratch.path, scratch.path / directory):
        path.chmod(0o755)
    assert outcome == MergeOutcome(state="blocked", old=old, reason="files_not_written")
    assert (scratch.rev("main"), everything(scratch.path), scratch.status()) == (old, before, "")
    assert scratch.is_sound()
    assert land(scratch, old, new).state == "merged"
    assert scratch.status() == ""


def start(operation: str, scratch: Scratch) -> None:
    theirs = scratch.branch_off("theirs", {"still": "theirs\n"}, scratch.rev("main"))
    ours = scratch.branch_off("ours", {"still": "ours\n"}, scratch.rev("main"))
    match operation:
        case "merge":
            scratch.git("merge", "--no-commit", "--no-ff", theirs)
        case "cherry-pick":
            scratch.git("cherry-pick", "--no-commit", theirs)
            scratch.git("reset", "-q", "--hard")
            scratch.git("update-ref", "--no-deref", "CHERRY_PICK_HEAD", theirs)
        case "revert":
            scratch.git("update-ref", "--no-deref", "REVERT_HEAD", theirs)
        case "rebase":
            scratch.git("checkout", "-q", "main")
            scratch.git("update-ref", "refs/heads/main", ours)
            scratch.git("reset", "-q", "--hard")
            scratch.git("rebase", "-q", theirs, ok=(1,))
            scratch.git("update-ref", "refs/heads/main", f"{ours}~1")
        case _:
            scratch.git("bisect", "start")


@pytest.mark.parametrize("operation", ["merge", "cherry-pick", "revert", "rebase", "bisect"])
def test_an_operation_in_progress_blocks_and_nothing_moves(scratch: Scratch, operation: str) -> None:
    old, new = moved(scratch)
    start(operation, scratch)
    before, status = everything(scratch.path), scratch.git("status")

    assert scratch.repositories.obstacle(scratch.path, "main") == "operation_in_progress"
    assert land(scratch, old, new).reason == "operation_in_progress"

    assert (scratch.rev("main"), everything(scratch.path)) == (old, before)
    assert scratch.git("status") == status


def test_git_at_work_in_the_checkout_blocks_and_its_lock_is_respected(scratch: Scratch) -> None:
    old, new = moved(scratch)
    lock = scratch.path / ".git/index.lock"
    lock.write_bytes(b"somebody's")
    os.utime(lock, (0, 0))

    assert land(scratch, old, new).reason == "operation_in_progress"

    assert lock.read_bytes() == b"somebody's"
    assert scratch.rev("main") == old
    lock.unlink()
    assert land(scratch, old, new).state == "merged"


def test_another_landing_at_work_in_the_checkout_blocks(scratch: Scratch) -> None:
    old, new = moved(scratch)
    marker = scratch.path / ".git/steersman-index"
    with marker.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        os.link(marker, scratch.path / ".git/index.lock")
        assert land(scratch, old, new).reason == "operation_in_progress"
        assert scratch.rev("main") == old
    # Its holder is dead now: the lock is taken over at once.
    assert land(scratch, old, new).state == "merged"
    assert scratch.is_sound()


@pytest.mark.parametrize(
    ("path", "taken"),
    [
        ("new/deep/y", "mine\n"),
        ("new", "a file where a directory must be\n"),
        ("new/deep/y/inside", "a directory where a file must be\n"),
        ("dir/mine", "kept from a directory that becomes a file\n"),
    ],
)
def test_what_is_untracked_is_not_overwritten(scratch: Scratch, path: str, taken: str) -> None:
    old, new = moved(scratch)
    scratch.write({path: taken})
    before = everything(scratch.path)

    assert land(scratch, old, new).reason == "untracked_would_be_overwritten"

    assert (scratch.rev("main"), everything(scratch.path)) == (old, before)


def test_a_link_in_a_directory_that_becomes_a_file_is_not_overwritten(scratch: Scratch) -> None:
    old, new = moved(scratch)
    scratch.write({".git/info/exclude": "link\n"})
    (scratch.path / "dir/link").symlink_to(scratch.home)
    before = everything(scratch.path)

    assert scratch.status() == ""
    assert land(scratch, old, new).reason == "untracked_would_be_overwritten"

    assert (scratch.rev("main"), everything(scratch.path)) == (old, before)


def test_directories_without_a_file_make_room(scratch: Scratch) -> None:
    old, new = moved(scratch)
    (scratch.path / "dir/empty/deeper").mkdir(parents=True)
    (scratch.path / "new/deep/y/empty").mkdir(parents=True)

    assert land(scratch, old, new).state == "merged"

    assert scratch.status() == ""
    assert (scratch.path / "dir").read_text() == "file\n"


def test_what_is_ignored_is_not_overwritten_either(scratch: Scratch) -> None:
    old, new = moved(scratch)
    scratch.write({".git/info/exclude": "new\n", "new/deep/y": "mine\n"})
    assert land(scratch, old, new).reason == "untracked_would_be_overwritten"
    assert (scratch.path / "new/deep/y").read_text() == "mine\n"


def test_nothing_is_written_through_an_untracked_link(scratch: Scratch) -> None:
    old, new = moved(scratch)
    (scratch.home / "outside").mkdir()
    (scratch.path / "new").symlink_to(scratch.home / "outside")
    assert land(scratch, old, new).reason == "untracked_would_be_overwritten"
    assert list((scratch.home / "outside").iterdir()) == []


def test_an_untracked_file_that_is_what_comes_anyway_does_not_block(scratch: Scratch) -> None:
    old, new = moved(scratch)
    scratch.write({"new/deep/y": "y\n"})
    assert land(scratch, old, new).state == "merged"
    assert scratch.status() == ""


def test_a_branch_that_moved_elsewhere_blocks(scratch: Scratch) -> None:
    old, new = moved(scratch)
    tip = scratch.commit({"user": "1\n"})
    assert land(scratch, old, new).reason == "head_moved"
    assert (scratch.rev("main"), scratch.status()) == (tip, "")
    assert land(scratch, old, new, "gone").reason == "head_moved"


def with_submodule(scratch: Scratch) -> str:
    """A base with a submodule `lib` whose files are checked out."""
    library = scratch.home / "library"
    scratch.git("clone", "-q", str(scratch.path), str(library))
    scratch.git("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(library), "lib")
    return scratch.commit({"dir/x": "x\n"})


def without_submodule(scratch: Scratch, old: str, files: dict[str, str]) -> str:
    """The base without its submodule, and with other files."""
    path = scratch.home / "made"
    scratch.git("worktree", "add", "-q", "-b", "made", str(path), old)
    scratch.git("rm", "-q", "lib", cwd=path)
    return scratch.commit(files, path)


def test_the_files_of_a_submodule_that_goes_stay_and_everything_else_moves(scratch: Scratch) -> None:
    old = with_submodule(scratch)
    new = without_submodule(scratch, old, {"a": "a\n", "z": "z\n"})

    assert land(scratch, old, new).state == "merged"

    assert scratch.status() == "?? lib/\n"
    assert (scratch.path / "lib/README").read_text() == "one\n"
    assert (scratch.path / "z").read_text() == "z\n"


@pytest.mark.parametrize("path", ["lib", "lib/new"])
def test_the_files_of_a_submodule_are_not_overwritten_or_mixed_with_others(scratch: Scratch, path: str) -> None:
    old = with_submodule(scratch)
    new = without_submodule(scratch, old, {path: "ours\n"})
    before = everything(scratch.path)

    assert land(scratch, old, new).reason == "untracked_would_be_overwritten"

    assert (scratch.rev("main"), everything(scratch.path)) == (old, before)
    shutil.rmtree(scratch.path / "lib")
    (scratch.path / "lib").mkdir()
    assert land(scratch, old, new).state == "merged"
    assert scratch.status() == ""


@pytest.mark.parametrize("command", ["false", "not-a-command"])
def test_a_filter_that_fails_blocks_and_nothing_moves(scratch: Scratch, command: str) -> None:
    for way in ("clean", "smudge"):
        scratch.git("config", f"filter.big.{way}", "cat")
    scratch.git("config", "filter.big.required", "true")
    old = scratch.commit({".gitattributes": "*.bin filter=big\n", "a.bin": "a\n"})
    new = scratch.branch_off("made", {"README": "two\n", "a.bin": "b\n", "x.bin": "x\n", "z": "z\n"}, old)
    scratch.git("status")  # the index's stat data is trusted from here on, so that looking alone runs no filter
    scratch.git("config", "filter.big.smudge", command)
    before = everything(scratch.path)

    assert land(scratch, old, new) == MergeOutcome(state="blocked", old=old, reason="filter_failed")

    assert (scratch.rev("main"), everything(scratch.path)) == (old, before)
    assert scratch.is_sound()
    scratch.git("config", "filter.big.smudge", "cat")
    assert land(scratch, old, new).state == "merged"
    assert scratch.status() == ""


def is_running(pid: int) -> bool:
    """Whether the process is there and no zombie."""
    for _ in range(100):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return False
        if state == "Z":
            return False
        time.sleep(0.02)
    return True


@pytest.mark.parametrize("hanging", ["smudge", "process"])
def test_a_filter_that_hangs_is_ended_with_all_it_started_and_blocks(scratch: Scratch, hanging: str) -> None:
    scratch.repositories = GitRepositories(scratch.home / "scratch", settings=GitSettings(box_seconds=3.0))
    old = scratch.commit({".gitattributes": "*.bin filter=big\n"})
    new = scratch.branch_off("made", {"README": "two\n", "x.bin": "x\n"}, old)
    pids = scratch.home / "pids"
    scratch.git("config", f"filter.big.{hanging}", f"echo $$ >>{pids}; sleep 600 & echo $! >>{pids}; wait")

    assert land(scratch, old, new).reason == "filter_failed"

    assert (scratch.rev("main"), scratch.status()) == (old, "")
    assert scratch.is_sound()
    for pid in pids.read_text().split():
        assert not is_running(int(pid))


def test_the_files_of_submodules_stay_whatever_is_configured(scratch: Scratch) -> None:
    inner = scratch.home / "inner"
    scratch.git("init", "-q", str(inner), cwd=scratch.home)
    scratch.commit({"x": "x\n"}, inner)
    scratch.git("-c", "protocol.file.allow=always", "submodule", "add", "-q", str(inner), "sub")
    old = scratch.commit({})
    scratch.git("config", "submodule.recurse", "true")
    scratch.git("update-index", "--cacheinfo", f"160000,{scratch.commit({'y': 'y'}, inner)},sub")
    scratch.git("commit", "-q", "-m", "newer")
    new = scratch.rev("HEAD")
    scratch.git("-c", "submodule.recurse=false", "reset", "-q", "--hard", old)

    assert land(scratch, old, new).state == "merged"

    assert scratch.status() == " M sub\n"
    assert not (scratch.path / "sub/y").exists()
