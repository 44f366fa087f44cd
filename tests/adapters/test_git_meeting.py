"""Where two sides meet in a merge that is clean: what would land there, nobody has seen yet."""

from collections.abc import Mapping

import pytest

from steersman.application.ports.git import Contribution, MergeOutcome
from steersman.domain.git import Commit

from .conftest import AT, Scratch

Files = Mapping[str, str | bytes | None]
LINES = "".join(f"line {number}\n" for number in range(20))


def prepared(scratch: Scratch, base: Files, theirs: Files, approved: Files) -> MergeOutcome:
    """What merging *approved* comes to when main has moved from *base* to *theirs*."""
    root = scratch.commit(base)
    made = scratch.branch_off("approved", approved, root)
    scratch.commit(theirs)
    commit = Commit(commit=made, tree=scratch.rev(f"{made}^{{tree}}"))
    outcome = scratch.repositories.prepare_merge(scratch.path, "run", "main", commit, AT, "Merge")
    assert outcome.old == scratch.rev("main")
    assert outcome.old_tree == scratch.rev("main^{tree}")
    if outcome.commit is not None:
        assert outcome.tree == scratch.rev(f"{outcome.commit}^{{tree}}")
    return outcome


def line(number: int, text: str) -> str:
    return LINES.replace(f"line {number}\n", f"{text}\n")


@pytest.mark.parametrize(
    ("base", "theirs", "approved", "meets"),
    [
        ({"a": "1\n", "b": "1\n"}, {"a": "2\n"}, {"b": "2\n", "c": "3\n"}, ()),
        ({"a": LINES}, {"a": line(2, "x"), "b": "1\n"}, {"a": line(15, "y")}, ("a",)),
        ({"a": "1\n"}, {"a": "2\n"}, {"a": "2\n", "b": "1\n"}, ("a",)),
        ({"a": "1\n", "z": "1\n"}, {"a": None}, {"a": None, "b": "another\n"}, ("a",)),
        # A rename on one side, an edit on the other: the edit goes with the file.
        ({"a": LINES}, {"a": None, "new": LINES}, {"a": line(2, "x")}, ("a", "new")),
        ({"a": LINES}, {"a": line(2, "x")}, {"a": None, "new": LINES}, ("a", "new")),
        ({"ä b": LINES}, {"ä b": line(2, "x")}, {"ä b": line(15, "y")}, ("ä b",)),
    ],
)  # fmt: skip
def test_the_paths_on_which_a_clean_merge_meets(
    scratch: Scratch, base: Files, theirs: Files, approved: Files, meets: tuple[str, ...]
) -> None:
    outcome = prepared(scratch, base, theirs, approved)
    assert outcome.state == "merged", outcome
    assert outcome.meets == meets


def test_what_conflicts_says_on_which_tree(scratch: Scratch) -> None:
    outcome = prepared(scratch, {"a": "1\n"}, {"a": "2\n"}, {"a": "3\n"})
    assert (outcome.state, outcome.conflicting_paths, outcome.meets) == ("conflicted", ("a",), ())


def test_a_new_file_in_a_directory_that_was_renamed_is_for_a_person(scratch: Scratch) -> None:
    base = {"d/1": "one\n" * 9, "d/2": "two\n" * 9}
    renamed = dict.fromkeys(base) | {path.replace("d/", "e/"): text for path, text in base.items()}
    outcome = prepared(scratch, base, renamed, {"d/3": "three\n"})
    assert (outcome.state, outcome.conflicting_paths) == ("conflicted", ("e/3",))


def test_nothing_meets_where_one_side_has_not_moved(scratch: Scratch) -> None:
    root = scratch.commit({"a": "1\n"})
    made = scratch.branch_off("approved", {"a": "2\n"}, root)
    commit = Commit(commit=made, tree=scratch.rev(f"{made}^{{tree}}"))
    ahead = scratch.repositories.prepare_merge(scratch.path, "run", "main", commit, AT, "Merge")
    assert (ahead.commit, ahead.tree, ahead.meets) == (made, commit.tree, ())
    scratch.git("merge", "-q", "--ff-only", made)
    scratch.commit({"a": "3\n"})
    behind = scratch.repositories.prepare_merge(scratch.path, "run", "main", commit, AT, "Merge")
    assert (behind.commit, behind.tree, behind.meets) == (scratch.rev("main"), scratch.rev("main^{tree}"), ())


def test_a_conflict_names_the_subtask_whose_version_stands_and_the_commit_that_it_replaced(scratch: Scratch) -> None:
    root = scratch.commit({"a": "1\n"})
    made = [scratch.branch_off(name, {"a": f"{name}\n"}, root) for name in ("one", "two")]
    contributions = [Contribution(subtask_id=n, branch=f"steersman/{n}", commit=c) for n, c in enumerate(made, 4)]
    [conflict] = scratch.repositories.integrate(scratch.path, "r", root, contributions, AT, "Assemble").conflicts
    assert (conflict.subtask_id, conflict.branch, conflict.replaced) == (5, "steersman/5", made[0])
    assert scratch.rev(conflict.ref) == made[0]


@pytest.mark.parametrize(
    ("dropped", "now", "approved", "comes_back"),
    [
        # Reset to before the dropped commit: what was approved continues the branch, and brings it back.
        ({"x": "secret\n"}, {}, {"b": "2\n"}, ("x",)),
        ({"a": line(2, "x")}, {}, {"a": line(2, "x").replace("line 15\n", "y\n")}, ("a",)),
        ({"a": None}, {}, {"b": "2\n"}, ("a",)),
        # Amended, or rebased: some of it is there in other words.
        ({"x": "secret\n", "c": "3\n"}, {"c": "3\n"}, {"b": "2\n"}, ("x",)),
        ({"c": "3\n"}, {"c": "3\n", "d": "4\n"}, {"b": "2\n"}, ()),
    ],
)  # fmt: skip
def test_what_was_taken_out_of_the_branch_and_would_come_back_with_the_work_is_named(
    scratch: Scratch, dropped: Files, now: Files, approved: Files, comes_back: tuple[str, ...]
) -> None:
    root = scratch.commit({"a": LINES, "z": "1\n"})
    base = scratch.commit(dropped)
    made = scratch.branch_off("approved", approved, base)
    scratch.git("checkout", "-q", "main")
    scratch.git("reset", "-q", "--hard", root)
    if now:
        scratch.commit(now)
    commit = Commit(commit=made, tree=scratch.rev(f"{made}^{{tree}}"))
    outcome = scratch.repositories.prepare_merge(scratch.path, "run", "main", commit, AT, "Merge", base)
    assert (outcome.state, outcome.brings_back) == ("merged", comes_back)


def test_nothing_comes_back_where_the_branch_still_holds_what_the_work_began_from(scratch: Scratch) -> None:
    base = scratch.commit({"a": "1\n"})
    made = scratch.branch_off("approved", {"a": "2\n"}, base)
    scratch.commit({"b": "1\n"})
    commit = Commit(commit=made, tree=scratch.rev(f"{made}^{{tree}}"))
    outcome = scratch.repositories.prepare_merge(scratch.path, "run", "main", commit, AT, "Merge", base)
    assert (outcome.state, outcome.brings_back) == ("merged", ())
