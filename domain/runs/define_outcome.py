"""Agree on what a goal means before anything is planned: the draft, its confirmation, its revision."""

from collections.abc import Sequence
from uuid import NAMESPACE_OID, uuid5

from ..event import Draft, Text
from ..facts.outcome_spec import (
    OutcomeDraft,
    OutcomeSpec,
    OutcomeSpecConfirmed,
    OutcomeSpecDrafted,
    OutcomeSpecDrafting,
)
from ..facts.run import CoordinatorRun
from ..rejected import Invalid, Rejected, RunNotActive
from ..work.turns import Overtaken

MAX_FEEDBACK_BYTES = 16_384
#: How often a draft may be asked for; a person who is not content by then starts another run.
MAX_ROUNDS = 50


class NoPendingGate(Rejected):
    """No outcome spec waits for a confirmation: it is being drafted, it is confirmed, or the run has none."""

    code = "no_pending_gate"


class FeedbackRequired(Invalid):
    """`feedback` says what is to be changed. It must have 1 to 16384 bytes and cannot be blank."""

    code = "feedback_required"


class RevisedTooOften(Rejected):
    """The outcome spec was drafted as often as it may be. Confirm it, or stop the run and start another one."""

    code = "outcome_spec_revisions_exhausted"


def begin_draft(run: CoordinatorRun, goal: str, by: str, *, auto_confirm: bool) -> Draft:
    """Ask for the first draft of a run that is just being started."""
    drafting = OutcomeSpecDrafting(
        spec_id=_spec_id(run),
        goal=Text(goal),
        revise=False,
        requested_by=by,
        auto_confirm=auto_confirm,
    )
    return run.coordinator(drafting)


def take_over(run: CoordinatorRun, before: OutcomeSpec, goal: str, by: str) -> Sequence[Draft]:
    """
    Let a run that is just being started know the spec of one that it tries again, as far as that had come.

    What nobody has confirmed there nobody has confirmed here.
    """
    first = begin_draft(run, goal, by, auto_confirm=before.auto_confirm)
    spec_id = _spec_id(run)
    again = [
        run.coordinator(
            OutcomeSpecDrafting(spec_id=spec_id, goal=Text(goal), revise=True, feedback=words, requested_by=by)
        )
        for words in before.feedback
    ]
    draft = before.draft
    if draft is None:
        return (first, *again)
    drafted = run.coordinator(_drafted(spec_id, Text(goal), draft))
    if before.status == "drafting":
        # That draft was sent back with the last of these words.
        return (first, drafted, *again)
    if before.status == "awaiting_confirmation":
        return (first, *again, drafted)
    confirmed = OutcomeSpecConfirmed(spec_id=spec_id, confirmed_by=before.confirmed_by or by)
    return (first, *again, drafted, run.coordinator(confirmed))


def put_draft(run: CoordinatorRun, round_number: int, draft: OutcomeDraft) -> Sequence[Draft]:
    """
    The writer has answered. A run that was launched with autopilot confirms the draft in the same breath.

    Raises Overtaken when this draft is not what is waited for.
    """
    spec = run.outcome_spec
    if spec is None or spec.status != "drafting" or spec.round != round_number or run.ended or run.stopping:
        raise Overtaken
    drafted = _drafted(spec.spec_id, run.goal, draft)
    if not spec.auto_confirm:
        return (run.coordinator(drafted),)
    confirmed = OutcomeSpecConfirmed(spec_id=spec.spec_id, confirmed_by=run.user)
    return (run.coordinator(drafted), run.coordinator(confirmed))


def confirm(run: CoordinatorRun, by: str) -> Sequence[Draft]:
    """Take the draft as it is; planning begins. Raises RunNotActive, NoPendingGate."""
    spec = _at_gate(run)
    return (run.coordinator(OutcomeSpecConfirmed(spec_id=spec.spec_id, confirmed_by=by)),)


def revise(run: CoordinatorRun, feedback: str, by: str) -> Sequence[Draft]:
    """Send the draft back to the writer. Raises FeedbackRequired, RunNotActive, NoPendingGate, RevisedTooOften."""
    if not feedback.strip() or len(feedback.encode(errors="replace")) > MAX_FEEDBACK_BYTES:
        raise FeedbackRequired
    spec = _at_gate(run)
    if spec.round >= MAX_ROUNDS:
        raise RevisedTooOften
    drafting = OutcomeSpecDrafting(
        spec_id=spec.spec_id, goal=run.goal, revise=True, feedback=Text(feedback), requested_by=by
    )
    return (run.coordinator(drafting),)


def _at_gate(run: CoordinatorRun) -> OutcomeSpec:
    if run.ended or run.stopping:
        raise RunNotActive
    if run.outcome_spec is None or run.outcome_spec.status != "awaiting_confirmation":
        raise NoPendingGate
    return run.outcome_spec


def _spec_id(run: CoordinatorRun) -> str:
    return str(uuid5(NAMESPACE_OID, f"{run.run_id}/outcome-spec"))


def _drafted(spec_id: str, goal: Text, draft: OutcomeDraft) -> OutcomeSpecDrafted:
    return OutcomeSpecDrafted(
        spec_id=spec_id,
        goal=goal,
        desired_outcome=draft.desired_outcome,
        scope=draft.scope,
        assumptions=draft.assumptions,
        clarifying_questions=draft.clarifying_questions,
    )
