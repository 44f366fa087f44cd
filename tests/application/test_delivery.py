"""Approved work goes where the run says: into the originating branch, or onto a new one; once, whatever is lost on the way."""

from pathlib import Path

import pytest

from steersman.domain.facts.assembly import MergeBlocked, MergeCompleted, MergePrepared
from steersman.domain.facts.delivery import Delivery
from steersman.tests.application.service import Service, part

ONTO = Delivery(mode="branch", branch="feature/sea")


def delivered(delivery: Delivery | None, *, lost: int | None = None, stored: bool = False) -> Service:
    """Tell the story of a run from its goal to its delivery, with an append that is lost after the approval."""
    service = Service()
    service.start(part("One"), part("Two", 0), delivery=delivery)
    service.drive()
    service.log.appends = 0
    service.log.fault_at, service.log.stored_all_the_same = lost, stored
    service.approve()
    service.drive()
    return service


@pytest.mark.parametrize("stored", [False, True], ids=["lost", "unacknowledged"])
@pytest.mark.parametrize("lost", [None, 1, 2, 3, 4])
def test_work_lands_on_a_new_branch_and_the_originating_one_stays_where_it_is(lost: int | None, stored: bool) -> None:
    service = delivered(ONTO, lost=lost, stored=stored)
    run = service.run
    assert (run.status, run.result, run.worktrees_removed) == ("completed", "assembly_complete", True)
    assert run.assembly is not None
    assert run.assembly.head is not None
    assert service.git.branches == {"main": run.base.commit, "feature/sea": run.assembly.head.commit}
    (prepared,) = service.told(MergePrepared)
    assert (prepared.branch, prepared.old, prepared.new) == ("feature/sea", "", run.assembly.head.commit)
    (completed,) = service.told(MergeCompleted)
    assert (completed.branch, completed.commit_hash) == ("feature/sea", run.assembly.head.commit)


def test_a_branch_that_nobody_named_is_named_after_the_run() -> None:
    service = delivered(Delivery(mode="branch"))
    assert set(service.git.branches) == {"main", "delivered/r"}


def test_a_dirty_checkout_and_a_branch_that_has_moved_on_are_no_matter_to_a_new_branch() -> None:
    service = Service()
    service.start(part("One"), delivery=ONTO)
    service.drive()
    approved = service.run.assembly
    assert approved is not None
    assert approved.head is not None
    service.git.dirty = True
    service.git.commit_to("main", {"other.txt": "of somebody"})
    service.approve()
    assert service.drive().status == "completed"
    assert service.git.branches["feature/sea"] == approved.head.commit


def test_a_branch_that_is_there_by_then_is_left_alone_and_the_gate_opens_again() -> None:
    service = Service()
    service.start(part("One"), delivery=ONTO)
    service.drive()
    service.git.branches["feature/sea"] = service.git.branches["main"]
    service.approve()
    assert service.drive().status == "awaiting_review"
    assert [event.reason for event in service.told(MergeBlocked)] == ["branch_exists"]
    assert service.git.branches["feature/sea"] == service.git.branches["main"]
    del service.git.branches["feature/sea"]
    service.approve()
    assert service.drive().status == "completed"


@pytest.mark.parametrize("delivery", [None, ONTO], ids=["merged", "on a branch"])
def test_the_commit_that_brings_work_in_says_who_approved_it_where_that_is_wanted(delivery: Delivery | None) -> None:
    service = Service()
    service.shop.names_approver = True
    service.start(part("One"), delivery=delivery)
    service.drive()
    approved = service.run.assembly
    assert approved is not None
    assert approved.head is not None
    service.approve()
    assert service.drive().status == "completed"
    landed = service.git.branches["feature/sea" if delivery else "main"]
    assert service.git.messages[landed].endswith("\nSteersman-Run: r\nApproved-by: alice\n")
    assert service.git.tip(Path("/srv/shop"), "feature/sea" if delivery else "main").tree == approved.head.tree
