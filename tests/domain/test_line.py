"""A subtask's line of authors: what it has made, what is left out, and what facts of an earlier release say of it."""

import pytest

from steersman.domain.event import Text
from steersman.domain.facts.assembly import AssemblyBlocked, ReviewRequested
from steersman.domain.facts.child_run import RunCompleted, RunStarted, WorktreePrepared
from steersman.domain.facts.fold import replay
from steersman.domain.facts.line import authors, left_on_branch, left_out
from steersman.domain.git import Commit
from steersman.tests.domain.fleet import BASE, Fleet, part

START = Commit(commit="start", tree="start")


def fresh_author() -> Fleet:
    """One part whose first author's work stood at the gate; a second one has taken it over and has no place yet."""
    fleet = Fleet(part("One"))
    fleet.work(1)
    fleet.assemble()
    fleet.request_changes()
    fleet.settle()
    fleet.start(1)
    fleet.fail(1)
    assert fleet.child(1).head is None
    return fleet


def test_the_work_of_a_line_is_where_its_last_author_left_it_until_the_next_one_has_a_place() -> None:
    fleet = fresh_author()
    first, second = fleet.run.children.values()
    left = left_on_branch(fleet.run, fleet.subtask(1))
    assert left is not None
    assert first.head is not None
    assert (left.child_run_id, left.commit) == (first.run_id, first.head.commit)
    assert [child.run_id for child in authors(fleet.run, fleet.subtask(1))] == [second.run_id, first.run_id]
    assert list(left_out(fleet.run)) == []


def prepared(fleet: Fleet, foundation: Commit | None) -> Fleet:
    """The second author has its place, with the first one's work in it."""
    child = fleet.child(1)
    event = WorktreePrepared(
        base=START,
        worktree_path=Text("/trees/2"),
        worktree_branch=child.branch,
        foundation=foundation,
    )
    fleet.put([fleet.run.on_child(child.run_id, event)])
    return fleet


@pytest.mark.parametrize("foundation", [BASE, None], ids=["said", "of an earlier release"])
def test_what_an_earlier_author_left_counts_as_the_subtasks_own(foundation: Commit | None) -> None:
    fleet = prepared(fresh_author(), foundation)
    child = fleet.child(1)
    assert (child.base, child.head, child.has_changes) == (BASE, START, True)
    left = left_on_branch(fleet.run, fleet.subtask(1))
    assert left is not None
    assert left.commit == START.commit


def test_a_child_of_an_earlier_release_that_ended_without_a_change_hands_on_what_was_there() -> None:
    fleet = prepared(fresh_author(), None)
    child = fleet.child(1)
    fleet.put([fleet.run.on_child(child.run_id, RunCompleted(result="no_changes"))])
    left = left_on_branch(fleet.run, fleet.subtask(1))
    assert left is not None
    assert left.commit == START.commit


def test_a_fold_of_everything_is_the_same_as_that_of_one_fact_after_the_other() -> None:
    fleet = prepared(fresh_author(), None)
    assert replay(fleet.facts) == fleet.run


def test_an_assembly_that_is_blocked_names_what_its_lost_parts_once_had_ready() -> None:
    fleet = fresh_author()
    first, *_ = fleet.run.children.values()
    fleet.start(1)
    fleet.fail(1)
    assert fleet.plan.status == "assembly_blocked"
    [lost] = fleet.told(AssemblyBlocked)[-1].ineligible_subtasks
    assert first.head is not None
    assert lost.commit == first.head.commit


def test_a_gate_over_work_that_is_whole_says_nothing_of_it() -> None:
    fleet = Fleet(part("One"))
    fleet.to_gate()
    [asked] = fleet.told(ReviewRequested)
    assert (asked.conflicts, asked.left_out, asked.moved_files, asked.reason) == ((), (), (), None)


def test_whoever_starts_for_the_first_time_has_nobody_before_them() -> None:
    fleet = Fleet(part("One"))
    [started] = fleet.told(RunStarted)
    assert (started.prior_run_id, started.prior_commit) == (None, None)
    assert left_on_branch(fleet.run, fleet.subtask(1)) is None
