"""POST /api/runs/{id}/budget: what a run's agents may use from now on."""

from collections.abc import Sequence
from typing import Any

import msgspec
from litestar import Response, post
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import FromPath, JSONBody

from ...domain.event import Draft, Fact
from ...domain.facts.run import CoordinatorRun
from ...domain.work.budget import changed, set_budget
from ...projections.usage import BudgetView, UsageView, budget_view, usage_view
from ..request.budgets import BudgetRequest, changes_of
from ..request.idempotency import Asks, Command
from ..request.one_run import coordinator
from ..request.problems import refusals


class RunBudgetBody(msgspec.Struct, frozen=True, kw_only=True):
    """What a run's agents may use from now on, and what they have used."""

    run_id: str
    budget: BudgetView
    usage: UsageView


@post(
    "/api/runs/{run_id:str}/budget",
    status_code=200,
    sync_to_thread=True,
    responses={200: ResponseSpec(RunBudgetBody, description="The budget", generate_examples=False)}
    | refusals(403, 404, 409, 413, 422),
)
def put_budget(run_id: FromPath[str], data: JSONBody[BudgetRequest], asking: Asks) -> Response[bytes]:
    """
    Say what a run's agents may use from now on, with what they have used already. Where the budget was used up, turns begin
    again, unless it still is.
    """
    place, changes = coordinator(asking, run_id), changes_of(data)

    def carry_out(command: Command) -> Sequence[Fact]:
        def told(run: CoordinatorRun, _: Sequence[Draft]) -> Any:
            budget = budget_view(changed(run.budget, changes)) or BudgetView()
            return command.tell(200, RunBudgetBody(run_id=place.root, budget=budget, usage=usage_view(run.spending)))

        by = command.by
        return asking.services.runs.decide(place.root, lambda run: set_budget(run, changes, by.principal), by, told)

    return asking.once(carry_out)
