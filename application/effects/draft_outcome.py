"""Ask the writer agent what a goal means."""

from collections.abc import Sequence
from uuid import NAMESPACE_OID, uuid5

from ...domain.event import Draft
from ...domain.facts.outcome_spec import OutcomeDraft, read_draft
from ...domain.facts.run import CoordinatorRun
from ...domain.process.effects import DraftOutcome
from ...domain.runs import define_outcome, review
from ...domain.work.prompts import outcome_prompt
from ...domain.work.turns import Overtaken
from ..ports.agents import AgentFailed
from .ask_coordinator import CoordinatorQuestion, ask_coordinator
from .workshop import Closing, Workshop

UNPARSEABLE = "outcome_spec_unparseable"


def draft_outcome(effect: DraftOutcome, shop: Workshop) -> None:
    """On return the run's outcome spec has a draft, or the run has failed because its writer has."""
    run = shop.runs.run(effect.run_id)
    try:
        draft = _ask(run, effect, shop)
        # If we crash here, the writer is asked again, for the same round: one draft of each round is stored.
        shop.decide(effect.run_id, lambda found: define_outcome.put_draft(found, effect.round, draft))
    except AgentFailed as failed:
        if shop.leaves(effect.run_id):
            raise Closing from failed
        _fail(effect, shop, failed)
    except Overtaken:
        return


def _ask(run: CoordinatorRun, effect: DraftOutcome, shop: Workshop) -> OutcomeDraft:
    turn_id = str(uuid5(NAMESPACE_OID, effect.id))
    question = CoordinatorQuestion(
        name=run.run_id,
        turn_id=turn_id,
        prompt=outcome_prompt(run, turn_id),
        worktree=f"{run.run_id}-outcome",
        branch=f"steersman/outcome/{run.run_id}",
        shows=run.base,
    )
    draft = read_draft(ask_coordinator(run, question, shop))
    if draft is None:
        # Nobody has said what the goal means, and a spec that was made up here would only look as if.
        raise AgentFailed(UNPARSEABLE, "The writer's answer held no usable outcome spec.", retryable=True)
    return draft


def _fail(effect: DraftOutcome, shop: Workshop, failed: AgentFailed) -> None:
    code, message, retryable = failed.code, str(failed), failed.retryable

    def decision(run: CoordinatorRun) -> Sequence[Draft]:
        spec = run.outcome_spec
        if spec is None or spec.status != "drafting" or spec.round != effect.round:
            raise Overtaken
        return review.fail_run(run, error_code=code, message=message, retryable=retryable)

    try:
        shop.decide(effect.run_id, decision)
    except Overtaken:
        # Whoever stopped the run says how it ended.
        return
