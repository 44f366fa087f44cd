"""Notices: what begins and ceases to wait and what ends, each once, numbered in the order of the log, and without words."""

from typing import TYPE_CHECKING

from steersman.domain.runs import records, review
from steersman.projections import notices
from steersman.projections.notices import NUMBERS_PER_FACT, Notice

if TYPE_CHECKING:
    from .conftest import History


def told(history: "History") -> list[Notice]:
    """Return the notices, the oldest first."""
    return [row.notice for row in history.rows(notices.VIEW, notices.GROUP) if row.notice is not None]


def test_a_gate_begins_to_wait_and_ceases_and_the_run_ends(history: "History") -> None:
    history.to_gate()
    (began,) = told(history)
    assert (began.kind, began.item_kind, began.run_id, began.waits_for) == ("waiting.began", "gate", "r", "person")
    assert began.number == began.position * NUMBERS_PER_FACT
    history.put(review.fail_run(history.run, error_code="x", message="Words.", retryable=True))
    began, ended, over = told(history)
    assert (ended.kind, ended.item_id) == ("waiting.ended", began.item_id)
    assert (over.kind, over.status) == ("run.ended", "failed")
    assert [one.number for one in (began, ended, over)] == sorted({one.number for one in (began, ended, over)})
    assert "Words." not in str(history.rows(notices.VIEW, notices.GROUP) + history.rows(notices.VIEW, ""))


def test_nobody_is_told_of_a_run_that_is_deleted(history: "History") -> None:
    history.to_gate()
    history.put(review.fail_run(history.run, error_code="x", message="", retryable=True))
    history.put(records.delete(history.run, "alice"))
    assert told(history) == []
