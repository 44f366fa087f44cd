"""Ask the planner agent to decompose a goal."""

from collections.abc import Mapping
from uuid import NAMESPACE_OID, uuid5

import msgspec

from ...domain.event import Text
from ...domain.facts.fenced import json_blocks
from ...domain.facts.run import CoordinatorRun
from ...domain.facts.work_plan import WorkPlanMade
from ...domain.process.effects import MakePlan
from ...domain.projects.project import Project
from ...domain.projects.project_changes import charters
from ...domain.runs import planning, review
from ...domain.runs.planning import ProposedSubtask
from ...domain.work.prompts import plan_prompt
from ...domain.work.turns import Overtaken
from ..ports.agents import AgentFailed, SessionRequest
from ..writer.projects import load_project
from .coordinator_turn import coordinator_turn
from .workshop import Closing, Workshop


def make_plan(effect: MakePlan, shop: Workshop) -> None:
    """On return the run has a work plan, or has failed because its planner has."""
    run = shop.runs.run(effect.run_id)
    try:
        answer = _ask(run, shop)
        project = load_project(run.project_id, shop.runs.log)
        made = plan_from(answer, run, project, _models(run, project, shop))
        shop.decide(effect.run_id, lambda run: review.put_plan(run, made))
    except Overtaken:
        return
    except AgentFailed as failed:
        if shop.leaves(effect.run_id):
            raise Closing from failed
        _fail(effect, shop, failed)


def _fail(effect: MakePlan, shop: Workshop, failed: AgentFailed) -> None:
    code, message, retryable = failed.code, str(failed), failed.retryable
    try:
        shop.decide(
            effect.run_id,
            lambda run: review.fail_run(run, error_code=code, message=message, retryable=retryable),
        )
    except Overtaken:
        # Whoever stopped the run says how it ended.
        return


def plan_from(answer: str, run: CoordinatorRun, project: Project, models: Mapping[str, str]) -> WorkPlanMade:
    """Return the plan in a planner's answer; without a usable one, a single subtask that covers the whole goal."""
    proposed = _proposed(answer)
    names = {member.name for member in project.team}
    proposed = [
        part if part.assigned_agent in names else msgspec.structs.replace(part, assigned_agent=None)
        for part in proposed
    ]
    parts, warnings = planning.drop_cycles(proposed)
    if not parts:
        first_line = next(iter(str(run.goal).strip().splitlines()), "Reach the goal")
        parts = [ProposedSubtask(title=first_line[: planning.MAX_TITLE_BYTES // 4], scope=str(run.goal))]
        warnings = ["The planner's answer held no usable plan; one subtask covers the whole goal."]
    plan_id = str(uuid5(NAMESPACE_OID, f"{run.run_id}/plan"))
    made = planning.make_plan(plan_id, parts, project.team, models, charters(project))
    return msgspec.structs.replace(
        made,
        warnings=tuple(Text(warning) for warning in warnings),
        outcome_spec_id=run.outcome_spec.spec_id if run.outcome_spec is not None else None,
    )


def _proposed(answer: str) -> list[ProposedSubtask]:
    for block in json_blocks(answer):
        if parts := planning.proposals(block):
            return parts
    return []


def _ask(run: CoordinatorRun, shop: Workshop) -> str:
    project = load_project(run.project_id, shop.runs.log)
    team = "\n".join(f"- {member.name}: {member.role_title}" for member in project.team)
    turn_id = str(uuid5(NAMESPACE_OID, f"{run.run_id}/plan/turn"))
    worktree, branch = shop.worktree(f"{run.run_id}-plan"), f"steersman/plan/{run.run_id}"
    # The planner looks at the code and must not change it, so it gets a workplace that nobody takes anything from.
    shop.repositories.make_workplace(shop.repository(run), worktree, run.base.commit)
    try:
        request = SessionRequest(model_id=run.model_id, run_id=run.run_id, cwd=worktree, reads=shop.lent(run))
        with coordinator_turn(run, turn_id, request, shop) as ask:
            return ask(plan_prompt(run, turn_id, team))
    finally:
        shop.repositories.remove_workplace(shop.repository(run), worktree, branch)


def _models(run: CoordinatorRun, project: Project, shop: Workshop) -> Mapping[str, str]:
    return {
        member.name: (shop.agents.resolve(member.model_id) if member.model_id and not run.model_pinned else None)
        or run.model_id
        for member in project.team
    }
