"""What agents have used, as they report it, and what they may use: tokens, money, turns and time at work."""

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import ClassVar, Literal

import msgspec

from ..event import Event

#: Money is counted in millionths of its currency: a fact holds no fractions.
MICROS = 1_000_000
#: What a budget of money is in where its currency is not named.
DEFAULT_CURRENCY = "USD"

Limit = Literal["tokens", "money", "turns", "minutes"]
BudgetScope = Literal["run", "project"]
#: Why no turn may begin: so much is used, or nobody can say how much because an agent does not.
BudgetReason = Literal["reached", "not_reported", "other_currency"]

# Events


class Count(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What a part of a turn has used, as its agent reports it. Null: the agent has not said."""

    turn_id: str
    model_id: str
    #: Whether the agent has come to the turn's end, so that what it has not said yet it will not say.
    ended: bool
    #: Whether the turn itself is to be counted: no other fact says that it began.
    turns: int
    #: How long the agent was at work on it.
    milliseconds: int
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_read_tokens: int | None = None
    cached_write_tokens: int | None = None
    thought_tokens: int | None = None
    total_tokens: int | None = None
    #: In millionths of the currency.
    cost_micros: int | None = None
    currency: str | None = None


class TurnCounted(Event, frozen=True, kw_only=True):
    """
    A turn has used this. Said when it ended, or was cut off and is taken up again: a turn may be counted in several parts.

    It is on no run's feed, as it may come after the end of the run.
    """

    TOPIC: ClassVar[str] = "agent.turn.cost"

    #: The child run, or the coordinator run whose own agent it was.
    run_id: str
    counted: Count
    #: What the agent's session has cost so far, in millionths: the next part costs what is beyond it.
    session_id: str | None = None
    session_cost_micros: int | None = None


class SpendingCounted(Event, frozen=True, kw_only=True):
    """The same as a part of what a project's runs have used together, on a stream of the project's own."""

    TOPIC: ClassVar[str] = "project.turn_counted"

    project_id: str
    run_id: str
    counted: Count


class Budget(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What agents may use before no new turn begins; null: as much as they like."""

    tokens: int | None = None
    #: In millionths of the currency.
    money_micros: int | None = None
    currency: str = DEFAULT_CURRENCY
    turns: int | None = None
    #: Of agents at work, added up: waiting for a person is no work.
    minutes: int | None = None


class BudgetSet(Event, frozen=True, kw_only=True):
    """Somebody said what the agents of a run may use from now on, with what they have used already."""

    TOPIC: ClassVar[str] = "run.budget_set"

    budget: Budget
    set_by: str


class BudgetReached(Event, frozen=True, kw_only=True):
    """
    A turn was to begin and may not: so much is used as the run, or its project, may use, or an agent does not say how
    much. `spent` and `allowed` are in what the limit is in: tokens, millionths of the currency, turns, or minutes.
    """

    TOPIC: ClassVar[str] = "run.budget_reached"

    scope: BudgetScope
    limit: Limit
    reason: BudgetReason
    spent: int
    allowed: int
    currency: str | None = None
    #: The model of the agent that does not say what it uses, or says it in another currency.
    model_id: str | None = None


class BudgetReleased(Event, frozen=True, kw_only=True):
    """The project's budget is not used up any more, so turns of the run may begin."""

    TOPIC: ClassVar[str] = "run.budget_released"

    scope: BudgetScope


# State


class Spending(msgspec.Struct, frozen=True, kw_only=True):
    """What was used so far, all parts together."""

    turns: int = 0
    milliseconds: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cached_read_tokens: int = 0
    cached_write_tokens: int = 0
    thought_tokens: int = 0
    total_tokens: int = 0
    #: By currency, in its millionths.
    costs: Mapping[str, int] = {}
    #: The model of the newest agent that ended a turn and did not say what that took, or cost.
    without_tokens: str | None = None
    without_cost: str | None = None
    #: How many turns that has been so in.
    turns_without_cost: int = 0


class Clocked(msgspec.Struct, frozen=True, kw_only=True):
    """How long an agent was at work in the present part of its turn, by the times of the facts that say so."""

    #: Since when it is at work; None: it is not.
    since: str | None = None
    #: How long it was before.
    milliseconds: int = 0


COUNTED = (
    "turns",
    "milliseconds",
    "input_tokens",
    "output_tokens",
    "cached_read_tokens",
    "cached_write_tokens",
    "thought_tokens",
    "total_tokens",
)


def spent(before: Spending, counted: Count) -> Spending:
    """Return what was used with one part more."""
    sums = {name: getattr(before, name) + (getattr(counted, name) or 0) for name in COUNTED}
    costs, currency = before.costs, counted.currency
    if counted.cost_micros is not None and currency is not None:
        costs = {**costs, currency: costs.get(currency, 0) + counted.cost_micros}
    silent_on_cost = counted.ended and counted.cost_micros is None
    silent_on_tokens = counted.ended and counted.total_tokens is None
    return Spending(
        **sums,
        costs=costs,
        without_tokens=counted.model_id if silent_on_tokens else before.without_tokens,
        without_cost=counted.model_id if silent_on_cost else before.without_cost,
        turns_without_cost=before.turns_without_cost + silent_on_cost,
    )


def clocked(before: Clocked, *, works: bool, at: str) -> Clocked:
    """Return how long an agent was at work, after a fact of a moment from which on it is, or is not."""
    if works:
        return before if before.since else Clocked(since=at, milliseconds=before.milliseconds)
    return Clocked(milliseconds=milliseconds(before, at))


def milliseconds(clock: Clocked, at: str | datetime) -> int:
    """Return how long an agent was at work up to a moment."""
    if clock.since is None:
        return clock.milliseconds
    until = datetime.fromisoformat(at) if isinstance(at, str) else at
    return clock.milliseconds + max(0, (until - datetime.fromisoformat(clock.since)) // timedelta(milliseconds=1))


class UsedUp(msgspec.Struct, frozen=True, kw_only=True):
    """What of a budget is used up, or cannot be kept."""

    limit: Limit
    reason: BudgetReason
    spent: int
    allowed: int
    currency: str | None = None
    model_id: str | None = None


def used_up(budget: Budget | None, used: Spending) -> UsedUp | None:
    """Return why no turn may begin under a budget, None if one may."""
    return next(_used_up(budget, used), None) if budget is not None else None


def _used_up(budget: Budget, used: Spending) -> Iterator[UsedUp]:
    if budget.tokens is not None:
        of_tokens = UsedUp(limit="tokens", reason="reached", spent=used.total_tokens, allowed=budget.tokens)
        if used.total_tokens >= budget.tokens:
            yield of_tokens
        if used.without_tokens is not None:
            yield msgspec.structs.replace(of_tokens, reason="not_reported", model_id=used.without_tokens)
    if budget.money_micros is not None:
        cost, currency = used.costs.get(budget.currency, 0), budget.currency
        of_money = UsedUp(
            limit="money", reason="reached", spent=cost, allowed=budget.money_micros, currency=budget.currency
        )
        if cost >= budget.money_micros:
            yield of_money
        if used.without_cost is not None:
            yield msgspec.structs.replace(of_money, reason="not_reported", model_id=used.without_cost)
        for other in sorted(used.costs.keys() - {currency}):
            yield msgspec.structs.replace(of_money, reason="other_currency", spent=used.costs[other], currency=other)
    if budget.turns is not None and used.turns >= budget.turns:
        yield UsedUp(limit="turns", reason="reached", spent=used.turns, allowed=budget.turns)
    minutes = used.milliseconds // 60_000
    if budget.minutes is not None and minutes >= budget.minutes:
        yield UsedUp(limit="minutes", reason="reached", spent=minutes, allowed=budget.minutes)
