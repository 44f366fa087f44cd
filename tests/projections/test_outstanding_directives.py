"""Which directives are not closed: what whoever watches over the service counts."""

from typing import TYPE_CHECKING

from steersman.domain.runs import records, review
from steersman.domain.steering import steering
from steersman.domain.steering.follow import moved
from steersman.projections.outstanding_directives import NEEDS_ATTENTION, OPEN, RUN_ENDED, VIEW

if TYPE_CHECKING:
    from .conftest import History


def steer(history: "History", directive_id: str) -> None:
    """Receive a correction of the first child."""
    command = steering.SteerRun(
        directive_id=directive_id,
        kind="redirect",
        instruction="Look here.",
        principal="alice",
        target_child_run_id=history.child(1).run_id,
    )
    history.put(steering.steer_run(history.run, command, {}))


def shown(history: "History", group: str) -> list[str]:
    """Return the ids of a group, in the order of a list."""
    return [row.directive_id for row in history.rows(VIEW, group)]


def begin(history: "History") -> None:
    """Take a run to where it can be steered, and steer it twice."""
    history.start()
    history.advance()
    history.begin_work(1)
    steer(history, "d1")
    steer(history, "d2")


def test_a_directive_is_open_from_its_receipt_to_its_end_and_the_oldest_comes_first(history: "History") -> None:
    begin(history)
    assert shown(history, OPEN) == ["d1", "d2"]
    history.put((moved(history.run, history.run.directives["d1"], "superseded"),))
    assert shown(history, OPEN) == ["d2"]


def test_one_that_needs_a_person_is_listed_until_it_is_tried_again_or_given_up(history: "History") -> None:
    begin(history)
    for directive_id in ("d1", "d2"):
        history.put((moved(history.run, history.run.directives[directive_id], "needs_attention"),))
    assert (shown(history, OPEN), shown(history, NEEDS_ATTENTION)) == ([], ["d2", "d1"])
    history.put(steering.resolve(history.run, "d1", "retry"))
    history.put(steering.resolve(history.run, "d2", "abandon"))
    assert (shown(history, OPEN), shown(history, NEEDS_ATTENTION)) == (["d1"], [])


def test_nobody_is_asked_about_a_run_that_has_ended_and_a_deleted_one_leaves_nothing(history: "History") -> None:
    begin(history)
    history.put((moved(history.run, history.run.directives["d1"], "needs_attention"),))
    history.put(review.fail_run(history.run, error_code="x", message="", retryable=True))
    assert (shown(history, OPEN), shown(history, NEEDS_ATTENTION), shown(history, RUN_ENDED)) == ([], [], ["d1"])
    history.put(records.delete(history.run, "alice"))
    assert [shown(history, group) for group in (OPEN, NEEDS_ATTENTION, RUN_ENDED)] == [[], [], []]
