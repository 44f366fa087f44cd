"""Workplaces are repositories of their own, known for what they are, and made or removed twice as once."""

import json
import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from steersman.adapters.git.repositories import GitRepositories
from steersman.application.ports.git import GitConflict, RepositoryUnusable, WorkplaceLost, WorkplaceUnmade

from .conftest import AT, Scratch


def look(scratch: Scratch, path: Path) -> str:
    return scratch.repositories.look_at(scratch.path, path)


def refs(scratch: Scratch) -> list[str]:
    return scratch.git("for-each-ref", "--format=%(refname)", "refs/steersman").split()


def test_a_workplace_is_a_clean_repository_that_reaches_nothing_of_the_projects(scratch: Scratch) -> None:
    scratch.git("branch", "secret")
    scratch.git("tag", "v1")
    path = scratch.workplace()

    assert look(scratch, path) == "whole"
    assert scratch.status(path) == ""
    assert scratch.rev("HEAD", cwd=path) == scratch.rev("main")
    assert scratch.git("for-each-ref", cwd=path) == ""
    assert scratch.git("remote", cwd=path) == ""
    assert scratch.git("worktree", "list", "--porcelain").count("worktree ") == 1
    assert scratch.git("branch", "--format=%(refname:short)") == "main\nsecret\n"
    assert refs(scratch) == ["refs/steersman/bases/child"]
    scratch.git("fsck", "--strict", cwd=path)


def test_a_workplace_keeps_its_head_when_the_projects_branch_goes_and_its_garbage_is_swept(scratch: Scratch) -> None:
    base = scratch.branch_off("gone", {"x": "x\n"}, scratch.rev("main"))
    path = scratch.workplace("child", base)
    scratch.git("branch", "-q", "-D", "gone")
    scratch.git("reflog", "expire", "--expire=now", "--all")
    scratch.git("gc", "-q", "--prune=now")
    scratch.git("repack", "-q", "-a", "-d")

    assert scratch.status(path) == ""
    scratch.write({"y": "y\n"}, path)
    made = scratch.repositories.commit_workplace(scratch.path, path, base, AT, "x")
    assert scratch.git("diff", "--name-only", base, made.commit) == "y\n"


def remade(path: Path) -> None:
    shutil.rmtree(path)
    path.mkdir()
    (path / "README").write_text("another's\n")


SPOILED: dict[str, tuple[Callable[[Path], object], str]] = {
    "removed": (shutil.rmtree, "vanished"),
    "made anew": (remade, "replaced"),
    "moved away": (lambda path: (path.rename(path.with_name("x")), shutil.copytree(path.with_name("x"), path)), "replaced"),
    "a link": (lambda path: (path.rename(path.with_name("x")), path.symlink_to(path.with_name("x"))), "replaced"),
    "a file": (lambda path: (shutil.rmtree(path), path.write_text("x")), "replaced"),
    "without its note": (lambda path: (path.parent / ".made/child").unlink(), "unfinished"),
    "with half a note": (lambda path: (path.parent / ".made/child").write_text('{"base"'), "unfinished"),
    "without its git": (lambda path: shutil.rmtree(path / ".git"), "whole"),
}  # fmt: skip


@pytest.mark.parametrize("how", SPOILED)
def test_what_is_not_the_workplace_that_was_made_is_never_committed(scratch: Scratch, how: str) -> None:
    path = scratch.workplace()
    spoil, state = SPOILED[how]
    spoil(path)

    assert look(scratch, path) == state
    if state == "whole":
        assert scratch.repositories.commit_workplace(scratch.path, path, scratch.rev("main"), AT, "x").commit
    else:
        with pytest.raises(WorkplaceLost) as lost:
            scratch.repositories.commit_workplace(scratch.path, path, scratch.rev("main"), AT, "x")
        assert lost.value.state == state
        assert scratch.repositories.fingerprint(scratch.path, path).tree_hash == ""
    scratch.workplace()
    assert look(scratch, path) == "whole"
    assert scratch.status(path) == ""


def test_a_workplace_is_the_same_after_its_file_system_was_given_another_number(scratch: Scratch) -> None:
    path = scratch.workplace()
    note = path.parent / ".made" / path.name
    said = json.loads(note.read_bytes())
    note.write_text(json.dumps(said | {"device": said["device"] + 1}))

    # Without a mark, which not every file system has for directories, the number is all that tells.
    assert look(scratch, path) == ("whole" if said["mark"] else "replaced")


def test_a_base_that_is_gone_is_named_and_no_ref_to_it_is_left(scratch: Scratch) -> None:
    gone = scratch.branch_off("gone", {"x": "x\n"}, scratch.rev("main"))
    scratch.git("branch", "-D", "gone")
    scratch.git("reflog", "expire", "--expire=now", "--all")
    scratch.git("gc", "-q", "--prune=now")

    with pytest.raises(RepositoryUnusable, match=gone) as caught:
        scratch.workplace("child", gone)
    with pytest.raises(RepositoryUnusable, match=gone):
        scratch.repositories.point_branch(scratch.path, "steersman/child", None, gone)

    assert caught.value.code == "object_missing"
    assert scratch.git("for-each-ref", "refs/steersman", "refs/heads/steersman") == ""
    scratch.git("gc", "-q")


def test_a_workplace_whose_refs_the_user_removed_is_looked_at_and_committed(scratch: Scratch) -> None:
    path = scratch.workplace()
    scratch.git("update-ref", "-d", "refs/steersman/bases/child")
    scratch.write({"new": "new\n"}, path)

    print_of_it = scratch.repositories.fingerprint(scratch.path, path)

    assert scratch.repositories.count_ignored(scratch.path, path) == 0
    base = scratch.rev("main")
    assert scratch.repositories.commit_workplace(scratch.path, path, base, AT, "x").tree == print_of_it.tree_hash


def test_making_it_again_leaves_nothing_of_what_stood_there(scratch: Scratch) -> None:
    path = scratch.workplace()
    scratch.commit({"README": "two\n"}, path)
    scratch.write({"junk/x": "x\n"}, path)
    (path / "README").chmod(0)
    (path / "junk").chmod(0)

    scratch.workplace()

    assert scratch.status(path) == ""
    assert not (path / "junk").exists()
    assert (path / "README").read_text() == "one\n"
    assert os.listdir(path.parent) in ([".made", "child"], ["child", ".made"])


@pytest.mark.parametrize("what", ["object", "filter"])
def test_a_workplace_that_cannot_be_filled_is_not_made(scratch: Scratch, what: str) -> None:
    if what == "object":
        name = scratch.rev("main:src/a.txt")
        (scratch.path / ".git/objects" / name[:2] / name[2:]).unlink()
    else:
        scratch.commit({".gitattributes": "*.txt filter=big\n"})
        scratch.git("config", "filter.big.smudge", "false")
        scratch.git("config", "filter.big.required", "true")

    with pytest.raises(WorkplaceUnmade, match=r"src/a\.txt|filter|unable to read"):
        scratch.workplace()

    assert look(scratch, scratch.home / "worktrees/child") == "unfinished"
    scratch.repositories.remove_workplace(scratch.path, scratch.home / "worktrees/child", None)
    assert look(scratch, scratch.home / "worktrees/child") == "vanished"


def test_a_workplace_that_the_machine_has_no_place_for_now_is_made_later(scratch: Scratch) -> None:
    in_the_way = scratch.home / "worktrees"
    in_the_way.write_text("no directory\n")

    with pytest.raises(NotADirectoryError):
        scratch.workplace()

    in_the_way.unlink()
    assert (scratch.workplace() / "README").read_text() == "one\n"


def test_twenty_four_workplaces_made_and_removed_at_once_leave_nothing_behind(scratch: Scratch) -> None:
    names = [f"run{number}" for number in range(24)]
    with ThreadPoolExecutor(8) as threads:
        paths = list(threads.map(scratch.workplace, names))
        assert all(scratch.status(path) == "" for path in paths)
        for ended in [
            threads.submit(scratch.repositories.remove_workplace, scratch.path, path, None) for path in paths
        ]:
            ended.result()

    assert not any(path.exists() for path in paths)
    assert refs(scratch) == []
    assert os.listdir(scratch.home / "worktrees") == [".made"]
    assert os.listdir(scratch.home / "worktrees/.made") == []
    assert list(scratch.home.glob("scratch/*")) == []
    assert scratch.is_sound()


def test_removing_twice_is_removing_once_and_spares_other_branches(scratch: Scratch) -> None:
    path = scratch.workplace()
    scratch.git("branch", "kept")
    scratch.git("branch", "steersman/child")
    scratch.git("pack-refs", "--all")
    scratch.write({"x": "x\n"}, path)
    scratch.repositories.commit_workplace(scratch.path, path, scratch.rev("main"), AT, "x")
    assert refs(scratch) == ["refs/steersman/bases/child", "refs/steersman/taken/child"]

    for _ in range(2):
        scratch.repositories.remove_workplace(scratch.path, path, "steersman/child")

    assert not path.exists()
    assert refs(scratch) == []
    assert scratch.git("branch", "--format=%(refname:short)") == "kept\nmain\n"


def test_removing_never_removes_the_repository_or_another_one(scratch: Scratch) -> None:
    other = scratch.home / "other"
    scratch.git("clone", "-q", str(scratch.path), str(other))

    for path in (scratch.path, scratch.home, other):
        with pytest.raises(GitConflict):
            scratch.repositories.remove_workplace(scratch.path, path, None)

    assert (scratch.path / "README").exists()
    assert (other / "README").exists()


def test_a_workplace_is_removed_although_its_repository_is_gone_and_no_link_is_followed(scratch: Scratch) -> None:
    path = scratch.workplace()
    scratch.write({"precious": "precious\n"}, scratch.home / "outside")
    (path / "link").symlink_to(scratch.home / "outside")
    shutil.rmtree(scratch.path)

    scratch.repositories.remove_workplace(scratch.path, path, "steersman/child")

    assert not path.exists()
    assert (scratch.home / "outside/precious").exists()


class Lapsed(Exception):
    """What is raised by whoever is asked after the lease ended."""


@pytest.mark.parametrize("call", ["make", "commit", "remove", "point"])
def test_nothing_is_moved_or_removed_once_somebody_else_may_be_at_work(scratch: Scratch, call: str) -> None:
    def lapsed() -> None:
        raise Lapsed

    path, base = scratch.workplace(), scratch.rev("main")
    scratch.write({"README": "the next owner's\n"}, path)
    late = GitRepositories(scratch.home / "scratch", may_move=lapsed)
    calls: dict[str, Callable[[], object]] = {
        "make": lambda: late.make_workplace(scratch.path, path, base),
        "commit": lambda: late.commit_workplace(scratch.path, path, base, AT, "x"),
        "remove": lambda: late.remove_workplace(scratch.path, path, None),
        "point": lambda: late.point_branch(scratch.path, "other", None, base),
    }

    with pytest.raises(Lapsed):
        calls[call]()

    assert look(scratch, path) == "whole"
    assert (path / "README").read_text() == "the next owner's\n"
    assert refs(scratch) == ["refs/steersman/bases/child"]
    assert scratch.rev("other") == ""


def linked(scratch: Scratch, *, gitfile: bool = True) -> Path:
    """A linked worktree as an earlier release made them, with work in it that was not committed."""
    path = scratch.home / "worktrees/child"
    scratch.git("worktree", "add", "-q", "-b", "steersman/child", str(path))
    scratch.write({"README": "two\n", "new": "new\n", "src/a.txt": None}, path)
    scratch.git("add", "new", cwd=path)
    if not gitfile:
        (path / ".git").unlink()
    return path


@pytest.mark.parametrize("gitfile", [True, False])
def test_a_linked_worktree_of_an_earlier_release_becomes_a_workplace_with_its_files(
    scratch: Scratch, *, gitfile: bool
) -> None:
    path, base = linked(scratch, gitfile=gitfile), scratch.rev("main")

    assert [look(scratch, path) for _ in range(2)] == ["whole", "whole"]

    assert (path / ".git").is_dir()
    assert sorted(scratch.status(path).splitlines()) == [" D src/a.txt", " M README", "A  new"]
    assert scratch.git("worktree", "list", "--porcelain").count("worktree ") == 1
    assert scratch.rev("steersman/child") == base
    made = scratch.repositories.commit_workplace(scratch.path, path, base, AT, "x")
    assert scratch.git("diff", "--name-only", base, made.commit).split() == ["README", "new", "src/a.txt"]


def test_a_linked_worktree_of_an_earlier_release_is_removed_with_gits_entry_of_it(scratch: Scratch) -> None:
    path = linked(scratch)

    scratch.repositories.remove_workplace(scratch.path, path, "steersman/child")

    assert not path.exists()
    assert scratch.git("worktree", "list", "--porcelain").count("worktree ") == 1
    assert scratch.git("branch", "--format=%(refname:short)") == "main\n"


def test_five_thousand_files_are_checked_out_and_known_to_be_clean(scratch: Scratch) -> None:
    base = scratch.commit({f"d{n % 50}/f{n}.txt": f"{n}\n" for n in range(5000)})

    path = scratch.workplace("big", base)

    assert scratch.git("diff-files", cwd=path) == "", "git trusts its stat data without a refresh"


def test_a_repository_in_a_linked_worktree_or_with_a_link_to_it_works_the_same(
    scratch: Scratch, tmp_path: Path
) -> None:
    theirs = tmp_path / "theirs"
    scratch.git("worktree", "add", "-q", "-b", "feature", str(theirs))
    (tmp_path / "alias").symlink_to(theirs)

    state = scratch.repositories.inspect(tmp_path / "alias")
    path = tmp_path / "w"
    scratch.repositories.make_workplace(tmp_path / "alias", path, state.tip.commit)

    assert (state.path, state.branch) == (theirs, "feature")
    assert scratch.status(path) == ""


def test_a_shallow_clone_and_one_that_borrows_work_the_same(scratch: Scratch) -> None:
    scratch.commit({"README": "two\n"})
    for name, arguments in {"shallow": ["--depth", "1"], "borrowing": ["--shared"]}.items():
        clone = scratch.home / name
        scratch.git(
            "clone", "-q", *arguments, f"file://{scratch.path}" if name == "shallow" else str(scratch.path), str(clone)
        )
        base = scratch.rev("HEAD", cwd=clone)
        path = scratch.home / "worktrees" / name
        scratch.repositories.make_workplace(clone, path, base)
        assert scratch.git("log", "--format=%H", cwd=path).split()[0] == base
        scratch.write({"README": "three\n"}, path)
        made = scratch.repositories.commit_workplace(clone, path, base, AT, "x")
        assert scratch.repositories.merge(clone, "main", base, made.commit).state == "merged"
        assert scratch.status(clone) == ""
        scratch.git("fsck", "--strict", cwd=clone)
