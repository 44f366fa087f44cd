"""What agents use is counted, and where a budget is used up no turn begins until somebody raises it."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from steersman.application.driving.advancing import Advancing
from steersman.application.ports.agents import AgentFailed, AgentUpdate, TurnObserver
from steersman.application.ports.log import LogUnavailable
from steersman.application.writer.caller import service as in_the_name_of_the_service
from steersman.domain.event import Draft
from steersman.domain.facts.child_run import TurnOpened
from steersman.domain.facts.gates import GateSpec
from steersman.domain.facts.run import CoordinatorRun
from steersman.domain.facts.spending import Budget, BudgetReached, BudgetReleased, TurnCounted
from steersman.domain.projects import project_changes
from steersman.domain.projects.project import replay
from steersman.domain.rejected import RunNotActive
from steersman.domain.work import answers, budget
from steersman.domain.work.budget import Changes
from steersman.projections import waiting
from steersman.tests.application.outside import Behaviour, Session, writes_its_part
from steersman.tests.application.service import Service, by, part

EURO_CENT = 10_000


def uses(*said: dict[str, Any]) -> Behaviour:
    """Return the behaviour of an agent that does its part and reports this."""

    def behave(session: Session, prompt: str, observer: TurnObserver) -> None:
        writes_its_part(session, prompt, observer)
        for report in said:
            observer.update(AgentUpdate(kind="usage", **report))

    return behave


TEN = uses({"input_tokens": 8, "output_tokens": 2, "session_cost_micros": EURO_CENT, "currency": "EUR"})


def started(behave: Behaviour, *plan: Any, **limits: Any) -> Service:
    """Return a service that was given a plan of parts and a budget."""
    service = Service()
    service.agents.behave = behave
    service.start(*(plan or (part("One"), part("Two", 0))), budget=Budget(**limits) if limits else None)
    return service


def decide(service: Service, decision: Callable[[CoordinatorRun], Sequence[Draft]]) -> None:
    service.runs.decide("r", decision, in_the_name_of_the_service(str(uuid4())))


def raised(service: Service, **limits: Any) -> None:
    decide(service, lambda run: budget.set_budget(run, Changes(**limits), "alice"))


def waits_under(service: Service) -> list[str]:
    """Return the kinds of what waits, as the view has it."""
    rows: dict[str, waiting.WaitingRun | None] = {}
    for fact in service.facts:
        rows |= waiting.VIEW.apply(Rows(rows), fact)
    row = rows.get("r")
    return [item.kind for item in row.items] if row else []


class Rows:
    """The rows of one view."""

    def __init__(self, rows: dict[str, Any]) -> None:
        self._rows = rows

    def get(self, key: str) -> Any:
        return self._rows.get(key)

    def group(self, group: str) -> dict[str, Any]:
        return {}


def test_what_an_agent_reports_of_a_turn_is_counted_once_for_child_run_and_project() -> None:
    service = started(TEN)
    service.drive()
    run = service.run
    counted = [event.counted for event in service.told(TurnCounted)]
    assert [(c.input_tokens, c.output_tokens, c.total_tokens, c.cost_micros, c.ended) for c in counted] == [
        (8, 2, 10, EURO_CENT, True)
    ] * 2
    assert (run.spending.turns, run.spending.total_tokens, run.spending.costs) == (2, 20, {"EUR": 2 * EURO_CENT})
    assert service.shop.project(run).spending.total_tokens == 20
    assert run.spending.milliseconds > 0


def test_the_cost_of_a_turn_is_what_is_beyond_that_of_its_session_before() -> None:
    service = started(TEN, part("One"))
    service.drive()
    service.agents.behave = uses({"session_cost_micros": 3 * EURO_CENT, "currency": "EUR"})
    service.request_changes("d")
    service.drive()
    assert [event.counted.cost_micros for event in service.told(TurnCounted)] == [EURO_CENT, 2 * EURO_CENT]
    assert service.run.spending.costs == {"EUR": 3 * EURO_CENT}


@pytest.mark.parametrize(
    ("limits", "limit", "reason"),
    [
        ({"tokens": 10}, "tokens", "reached"),
        ({"money_micros": EURO_CENT, "currency": "EUR"}, "money", "reached"),
        ({"money_micros": 10 * EURO_CENT, "currency": "USD"}, "money", "other_currency"),
        ({"turns": 1}, "turns", "reached"),
    ],
)
def test_no_turn_begins_once_a_budget_is_used_up(limits: dict[str, Any], limit: str, reason: str) -> None:
    service = started(TEN, **limits)
    run = service.drive()
    (reached,) = service.told(BudgetReached)
    assert (reached.scope, reached.limit, reached.reason) == ("run", limit, reason)
    assert len(service.told(TurnOpened)) == 1
    assert not run.ended
    assert waits_under(service) == ["budget"]


def test_whoever_raises_a_budget_has_the_run_go_on_where_it_stood() -> None:
    service = started(TEN, tokens=10)
    service.drive()
    raised(service, tokens=15)
    assert waits_under(service) == []
    run = service.drive()
    assert run.status == "awaiting_review"
    assert len(service.told(TurnOpened)) == 2
    assert waits_under(service) == ["gate"]


def test_a_budget_that_is_still_used_up_after_it_was_set_keeps_the_run_waiting() -> None:
    service = started(TEN, tokens=10)
    service.drive()
    raised(service, tokens=5)
    service.drive()
    assert [event.allowed for event in service.told(BudgetReached)] == [10, 5]
    assert waits_under(service) == ["budget"]


def test_a_budget_of_money_waits_at_the_first_turn_whose_agent_reports_no_cost_and_names_it() -> None:
    service = started(uses({"input_tokens": 8, "output_tokens": 2}), money_micros=EURO_CENT)
    service.drive()
    (reached,) = service.told(BudgetReached)
    assert (reached.limit, reached.reason, reached.model_id) == ("money", "not_reported", "rehearsal")
    raised(service, money_micros=None)
    assert service.drive().status == "awaiting_review"


def test_a_correction_waits_for_the_budget_like_any_other_turn() -> None:
    service = started(TEN, part("One"), turns=1)
    service.drive()
    assert waits_under(service) == ["gate"], "nothing waits for a turn"
    service.request_changes("d")
    service.drive()
    assert waits_under(service) == ["budget"]
    assert service.directive("d").open
    raised(service, turns=2)
    assert service.drive().status == "awaiting_review"
    assert service.directive("d").status == "applied"


def test_the_planner_is_not_asked_under_a_budget_that_is_used_up() -> None:
    service = Service()
    service.agents.behave = uses({"input_tokens": 5})
    service.start(budget=Budget(turns=1))
    service.drive()
    assert waits_under(service) == ["budget"], "the planner's turn was the only one"
    assert service.run.plan is not None
    assert not service.told(TurnOpened)


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("lost", range(1, 16))
def test_whichever_append_is_lost_a_budget_lets_no_turn_begin_beyond_it_and_is_said_to_be_used_up_once(
    lost: int, stored: bool
) -> None:
    service = started(TEN, part("One"), part("Two", 0), part("Three", 1), tokens=20)
    service.log.fault_at, service.log.stored_all_the_same = lost, stored
    for _ in range(2):
        service.drive()
        (reached,) = service.told(BudgetReached)
        # A turn that was cut off and asked again has used what it has used twice.
        assert len(service.told(TurnOpened)) in (1, 2)
        assert reached.spent == service.run.spending.total_tokens >= 20
        service.restart()


def test_a_turn_that_fails_is_counted_and_the_next_try_is_a_turn_of_its_own() -> None:
    def dies(session: Session, prompt: str, observer: TurnObserver) -> None:
        observer.update(AgentUpdate(kind="usage", input_tokens=7))
        raise AgentFailed("agent_exited", "gone", retryable=True)

    service = started(dies, part("One"), turns=2)
    service.drive()
    assert [event.counted.ended for event in service.told(TurnCounted)] == [False, False]
    assert service.run.spending.input_tokens == 14
    assert waits_under(service) == ["budget"], "two tries were two turns"


def test_the_budget_of_a_project_is_what_its_runs_use_together() -> None:
    service = started(TEN, part("One"))
    project_budget(service, tokens=15)
    service.drive()
    service.start(part("Two"), part("Three", 0), run_id="s")
    service.drive("s")
    (reached,) = service.told(BudgetReached)
    assert (reached.scope, reached.limit, reached.spent, reached.allowed) == ("project", "tokens", 20, 15)
    project_budget(service, tokens=100)
    advancing = Advancing(service.shop)
    service.shop.decide("s", lambda run: advancing.drafts(run, service.clock.now()))
    assert service.told(BudgetReleased)
    assert service.drive("s").status == "awaiting_review"


def test_a_project_whose_budget_was_used_up_before_lets_no_turn_of_a_new_run_begin() -> None:
    service = started(TEN, part("One"))
    service.drive()
    project_budget(service, turns=1)
    service.restart()
    service.start(part("Two"), run_id="s")
    service.drive("s")
    assert len(service.told(TurnOpened)) == 1
    (reached,) = service.told(BudgetReached)
    assert reached.scope == "project"


def project_budget(service: Service, **limits: Any) -> None:
    project = replay(service.log.read_stream("project/p"))
    (draft,) = project_changes.set_budget(project, Budget(**limits))
    service.log.append(by().append([draft], {draft.stream: project.version}, service.clock.now()))


def test_the_driver_begins_no_turn_while_the_budget_is_used_up_and_goes_on_once_it_is_raised() -> None:
    service = started(TEN, part("One"), part("Two"), part("Three", 0, 1), part("Four", 2), tokens=20)
    service.serve(open_runs=("r",))
    try:
        service.wait(lambda run: run.out_of is not None, "for the budget")
        service.wait(lambda _: not service.agents.alive, "for the agents to end")
        assert len(service.told(TurnOpened)) == 2
        raised(service, tokens=25)
        service.wait(lambda run: run.out_of is not None and run.budget is not None and run.spending.turns > 2, "again")
        raised(service, tokens=None)
        run = service.wait(lambda run: run.status == "awaiting_review", "for the gate")
        assert run.spending.total_tokens == 40
    finally:
        service.stop()
    assert len(service.told(TurnOpened)) == 4


def test_what_lies_between_two_processes_is_no_time_at_work_and_what_the_first_one_used_is_counted() -> None:
    def dies_once(session: Session, prompt: str, observer: TurnObserver) -> None:
        session.files["a.txt"] = "changed"
        observer.update(AgentUpdate(kind="usage", input_tokens=8, output_tokens=2))
        if not service.clock.gone_by:
            service.clock.gone_by = timedelta(hours=10)
            raise LogUnavailable("the process dies")

    service = started(TEN, part("One"))
    service.agents.behave = dies_once
    service.drive()
    assert [(e.counted.total_tokens, e.counted.ended) for e in service.told(TurnCounted)] == [(10, False), (10, True)]
    assert service.run.spending.turns == 1
    assert service.shop.project(service.run).spending.turns == 1
    assert service.run.spending.milliseconds < 3_600_000


def test_an_agent_that_waits_for_a_person_is_not_at_work() -> None:
    def asks(session: Session, prompt: str, observer: TurnObserver) -> None:
        observer.update(AgentUpdate(kind="thought", text="May I?"))
        assert observer.question("q", "Which way?") == "Left."

    service = started(asks, part("One"))
    service.serve(open_runs=("r",))
    try:
        run = service.wait(lambda run: any(child.requests for child in run.children.values()), "for the question")
        child = next(iter(run.children.values()))
        (request,) = child.requests.values()
        service.clock.gone_by = timedelta(hours=10)
        decide(service, lambda run: answers.answer(run, request.request_id, "Left.", "alice", None))
        service.wait(lambda run: run.plan is not None and run.plan.status == "complete", "for the end")
    finally:
        service.stop()
    assert service.run.spending.milliseconds < 3_600_000


def test_a_run_that_waits_for_its_budget_can_be_stopped() -> None:
    service = started(TEN, tokens=10)
    service.drive()
    service.steer("d", "stop")
    assert service.drive().status == "failed"
    assert waits_under(service) == []
    assert service.directive("d").status == "applied"
    with pytest.raises(RunNotActive):
        raised(service, tokens=100)


def test_a_reviewer_is_not_asked_under_a_budget_that_is_used_up() -> None:
    service = Service()
    service.agents.behave = TEN
    gates = (GateSpec(kind="rai", model_id="rehearsal"),)
    service.start(part("One"), budget=Budget(turns=1), gates=gates)
    run = service.drive()
    assert waits_under(service) == ["budget"]
    assert run.plan is not None
    assert (run.plan.status, run.plan.stage) == ("assembling", "rai")
    raised(service, turns=None)
    service.agents.behave = lambda *_: "VERDICT: GREEN"
    assert service.drive().status == "awaiting_review"
    assert [event.counted.turns for event in service.told(TurnCounted) if event.run_id == "r"] == [1]
