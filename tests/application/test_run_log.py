"""Deciding about runs: on what the log holds at that moment, and once for each command."""

from collections.abc import Sequence

import pytest

from steersman.application.ports.log import AlreadyAnswered, ConcurrencyConflict, LogUnavailable
from steersman.application.writer.caller import Answer, IdempotencyKey
from steersman.application.writer.run_log import MAX_ATTEMPTS, RunLog, read_versions, written_versions
from steersman.domain.event import Draft
from steersman.domain.facts.assembly import WorkflowStep
from steersman.domain.facts.run import CoordinatorRun
from steersman.domain.rejected import Busy, RunNotFound
from steersman.tests.application.service import Service, by, part


def said(run: CoordinatorRun, words: str = "a") -> Sequence[Draft]:
    return (run.coordinator(WorkflowStep(step=words, status="done", label="")),)


@pytest.fixture
def service() -> Service:
    service = Service()
    service.start(part("One"))
    return service


def steps(service: Service) -> list[str]:
    return [event.step for event in service.told(WorkflowStep)]


def test_a_decision_sees_what_another_process_has_stored_just_before(service: Service) -> None:
    other = RunLog(service.runs.log, service.clock)
    seen = [service.run.root_sequence]
    for n in range(4):
        other.decide("r", lambda run, n=n: said(run, f"other {n}"), by())
        service.runs.decide("r", lambda run, n=n: (seen.append(run.root_sequence), said(run, f"mine {n}"))[1], by())
    assert seen[1:] == [seen[0] + 2 * n + 1 for n in range(4)]
    assert steps(service) == [f"{whose} {n}" for n in range(4) for whose in ("other", "mine")]


def test_a_decision_whose_ground_has_changed_is_taken_again_once_somebody_has_looked(service: Service) -> None:
    looks: list[int] = []

    def resting(run: CoordinatorRun) -> Sequence[Draft]:
        if len(looks) < MAX_ATTEMPTS - 1:
            raise ConcurrencyConflict("it has changed")
        return said(run, "mine")

    assert len(service.runs.decide("r", resting, by(), look=lambda: looks.append(1))) == 1
    assert (len(looks), steps(service)) == (7, ["mine"])


def test_a_decision_whose_ground_always_changes_is_refused_and_stores_nothing(service: Service) -> None:
    def resting(run: CoordinatorRun) -> Sequence[Draft]:
        raise ConcurrencyConflict("it has changed")

    head = service.log.head()
    with pytest.raises(Busy):
        service.runs.decide("r", resting, by(), look=lambda: None)
    assert service.log.head() == head


def test_a_decision_that_fails_leaves_the_state_as_it_was(service: Service) -> None:
    def broken(run: CoordinatorRun) -> Sequence[Draft]:
        raise ZeroDivisionError

    before = service.run
    with pytest.raises(ZeroDivisionError):
        service.runs.decide("r", broken, by())
    assert service.run == before
    service.runs.decide("r", said, by())
    assert service.run == RunLog(service.runs.log, service.clock).run("r")


def test_a_command_whose_acknowledgement_was_lost_is_stored_once(service: Service) -> None:
    caller = by()
    service.log.fault_at, service.log.stored_all_the_same = 1, True
    with pytest.raises(LogUnavailable):
        service.runs.decide("r", said, caller)
    facts = service.runs.decide("r", said, caller)
    assert len(facts) == 1
    assert steps(service) == ["a"]


def test_a_command_that_was_lost_is_stored_by_its_repetition(service: Service) -> None:
    caller = by()
    service.log.fault_at = 1
    with pytest.raises(LogUnavailable):
        service.runs.decide("r", said, caller)
    assert steps(service) == []
    service.runs.decide("r", said, caller)
    assert steps(service) == ["a"]


def test_a_key_that_was_used_is_answered_with_the_first_answer(service: Service) -> None:
    key = IdempotencyKey(method="POST", path="/x", key="k", body_digest="d")

    def once(word: str) -> None:
        caller = type(by())(principal="alice", command_id=word, key=key)
        service.runs.decide("r", lambda run: said(run, word), caller, lambda *_: Answer(status=201, body=b"first"))

    once("one")
    with pytest.raises(AlreadyAnswered) as again:
        once("two")
    assert again.value.answered.answer == b"first"
    assert steps(service) == ["one"]


def test_a_decision_for_nothing_appends_nothing(service: Service) -> None:
    head = service.log.head()
    assert service.runs.decide("r", lambda run: (), by()) == ()
    assert service.log.head() == head


def test_a_run_that_does_not_exist_is_not_found(service: Service) -> None:
    for call in (service.runs.run, service.runs.root_of, lambda run: service.runs.decide(run, said, by())):
        with pytest.raises(RunNotFound):
            call("nobody")


def test_what_is_decided_elsewhere_rests_on_the_run_its_plan_and_that_it_is_not_deleted(service: Service) -> None:
    run = service.run
    assert read_versions(run) == {run.stream: 1, "plan/plan of r": 1, f"{run.stream}/deletion": 0}
    child = run.on_child("c", WorkflowStep(step="x", status="", label=""))
    assert written_versions(run, [child]) == {"run/c": 0}
