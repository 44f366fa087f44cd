"""Killed at any change that it makes to the disk, each call finishes when it is made again, with the same outcome."""

import os
import shutil
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

from steersman.application.git_port import Contribution
from steersman.domain.git import Commit

from .conftest import AT, Scratch
from .test_git_landing import everything, moved

#: What changes the disk, as Python's audit hooks name it; opening counts if it is for writing.
CHANGES = frozenset(["os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate"])
KILLED = 77

Call = Callable[[], object]


def killed_at(step: int, call: Call) -> bool:
    """Do the call in a process that dies right before its change number *step*; return whether it died."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # other threads of the test run do not matter here
        child = os.fork()
    if child == 0:
        seen = 0

        def watch(event: str, arguments: tuple[object, ...]) -> None:
            nonlocal seen
            writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
            if event in CHANGES or writes:
                seen += 1
                if seen == step:
                    os._exit(KILLED)

        try:
            sys.addaudithook(watch)
            call()
            os._exit(0)
        except BaseException:  # noqa: BLE001
            os._exit(1)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, KILLED), "the call itself failed"
    return code == KILLED


def age_locks(home: Path) -> None:
    """Let the time pass after which a lock that nobody holds counts as left behind."""
    past = time.time() - 60
    for lock in home.rglob("*.lock"):
        os.utime(lock, (past, past))


def state(scratch: Scratch, worktree: Path) -> object:
    """All that a call may change, as the real git sees it."""
    assert scratch.is_sound()
    checkouts = [scratch.path, worktree] if worktree.exists() else [scratch.path]
    return (
        scratch.git("for-each-ref"),
        scratch.git("worktree", "list", "--porcelain"),
        [(everything(root), scratch.git("status", "--porcelain", "--branch", cwd=root)) for root in checkouts],
    )


def assert_finishes(scratch: Scratch, worktree: Path, call: Call) -> None:
    """Kill the call at each of its changes; each time, made again, it must end where the undisturbed one ends."""
    before = scratch.home / "before"

    def restore() -> None:
        for name in ("repo", "worktrees"):
            shutil.rmtree(scratch.home / name, ignore_errors=True)
            if (before / name).exists():
                shutil.copytree(before / name, scratch.home / name, symlinks=True)

    before.mkdir()
    for name in ("repo", "worktrees"):
        if (scratch.home / name).exists():
            shutil.copytree(scratch.home / name, before / name, symlinks=True)
    answer = call()
    wanted = state(scratch, worktree)
    assert call() == answer
    assert state(scratch, worktree) == wanted, "twice is once"
    step = 1
    while restore() or killed_at(step, call):
        age_locks(scratch.home)
        assert call() == answer, f"killed at step {step}"
        assert state(scratch, worktree) == wanted, f"killed at step {step}"
        step += 1
    assert step > 2, "the call changes something"


def test_making_a_worktree(scratch: Scratch) -> None:
    assert_finishes(scratch, scratch.home / "worktrees/child", scratch.worktree)


def test_committing_a_worktree(scratch: Scratch) -> None:
    path = scratch.worktree()
    parent = scratch.rev("main")
    scratch.write({"README": "two\n", "new/x": "x\n", "src/a.txt": None}, path)

    assert_finishes(
        scratch,
        path,
        lambda: scratch.repositories.commit_worktree(scratch.path, path, "steersman/child", parent, AT, "Work"),
    )


def test_resetting_a_worktree(scratch: Scratch) -> None:
    path = scratch.worktree()
    first = scratch.rev("main")
    scratch.commit({"README": "two\n", "src/a.txt": None}, path)
    scratch.write({"junk/x": "x\n", "src/b.txt": "edited\n"}, path)

    assert_finishes(
        scratch, path, lambda: scratch.repositories.reset_worktree(scratch.path, path, "steersman/child", first)
    )


def test_removing_a_worktree(scratch: Scratch) -> None:
    path = scratch.worktree()
    assert_finishes(scratch, path, lambda: scratch.repositories.remove_worktree(scratch.path, path, "steersman/child"))


def test_integrating_and_pointing_a_branch(scratch: Scratch) -> None:
    root = scratch.rev("main")
    sides = [scratch.branch_off(name, {"README": f"{name}\n", name: "1\n"}, root) for name in ("one", "two", "three")]
    contributions = [Contribution(subtask_id=n, branch=f"b{n}", commit=commit) for n, commit in enumerate(sides)]

    def call() -> object:
        made = scratch.repositories.integrate(scratch.path, "run", root, contributions, AT, "Assemble")
        scratch.repositories.point_branch(scratch.path, "steersman/integration/x", None, made.commit)
        return made

    assert_finishes(scratch, scratch.path, call)


def test_landing_in_a_clean_checkout(scratch: Scratch) -> None:
    old, new = moved(scratch)
    scratch.write({"untracked": "mine\n"})
    scratch.git("pack-refs", "--all")

    assert_finishes(scratch, scratch.path, lambda: scratch.repositories.merge(scratch.path, "main", old, new))


def test_preparing_and_landing_a_merge_commit(scratch: Scratch) -> None:
    root = scratch.rev("main")
    side = scratch.branch_off("side", {"src/a.txt": "side\n"}, root)
    approved = Commit(commit=side, tree=scratch.rev(f"{side}^{{tree}}"))
    tip = scratch.commit({"README": "user\n"})

    def call() -> object:
        # The log keeps what the first call found; here it is the branch's tip before the merge.
        at_tip = scratch.repositories.tip(scratch.path, "main").commit == tip
        made = (
            scratch.repositories.prepare_merge(scratch.path, "main", approved, AT, "Merge").commit
            if at_tip
            else scratch.rev("main")
        )
        assert made
        return scratch.repositories.merge(scratch.path, "main", tip, made)

    assert_finishes(scratch, scratch.path, call)
