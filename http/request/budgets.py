"""What requests say about budgets: of a run, of a project, when it is started and later."""

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from ...domain.facts.spending import Budget
from ...domain.work.budget import Changes, changed
from ...projections.money import micros

MAX_COUNT = 2**53 - 1
Amount = Annotated[int, Meta(ge=1, le=MAX_COUNT)]
#: At most six places: what is counted are millionths.
Money = Annotated[
    str,
    Meta(
        pattern=r"^(0|[1-9][0-9]{0,8})(\.[0-9]{1,6})?$",
        description="A decimal number, of at most six places.",
        examples=["2.50"],
    ),
]
Currency = Annotated[str, Meta(pattern="^[A-Z]{3}$", description="ISO 4217.", examples=["USD"])]


class BudgetRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """
    What agents may use before no new turn begins. What is left out stays as it is, in a new run without a limit; null: no
    limit.
    """

    tokens: Annotated[Amount | UnsetType | None, Meta(description="Tokens in all, as agents report them.")] = UNSET
    money: Money | UnsetType | None = UNSET
    currency: Currency | UnsetType = UNSET
    turns: Annotated[Amount | UnsetType | None, Meta(description="Turns of agents.")] = UNSET
    minutes: Annotated[
        Amount | UnsetType | None,
        Meta(description="Minutes of agents at work, added up; waiting for a person is no work."),
    ] = UNSET


def changes_of(data: BudgetRequest) -> Changes:
    """Return what a request says about a budget."""
    return Changes(
        tokens=data.tokens,
        money_micros=micros(data.money) if isinstance(data.money, str) else data.money,
        currency=data.currency,
        turns=data.turns,
        minutes=data.minutes,
    )


def budget_of(data: BudgetRequest | None) -> Budget | None:
    """Return the budget that a request gives something new. Raises Invalid."""
    return changed(None, changes_of(data)) if data is not None else None
