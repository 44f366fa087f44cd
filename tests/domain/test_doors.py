"""Both doors of steering, every verb in every situation: what is received, what is refused, and what comes of it."""

from collections.abc import Callable
from typing import Literal

import pytest

from steersman.domain.facts.directive import SteeringReceived
from steersman.domain.facts.outcome_spec import OutcomeSpecDrafting
from steersman.domain.rejected import Rejected
from steersman.domain.runs import review
from steersman.domain.steering import steering
from steersman.domain.steering.receipts import payload_hash
from steersman.domain.steering.steering import (
    MAX_INSTRUCTION_BYTES,
    MAX_QUEUED,
    AlreadyMerged,
    DirectiveNotFound,
    NothingToSteer,
    NotResolvable,
    QueueFull,
    RunNotActive,
    RunNotSteerable,
    SessionMismatch,
    SteeringInvalid,
    SteerRun,
)
from steersman.domain.work import turns
from steersman.projections.standing import Standing, after
from steersman.tests.domain.fleet import Fleet, part

Situation = Callable[[], Fleet]


def planning() -> Fleet:
    return Fleet()


def waiting_for_a_place() -> Fleet:
    return Fleet(part("One"))


def at_work() -> Fleet:
    fleet = Fleet(part("One"))
    fleet.start(1)
    return fleet


def paused() -> Fleet:
    fleet = at_work()
    fleet.pause(1)
    return fleet


def assembling() -> Fleet:
    fleet = Fleet(part("One"))
    fleet.work(1)
    return fleet


def at_gate() -> Fleet:
    return Fleet(part("One")).to_gate()


def blocked() -> Fleet:
    fleet = at_work()
    fleet.fail(1)
    return fleet


def merging() -> Fleet:
    fleet = at_gate()
    fleet.review(approved=True)
    return fleet


def merge_failed() -> Fleet:
    fleet = merging()
    fleet.put(review.fail_merge(fleet.run, ["a.txt"]))
    return fleet


def merged() -> Fleet:
    fleet = merging()
    fleet.merge()
    return fleet


def declined() -> Fleet:
    fleet = at_gate()
    fleet.review(approved=False)
    return fleet


def stopping() -> Fleet:
    fleet = at_work()
    fleet.steer("stop")
    return fleet


def stopped() -> Fleet:
    fleet = stopping()
    fleet.settle()
    fleet.confirm_end("d1")
    return fleet


#: For each situation: what becomes of stop, send, redirect and amend without a target, right after the log was followed.
RUN_DOOR: dict[Situation, tuple[object, object, object, object]] = {
    planning: ("decided", "applied", NothingToSteer, NothingToSteer),
    waiting_for_a_place: ("decided", "decided", "decided", "decided"),
    at_work: ("decided", "decided", "decided", "decided"),
    paused: ("decided", "decided", "decided", "decided"),
    assembling: ("decided", "applied", "decided", "decided"),
    at_gate: ("decided", "applied", "decided", "decided"),
    blocked: ("decided", "applied", "applied", NothingToSteer),
    merging: (AlreadyMerged, AlreadyMerged, AlreadyMerged, AlreadyMerged),
    merge_failed: (RunNotActive, RunNotActive, "applied", NothingToSteer),
    merged: (RunNotActive, RunNotActive, RunNotActive, RunNotActive),
    declined: (RunNotActive, RunNotActive, RunNotActive, RunNotActive),
    stopping: (RunNotSteerable, RunNotSteerable, RunNotSteerable, RunNotSteerable),
    stopped: (RunNotActive, RunNotActive, RunNotActive, RunNotActive),
}

#: The same for pause, resume, guidance, redirect and abort at the worker's door.
WORKER_DOOR: dict[Situation, tuple[object, object, object, object, object]] = {
    waiting_for_a_place: ("decided", "applied", "decided", "decided", "decided"),
    at_work: ("decided", "applied", "decided", "decided", "decided"),
    paused: (RunNotActive, "decided", "decided", "decided", "decided"),
    assembling: (RunNotActive, RunNotActive, "decided", "decided", RunNotActive),
    at_gate: (RunNotActive, RunNotActive, "decided", "decided", RunNotActive),
    blocked: (RunNotActive, RunNotActive, RunNotActive, RunNotActive, RunNotActive),
    merging: (AlreadyMerged, AlreadyMerged, AlreadyMerged, AlreadyMerged, AlreadyMerged),
    merge_failed: (RunNotActive, RunNotActive, RunNotActive, RunNotActive, RunNotActive),
    merged: (AlreadyMerged, AlreadyMerged, AlreadyMerged, AlreadyMerged, AlreadyMerged),
    declined: (RunNotActive, RunNotActive, RunNotActive, RunNotActive, RunNotActive),
    stopping: (RunNotSteerable, RunNotSteerable, RunNotSteerable, RunNotSteerable, RunNotSteerable),
    stopped: (RunNotActive, RunNotActive, RunNotActive, RunNotActive, RunNotActive),
}


def check(fleet: Fleet, say: Callable[[], str], wanted: object) -> None:
    before = len(fleet.facts)
    if isinstance(wanted, type) and issubclass(wanted, Rejected):
        with pytest.raises(wanted) as refused:
            say()
        assert type(refused.value) is wanted
        assert len(fleet.facts) == before, "a refusal stores nothing"
        return
    directive_id = say()
    assert fleet.directive(directive_id).status == "queued"
    fleet.settle()
    assert fleet.directive(directive_id).status == wanted


@pytest.mark.parametrize("situation", RUN_DOOR, ids=lambda found: found.__name__)
@pytest.mark.parametrize("place", range(4), ids=["stop", "send", "redirect", "amend"])
def test_every_verb_of_the_coordinators_door_in_every_situation(situation: Situation, place: int) -> None:
    fleet = situation()
    verb = ("stop", "send", "redirect", "amend")[place]
    check(fleet, lambda: fleet.steer(verb, touched=fleet.touched), RUN_DOOR[situation][place])


@pytest.mark.parametrize("situation", WORKER_DOOR, ids=lambda found: found.__name__)
@pytest.mark.parametrize("place", range(5), ids=["pause", "resume", "guidance", "redirect", "abort"])
def test_every_verb_of_the_workers_door_in_every_situation(situation: Situation, place: int) -> None:
    fleet = situation()
    verb = ("pause", "resume", "guidance", "redirect", "abort")[place]
    check(fleet, lambda: fleet.command(verb, 1), WORKER_DOOR[situation][place])


# What is received


def test_a_broadcast_is_for_everybody_at_work_at_its_receipt_and_applied_when_each_has_it() -> None:
    fleet = Fleet(part("One"), part("Two"), part("Three", 0))
    fleet.start(1)
    fleet.start(2)
    sent = fleet.steer("send", words="All hands.")
    fleet.settle()
    assert set(fleet.directive(sent).targets) == {fleet.child_id(1), fleet.child_id(2)}
    fleet.end(1)
    assert "All hands." in fleet.start(1)
    fleet.settle()
    assert fleet.directive(sent).open
    fleet.end(2)
    fleet.start(2)
    fleet.settle()
    assert fleet.directive(sent).status == "applied"
    fleet.end(1)
    fleet.finish(1)
    assert fleet.start(3).count("All hands.") == 0


def test_a_message_for_one_child_is_never_given_to_another_and_moves_no_subtask() -> None:
    fleet = Fleet(part("One"), part("Two"))
    fleet.start(1)
    fleet.start(2)
    plan = fleet.run.plan
    fleet.steer("send", 1, words="Only you.")
    fleet.settle()
    assert fleet.run.plan == plan
    fleet.end(2)
    assert fleet.open_turn(2) is None
    fleet.end(1)
    assert "Only you." in (fleet.open_turn(1) or "")


def test_an_amend_leaves_the_running_turn_alone_and_a_redirect_ends_it() -> None:
    fleet = at_work()
    fleet.command("guidance", 1)
    fleet.steer("amend", 1)
    fleet.settle()
    assert not turns.is_cut_short(fleet.run, fleet.child_id(1))
    fleet.command("redirect", 1)
    fleet.settle()
    assert turns.is_cut_short(fleet.run, fleet.child_id(1))
    assert fleet.child(1).status == "in_progress", "the run is never restarted"


def test_twenty_guidances_are_delivered_once_each_in_the_order_of_their_receipt() -> None:
    fleet = at_work()
    ids = [fleet.command("guidance", 1, words=f"Word {n}.") for n in range(20)]
    fleet.settle()
    fleet.end(1)
    prompt = fleet.open_turn(1) or ""
    places = [prompt.index(f"Word {n}.") for n in range(20)]
    assert places == sorted(places)
    assert all(prompt.count(f"Word {n}.") == 1 for n in range(20))
    fleet.put(turns.start_turn(fleet.run, fleet.child_id(1)))
    fleet.settle()
    assert {fleet.directive(d).status for d in ids} == {"applied"}


def test_direct_words_are_decided_without_the_table_and_cost_nothing() -> None:
    fleet = at_work()
    for verb in ("guidance", "redirect", "pause"):
        directive = fleet.directive(fleet.command(verb, 1))
        fleet.settle()
        found = fleet.directive(directive.directive_id)
        assert (found.rationale, found.attempt, found.source) == (f"direct:{verb}", 0, "human-review")
        assert found.action == ("proceed" if verb == "pause" else "in_place_steer")
    assert (fleet.plan.steering_iterations, fleet.subtask(1).recovery_attempts) == (0, 0)


def test_a_queue_holds_128_and_keeps_the_oldest() -> None:
    fleet = paused()
    ids = [fleet.command("guidance", 1) for _ in range(MAX_QUEUED)]
    with pytest.raises(QueueFull):
        fleet.command("guidance", 1)
    with pytest.raises(QueueFull):
        fleet.steer("send")
    assert QueueFull.status == 429
    assert all(fleet.directive(d).open for d in ids)


@pytest.mark.parametrize("kind", ["redirect", "amend"])
@pytest.mark.parametrize("blank", ["", " \n\t"])
def test_a_blank_redirect_or_amend_is_refused(kind: str, blank: str) -> None:
    fleet = at_work()
    with pytest.raises(SteeringInvalid):
        fleet.steer(kind, words=blank)


def test_an_empty_message_is_accepted() -> None:
    fleet = at_work()
    assert fleet.directive(fleet.steer("send", words="")).status == "queued"


def test_an_instruction_is_measured_in_bytes() -> None:
    fleet = at_work()
    fleet.steer("send", words="é" * (MAX_INSTRUCTION_BYTES // 2))
    with pytest.raises(SteeringInvalid):
        fleet.steer("send", words="é" * (MAX_INSTRUCTION_BYTES // 2) + "x")


def test_a_target_of_another_run_is_refused() -> None:
    fleet = at_work()
    command = SteerRun(
        directive_id="d", kind="send", instruction="x", principal="a", target_child_run_id="somebody else's"
    )
    with pytest.raises(SteeringInvalid):
        steering.steer_run(fleet.run, command, {})


def test_a_session_that_is_not_the_childs_is_refused_and_its_own_is_not() -> None:
    fleet = at_work()
    with pytest.raises(SessionMismatch) as refused:
        fleet.command("pause", 1, session_id="another")
    assert refused.value.details["expected"] == "another"
    fleet.command("pause", 1, session_id=fleet.child(1).session_id)


def test_a_receipt_names_what_was_asked_by_digest() -> None:
    fleet = at_work()
    fleet.steer("redirect", 1, words="Go left.")
    (receipt,) = [e for e in fleet.told(SteeringReceived) if isinstance(e, SteeringReceived)]
    asked = {
        "kind": "redirect",
        "run_id": "r",
        "target_child_run_id": fleet.child_id(1),
        "instruction": "Go left.",
    }
    assert receipt.payload_hash == payload_hash(asked)
    assert receipt.payload_hash != payload_hash({**asked, "instruction": "Go right."})


VECTORS = {
    ("guidance", "task-1", "watch the retry budget", "", ""): (
        "7275a08d2e41d82255c5fed482ed05c57af3caf2ab09b3f102a049e0b6f5c611"
    ),
    ("redirect", "task-1", "", "fix the auth path instead", ""): (
        "8b35988c597d9e77a4d2799a6dc76a6b4be1f8e6c9b63be6c01408406d6cf026"
    ),
    ("pause", "task-1", "", "", "operator hold"): ("47f5d7dbb929dec057f621b2e0dc815b6c66af904cb6e1bec89d6f7624717787"),
    ("resume", "task-1", "", "", ""): "aacdadae7425df702c3d7e29efcdf4788279718dcb6f015c5bf8b225bff910da",
    ("abort", "task-1", "", "", ""): "d0719799805096d6e115d82d455dda95d36e6ccf1ea407f5857ee421e2d6f898",
    ("guidance", "täsk-é", "naïve “quotes”\nline2", "", ""): (
        "3345089e5700e97f6d6290b94b96115ee3a3b8225a9bca2af164e0e85c6e8d23"
    ),
}


@pytest.mark.parametrize(("fields", "digest"), VECTORS.items(), ids=lambda found: str(found)[:30])
def test_both_ends_of_the_workers_door_compute_the_same_digest(fields: tuple[str, ...], digest: str) -> None:
    names = ("kind", "task_id", "guidance", "redirect_target", "reason")
    assert payload_hash(dict(zip(names, fields, strict=True))) == f"sha256:{digest}"


# At the gate


def test_a_redirect_at_the_gate_is_a_request_for_changes_of_what_its_target_touched() -> None:
    fleet = Fleet(part("One"), part("Two"), part("Three")).to_gate()
    touched = {1: frozenset({"a.txt"}), 2: frozenset({"a.txt", "b.txt"}), 3: frozenset({"c.txt"})}
    redirect = fleet.steer("redirect", 1, touched=touched)
    found = fleet.directive(redirect)
    assert (found.direct, found.severity, found.subtask_ids) == (False, "request-changes", (1, 2))
    assert fleet.plan.human_review_round_trips == 1


def test_a_redirect_at_the_gate_without_a_target_is_about_every_contributor_and_says_so() -> None:
    fleet = Fleet(part("One"), part("Two")).to_gate()
    redirect = fleet.steer("redirect", touched=fleet.touched)
    assert fleet.directive(redirect).subtask_ids == (1, 2)
    assert [f.topic for f in fleet.facts if "fallback" in f.topic] == ["coordinator.assembly_implicated_scope_fallback"]


def test_a_message_at_the_gate_is_advice_and_leaves_the_gate_armed() -> None:
    fleet = at_gate()
    sent = fleet.steer("send")
    fleet.settle()
    assert (fleet.directive(sent).action, fleet.directive(sent).status) == ("advisory", "applied")
    assert (fleet.run.status, fleet.plan.steering_iterations) == ("awaiting_review", 0)
    assert fleet.run.assembly is not None
    assert fleet.run.assembly.gate_open


# What needs attention


def test_only_what_needs_attention_can_be_resolved() -> None:
    fleet = at_work()
    guidance = fleet.command("guidance", 1)
    with pytest.raises(NotResolvable):
        steering.resolve(fleet.run, guidance, "retry")
    with pytest.raises(DirectiveNotFound):
        steering.resolve(fleet.run, "nobody's", "retry")


def test_a_directive_has_one_receipt_so_a_second_one_under_its_id_is_a_broken_invariant() -> None:
    fleet = at_work()
    fleet.steer("send", words="The first.", directive_id="d")
    for again in (lambda: fleet.steer("send", directive_id="d"), lambda: fleet.command("pause", 1, directive_id="d")):
        with pytest.raises(ValueError, match="on the log already"):
            again()
    assert fleet.directive("d").feedback.value == "The first."


# What is shown beforehand


def drafting() -> Fleet:
    fleet = Fleet()
    fleet.put(
        (
            fleet.run.coordinator(
                OutcomeSpecDrafting(spec_id="s", goal=fleet.run.goal, revise=False, requested_by="alice")
            ),
        )
    )
    return fleet


def shown(fleet: Fleet) -> bool:
    """What the view says of the run beforehand."""
    standing = Standing()
    for fact in fleet.facts:
        if fact.run == fleet.run.run_id:
            standing = after(standing, fact)
    return standing.steerable


@pytest.mark.parametrize("situation", [*RUN_DOOR, drafting], ids=lambda found: found.__name__)
def test_a_run_is_shown_as_steerable_exactly_if_the_door_takes_words(situation: Situation) -> None:
    taken: set[bool] = set()
    for verb in ("send", "redirect"):
        fleet = situation()
        steerable = shown(fleet)
        try:
            fleet.steer(verb, touched=fleet.touched)
        except (RunNotActive, RunNotSteerable, AlreadyMerged, NothingToSteer):
            taken.add(False)
        else:
            taken.add(True)
        assert not (steerable is False and True in taken)
    assert steerable == (True in taken)


@pytest.mark.parametrize("situation", [planning, drafting, assembling], ids=lambda found: found.__name__)
def test_a_word_at_any_gate_is_advice_that_changes_nothing(situation: Situation) -> None:
    fleet = situation()
    plan, effects = fleet.run.plan, fleet.effects
    sent = fleet.steer("send", words="By the way.")
    fleet.settle()
    assert (fleet.directive(sent).action, fleet.directive(sent).status) == ("advisory", "applied")
    assert (fleet.run.plan, fleet.effects) == (plan, effects)


@pytest.mark.parametrize("verb", ["redirect", "amend"])
def test_while_the_work_is_put_together_or_looked_at_words_for_all_reach_all_who_made_it(
    verb: Literal["redirect", "amend"],
) -> None:
    fleet = Fleet(part("One"), part("Two"))
    fleet.work(1)
    fleet.work(2)
    assert fleet.plan.status == "assembling"
    said = fleet.steer(verb, words="Once more.")
    fleet.settle()
    assert set(fleet.directive(said).targets) == {fleet.child_id(1), fleet.child_id(2)}
    assert all(fleet.subtask(i).in_flight for i in (1, 2))
    assert "Once more." in fleet.start(1)
    assert "Once more." in fleet.start(2)
