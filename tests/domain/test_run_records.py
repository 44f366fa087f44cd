"""A run's record: a deletion hides the tree at once, ends what is at work by a stop of its own, and is erased once."""

import pytest

from steersman.domain.facts.child_run import RunCancelled
from steersman.domain.facts.directive import DirectiveMoved, RevisionExecution, SteeringDecided, SteeringReceived
from steersman.domain.facts.run_records import RunArchived, RunDeleted, RunErased
from steersman.domain.process.effects import EndWorkers, EraseRun
from steersman.domain.runs import records, review
from steersman.domain.runs.review import ReviewAssembly
from steersman.domain.work import workers
from steersman.domain.work.turns import Overtaken
from steersman.tests.domain.fleet import Fleet, part


def test_a_deletion_names_every_run_of_the_tree_in_one_append() -> None:
    fleet = Fleet(part("a"), part("b"))
    fleet.start(1)
    drafts = records.delete(fleet.run, "alice")
    assert [(draft.run, draft.root, draft.event) for draft in drafts] == [
        (run_id, "r", RunDeleted(run_id=run_id, deleted_by="alice"))
        for run_id in ("r", fleet.child_id(1), fleet.child_id(2))
    ]
    fleet.put(drafts)
    assert fleet.run.deleted


def test_a_deleted_run_is_stopped_with_a_receipt_a_decision_an_effect_and_a_proof_and_then_erased() -> None:
    fleet = Fleet(part("a"), part("b"))
    fleet.start(1)
    fleet.put(records.delete(fleet.run, "alice"))
    assert [type(event) for event in fleet.settle()] == [SteeringReceived, DirectiveMoved, SteeringDecided]
    (stop,) = [effect for effect in fleet.effects if isinstance(effect, EndWorkers)]
    assert not [effect for effect in fleet.effects if isinstance(effect, EraseRun)]
    killed: dict[str, tuple[int, ...]] = {fleet.child_id(1): (7,), fleet.child_id(2): ()}
    said = fleet.put(workers.confirm_end(fleet.run, stop.directive_id, killed, fleet.now))
    assert [event.reason for event in said if isinstance(event, RunCancelled)] == ["deleted"] * 3
    assert len([event for event in said if isinstance(event, RevisionExecution)]) == 2
    assert [type(effect) for effect in fleet.effects] == [EraseRun]
    fleet.put(records.confirm_erased(fleet.run, 5))
    assert fleet.effects == []
    assert fleet.settle() == []
    assert fleet.told(RunErased) == [RunErased(run_id="r", texts=5)]


def test_a_run_that_had_ended_is_erased_without_a_stop() -> None:
    fleet = Fleet(part("a")).to_gate()
    fleet.put(review.review(fleet.run, ReviewAssembly(approved=False, reviewer="alice")))
    fleet.put(records.delete(fleet.run, "alice"))
    assert fleet.settle() == []
    assert [type(effect) for effect in fleet.effects] == [EraseRun]


def test_what_is_being_merged_is_merged_before_the_run_is_erased() -> None:
    fleet = Fleet(part("a")).to_gate()
    fleet.put(review.review(fleet.run, ReviewAssembly(approved=True, reviewer="alice")))
    merge = fleet.effects
    fleet.put(records.delete(fleet.run, "alice"))
    assert fleet.settle() == []
    assert fleet.effects == merge
    fleet.put(review.block_merge(fleet.run, "repository_dirty"))
    assert [type(event) for event in fleet.settle()] == [SteeringReceived, DirectiveMoved, SteeringDecided]


def test_a_run_is_erased_once_and_only_when_it_is_deleted() -> None:
    fleet = Fleet(part("a"))
    with pytest.raises(Overtaken):
        records.confirm_erased(fleet.run, 0)
    fleet.put(records.delete(fleet.run, "alice"))
    fleet.put(records.confirm_erased(fleet.run, 0))
    with pytest.raises(Overtaken):
        records.confirm_erased(fleet.run, 0)


def test_an_archived_run_is_archived_once_and_goes_on() -> None:
    fleet = Fleet(part("a"))
    fleet.start(1)
    effects = fleet.effects
    assert fleet.put(records.archive(fleet.run, "alice")) == [RunArchived(run_id="r", archived_by="alice")]
    assert records.archive(fleet.run, "bob") == ()
    assert fleet.effects == effects


def test_the_state_after_a_deletion_is_the_same_from_a_fresh_fold() -> None:
    fleet = Fleet(part("a"), part("b"))
    fleet.put(records.archive(fleet.run, "alice"))
    fleet.put(records.delete(fleet.run, "alice"))
    fleet.settle()
    before = fleet.run
    fleet.crash()
    assert fleet.run == before
