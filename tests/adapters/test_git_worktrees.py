"""Worktrees are real ones, each its own, and making or removing one twice is making or removing it once."""

import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Timer

import pytest

from steersman.adapters.git.repositories import GitRepositories
from steersman.application.git_port import GitConflict

from .conftest import AT, Scratch
from .test_git_landing import everything


def linked(scratch: Scratch) -> set[str]:
    """The linked worktrees that the real git knows, none of them prunable."""
    listed = scratch.git("worktree", "list", "--porcelain")
    assert "prunable" not in listed
    return {line.removeprefix("worktree ") for line in listed.splitlines() if line.startswith("worktree ")} - {
        str(scratch.path)
    }


def test_a_worktree_is_one_for_git_and_clean(scratch: Scratch) -> None:
    path = scratch.worktree()

    assert linked(scratch) == {str(path)}
    assert scratch.git("branch", "--show-current", cwd=path) == "steersman/child\n"
    assert scratch.status(path) == ""
    assert (path / "src/a.txt").read_text() == "a\n"
    assert "locked" not in scratch.git("worktree", "list", "--porcelain")
    assert scratch.is_sound()


def test_a_worktree_that_exists_is_found_as_it_is(scratch: Scratch) -> None:
    path = scratch.worktree()
    scratch.write({"README": "the agent's\n", "new": "new\n"}, path)
    scratch.commit({"README": "two\n"})

    assert scratch.worktree(base=scratch.rev("HEAD")) == path

    assert (path / "README").read_text() == "the agent's\n"
    assert (path / "new").exists()
    assert scratch.rev("steersman/child") == scratch.rev("main~1")


def test_a_worktree_whose_directory_is_gone_is_made_again_from_its_branch(scratch: Scratch) -> None:
    path = scratch.worktree()
    tip = scratch.commit({"made": "by the child\n"}, path)
    shutil.rmtree(path)

    scratch.worktree()

    assert (path / "made").exists()
    assert scratch.status(path) == ""
    assert scratch.rev("steersman/child") == tip
    assert linked(scratch) == {str(path)}


def test_a_worktree_that_git_pruned_is_taken_back_with_what_was_not_committed(scratch: Scratch) -> None:
    path = scratch.worktree()
    scratch.write({"README": "edited\n", "new": "new\n", "src/a.txt": None}, path)
    shutil.rmtree(scratch.path / ".git/worktrees")

    scratch.worktree()

    assert sorted(scratch.status(path).splitlines()) == [" D src/a.txt", " M README", "?? new"]


def test_something_else_at_the_path_is_left_alone(scratch: Scratch) -> None:
    scratch.write({"mine": "mine\n"}, scratch.home / "worktrees/child")

    with pytest.raises(GitConflict):
        scratch.worktree()

    assert (scratch.home / "worktrees/child/mine").exists()
    assert linked(scratch) == set()


def test_worktrees_of_equal_names_do_not_share_anything(scratch: Scratch) -> None:
    one, two = scratch.home / "one/repo", scratch.home / "two/repo"
    for number, path in enumerate((one, two)):
        scratch.repositories.ensure_worktree(scratch.path, path, f"steersman/{number}", scratch.rev("HEAD"))
    scratch.write({"README": "changed\n"}, one)

    assert linked(scratch) == {str(one), str(two)}
    assert scratch.status(one) == " M README\n"
    assert scratch.status(two) == ""
    scratch.repositories.remove_worktree(scratch.path, one, "steersman/0")
    assert linked(scratch) == {str(two)}
    assert scratch.status(two) == ""


def test_twenty_four_worktrees_made_and_removed_at_once_leave_nothing_behind(scratch: Scratch) -> None:
    names = [f"run{number}" for number in range(24)]
    with ThreadPoolExecutor(24) as threads:
        paths = list(threads.map(scratch.worktree, names))
        assert linked(scratch) == {str(path) for path in paths}
        assert all(scratch.status(path) == "" for path in paths)
        assert scratch.is_sound()

        list(
            threads.map(
                lambda name: scratch.repositories.remove_worktree(
                    scratch.path, scratch.home / "worktrees" / name, f"steersman/{name}"
                ),
                names,
            )
        )

    assert linked(scratch) == set()
    assert not any(path.exists() for path in paths)
    assert scratch.git("branch", "--format=%(refname:short)") == "main\n"
    assert os.listdir(scratch.home / "worktrees") == []
    assert os.listdir(scratch.path / ".git/worktrees") == []
    assert scratch.is_sound()


def test_removing_twice_is_removing_once_and_spares_other_branches(scratch: Scratch) -> None:
    path = scratch.worktree()
    scratch.git("branch", "kept")

    for _ in range(2):
        scratch.repositories.remove_worktree(scratch.path, path, "steersman/child")

    assert not path.exists()
    assert linked(scratch) == set()
    assert scratch.git("branch", "--format=%(refname:short)") == "kept\nmain\n"
    assert not list((scratch.path / ".git/logs").rglob("steersman/*"))


def test_removing_without_a_branch_keeps_it(scratch: Scratch) -> None:
    path = scratch.worktree()

    scratch.repositories.remove_worktree(scratch.path, path, None)

    assert not path.exists()
    assert scratch.rev("steersman/child") == scratch.rev("main")


def test_a_branch_that_was_packed_is_removed_too(scratch: Scratch) -> None:
    path = scratch.worktree()
    scratch.git("pack-refs", "--all")

    scratch.repositories.remove_worktree(scratch.path, path, "steersman/child")

    assert scratch.git("branch", "--format=%(refname:short)") == "main\n"


def test_removing_never_removes_the_repository_or_another_one(scratch: Scratch) -> None:
    other = scratch.home / "other"
    scratch.git("clone", "-q", str(scratch.path), str(other))

    for path in (scratch.path, scratch.home, other):
        with pytest.raises(GitConflict):
            scratch.repositories.remove_worktree(scratch.path, path, None)

    assert (scratch.path / "README").exists()
    assert (other / "README").exists()


def test_a_worktree_is_removed_although_its_repository_is_gone(scratch: Scratch) -> None:
    path = scratch.worktree()
    shutil.rmtree(scratch.path)

    scratch.repositories.remove_worktree(scratch.path, path, "steersman/child")

    assert not path.exists()


def test_removing_does_not_follow_links_out_of_the_worktree(scratch: Scratch) -> None:
    path = scratch.worktree()
    scratch.write({"precious": "precious\n"}, scratch.home / "outside")
    (path / "link").symlink_to(scratch.home / "outside")

    scratch.repositories.remove_worktree(scratch.path, path, None)

    assert (scratch.home / "outside/precious").exists()


def test_a_reset_leaves_exactly_the_commit(scratch: Scratch) -> None:
    path = scratch.worktree()
    first = scratch.rev("HEAD")
    scratch.commit({"README": "two\n", ".gitignore": "*.log\n", "src/a.txt": None}, path)
    scratch.git("checkout", "-q", "-b", "elsewhere", cwd=path)
    scratch.write({"dir/junk": "x", "debug.log": "ignored\n", "src/b.txt": "edited\n"}, path)
    scratch.git("add", "dir", cwd=path)
    scratch.git("init", "-q", "nested", cwd=path)
    (path / "src/c").symlink_to("/nowhere")
    (path / "README").unlink()
    scratch.write({"README/in/the/way": "x\n"}, path)

    for _ in range(2):
        scratch.repositories.reset_worktree(scratch.path, path, "steersman/child", first)

    assert {str(p.relative_to(path)) for p in path.rglob("*") if not p.is_dir()} == {
        ".git",
        "README",
        "src/a.txt",
        "src/b.txt",
    }
    assert scratch.status(path) == ""
    assert scratch.rev("HEAD", cwd=path) == first
    assert scratch.git("branch", "--show-current", cwd=path) == "steersman/child\n"
    assert scratch.rev("elsewhere") != first
    assert scratch.is_sound()


class Lapsed(Exception):
    """What is raised by whoever is asked after the lease ended."""


class Lease:
    """A lease that ends after so many questions, or when it is told to."""

    def __init__(self, questions: int | None = None) -> None:
        self.left = questions

    def check(self) -> None:
        if self.left == 0:
            raise Lapsed
        if self.left is not None:
            self.left -= 1


CALLS: dict[str, Callable[[GitRepositories, Scratch, Path, str], object]] = {
    "reset": lambda git, scratch, path, tip: git.reset_worktree(scratch.path, path, "steersman/child", tip),
    "commit": lambda git, scratch, path, tip: git.commit_worktree(
        scratch.path, path, "steersman/child", tip, AT, "Work"
    ),
    "remove": lambda git, scratch, path, _: git.remove_worktree(scratch.path, path, "steersman/child"),
    "point": lambda git, scratch, _, tip: git.point_branch(scratch.path, "steersman/child", tip, scratch.rev("other")),
}


@pytest.mark.parametrize(
    ("call", "lock"),
    [
        ("reset", ".git/worktrees/child/index.lock"),
        ("commit", ".git/worktrees/child/index.lock"),
        ("commit", ".git/refs/heads/steersman/child.lock"),
        ("point", ".git/refs/heads/steersman/child.lock"),
        ("reset", ".git/refs/heads/steersman/child.lock"),
    ],
)
def test_whoever_loses_the_lease_while_it_waits_for_a_lock_changes_nothing(
    scratch: Scratch, call: str, lock: str
) -> None:
    path, lease = scratch.worktree(), Lease()
    tip = scratch.rev("main")
    scratch.branch_off("other", {"x": "x\n"}, tip)
    scratch.write({"README": "edited\n"}, path)
    held = scratch.path / lock
    held.touch()

    def next_owner() -> None:
        lease.left = 0
        scratch.write({"README": "the next owner's\n", "work": "the next owner's\n"}, path)
        held.unlink(missing_ok=True)

    if (call, lock[-10:]) == ("reset", "child.lock"):
        tip = scratch.rev("other")
    later = Timer(0.3, next_owner)
    later.start()

    with pytest.raises(Lapsed):
        CALLS[call](GitRepositories(lease.check), scratch, path, tip)

    later.join()

    assert scratch.rev("steersman/child") == scratch.rev("main")
    assert scratch.status(path) == " M README\n?? work\n"


def test_whoever_loses_the_lease_at_work_stops_there_and_the_next_owner_ends_it(scratch: Scratch) -> None:
    path = scratch.worktree()
    first = scratch.commit({f"junk/{number}": "x\n" for number in range(20)}, path)
    tip = scratch.rev("main")
    for call in ("reset", "remove"):
        questions, ended = 0, False
        while not ended:
            scratch.worktree(base=tip)
            scratch.repositories.reset_worktree(scratch.path, path, "steersman/child", first)
            before = everything(path)
            try:
                CALLS[call](GitRepositories(Lease(questions).check), scratch, path, tip)
                ended = True
            except Lapsed:
                assert questions > 0 or everything(path) == before
                CALLS[call](scratch.repositories, scratch, path, tip)
            questions += 1
        assert questions > 2, "it is asked more than once"


def test_a_reset_does_not_write_through_a_link_that_the_agent_left(scratch: Scratch) -> None:
    path = scratch.worktree()
    outside = scratch.home / "outside"
    scratch.write({"a.txt": "precious\n"}, outside)
    shutil.rmtree(path / "src")
    (path / "src").symlink_to(outside)
    (path / "README").unlink()
    (path / "README").symlink_to(outside / "a.txt")

    scratch.repositories.reset_worktree(scratch.path, path, "steersman/child", scratch.rev("main"))

    assert (outside / "a.txt").read_text() == "precious\n"
    assert scratch.status(path) == ""
    assert not (path / "src").is_symlink()


def test_a_reset_ends_a_merge_and_a_repository_that_the_agent_began(scratch: Scratch) -> None:
    path = scratch.worktree()
    theirs = scratch.branch_off("theirs", {"README": "theirs\n"}, scratch.rev("main"))
    scratch.commit({"README": "ours\n"}, path)
    scratch.git("merge", theirs, cwd=path, ok=(1,))
    scratch.repositories.reset_worktree(scratch.path, path, "steersman/child", scratch.rev("main"))
    assert scratch.git("status", cwd=path) == "On branch steersman/child\nnothing to commit, working tree clean\n"

    (path / ".git").unlink()
    scratch.git("init", "-q", cwd=path)
    scratch.repositories.reset_worktree(scratch.path, path, "steersman/child", scratch.rev("main"))
    assert scratch.status(path) == ""
    assert (path / ".git").is_file()


def test_five_thousand_files_are_checked_out_once_and_known_to_be_clean(scratch: Scratch) -> None:
    many = {f"d{n % 50}/f{n}.txt": f"{n}\n" for n in range(5000)}
    base = scratch.commit(many)

    path = scratch.worktree("big", base)

    before = {name: (path / name).stat().st_ino for name in many}
    assert scratch.git("diff-files", cwd=path) == "", "git trusts our stat data without a refresh"
    scratch.repositories.reset_worktree(scratch.path, path, "steersman/big", base)
    assert before == {name: (path / name).stat().st_ino for name in many}, "what is current is not written again"


def test_a_repository_in_a_linked_worktree_or_with_a_link_to_it_works_the_same(
    scratch: Scratch, tmp_path: Path
) -> None:
    theirs = tmp_path / "theirs"
    scratch.git("worktree", "add", "-q", "-b", "feature", str(theirs))
    (tmp_path / "alias").symlink_to(theirs)

    state = scratch.repositories.inspect(tmp_path / "alias")
    path = tmp_path / "w"
    scratch.repositories.ensure_worktree(tmp_path / "alias", path, "steersman/w", state.tip.commit)

    assert (state.path, state.branch) == (theirs, "feature")
    assert linked(scratch) == {str(theirs), str(path)}
