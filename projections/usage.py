"""What agents have used and may use, as clients are shown it."""

from typing import Annotated

import msgspec
from msgspec import Meta

from ..domain.event import Fact
from ..domain.facts.child_run import TurnOpened
from ..domain.facts.spending import Budget, Spending, TurnCounted, spent
from .money import money


class CostView(msgspec.Struct, frozen=True, kw_only=True):
    """An amount of money, as a decimal number."""

    amount: str
    currency: str


class UsageView(msgspec.Struct, frozen=True, kw_only=True):
    """What agents have used, as far as they report it: a turn is counted when it has ended, or was cut off."""

    turns: int = 0
    minutes: Annotated[
        str, Meta(description="How long agents were at work, added up: waiting for a person is no work.")
    ] = "0.0"
    input_tokens: int = 0
    output_tokens: int = 0
    cached_read_tokens: int = 0
    cached_write_tokens: int = 0
    thought_tokens: int = 0
    total_tokens: int = 0
    costs: tuple[CostView, ...] = ()
    #: How many turns have ended whose agent does not say what they cost.
    turns_without_cost: int = 0


class BudgetView(msgspec.Struct, frozen=True, kw_only=True):
    """What agents may use before no new turn begins; null: as much as they like."""

    tokens: int | None = None
    money: str | None = None
    currency: str | None = None
    turns: int | None = None
    minutes: int | None = None


def spending_after(before: Spending, fact: Fact) -> Spending:
    """Return what a run has used after a fact about it or, for a coordinator, about one of its children."""
    match fact.event:
        case TurnCounted() as event:
            return spent(before, event.counted)
        case TurnOpened():
            return msgspec.structs.replace(before, turns=before.turns + 1)
        case _:
            return before


def usage_view(used: Spending) -> UsageView:
    """Return what was used as it is shown."""
    same = {name: getattr(used, name) for name in UsageView.__struct_fields__ if name not in ("minutes", "costs")}
    costs = tuple(CostView(amount=money(cost), currency=currency) for currency, cost in sorted(used.costs.items()))
    return UsageView(**same, minutes=f"{used.milliseconds / 60_000:.1f}", costs=costs)


def budget_view(budget: Budget | None) -> BudgetView | None:
    """Return what may be used as it is shown."""
    if budget is None:
        return None
    has_money = budget.money_micros is not None
    return BudgetView(
        tokens=budget.tokens,
        money=money(budget.money_micros) if budget.money_micros is not None else None,
        currency=budget.currency if has_money else None,
        turns=budget.turns,
        minutes=budget.minutes,
    )
