"""What is decided about an outcome spec: one draft a round, one decision about it, and no plan before the confirmation."""

import json
from collections.abc import Sequence

import msgspec
import pytest

from steersman.domain.event import Draft, Text
from steersman.domain.facts.outcome_spec import (
    OutcomeDraft,
    OutcomeSpecConfirmed,
    OutcomeSpecDrafted,
    OutcomeSpecDrafting,
    read_draft,
)
from steersman.domain.facts.run import CoordinatorRun
from steersman.domain.git import Commit
from steersman.domain.process.effects import DraftOutcome, MakePlan, next_effects
from steersman.domain.projects.project import Project
from steersman.domain.projects.team import Member
from steersman.domain.rejected import Invalid, RunNotActive
from steersman.domain.runs import define_outcome
from steersman.domain.runs.define_outcome import FeedbackRequired, NoPendingGate, RevisedTooOften
from steersman.domain.runs.orchestration import StartRun, start_run
from steersman.domain.runs.planning import ProposedSubtask, make_plan
from steersman.domain.runs.retry import start_again
from steersman.domain.runs.review import fail_run
from steersman.domain.steering.steering import NothingToSteer, SteerRun, steer_run
from steersman.domain.work.prompts import answer_prompt, outcome_prompt, plan_prompt
from steersman.domain.work.turns import Overtaken
from steersman.tests.spec import given

MEMBER = Member(name="ann", role_id="software-engineer", role_title="Software Engineer", model_id=None)
PROJECT = Project(project_id="p", default_branch="main", owner="alice", members=(MEMBER,))
DRAFT = OutcomeDraft(desired_outcome=Text("Things are sold"), scope=Text("The shop"), assumptions=Text("None"))
DIRECT = CoordinatorRun(run_id="r")


def started(plan: tuple[ProposedSubtask, ...] | None = None, *, autopilot: bool = False) -> Sequence[Draft]:
    """A run whose outcome is to be defined."""
    command = StartRun(
        run_id="r",
        work_plan_id="w",
        goal="Sell things",
        user="alice",
        model_id="rehearsal",
        start_mode="define_outcome",
        plan=plan,
        autopilot=autopilot,
    )
    return start_run(command, PROJECT, Commit(commit="c0", tree="t0"), "/srv/shop", {"ann": "rehearsal"})


SPEC_ID = given(started()).run.outcome_spec.spec_id
DRAFTED = OutcomeSpecDrafted(
    spec_id=SPEC_ID,
    goal=Text("Sell things"),
    desired_outcome=DRAFT.desired_outcome,
    scope=DRAFT.scope,
    assumptions=DRAFT.assumptions,
)
CONFIRMED = OutcomeSpecConfirmed(spec_id=SPEC_ID, confirmed_by="bob")


def said(*events: OutcomeSpecDrafted | OutcomeSpecConfirmed | OutcomeSpecDrafting) -> list[Draft]:
    """Facts of the coordinator."""
    return [DIRECT.coordinator(event) for event in events]


def again(feedback: str) -> OutcomeSpecDrafting:
    """The request for another draft."""
    return OutcomeSpecDrafting(
        spec_id=SPEC_ID, goal=Text("Sell things"), revise=True, feedback=Text(feedback), requested_by="bob"
    )


def test_a_run_whose_outcome_is_to_be_defined_begins_with_the_request_for_a_draft() -> None:
    assert [draft.event.TOPIC for draft in started()] == ["coordinator.started", "coordinator.outcome_spec.drafting"]


def test_a_plan_is_refused_while_the_outcome_is_to_be_defined() -> None:
    with pytest.raises(Invalid):
        started((ProposedSubtask(title="Build"),))


def test_nothing_is_called_for_while_a_draft_waits_and_a_plan_only_after_its_confirmation() -> None:
    assert next_effects(given(started()).run) == (DraftOutcome(id="r/outcome-spec/1", run_id="r", round=1),)
    assert next_effects(given(started(), said(DRAFTED)).run) == ()
    assert next_effects(given(started(), said(DRAFTED, again("More"))).run) == (
        DraftOutcome(id="r/outcome-spec/2", run_id="r", round=2),
    )
    assert next_effects(given(started(), said(DRAFTED, CONFIRMED)).run) == (MakePlan(id="r/plan", run_id="r"),)


def test_a_draft_waits_for_its_confirmation() -> None:
    given(started()).when(lambda run: define_outcome.put_draft(run, 1, DRAFT)).then(DRAFTED)


def test_a_launch_with_autopilot_confirms_together_with_the_draft() -> None:
    confirmed = OutcomeSpecConfirmed(spec_id=SPEC_ID, confirmed_by="alice")
    given(started(autopilot=True)).when(lambda run: define_outcome.put_draft(run, 1, DRAFT)).then(DRAFTED, confirmed)


@pytest.mark.parametrize(
    ("facts", "round_number"),
    [([DRAFTED], 1), ([DRAFTED, again("More")], 1), ([DRAFTED, CONFIRMED], 1), ([], 2)],
    ids=["it is there", "it is of an earlier round", "it is confirmed", "it was not asked for"],
)
def test_a_draft_that_nobody_waits_for_is_not_stored(
    facts: list[OutcomeSpecDrafted | OutcomeSpecConfirmed | OutcomeSpecDrafting], round_number: int
) -> None:
    story = given(started(), said(*facts))
    story.when(lambda run: define_outcome.put_draft(run, round_number, DRAFT)).then_rejected(Overtaken)


def test_the_gate_takes_one_decision() -> None:
    given(started(), said(DRAFTED)).when(lambda run: define_outcome.confirm(run, "bob")).then(CONFIRMED)
    given(started(), said(DRAFTED)).when(lambda run: define_outcome.revise(run, "More", "bob")).then(again("More"))
    for facts in ((DRAFTED, CONFIRMED), (DRAFTED, again("More")), ()):
        story = given(started(), said(*facts))
        story.when(lambda run: define_outcome.confirm(run, "bob")).then_rejected(NoPendingGate)
        story = given(started(), said(*facts))
        story.when(lambda run: define_outcome.revise(run, "More", "bob")).then_rejected(NoPendingGate)


@pytest.mark.parametrize("feedback", ["", " \n", "x" * 16_385, "ä" * 8_193])
def test_a_revision_without_usable_feedback_is_refused(feedback: str) -> None:
    story = given(started(), said(DRAFTED))
    story.when(lambda run: define_outcome.revise(run, feedback, "bob")).then_rejected(FeedbackRequired)


def test_drafts_are_bounded() -> None:
    rounds = [event for n in range(49) for event in (DRAFTED, again(str(n)))]
    story = given(started(), said(*rounds, DRAFTED))
    story.when(lambda run: define_outcome.revise(run, "Once more", "bob")).then_rejected(RevisedTooOften)
    given(started(), said(*rounds, DRAFTED)).when(lambda run: define_outcome.confirm(run, "bob")).then(CONFIRMED)


def test_a_run_that_has_ended_takes_no_decision_and_no_draft() -> None:
    run = given(started(), said(DRAFTED)).run
    ended = fail_run(run, error_code="x", message="It broke.", retryable=False)
    for decision in (lambda r: define_outcome.confirm(r, "bob"), lambda r: define_outcome.revise(r, "More", "bob")):
        given(started(), said(DRAFTED), ended).when(decision).then_rejected(RunNotActive)
    given(started(), ended).when(lambda r: define_outcome.put_draft(r, 1, DRAFT)).then_rejected(Overtaken)


def test_at_the_gate_there_is_nothing_to_steer_but_a_stop() -> None:
    run = given(started(), said(DRAFTED)).run
    command = SteerRun(directive_id="d", kind="redirect", instruction="Buy things", principal="bob")
    with pytest.raises(NothingToSteer):
        steer_run(run, command, {})
    stop = SteerRun(directive_id="d", kind="stop", instruction="", principal="bob")
    stopped = given(started(), said(DRAFTED), steer_run(run, stop, {}))
    stopped.when(lambda run: define_outcome.confirm(run, "bob")).then_rejected(RunNotActive)


def test_the_writer_is_told_everything_that_was_said_and_the_planner_what_was_agreed() -> None:
    run = given(started(), said(DRAFTED, again("FIRST"), DRAFTED, again("SECOND"))).run
    prompt = outcome_prompt(run, "turn")
    assert prompt.index("FIRST") < prompt.index("SECOND")
    assert "Things are sold" in prompt
    assert "Things are sold" not in plan_prompt(run, "turn", "")
    agreed = given(started(), said(DRAFTED, CONFIRMED)).run
    assert "Things are sold" in plan_prompt(agreed, "turn", "")


def tried_again(*facts: OutcomeSpecDrafted | OutcomeSpecConfirmed | OutcomeSpecDrafting) -> CoordinatorRun:
    """The run that tries one again that failed after these facts."""
    run = given(started(), said(*facts)).run
    failed = given(started(), said(*facts), fail_run(run, error_code="x", message="It broke.", retryable=True)).run
    command = start_again(failed, "w", {"ann"}, {})
    base = Commit(commit="c0", tree="t0")
    return given(start_run(command, PROJECT, base, "/srv/shop", {"ann": "rehearsal"})).run


@pytest.mark.parametrize(
    "facts",
    [[], [DRAFTED], [DRAFTED, again("FIRST")], [DRAFTED, again("FIRST"), DRAFTED]],
    ids=["drafting", "drafted", "sent back", "drafted again"],
)
def test_a_retry_plans_nothing_that_nobody_has_confirmed_and_knows_what_was_said(
    facts: list[OutcomeSpecDrafted | OutcomeSpecConfirmed | OutcomeSpecDrafting],
) -> None:
    before, run = given(started(), said(*facts)).run.outcome_spec, tried_again(*facts)
    assert before is not None
    assert run.outcome_spec is not None
    assert run.outcome_spec.spec_id != before.spec_id
    assert msgspec.structs.replace(run.outcome_spec, spec_id=before.spec_id) == before
    assert not any(isinstance(effect, MakePlan) for effect in next_effects(run))


def test_a_retry_plans_by_what_was_agreed() -> None:
    run = tried_again(DRAFTED, again("FIRST"), DRAFTED, CONFIRMED)
    assert [type(effect) for effect in next_effects(run)] == [MakePlan]
    assert "Things are sold" in plan_prompt(run, "turn", "")
    assert run.outcome_spec is not None
    assert (run.outcome_spec.feedback, run.outcome_spec.confirmed_by) == ((Text("FIRST"),), "bob")


def test_a_retry_with_the_plan_that_was_made_keeps_what_was_agreed() -> None:
    plan = make_plan("w", (ProposedSubtask(title="Build"),), PROJECT.team, {"ann": "rehearsal"}, {})
    facts = [*started(), *said(DRAFTED, CONFIRMED), DIRECT.on_plan(plan, "w")]
    ended = fail_run(given(facts).run, error_code="x", message="It broke.", retryable=True)
    command = start_again(given(facts, ended).run, "w2", {"ann"}, {})
    run = given(start_run(command, PROJECT, Commit(commit="c0", tree="t0"), "/srv/shop", {"ann": "rehearsal"})).run
    assert run.plan is not None
    assert "Things are sold" in answer_prompt(run, run.plan.subtasks[1], "turn", "Which colour?")


def block(**parts: object) -> str:
    """A writer's answer."""
    return f"Here it is:\n\n```json\n{json.dumps(parts)}\n```\n"


def test_a_writers_lists_become_words_and_the_last_usable_block_counts() -> None:
    answer = block(desiredOutcome="old") + block(
        desiredOutcome="Sold", scope=["a", "b"], assumptions=None, clarifyingQuestions=[]
    )
    assert read_draft(answer + "```json\nnonsense\n```\n") == OutcomeDraft(
        desired_outcome=Text("Sold"), scope=Text("- a\n- b"), assumptions=Text("")
    )


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "I would rather not.",
        "```json\n[]\n```",
        "```json\n" + "[" * 100_000 + "\n```",
        block(desiredOutcome=""),
        block(desiredOutcome=1),
        block(desiredOutcome=["a", 1]),
        block(scope="All of it"),
        block(desiredOutcome="x", scope={"a": 1}),
        block(desiredOutcome="x" * 16_385),
    ],
)
def test_what_is_no_draft_is_none(answer: str) -> None:
    assert read_draft(answer) is None
