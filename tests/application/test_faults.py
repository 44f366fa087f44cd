"""Lose every append of a story once, or its acknowledgement: a fresh start goes on to the same end, each effect once."""

from collections import Counter

import pytest

from steersman.domain.facts.child_run import TreeCommitted, TurnOpened
from steersman.domain.facts.directive import DirectiveMoved, RevisionExecution
from steersman.tests.application.service import Service, part

APPENDS = 45


def tell_the_story(fault_at: int | None, *, stored: bool) -> Service:
    """Two parts, one sent back at the gate, then a merge."""
    service = Service()
    service.start(part("One"), part("Two", 0))
    service.log.fault_at, service.log.stored_all_the_same = fault_at, stored
    service.drive()
    service.request_changes("d", f"{service.child(1).run_id[:8]}.txt")
    service.drive()
    service.approve()
    service.drive()
    return service


def test_the_story_has_as_many_appends_as_are_lost_below() -> None:
    assert tell_the_story(None, stored=False).log.appends == APPENDS


@pytest.mark.parametrize("stored", [False, True], ids=["lost", "unacknowledged"])
@pytest.mark.parametrize("fault_at", range(1, APPENDS + 1))
def test_a_fault_at_any_append_changes_nothing_about_the_end(fault_at: int, stored: bool) -> None:
    service = tell_the_story(fault_at, stored=stored)
    run, facts = service.run, service.facts
    assert (run.status, run.result, run.worktrees_removed) == ("completed", "assembly_complete", True)
    assert service.directive("d").status == "applied"
    events = [fact.event for fact in facts]
    moves = [e for e in events if isinstance(e, DirectiveMoved) and e.work_plan_id is None and e.status == "applied"]
    assert len(moves) == 1
    revisions = [event for event in events if isinstance(event, RevisionExecution)]
    confirmed = Counter(revision.child_run_id for revision in revisions if revision.state == "effect_confirmed")
    assert list(confirmed.values()) == [1]
    turns = Counter(fact.run for fact in facts if isinstance(fact.event, TurnOpened))
    commits = Counter(fact.run for fact in facts if isinstance(fact.event, TreeCommitted))
    assert turns == commits
    files = service.merged()
    for child in run.children.values():
        lines = files[f"{child.run_id[:8]}.txt"].splitlines()
        assert len(lines) == len(set(lines)) == turns[child.run_id] == 2
    assert run.plan is not None
    assert run.plan.steering_iterations == 1
    assert not service.agents.alive
    assert not service.git.workplaces
    assert set(service.git.branches) == {"main"}
    told = [prompt for child in run.children for prompt in service.agents.prompted(child)]
    assert sum("Better, please." in prompt for prompt in told) in (1, 2), "again only where the first was not seen"
