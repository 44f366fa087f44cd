"""Start an orchestration: a goal, with or without a plan, becomes a coordinator run."""

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from ..event import Draft, Text
from ..facts.delivery import Delivery
from ..facts.line import Left
from ..facts.outcome_spec import OutcomeSpec
from ..facts.run import CoordinatorRun, CoordinatorStarted
from ..facts.sandbox import SandboxPolicy
from ..facts.spending import Budget
from ..facts.work_plan import EarlierWork, WorkPlanMade
from ..git import Commit
from ..projects.project import Project, ProjectDeleting
from ..projects.project_changes import charters
from ..rejected import Invalid, Rejected
from .define_outcome import begin_draft, take_over
from .planning import ProposedSubtask, make_plan

MAX_GOAL_BYTES = 65_536
DEFAULT_POLICY = SandboxPolicy()


class StartRun(msgspec.Struct, frozen=True, kw_only=True):
    """Give a project's team a goal."""

    run_id: str
    work_plan_id: str
    goal: str
    user: str
    #: The full model id of the run; a member's own model wins over it unless the caller pinned one.
    model_id: str
    model_pinned: bool = False
    start_mode: Literal["direct", "define_outcome"] = "direct"
    #: The parts to do; None leaves the plan to the planner agent.
    plan: tuple[ProposedSubtask, ...] | None = None
    #: What an earlier run of the same plan has committed of its parts, by their places in it.
    handed_on: Mapping[int, Left] = {}
    #: What came of them there, by their places, too.
    earlier: Mapping[int, EarlierWork] = {}
    #: What its people had come to agree on about the goal.
    outcome_spec: OutcomeSpec | None = None
    auto_approve_tools: bool = False
    autopilot: bool = False
    max_steering_iterations: int = 6
    #: The branch that it begins from and is merged into; None: the project's default branch.
    base_branch: str | None = None
    #: What its agents may use; None: as much as they like.
    budget: Budget | None = None
    #: Where its work goes; None: where the project's work goes.
    delivery: Delivery | None = None
    #: The failed run that this one tries again.
    retried_from: str | None = None
    retries: int = 0


class NoTeam(Rejected):
    """This project has no team. Add a member before starting an orchestration."""

    code = "no_team"


def start_run(
    command: StartRun,
    project: Project,
    base: Commit,
    repository: str,
    models: Mapping[str, str],
    policy: SandboxPolicy = DEFAULT_POLICY,
) -> Sequence[Draft]:
    """
    Start a coordinator run at *base*, with the given plan if there is one.

    *models* holds the model id that each member of the team works with.

    Raises:
        Invalid: a blank or oversized goal, or a plan although the outcome is still to be defined.
        InvalidPlan: the plan cannot be carried out as it is.
        NoTeam: nobody could be given work.
    """
    if not command.goal.strip() or len(command.goal.encode(errors="replace")) > MAX_GOAL_BYTES:
        raise Invalid(f"`goal` must have 1 to {MAX_GOAL_BYTES} bytes and cannot be blank.")
    if command.start_mode == "define_outcome" and command.plan is not None:
        raise Invalid('A run that brings its `plan` has nothing to define. Send `"start_mode": "direct"` with it.')
    if project.state != "active":
        raise ProjectDeleting
    if not project.team:
        raise NoTeam
    run = CoordinatorRun(run_id=command.run_id)
    started = CoordinatorStarted(
        goal=Text(command.goal),
        project_id=project.project_id,
        submitting_user=command.user,
        start_mode=command.start_mode,
        repository_path=Text(repository),
        originating_branch=command.base_branch or project.default_branch,
        base=base,
        model_id=command.model_id,
        model_pinned=command.model_pinned,
        auto_approve_tools=command.auto_approve_tools,
        autopilot=command.autopilot,
        max_steering_iterations=command.max_steering_iterations,
        gates=project.gates,
        policy=policy,
        retried_from=command.retried_from,
        retries=command.retries,
        budget=command.budget,
        delivery=command.delivery or project.delivery,
    )
    drafts = [run.coordinator(started)]
    if command.outcome_spec is not None:
        drafts.extend(take_over(run, command.outcome_spec, command.goal, command.user))
    elif command.start_mode == "define_outcome":
        drafts.append(begin_draft(run, command.goal, command.user, auto_confirm=command.autopilot))
    if command.plan is not None:
        plan = make_plan(command.work_plan_id, command.plan, project.team, models, charters(project))
        drafts.append(run.on_plan(_handed_on(plan, command), command.work_plan_id))
    return drafts


def _handed_on(plan: WorkPlanMade, command: StartRun) -> WorkPlanMade:
    parts = [
        msgspec.structs.replace(
            part,
            prior_run_id=left.child_run_id if left else None,
            prior_commit=left.commit if left else None,
            earlier=command.earlier.get(place),
        )
        for place, part in enumerate(plan.subtasks)
        for left in (command.handed_on.get(place),)
    ]
    return msgspec.structs.replace(plan, subtasks=tuple(parts))
