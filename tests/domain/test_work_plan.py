"""The parts of a plan: what may start, what builds on what, and what is given up."""

import msgspec
import pytest

from steersman.domain.facts.assembly import AssemblyBlocked, ChildrenComplete
from steersman.domain.facts.bad_ends import STALLED, BadEnd
from steersman.domain.facts.child_run import RunStarted
from steersman.domain.facts.work_plan import SubtaskFailed, frontier
from steersman.domain.process.dispatch import next_child_id
from steersman.domain.steering.decision_table import MAX_RECOVERY_ATTEMPTS
from steersman.domain.work.child_ends import end_badly
from steersman.tests.domain.fleet import Fleet, part


def test_what_needs_nothing_starts_at_once_and_the_rest_waits_for_what_it_needs() -> None:
    fleet = Fleet(part("One"), part("Two"), part("Three", 0, 1))
    assert [fleet.subtask(i).status for i in (1, 2, 3)] == ["dispatched", "dispatched", "pending"]
    fleet.work(1)
    assert fleet.subtask(3).status == "pending"
    fleet.work(2, changes=False)
    assert fleet.subtask(2).status == "completed"
    assert fleet.subtask(3).status == "dispatched"


def test_parts_that_name_the_same_file_do_not_work_at_the_same_time() -> None:
    fleet = Fleet(part("One", files=["a"]), part("Two", files=["a", "b"]), part("Three", files=["c"]))
    assert [fleet.subtask(i).status for i in (1, 2, 3)] == ["dispatched", "pending", "dispatched"]
    fleet.work(1)
    assert fleet.subtask(2).status == "dispatched"


def test_producers_and_dependants_are_all_of_them_in_order() -> None:
    fleet = Fleet(part("One"), part("Two", 0), part("Three", 1), part("Four"), part("Five", 2, 3))
    assert fleet.plan.producers(5) == (1, 2, 3, 4)
    assert fleet.plan.dependants([1]) == (2, 3, 5)
    assert fleet.plan.dependants([4]) == (5,)
    assert fleet.plan.producers(1) == fleet.plan.dependants([5]) == ()


def test_an_edge_to_no_subtask_is_a_corrupt_plan_and_raises() -> None:
    fleet = Fleet(part("One"))
    broken = msgspec.structs.replace(fleet.subtask(1), depends_on=(9,), status="pending")
    plan = msgspec.structs.replace(fleet.plan, subtasks={1: broken})
    with pytest.raises(KeyError):
        frontier(plan)


def test_a_part_whose_producer_is_lost_is_given_up_and_so_is_what_builds_on_it() -> None:
    fleet = Fleet(part("One"), part("Two", 0), part("Three", 1), part("Four"))
    fleet.start(1)
    fleet.fail(1)
    assert [fleet.subtask(i).status for i in (1, 2, 3, 4)] == ["failed", "failed", "failed", "dispatched"]
    given_up = [e for e in fleet.told(SubtaskFailed) if isinstance(e, SubtaskFailed) and e.child_run_id is None]
    assert [(e.subtask_id, str(e.reason)[:9]) for e in given_up] == [(2, "Subtask 1"), (3, "Subtask 2")]
    assert [e.cause for e in given_up] == ["dependency_failed", "dependency_failed"]


def test_what_waits_for_a_stalled_part_is_blocked_and_says_so_also_where_the_assembly_asks_a_person() -> None:
    fleet = Fleet(part("One"), part("Two", 0), part("Three", 1), part("Four"))
    stall = BadEnd(code=STALLED, message="Silence.", stall_seconds=300)
    for _ in range(MAX_RECOVERY_ATTEMPTS + 1):
        fleet.start(1)
        fleet.put(end_badly(fleet.run, fleet.child_id(1), fleet.now, stall))
        fleet.settle()
    assert [fleet.subtask(i).status for i in (1, 2, 3)] == ["failed", "blocked", "blocked"]
    lost = [e for e in fleet.told(SubtaskFailed) if isinstance(e, SubtaskFailed)]
    causes = [(1, STALLED), (2, "dependency_stalled"), (3, "dependency_stalled")]
    assert [(e.subtask_id, e.cause) for e in lost] == causes
    fleet.work(4)
    (blocked,) = [e for e in fleet.told(AssemblyBlocked) if isinstance(e, AssemblyBlocked)]
    assert [(s.id, s.cause) for s in blocked.ineligible_subtasks] == causes


def test_when_every_part_has_settled_the_round_is_closed_once_and_assembled() -> None:
    fleet = Fleet(part("One"), part("Two"))
    fleet.work(1)
    fleet.work(2, changes=False)
    (complete,) = [e for e in fleet.told(ChildrenComplete) if isinstance(e, ChildrenComplete)]
    assert (complete.completed, complete.assemble_ready, complete.failed, complete.total) == (1, 1, 0, 2)
    assert fleet.plan.status == "assembling"


def test_a_childs_id_is_the_same_however_often_it_is_decided_and_another_for_each_dispatch() -> None:
    fleet = Fleet(part("One"))
    again = Fleet(part("One"))
    assert fleet.child_id(1) == again.child_id(1)
    assert next_child_id(fleet.run, fleet.subtask(1)) != fleet.child_id(1)


def test_two_hundred_parts_are_dispatched_in_one_append() -> None:
    fleet = Fleet(*(part(f"{n}") for n in range(200)))
    assert len(fleet.told(RunStarted)) == 200


def test_a_blocked_assembly_goes_on_by_itself_once_nothing_is_missing() -> None:
    from steersman.domain.facts.work_plan import change_subtasks
    from steersman.domain.process.dispatch import advance

    fleet = Fleet(part("One"))
    fleet.start(1)
    fleet.fail(1)
    assert fleet.plan.status == "assembly_blocked"
    assert not advance(fleet.run, fleet.now)
    healed = change_subtasks(fleet.plan, [1], lambda s: msgspec.structs.replace(s, status="assemble_ready"))
    fleet.run = msgspec.structs.replace(fleet.run, plan=healed)
    fleet.settle()
    assert fleet.plan.status == "assembling"
