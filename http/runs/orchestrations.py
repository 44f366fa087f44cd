"""POST /api/projects/{id}/orchestrations: a goal, with its plan, becomes a coordinator run."""

from typing import Annotated, Any, Literal
from uuid import uuid4

import msgspec
from litestar import Response, post
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import FromPath, JSONBody
from msgspec import UNSET, Meta, UnsetType

from ...application.commands.start_orchestration import run_model, start_orchestration
from ...domain.rejected import Invalid
from ...domain.runs.orchestration import StartRun
from ...domain.runs.planning import ProposedSubtask
from ..request.access import InvalidProjectId, is_uuid
from ..request.budgets import BudgetRequest, budget_of
from ..request.deliveries import DeliveryRequest, delivery_of
from ..request.field_types import ModelId
from ..request.idempotency import Asks, Command
from ..request.problems import refusals

StartMode = Literal["direct", "define_outcome"]


class PlanRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The parts of a goal; `dependsOn` holds places in this list, from 0."""

    subtasks: tuple[ProposedSubtask, ...]


class OrchestrationRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A goal for a project's team. Each name is also accepted in the other case; give it in one of them."""

    goal: Annotated[str, Meta(description="What is to be reached, 1 to 65536 bytes.", examples=["Add a licence"])]
    model_id: ModelId | UnsetType | None = UNSET
    modelId: ModelId | UnsetType | None = UNSET
    start_mode: StartMode | UnsetType | None = UNSET
    startMode: StartMode | UnsetType | None = UNSET
    auto_approve_tools: bool | UnsetType = UNSET
    autoApproveTools: bool | UnsetType = UNSET
    autopilot: bool = False
    max_steering_iterations: Annotated[
        int, Meta(ge=0, le=100, description="How often the coordinator may steer before a person has to look.")
    ] = 6
    plan: PlanRequest | None = None
    base_branch: (
        Annotated[
            str, Meta(max_length=255, description="Begin from, and merge into, this one instead of the default branch.")
        ]
        | None
    ) = None
    budget: Annotated[
        BudgetRequest | None, Meta(description="What its agents may use; null: as much as they like.")
    ] = None
    deliver: Annotated[
        DeliveryRequest | None, Meta(description="Where its approved work goes; null: where the project's goes.")
    ] = None


class RunStartedBody(msgspec.Struct, frozen=True, kw_only=True):
    """The coordinator run that was started."""

    runId: str


@post(
    "/api/projects/{project_id:str}/orchestrations",
    sync_to_thread=True,
    responses={201: ResponseSpec(RunStartedBody, description="The run", generate_examples=False)}
    | refusals(403, 404, 409, 413, 422),
)
def start_run(project_id: FromPath[str], data: JSONBody[OrchestrationRequest], asking: Asks) -> Response[bytes]:
    """
    Start a coordinator run. Unless `start_mode` is `direct`, what the goal means is drafted first, and nothing is
    planned before somebody has confirmed it. A direct run may bring its `plan`; else the planner agent makes one.
    """
    if not is_uuid(project_id):
        raise InvalidProjectId
    project = asking.access.project(asking.principal, project_id, change=True)
    pinned = _either(data, "model_id", "modelId")
    wanted = StartRun(
        run_id=str(uuid4()),
        work_plan_id=str(uuid4()),
        goal=data.goal,
        user=asking.principal.user,
        model_id=run_model(project, asking.services.agents, pinned),
        start_mode=_either(data, "start_mode", "startMode") or "define_outcome",
        plan=data.plan.subtasks if data.plan is not None else None,
        auto_approve_tools=bool(_either(data, "auto_approve_tools", "autoApproveTools")),
        autopilot=data.autopilot,
        max_steering_iterations=data.max_steering_iterations,
        base_branch=data.base_branch,
        budget=budget_of(data.budget),
        delivery=delivery_of(data.deliver),
    )

    def carry_out(command: Command) -> Any:
        services = asking.services
        return start_orchestration(
            project_id,
            wanted,
            command.by,
            services.log,
            command.clock,
            services.repositories,
            services.agents,
            pinned_model=pinned,
            answer=lambda _: command.tell(201, RunStartedBody(runId=wanted.run_id)),
        )

    return asking.once(carry_out, "/api/runs/{runId}")


def _either(data: OrchestrationRequest, one: str, other: str) -> Any:
    """Return a member that has two spellings, None if it is absent. Raises Invalid when both are given."""
    given = [value for name in (one, other) if (value := getattr(data, name)) is not UNSET]
    if len(given) == 2:
        raise Invalid(f"`{one}` and `{other}` are the same member. Send one of them.")
    return given[0] if given else None
