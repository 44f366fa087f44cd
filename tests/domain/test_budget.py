"""What is counted adds up, and what of a budget is used up is named; both by values alone."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from steersman.domain.facts.spending import Budget, Clocked, Count, Spending, clocked, milliseconds, spent, used_up
from steersman.domain.rejected import Invalid
from steersman.domain.work.budget import Changes, Reported, changed, together

AT = datetime(2026, 6, 7, 8, 9, 10, tzinfo=UTC)


def counted(**more: Any) -> Count:
    return Count(turn_id="t", model_id="m", ended=True, turns=1, milliseconds=1, **more)


def test_costs_add_up_by_currency_and_what_was_not_said_is_remembered_with_the_model() -> None:
    used = Spending()
    for each in (
        counted(total_tokens=3, cost_micros=5, currency="USD"),
        counted(total_tokens=4, cost_micros=6, currency="EUR"),
        counted(cost_micros=7, currency="USD"),
        counted(total_tokens=1),
    ):
        used = spent(used, each)
    assert (used.turns, used.total_tokens, used.costs) == (4, 8, {"USD": 12, "EUR": 6})
    assert (used.without_tokens, used.without_cost, used.turns_without_cost) == ("m", "m", 1)


@pytest.mark.parametrize(
    ("budget", "used", "limit", "reason"),
    [
        (Budget(tokens=10), Spending(total_tokens=9), None, None),
        (Budget(tokens=10), Spending(total_tokens=10), "tokens", "reached"),
        (Budget(tokens=10), Spending(without_tokens="m"), "tokens", "not_reported"),
        (Budget(money_micros=10), Spending(costs={"USD": 10}), "money", "reached"),
        (Budget(money_micros=10), Spending(costs={"EUR": 1}), "money", "other_currency"),
        (Budget(money_micros=10), Spending(without_cost="m"), "money", "not_reported"),
        (Budget(turns=2), Spending(turns=2, without_cost="m", without_tokens="m"), "turns", "reached"),
        (Budget(minutes=1), Spending(milliseconds=59_999), None, None),
        (Budget(minutes=1), Spending(milliseconds=60_000), "minutes", "reached"),
        (Budget(), Spending(total_tokens=10**9, turns=10**9), None, None),
    ],
)
def test_what_is_used_up_is_named_with_why(
    budget: Budget, used: Spending, limit: str | None, reason: str | None
) -> None:
    found = used_up(budget, used)
    assert (found.limit if found else None, found.reason if found else None) == (limit, reason)


def test_a_part_of_a_turn_that_was_cut_off_need_not_say_what_it_has_used() -> None:
    cut_off = Count(turn_id="t", model_id="m", ended=False, turns=0, milliseconds=5)
    assert spent(Spending(), cut_off) == Spending(milliseconds=5)


def test_the_time_at_work_is_that_between_the_facts_that_say_so() -> None:
    def at(seconds: int) -> str:
        return (AT + timedelta(seconds=seconds)).isoformat()

    clock = clocked(Clocked(), works=True, at=at(0))
    clock = clocked(clock, works=True, at=at(5))
    clock = clocked(clock, works=False, at=at(10))
    assert milliseconds(clock, at(1_000)) == 10_000
    clock = clocked(clock, works=True, at=at(2_000))
    assert milliseconds(clock, at(2_001)) == 11_000
    assert milliseconds(clock, at(1_999)) == 10_000, "a clock that was put back takes nothing away"


def test_the_answers_of_one_session_add_up_in_tokens_and_cost_what_the_session_has_by_then() -> None:
    first = Reported(input_tokens=3, total_tokens=3, session_cost_micros=5, currency="USD")
    second = Reported(input_tokens=4, total_tokens=4, session_cost_micros=9, currency="USD")
    assert together([first, second, Reported()]) == Reported(
        input_tokens=7, total_tokens=7, session_cost_micros=9, currency="USD"
    )


def test_a_change_of_a_budget_leaves_what_it_does_not_name() -> None:
    budget = changed(Budget(tokens=5, turns=6), Changes(turns=None, money_micros=7))
    assert budget == Budget(tokens=5, money_micros=7)
    for changes in (Changes(tokens=0), Changes(minutes=-1), Changes(money_micros=0), Changes(turns=2**53)):
        with pytest.raises(Invalid):
            changed(budget, changes)
