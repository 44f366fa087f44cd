"""Rows under a fold: read once, changed in memory, encoded once; a deleted run leaves none."""

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from steersman.domain.runs import records, review
from steersman.domain.runs.planning import ProposedSubtask
from steersman.domain.steering.steering import SteerWorker, steer_worker
from steersman.projections import children_view, open_runs, run_detail, work_plan_view
from steersman.projections.catalogue import VIEWS
from steersman.projections.view import View

if TYPE_CHECKING:
    from .conftest import History


class Stored:
    """Rows that count how often they are read."""

    def __init__(self, rows: dict[str, bytes]) -> None:
        self.rows = rows
        self.reads = 0

    def row(self, key: str) -> bytes | None:
        """Return a row."""
        self.reads += 1
        return self.rows.get(key)

    def group(self, name: str) -> dict[str, bytes]:
        """Every row here is of the one group."""
        self.reads += 1
        return self.rows


@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.name)
def test_what_an_agent_says_costs_no_row(view: View[Any], history: "History") -> None:
    history.start()
    history.advance()
    child = history.begin_work(1, tools=1)
    words = [fact for fact in history.log.read_run(child) if fact.topic == "agent.message.delta"]
    stored = Stored({})
    rows = view.open(stored)
    for fact in words:
        rows.apply(fact)
    assert words
    assert (stored.reads, rows.changes()) == (0, {})


def test_a_row_is_read_once_and_written_once_however_many_facts_touch_it(history: "History") -> None:
    history.start(*(ProposedSubtask(title=str(n)) for n in range(200)))
    history.advance()
    made, *steps = [fact for fact in history.facts if fact.stream == "plan/w"]
    before = work_plan_view.VIEW.open(Stored({}))
    before.apply(made)
    placed = before.changes()["r"]
    assert placed is not None
    stored = Stored({"r": placed[2]})
    rows = work_plan_view.VIEW.open(stored)
    for fact in steps:
        rows.apply(fact)
    assert (len(steps), stored.reads, list(rows.changes())) == (200, 1, ["r"])


def test_a_direct_correction_is_no_reason_to_write_the_plans_row_again(history: "History") -> None:
    history.start()
    history.advance()
    rows = work_plan_view.VIEW.open(Stored({}))
    for fact in history.facts:
        rows.apply(fact)
    placed = rows.changes()["r"]
    assert placed is not None
    command = SteerWorker(
        directive_id="d",
        child_run_id=history.child(1).run_id,
        kind="guidance",
        payload_hash="sha256:0",
        principal="alice",
        text="Mind the gap.",
    )
    history.put(steer_worker(history.run, command))
    history.advance()
    rows = work_plan_view.VIEW.open(Stored({"r": placed[2]}))
    for fact in history.facts[-3:]:
        rows.apply(fact)
    assert [fact.topic for fact in history.facts[-3:]][-1] == "coordinator.steering_decision"
    assert rows.changes() == {}


def test_a_coordinators_row_is_as_small_for_two_hundred_subtasks_as_for_two(history: "History") -> None:
    history.start(*(ProposedSubtask(title="A part of it", scope="x" * 1000) for _ in range(200)))
    history.advance()
    row = history.row(run_detail.VIEW, "r")
    assert len(msgspec.json.encode(row)) < 2_000


def test_a_fold_that_fails_leaves_the_rows_as_they_were(history: "History") -> None:
    history.start()
    history.advance()
    rows = children_view.VIEW.open(Stored({}))
    for fact in history.facts:
        rows.apply(fact)
    before = rows.changes()
    nonsense = msgspec.structs.replace(history.facts[-1], root=None, event=object(), topic="x", run="r")
    with pytest.raises(AttributeError):
        rows.apply(nonsense)
    assert rows.changes() == before


def test_a_deleted_run_and_its_children_leave_no_row(history: "History") -> None:
    history.to_gate()
    history.put(records.delete(history.run, "alice"))
    # What is still to be done about it is not forgotten with it.
    assert [row.run_id for row in history.rows(open_runs.VIEW, open_runs.GROUP)] == ["r"]
    history.put(review.fail_run(history.run, error_code="x", message="", retryable=True))
    history.put(records.confirm_erased(history.run, 9))
    views = {view: view.open(Stored({})) for view in VIEWS}
    for view, rows in views.items():
        for fact in history.facts:
            rows.apply(fact)
        left = {key for key, placed in rows.changes().items() if placed is not None}
        assert left == {"project": {"p"}, "project_roles": {"p/alice"}}.get(view.name, set())
