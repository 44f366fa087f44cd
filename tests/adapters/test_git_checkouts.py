"""Every checkout of a branch follows it, wherever it is; one that cannot be found keeps the branch where it is."""

import os
import shutil

import pytest

from .conftest import Scratch
from .test_git_landing import everything, land, moved


def test_a_branch_that_is_checked_out_nowhere_moves_alone(scratch: Scratch) -> None:
    old, new = moved(scratch)
    scratch.git("checkout", "-q", "-b", "feature")
    scratch.write({"README": "the user's\n"})
    before = everything(scratch.path)

    assert land(scratch, old, new).state == "merged"

    assert scratch.rev("main") == new
    assert scratch.rev("feature") == old
    assert everything(scratch.path) == before
    assert scratch.status() == " M README\n"


def test_a_linked_checkout_moves_and_the_main_one_does_not(scratch: Scratch) -> None:
    old, new = moved(scratch)
    scratch.git("checkout", "-q", "-b", "feature")
    linked = scratch.home / "linked"
    scratch.git("worktree", "add", "-q", str(linked), "main")
    scratch.write({"README": "the user's\n"})

    assert land(scratch, old, new).state == "merged"

    assert scratch.status(linked) == ""
    assert (linked / "new/deep/y").exists()
    assert scratch.status() == " M README\n"


def test_every_checkout_of_the_branch_moves_or_none(scratch: Scratch) -> None:
    old, new = moved(scratch)
    linked = scratch.home / "linked"
    scratch.git("worktree", "add", "-q", "--force", str(linked), "main")
    scratch.write({"README": "the user's\n"}, linked)

    assert land(scratch, old, new).reason == "repository_dirty"
    assert (scratch.status(), scratch.rev("main")) == ("", old)
    scratch.write({"README": "one\n"}, linked)
    assert land(scratch, old, new).state == "merged"
    assert (scratch.status(), scratch.status(linked)) == ("", "")


def test_a_half_moved_checkout_is_completed_and_edits_made_meanwhile_stay(scratch: Scratch) -> None:
    old, new = moved(scratch)
    # What a crash right after the swap leaves: journal, lock, the new branch, old files.
    marker = scratch.path / ".git/steersman-index"
    marker.touch()
    os.link(marker, scratch.path / ".git/index.lock")
    (scratch.path / ".git/steersman-landing").write_text(f'["refs/heads/main", "{old}", "{new}"]')
    scratch.git("update-ref", "refs/heads/main", new)
    scratch.git("commit", "-q", "-a", "-m", "would undo the merge", ok=(128,))
    scratch.write({"README": "edited since\n", "new/deep/y": "made since\n"})

    assert scratch.repositories.obstacle(scratch.path, "main") is None
    assert land(scratch, old, new).state == "merged"

    assert scratch.status() == " M README\n M new/deep/y\n"
    assert (scratch.path / "README").read_text() == "edited since\n"
    assert (scratch.path / "dir").read_text() == "file\n"
    assert scratch.is_sound()


@pytest.mark.parametrize("busy", ["index.lock", "rebase-merge/head-name"])
def test_a_half_moved_checkout_keeps_its_lock_while_another_one_is_busy(scratch: Scratch, busy: str) -> None:
    old, new = moved(scratch)
    linked = scratch.home / "linked"
    scratch.git("worktree", "add", "-q", "--force", str(linked), "main")
    marker = scratch.path / ".git/steersman-index"
    marker.touch()
    os.link(marker, scratch.path / ".git/index.lock")
    (scratch.path / ".git/steersman-landing").write_text(f'["refs/heads/main", "{old}", "{new}"]')
    scratch.git("update-ref", "refs/heads/main", new)
    scratch.write({busy: "refs/heads/main\n"}, scratch.path / ".git/worktrees/linked")

    assert land(scratch, old, new).reason == "operation_in_progress"

    scratch.git("commit", "-q", "-a", "-m", "would undo the merge", ok=(128,))
    (scratch.path / ".git/worktrees/linked" / busy).unlink()
    assert land(scratch, old, new).state == "merged"
    assert scratch.status() == ""


def test_an_earlier_move_is_completed_before_the_next_one(scratch: Scratch) -> None:
    old, new = moved(scratch)
    newer = scratch.branch_off("newer", {"README": "three\n"}, new)
    (scratch.path / ".git/steersman-landing").write_text(f'["refs/heads/main", "{old}", "{new}"]')
    scratch.git("update-ref", "refs/heads/main", new)

    assert land(scratch, new, newer).state == "merged"

    assert (scratch.status(), scratch.rev("main")) == ("", newer)


def test_a_journal_of_a_move_that_never_was_is_thrown_away(scratch: Scratch) -> None:
    old, new = moved(scratch)
    (scratch.path / ".git/steersman-landing").write_text(f'["refs/heads/main", "{old}", "{new}"]')
    tip = scratch.commit({"user": "1\n"})

    assert land(scratch, old, new).reason == "head_moved"

    assert (scratch.status(), scratch.rev("main")) == ("", tip)
    assert not (scratch.path / ".git/steersman-landing").exists()


@pytest.mark.parametrize("side", ["the branch", "HEAD"])
def test_a_branch_of_two_names_moves_with_its_checkout(scratch: Scratch, side: str) -> None:
    old, new = moved(scratch)
    scratch.git("symbolic-ref", "refs/heads/alias", "refs/heads/main")
    if side == "HEAD":
        scratch.git("symbolic-ref", "HEAD", "refs/heads/alias")

    assert land(scratch, old, new, "alias" if side == "the branch" else "main").state == "merged"

    assert (scratch.rev("main"), scratch.status()) == (new, "")
    assert scratch.git("symbolic-ref", "refs/heads/alias") == "refs/heads/main\n"


def test_a_checkout_that_is_not_where_git_was_told_blocks_until_it_is_back_or_forgotten(scratch: Scratch) -> None:
    old, new = moved(scratch)
    linked, away = scratch.home / "linked", scratch.home / "away"
    scratch.git("checkout", "-q", "-b", "side")
    scratch.git("worktree", "add", "-q", str(linked), "main")
    linked.rename(away)

    assert scratch.repositories.obstacle(scratch.path, "main") == "checkout_missing"
    assert land(scratch, old, new).reason == "checkout_missing"

    away.rename(linked)
    assert land(scratch, old, new).state == "merged"
    assert scratch.status(linked) == ""
    shutil.rmtree(linked)
    newer = scratch.branch_off("newer", {"README": "three\n"}, new)
    assert land(scratch, new, newer).reason == "checkout_missing"
    scratch.git("worktree", "prune")
    assert land(scratch, new, newer).state == "merged"


def test_a_checkout_that_nobody_can_find_from_its_git_directory_blocks(scratch: Scratch) -> None:
    old, new = moved(scratch)
    scratch.git("init", "-q", "--separate-git-dir", str(scratch.home / "apart"))
    linked = scratch.home / "linked"
    scratch.git("worktree", "add", "-q", "-b", "side", str(linked))

    assert scratch.repositories.merge(linked, "main", old, new).reason == "checkout_missing"
    assert land(scratch, old, new).state == "merged", "from there it is found"
    assert scratch.status() == ""


def test_a_checkout_beside_a_bare_repository_serves_as_any_other(scratch: Scratch) -> None:
    old, new = moved(scratch)
    bare, linked = scratch.home / "bare", scratch.home / "linked"
    scratch.git("clone", "-q", "--bare", str(scratch.path), str(bare))
    scratch.git("worktree", "add", "-q", str(linked), "main", cwd=bare)

    assert scratch.repositories.inspect(linked).branch == "main"
    assert scratch.repositories.merge(linked, "main", old, new).state == "merged"

    assert (scratch.rev("HEAD", linked), scratch.status(linked)) == (new, "")


def test_a_sparse_checkout_stays_sparse(scratch: Scratch) -> None:
    old, new = moved(scratch)
    scratch.git("sparse-checkout", "set", "--no-cone", "/*", "!/README")
    assert not (scratch.path / "README").exists()

    assert land(scratch, old, new).state == "merged"

    assert not (scratch.path / "README").exists()
    assert scratch.status() == ""


def test_an_index_with_a_tree_cache_is_not_left_with_a_stale_one(scratch: Scratch) -> None:
    old, new = moved(scratch)
    scratch.git("read-tree", "HEAD")  # writes the cache of trees into the index
    scratch.git("update-index", "--refresh")

    assert land(scratch, old, new).state == "merged"

    assert scratch.git("write-tree").strip() == scratch.rev(f"{new}^{{tree}}")


def test_line_endings_of_a_checkout_are_kept(scratch: Scratch) -> None:
    old = scratch.commit({".gitattributes": "*.txt eol=crlf\n", "a.txt": "1\r\n"})
    new = scratch.branch_off("made", {"a.txt": "1\r\n2\r\n", "b.txt": "b\r\n"}, old)

    assert land(scratch, old, new).state == "merged"

    assert (scratch.path / "a.txt").read_bytes() == b"1\r\n2\r\n"
    assert (scratch.path / "b.txt").read_bytes() == b"b\r\n"
    assert scratch.status() == ""
