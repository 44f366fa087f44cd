"""Refs lose no move, whoever else moves them, and no lock that a crash left behind stops them."""

import errno
import os
import resource
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import dulwich.refs
import pytest

from steersman.adapters.git import refs as git_refs
from steersman.adapters.git.objects import new_commit
from steersman.application.ports.git import GitConflict

from .conftest import AT, Scratch


def test_a_hundred_commits_from_four_threads_lose_nothing(scratch: Scratch) -> None:
    start = scratch.rev("main")
    scratch.repositories.point_branch(scratch.path, "counter", None, start)

    def follow(number: int) -> list[str]:
        # Each thread adds to whatever the branch is at; who loses the race tries again.
        made = list[str]()
        while len(made) < 25:
            tip = scratch.repositories.tip(scratch.path, "counter")
            content = new_commit(tip.tree, [tip.commit], AT, f"{number}, {len(made)}").as_raw_string()
            mine = scratch.git("hash-object", "-t", "commit", "-w", "--stdin", stdin=os.fsdecode(content)).strip()
            try:
                scratch.repositories.point_branch(scratch.path, "counter", tip.commit, mine)
                made.append(mine)
            except GitConflict:
                continue
        return made

    with ThreadPoolExecutor(4) as threads:
        made = [commit for commits in threads.map(follow, range(4)) for commit in commits]

    assert set(scratch.git("rev-list", f"{start}..counter").split()) == set(made)
    assert len(set(made)) == 100
    assert scratch.is_sound()


def test_commits_of_many_worktrees_at_once_are_all_there(scratch: Scratch) -> None:
    paths = {f"run{number}": scratch.workplace(f"run{number}") for number in range(8)}

    def work(name: str) -> list[str]:
        parent, commits = scratch.rev("main"), list[str]()
        for turn in range(4):
            scratch.write({"shared": f"{turn}\n", f"{name}/{turn}": "x\n"}, paths[name])
            made = scratch.repositories.commit_workplace(scratch.path, paths[name], parent, AT, f"Turn {turn}").commit
            scratch.repositories.point_branch(scratch.path, f"steersman/{name}", parent if turn else None, made)
            parent = made
            commits.append(parent)
        return commits

    with ThreadPoolExecutor(8) as threads:
        made = dict(zip(paths, threads.map(work, paths), strict=True))

    for name, commits in made.items():
        assert scratch.git("rev-list", "--reverse", f"main..steersman/{name}").split() == commits
    assert scratch.is_sound()


@pytest.mark.parametrize("packed", [False, True])
def test_a_branch_moves_once_and_only_from_where_it_was_expected(scratch: Scratch, packed: bool) -> None:
    one = scratch.rev("main")
    two = scratch.branch_off("two", {"x": "1\n"}, one)
    point = scratch.repositories.point_branch
    point(scratch.path, "b", None, one)
    if packed:
        scratch.git("pack-refs", "--all")

    point(scratch.path, "b", None, one)
    with pytest.raises(GitConflict):
        point(scratch.path, "b", None, two)
    with pytest.raises(GitConflict):
        point(scratch.path, "b", "0" * 39 + "1", two)
    with pytest.raises(GitConflict):
        point(scratch.path, "gone", one, two)
    assert (scratch.rev("b"), scratch.rev("gone")) == (one, "")
    point(scratch.path, "b", one, two)
    point(scratch.path, "b", one, two)
    assert scratch.rev("b") == two


@pytest.mark.parametrize(
    "name", ["", "a..b", "-x/../../y", "a b", "a.lock", "HEAD^", "x/../../../hooks/y", "a\nb", "\0"]
)
def test_a_name_that_is_none_for_a_branch_is_refused(scratch: Scratch, name: str) -> None:
    with pytest.raises(GitConflict):
        scratch.repositories.point_branch(scratch.path, name, None, scratch.rev("main"))


def test_a_branch_whose_name_is_a_directory_of_others_is_refused(scratch: Scratch) -> None:
    scratch.git("branch", "steersman")
    with pytest.raises(GitConflict):
        scratch.repositories.point_branch(scratch.path, "steersman/x", None, scratch.rev("main"))


def test_a_lock_that_a_crash_left_behind_is_broken(scratch: Scratch) -> None:
    lock = scratch.path / ".git/refs/heads/main.lock"
    lock.touch()
    os.utime(lock, (0, 0))
    new = scratch.branch_off("new", {"x": "1\n"}, scratch.rev("main"))

    assert scratch.repositories.merge(scratch.path, "main", scratch.rev("main"), new).state == "merged"

    assert (scratch.rev("main"), scratch.status()) == (new, "")
    assert scratch.is_sound()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore:unclosed:ResourceWarning")
def test_a_lock_that_could_not_be_written_is_held_by_nobody(scratch: Scratch) -> None:
    start, lock = scratch.rev("main"), scratch.path / ".git/refs/heads/child.lock"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        with pytest.raises(OSError, match="File too large") as caught:
            scratch.repositories.point_branch(scratch.path, "child", None, start)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert lock.exists()
    os.utime(lock, (0, 0))

    scratch.repositories.point_branch(scratch.path, "child", None, start)

    assert (scratch.rev("child"), caught.value.errno) == (start, errno.EFBIG)


def test_a_young_lock_and_one_that_somebody_holds_are_waited_for(scratch: Scratch) -> None:
    lock = scratch.path / ".git/refs/heads/main.lock"
    lock.touch()
    assert not git_refs.break_stale_lock(str(lock))
    os.utime(lock, (0, 0))
    holder = subprocess.Popen(
        [sys.executable, "-c", "import sys; f = open(sys.argv[1]); print('held', flush=True); input()", str(lock)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with holder:
        assert holder.stdout
        assert holder.stdout.readline() == b"held\n"
        assert not git_refs.break_stale_lock(str(lock))
        assert lock.exists()
        holder.communicate(b"\n")
    assert git_refs.break_stale_lock(str(lock))
    assert not lock.exists()
    assert git_refs.break_stale_lock(str(lock)), "what is gone is gone"


def test_a_ref_is_made_though_git_removes_its_empty_directory_meanwhile(
    scratch: Scratch, monkeypatch: pytest.MonkeyPatch
) -> None:
    removed = list[bytes]()

    def made_and_removed(directory: bytes) -> None:
        os.makedirs(directory, exist_ok=True)
        if directory.endswith(b"/bases") and len(removed) < 2:
            # As `git pack-refs --prune` does in another process.
            os.rmdir(directory)
            removed.append(directory)

    monkeypatch.setattr(dulwich.refs, "ensure_dir_exists", made_and_removed)

    scratch.workplace()

    assert len(removed) == 2
    assert scratch.rev("refs/steersman/bases/child") == scratch.rev("main")
