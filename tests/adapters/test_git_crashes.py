"""Killed at any hop between two changes of files, each call finishes when it is made again, with the same outcome."""

import os
import shutil
import signal
import subprocess
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from steersman.adapters.git.workplaces import finish
from steersman.adapters.log.stored_log import unsealed
from steersman.adapters.stores.crash_points import POINTS, VARIABLE, UnknownPoint, with_crash_point
from steersman.application.ports.git import Contribution

from .conftest import AT, Scratch
from .test_git_landing import everything, moved
from .test_git_workplaces import linked

Call = Callable[[], object]


def killed_at(point: str, call: Call) -> bool:
    """Do the call in a process that dies at a point; return whether it died there."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # other threads of the test run do not matter here
        child = os.fork()
    if child == 0:
        os.environ[VARIABLE] = f"at {point}"
        try:
            call()
            os._exit(0)
        except BaseException:  # noqa: BLE001
            os._exit(1)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, -signal.SIGKILL), "the call itself failed"
    return code == -signal.SIGKILL


def age_locks(home: Path) -> None:
    """Let the time pass after which a lock that nobody holds counts as left behind."""
    past = time.time() - 60
    for lock in home.rglob("*.lock"):
        os.utime(lock, (past, past))


def state(scratch: Scratch, workplace: Path) -> object:
    """All that a call may change, as the real git sees it."""
    assert scratch.is_sound()
    found = [scratch.git("for-each-ref"), scratch.git("worktree", "list", "--porcelain")]
    for root in (scratch.path, workplace):
        if root.exists():
            found.append(
                str((sorted(everything(root).items()), scratch.git("status", "--porcelain", "--branch", cwd=root)))
            )
    places = scratch.home / "worktrees"
    return (
        found,
        sorted(os.listdir(places)) if places.exists() else [],
        scratch.repositories.look_at(scratch.path, workplace),
    )


def assert_finishes(scratch: Scratch, workplace: Path, call: Call, *points: str) -> None:
    """Kill the call at each point; each time, made again, it must end where the undisturbed one ends."""
    assert set(points) <= POINTS
    before = scratch.home / "before"

    def restore() -> None:
        for name in ("repo", "worktrees"):
            shutil.rmtree(scratch.home / name, ignore_errors=True)
            if (before / name).exists():
                subprocess.run(["cp", "-a", str(before / name), str(scratch.home / name)], check=True)
        noted = scratch.home / "worktrees/.made/child"
        if noted.exists() and workplace.exists():
            # A copy is another directory than the one that was made.
            finish(workplace, scratch.rev("main"))

    before.mkdir()
    for name in ("repo", "worktrees"):
        if (scratch.home / name).exists():
            subprocess.run(["cp", "-a", str(scratch.home / name), str(before / name)], check=True)
    answer = call()
    wanted = state(scratch, workplace)
    assert call() == answer
    assert state(scratch, workplace) == wanted, "twice is once"
    for point in points:
        restore()
        assert killed_at(point, call), f"never came to {point}"
        age_locks(scratch.home)
        assert call() == answer, f"killed at {point}"
        assert state(scratch, workplace) == wanted, f"killed at {point}"


def test_making_a_workplace(scratch: Scratch) -> None:
    points = ("workplace.cleared", "workplace.held", "workplace.begun", "workplace.filled")
    assert_finishes(scratch, scratch.home / "worktrees/child", scratch.workplace, *points)


def test_making_a_workplace_where_another_one_stands(scratch: Scratch) -> None:
    path = scratch.workplace()
    scratch.write({"README": "two\n", "junk": "x\n"}, path)
    points = ("workplace.set_aside", "workplace.removed", "workplace.cleared", "workplace.begun")
    assert_finishes(scratch, path, scratch.workplace, *points)


def test_committing_a_workplace(scratch: Scratch) -> None:
    path = scratch.workplace()
    parent = scratch.rev("main")
    scratch.write({"README": "two\n", "new/x": "x\n", "src/a.txt": None}, path)

    assert_finishes(
        scratch,
        path,
        lambda: scratch.repositories.commit_workplace(scratch.path, path, parent, AT, "Work"),
        "workplace.staged",
        "workplace.taken",
    )


def test_removing_a_workplace(scratch: Scratch) -> None:
    path = scratch.workplace()
    assert_finishes(
        scratch,
        path,
        lambda: scratch.repositories.remove_workplace(scratch.path, path, "steersman/child"),
        "workplace.set_aside",
        "workplace.removed",
    )


def test_making_a_workplace_of_a_linked_worktree(scratch: Scratch) -> None:
    path = linked(scratch)
    assert_finishes(scratch, path, lambda: scratch.repositories.look_at(scratch.path, path), "workplace.converted")


def test_integrating_and_pointing_a_branch(scratch: Scratch) -> None:
    root = scratch.rev("main")
    sides = [scratch.branch_off(name, {"README": f"{name}\n", name: "1\n"}, root) for name in ("one", "two", "three")]
    contributions = [Contribution(subtask_id=n, branch=f"b{n}", commit=commit) for n, commit in enumerate(sides)]

    def call() -> object:
        made = scratch.repositories.integrate(scratch.path, "run", root, contributions, AT, "Assemble")
        scratch.repositories.point_branch(scratch.path, "steersman/integration/x", None, made.commit)
        return made

    assert_finishes(scratch, scratch.home / "none", call, "merge.stored")


def test_landing_in_a_clean_checkout(scratch: Scratch) -> None:
    old, new = moved(scratch)
    scratch.write({"untracked": "mine\n"})
    scratch.git("pack-refs", "--all")

    assert_finishes(
        scratch,
        scratch.home / "none",
        lambda: scratch.repositories.merge(scratch.path, "main", old, new),
        "landing.locked",
        "landing.written",
        "landing.moved",
        "landing.swapped",
        "landing.indexed",
    )


@pytest.mark.parametrize("point", ["landing.written", "landing.moved"])
def test_a_landing_that_was_cut_short_is_taken_back_before_another_one(scratch: Scratch, point: str) -> None:
    old, new = moved(scratch)
    other = scratch.branch_off("other", {"README": "other\n", "new/deep/y": "other\n"}, old)
    assert killed_at(point, lambda: scratch.repositories.merge(scratch.path, "main", old, new))
    scratch.git("commit", "-q", "-a", "--allow-empty", "-m", "of half a merge", ok=(128,))

    assert scratch.repositories.merge(scratch.path, "main", old, other).state == "merged"

    assert (scratch.rev("main"), scratch.status()) == (other, "")
    assert scratch.is_sound()


@pytest.mark.parametrize("point", ["landing.written", "landing.moved"])
def test_what_the_user_has_edited_since_a_landing_was_cut_short_blocks_it_and_undoes_nothing(
    scratch: Scratch, point: str
) -> None:
    old, new = moved(scratch)
    assert killed_at(point, lambda: scratch.repositories.merge(scratch.path, "main", old, new))
    scratch.write({"README": "the user's\n"})

    assert scratch.repositories.merge(scratch.path, "main", old, new).reason == "repository_dirty"

    assert (scratch.rev("main"), scratch.status()) == (old, " M README\n")
    assert (scratch.path / "README").read_text() == "the user's\n"


@pytest.mark.parametrize("point", ["landing.written", "landing.moved", "landing.swapped"])
def test_a_checkout_whose_landing_was_cut_short_and_that_went_elsewhere_is_left_alone(
    scratch: Scratch, point: str
) -> None:
    old, new = moved(scratch)
    other = scratch.branch_off("other", {"src/a.txt": "other\n"}, old)
    assert killed_at(point, lambda: scratch.repositories.merge(scratch.path, "main", old, new))
    (scratch.path / ".git/index.lock").unlink()
    scratch.git("checkout", "-q", "-f", "other")
    scratch.git("clean", "-q", "-f", "-d")

    assert scratch.repositories.merge(scratch.path, "main", old, new).state == "merged"
    assert scratch.status() == ""
    newer = scratch.branch_off("newer", {"src/b.txt": "newer\n"}, other)
    assert scratch.repositories.merge(scratch.path, "other", other, newer).state == "merged"

    assert (scratch.rev("main"), scratch.rev("HEAD"), scratch.status()) == (new, newer, "")


@pytest.mark.parametrize("point", ["landing.moved", "landing.swapped"])
def test_a_landing_that_was_cut_short_is_taken_back_where_somebody_else_moved_the_branch(
    scratch: Scratch, point: str
) -> None:
    old, new = moved(scratch)
    third = scratch.branch_off("third", {"src/a.txt": "third\n"}, old)
    assert killed_at(point, lambda: scratch.repositories.merge(scratch.path, "main", old, new))
    scratch.git("update-ref", "refs/heads/main", third)

    assert scratch.repositories.merge(scratch.path, "main", old, new).reason == "head_moved"

    assert scratch.git("diff", "--name-only", old) == "", "the files are those before the landing"
    assert scratch.git("diff", "--cached", "--name-only", old) == ""
    assert not (scratch.path / ".git/index.lock").exists()


@pytest.mark.parametrize("named", ["at nowhere", "at", "lost", "soon x"])
def test_a_point_that_is_none_refuses_the_start(named: str) -> None:
    with pytest.raises(UnknownPoint):
        with_crash_point(unsealed, {VARIABLE: named})
