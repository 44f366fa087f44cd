"""Merging keeps the clean hunks of both sides, agrees with git where git is sure, and never guesses where it is not."""

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from steersman.application.ports.git import Contribution, GitConflict, Integrated
from steersman.domain.git import Commit

from .conftest import AT, Scratch

Files = Mapping[str, str | bytes | None]
LINES = "".join(f"line {number}\n" for number in range(20))


def changed(**lines: str) -> str:
    """The twenty lines, some of them changed: `changed(l3="x")`."""
    wanted = {int(name[1:]): text for name, text in lines.items()}
    return "".join(f"{wanted.get(number, f'line {number}')}\n" for number in range(20))


def integrate(scratch: Scratch, base: str, *children: str) -> Integrated:
    """Integrate commits in order."""
    contributions = [
        Contribution(subtask_id=number, branch=f"steersman/c{number}", commit=commit)
        for number, commit in enumerate(children, 1)
    ]
    return scratch.repositories.integrate(scratch.path, "run", base, contributions, AT, "Assemble")


def two(scratch: Scratch, base: Files, ours: Files, theirs: Files) -> tuple[Integrated, str, str]:
    """Integrate two children that changed the base differently."""
    root = scratch.commit(base)
    one, other = scratch.branch_off("one", ours, root), scratch.branch_off("other", theirs, root)
    return integrate(scratch, root, one, other), one, other


def test_clean_hunks_of_both_are_kept(scratch: Scratch) -> None:
    made, one, other = two(scratch, {"f": LINES}, {"f": changed(l2="ours")}, {"f": changed(l15="theirs")})

    assert scratch.git("show", f"{made.commit}:f") == changed(l2="ours", l15="theirs")
    assert made.conflicts == ()
    assert made.has_changes
    assert scratch.git("log", "-1", "--format=%P", made.commit).split() == [one, other]
    assert scratch.rev(f"{made.commit}^{{tree}}") == made.tree
    assert scratch.git("for-each-ref", "refs/steersman/conflicts") == ""
    assert scratch.is_sound()


def test_only_the_conflicting_path_takes_the_later_version_and_the_other_stays_reachable(scratch: Scratch) -> None:
    made, one, _ = two(
        scratch,
        {"f": LINES, "g": LINES},
        {"f": changed(l2="ours", l9="ours"), "g": changed(l2="ours"), "mine": "1\n"},
        {"f": changed(l2="theirs", l15="theirs"), "g": changed(l15="theirs"), "yours": "2\n"},
    )

    [conflict] = made.conflicts
    assert (conflict.branch, conflict.paths) == ("steersman/c2", ("f",))
    assert scratch.git("show", f"{made.commit}:f") == changed(l2="theirs", l15="theirs")
    assert scratch.git("show", f"{made.commit}:g") == changed(l2="ours", l15="theirs")
    assert scratch.rev(f"{made.commit}:mine")
    assert scratch.rev(f"{made.commit}:yours")
    assert conflict.ref.startswith("refs/steersman/conflicts/")
    assert scratch.rev(conflict.ref) == one
    assert scratch.git("show", f"{conflict.ref}:f") == changed(l2="ours", l9="ours")


def test_integrating_again_or_in_a_clone_makes_the_same_commit_and_refs(scratch: Scratch) -> None:
    made, one, other = two(scratch, {"f": LINES}, {"f": changed(l2="ours")}, {"f": changed(l2="theirs")})
    clone = scratch.home / "clone"
    scratch.git("clone", "-q", "--mirror", str(scratch.path), str(clone))
    scratch.git("for-each-ref", "--format=delete %(refname)", "refs/steersman", cwd=clone)

    again = integrate(scratch, scratch.rev("main"), one, other)

    assert again == made
    there = scratch.repositories.integrate(
        clone,
        "run",
        scratch.rev("main"),
        [
            Contribution(subtask_id=1, branch="steersman/c1", commit=one),
            Contribution(subtask_id=2, branch="steersman/c2", commit=other),
        ],
        AT,
        "Assemble",
    )
    assert there == made


def test_what_is_contained_adds_nothing_and_what_continues_is_taken_as_it_is(scratch: Scratch) -> None:
    root = scratch.rev("main")
    first = scratch.branch_off("first", {"x": "1\n"}, root)
    second = scratch.branch_off("second", {"x": "2\n"}, first)

    assert integrate(scratch, root, second, first, root).commit == second
    assert integrate(scratch, root, first, second).commit == second
    nothing = integrate(scratch, root, root)
    assert (nothing.commit, nothing.has_changes, nothing.conflicts) == (root, False, ())
    assert scratch.rev("main") == root


@pytest.mark.parametrize(
    ("base", "ours", "theirs", "paths", "result"),
    [
        # Deleted here, changed there: the later side's word counts.
        ({"f": "1\n"}, {"f": "2\n"}, {"f": None}, ("f",), {"f": None}),
        ({"f": "1\n"}, {"f": None}, {"f": "2\n"}, ("f",), {"f": "2\n"}),
        ({"f": "1\n"}, {"f": None}, {"f": None, "x": "x\n"}, (), {"f": None}),
        # Both added.
        ({}, {"f": "1\n"}, {"f": "2\n"}, ("f",), {"f": "2\n"}),
        ({}, {"f": "1\n"}, {"f": "1\n", "x": "x\n"}, (), {"f": "1\n"}),
        # Binary files are never merged, also where their hunks are far apart.
        (
            {"f": b"\0" + LINES.encode()},
            {"f": b"\0" + changed(l2="ours").encode()},
            {"f": b"\0" + changed(l15="theirs").encode()},
            ("f",),
            {"f": b"\0" + changed(l15="theirs").encode()},
        ),
        ({"f": LINES}, {"f": changed(l2="ours")}, {"f": changed(l15="\0")}, ("f",), {"f": changed(l15="\0")}),
        # What looks like a conflict marker is text.
        (
            {"f": "<<<<<<< ours\n" + LINES},
            {"f": "<<<<<<< ours\n" + changed(l2="ours")},
            {"f": "<<<<<<< ours\n" + changed(l15="theirs")},
            (),
            {"f": "<<<<<<< ours\n" + changed(l2="ours", l15="theirs")},
        ),
        # A file against a directory of the same name.
        ({"f": "1\n"}, {"f": "2\n"}, {"f": None, "f/x": "x\n"}, ("f",), {"f/x": "x\n"}),
        ({"d/x": "1\n"}, {"d/y": "2\n"}, {"d/x": None, "d": "file\n"}, ("d", "d/y"), {"d": "file\n"}),
        ({"d/x": "1\n"}, {"d/x": None, "d": "file\n"}, {"d/x": "2\n"}, ("d", "d/x"), {"d/x": "2\n"}),
        ({"d/x": "1\n"}, {"d/x": None, "d": "file\n"}, {"d/y": "2\n"}, ("d",), {"d/y": "2\n", "d/x": None}),
        ({"f": "1\n"}, {"x": "x\n"}, {"f": None, "f/x": "x\n"}, (), {"f/x": "x\n", "x": "x\n"}),
        # Each empties half of a directory: no empty tree stays.
        ({"d/e/x": "1\n", "d/e/y": "2\n"}, {"d/e/x": None}, {"d/e/y": None}, (), {"d": None}),
        # Without a last line feed, and with lines that end otherwise.
        ({"f": "a\nb\nc\nd\ne"}, {"f": "A\nb\nc\nd\ne"}, {"f": "a\nb\nc\nd\nE"}, (), {"f": "A\nb\nc\nd\nE"}),
        ({"f": "a\rb\r\nc\nd\ne\n"}, {"f": "A\rb\r\nc\nd\ne\n"}, {"f": "a\rb\r\nc\nd\nE\n"}, (), {"f": "A\rb\r\nc\nd\nE\n"}),
    ],
)  # fmt: skip
def test_each_kind_of_meeting_has_one_outcome(
    scratch: Scratch, base: Files, ours: Files, theirs: Files, paths: tuple[str, ...], result: Files
) -> None:
    scratch.commit(base)
    root = scratch.rev("main")

    def side(name: str, files: Files) -> str:
        path = scratch.home / name
        scratch.git("worktree", "add", "-q", "-b", name, str(path), root)
        for gone in (file for file, content in files.items() if content is None):
            (path / gone).unlink()
            if (path / gone).parent != path and not os.listdir((path / gone).parent):
                (path / gone).parent.rmdir()
        return scratch.commit({file: content for file, content in files.items() if content is not None}, path)

    made = integrate(scratch, root, side("one", ours), side("other", theirs))

    assert tuple(path for conflict in made.conflicts for path in conflict.paths) == paths
    for name, content in result.items():
        if content is None:
            assert scratch.rev(f"{made.commit}:{name}") == ""
        else:
            wanted = content if isinstance(content, str) else os.fsdecode(content)
            assert scratch.git("show", f"{made.commit}:{name}") == wanted
    assert scratch.is_sound()


def modes(scratch: Scratch, base: Mapping[str, int], ours: Mapping[str, int], theirs: Mapping[str, int]) -> Integrated:
    """Integrate two children that changed only permissions, and the text at different ends."""

    def side(name: str, text: str, wanted: Mapping[str, int]) -> str:
        path = scratch.home / name
        scratch.git("worktree", "add", "-q", "-b", name, str(path), "main")
        scratch.write({"f": text}, path)
        for file, mode in wanted.items():
            (path / file).chmod(mode)
        return scratch.commit({}, path)

    scratch.write({"f": LINES})
    for file, mode in base.items():
        (scratch.path / file).chmod(mode)
    scratch.commit({})
    one, other = side("one", changed(l2="ours"), ours), side("other", changed(l15="theirs"), theirs)
    return integrate(scratch, scratch.rev("main"), one, other)


@pytest.mark.parametrize("ours", [0o644, 0o755])
@pytest.mark.parametrize("theirs", [0o644, 0o755])
@pytest.mark.parametrize("base", [0o644, 0o755])
def test_a_permission_that_one_side_changed_merges_with_the_other_sides_text(
    scratch: Scratch, base: int, ours: int, theirs: int
) -> None:
    made = modes(scratch, {"f": base}, {"f": ours}, {"f": theirs})

    wanted = theirs if ours == base else ours
    assert made.conflicts == ()
    assert scratch.git("ls-tree", made.commit, "f").startswith(f"100{wanted:o}")
    assert scratch.git("show", f"{made.commit}:f") == changed(l2="ours", l15="theirs")


def test_links_and_submodules_that_both_sides_changed_conflict(scratch: Scratch) -> None:
    def side(name: str, target: str, parent: str) -> str:
        path = scratch.home / name
        scratch.git("worktree", "add", "-q", "-b", name, str(path), parent)
        (path / "link").unlink(missing_ok=True)
        (path / "link").symlink_to(target)
        scratch.git("update-index", "--add", "--cacheinfo", f"160000,{target * 40},lib", cwd=path)
        scratch.git("add", "link", cwd=path)
        scratch.git("commit", "-q", "-m", "x", cwd=path)
        return scratch.rev("HEAD", cwd=path)

    root = side("root", "a", scratch.rev("main"))
    one, other = side("one", "b", root), side("other", "c", root)
    made = integrate(scratch, root, one, other)

    assert made.conflicts[0].paths == ("lib", "link")
    assert scratch.rev(f"{made.commit}:lib") == "c" * 40
    assert scratch.git("show", f"{made.commit}:link") == "c"
    assert integrate(scratch, root, one, root).commit == one


def test_unrelated_histories_conflict_where_they_differ(scratch: Scratch) -> None:
    scratch.git("checkout", "-q", "--orphan", "island")
    island = scratch.commit({"README": "island\n", "only": "1\n"})
    scratch.git("checkout", "-q", "main")

    made = integrate(scratch, scratch.rev("main"), island)
    prepared = scratch.repositories.prepare_merge(
        scratch.path, "run", "main", Commit(commit=island, tree=scratch.rev(f"{island}^{{tree}}")), AT, "m"
    )

    assert made.conflicts[0].paths == ("README",)
    assert scratch.git("show", f"{made.commit}:README") == "island\n"
    assert (prepared.state, prepared.conflicting_paths) == ("conflicted", ("README",))


def test_a_criss_cross_merges_as_git_merges_it(scratch: Scratch) -> None:
    root = scratch.commit({"f": LINES})
    one = scratch.branch_off("one", {"f": changed(l2="one")}, root)
    two_ = scratch.branch_off("two", {"f": changed(l10="two")}, root)
    ours, theirs = integrate(scratch, one, two_), integrate(scratch, two_, one)
    assert ours.tree == theirs.tree
    assert ours.commit != theirs.commit
    left = scratch.branch_off("left", {"f": changed(l2="one", l10="two", l5="left")}, ours.commit)
    right = scratch.branch_off("right", {"f": changed(l2="one", l10="two", l17="right")}, theirs.commit)

    made = integrate(scratch, left, right)

    assert made.conflicts == ()
    assert scratch.git("show", f"{made.commit}:f") == changed(l2="one", l5="left", l10="two", l17="right")
    assert made.tree == scratch.git("merge-tree", "--write-tree", left, right).strip()


def test_clocks_that_went_backwards_do_not_hide_an_ancestor(scratch: Scratch, monkeypatch: pytest.MonkeyPatch) -> None:
    base = scratch.rev("main")
    monkeypatch.setenv("GIT_COMMITTER_DATE", "2030-01-01T00:00:00Z")
    future = scratch.branch_off("future", {"x": "1\n"}, base)
    monkeypatch.setenv("GIT_COMMITTER_DATE", "2001-01-01T00:00:00Z")
    past = scratch.branch_off("past", {"y": "1\n"}, future)
    monkeypatch.setenv("GIT_COMMITTER_DATE", "2031-01-01T00:00:00Z")
    late = scratch.branch_off("late", {"z": "1\n"}, past)

    assert integrate(scratch, late, future, past).commit == late
    assert integrate(scratch, future, late).commit == late


def test_preparing_a_merge_tells_what_it_would_give_and_moves_nothing(scratch: Scratch) -> None:
    root = scratch.commit({"f": LINES})

    def prepared(commit: str) -> tuple[str, str | None, str | None, tuple[str, ...]]:
        approved = Commit(commit=commit, tree=scratch.rev(f"{commit}^{{tree}}"))
        found = [
            scratch.repositories.prepare_merge(scratch.path, "run", "main", approved, AT, "Merge") for _ in range(2)
        ]
        assert found[0] == found[1]
        return found[0].state, found[0].commit, found[0].old, found[0].conflicting_paths

    ahead = scratch.branch_off("ahead", {"f": changed(l2="ahead")}, root)
    assert prepared(ahead) == ("merged", ahead, root, ())
    tip = scratch.commit({"f": changed(l15="user")})
    assert prepared(root) == ("merged", tip, tip, ())
    state, made, old, _ = prepared(ahead)
    assert (state, old) == ("merged", tip)
    assert made
    assert scratch.git("log", "-1", "--format=%P", made).split() == [tip, ahead]
    assert scratch.git("show", f"{made}:f") == changed(l2="ahead", l15="user")
    other = scratch.branch_off("other", {"f": changed(l15="other")}, root)
    assert prepared(other) == ("conflicted", None, tip, ("f",))
    assert scratch.rev("main") == tip
    assert scratch.status() == ""


def test_what_is_merged_must_have_the_approved_tree(scratch: Scratch) -> None:
    other = scratch.branch_off("other", {"x": "1\n"}, scratch.rev("main"))
    with pytest.raises(GitConflict):
        scratch.repositories.prepare_merge(
            scratch.path, "run", "main", Commit(commit=other, tree=scratch.rev("main^{tree}")), AT, "m"
        )


def test_a_branch_that_is_gone_blocks(scratch: Scratch) -> None:
    approved = Commit(commit=scratch.rev("main"), tree=scratch.rev("main^{tree}"))
    found = scratch.repositories.prepare_merge(scratch.path, "run", "gone", approved, AT, "m")
    assert (found.state, found.reason) == ("blocked", "head_moved")


def test_conflicting_names_that_are_no_text_are_shown(scratch: Scratch) -> None:
    name = os.fsdecode(b"caf\xe9")
    made, _, _ = two(scratch, {name: "1\n"}, {name: "2\n"}, {name: "3\n"})
    assert made.conflicts[0].paths == ("caf\\xe9",)
    assert Path(made.conflicts[0].ref).name == made.commit


def test_what_was_brought_together_outlives_a_garbage_collection_before_a_branch_leads_to_it(scratch: Scratch) -> None:
    made, _, _ = two(scratch, {"f": LINES}, {"f": changed(l2="ours")}, {"f": changed(l15="theirs")})
    scratch.git("gc", "-q", "--prune=now")

    scratch.repositories.point_branch(scratch.path, "steersman/integration/run", None, made.commit)

    assert scratch.git("show", f"{made.commit}:f") == changed(l2="ours", l15="theirs")
    assert scratch.is_sound()


def test_a_prepared_merge_outlives_a_garbage_collection_before_it_lands(scratch: Scratch) -> None:
    root = scratch.commit({"f": LINES})
    child = scratch.branch_off("child", {"f": changed(l2="child")}, root)
    tip = scratch.commit({"f": changed(l15="user")})
    approved = Commit(commit=child, tree=scratch.rev(f"{child}^{{tree}}"))
    prepared = scratch.repositories.prepare_merge(scratch.path, "run", "main", approved, AT, "Merge")
    assert prepared.commit
    scratch.git("gc", "-q", "--prune=now")

    assert scratch.repositories.merge(scratch.path, "main", tip, prepared.commit).state == "merged"

    assert scratch.git("show", "main:f") == changed(l2="child", l15="user")
    assert scratch.status() == ""
    assert scratch.is_sound()
