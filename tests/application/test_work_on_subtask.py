"""A child run, step by step: what its agent is asked, what is committed, and what becomes of agents that fail."""

import pytest

from steersman.application.ports.agents import AgentFailed, AgentUpdate, TurnObserver
from steersman.domain.event import Event
from steersman.domain.facts.agent_output import ToolCalled, ToolReturned
from steersman.domain.facts.child_run import RunFailed, SessionOpened, TurnInterrupted, TurnOpened
from steersman.domain.facts.directive import RevisionExecution, SteeringDecided
from steersman.domain.steering import steering
from steersman.tests.application.outside import Session, writes_its_part
from steersman.tests.application.service import Service, part


def states(service: Service, directive_id: str) -> list[str]:
    return [e.state for e in service.told(RevisionExecution) if e.directive_id == directive_id]


def crashes(session: Session, prompt: str, observer: TurnObserver) -> None:
    raise AgentFailed("agent_exited", "it crashed", retryable=True)


def at_gate(*, loads: bool = True) -> Service:
    service = Service()
    service.start(part("One"))
    service.drive()
    assert service.run.status == "awaiting_review"
    return service


def test_a_commit_that_fails_twice_is_made_at_the_third_try() -> None:
    service = Service()
    service.start(part("One"))
    service.git.failing_commits = 2
    assert service.drive().status == "awaiting_review"
    assert len(service.told(TurnOpened)) == 1


def test_a_commit_that_fails_three_times_ends_the_child_with_a_typed_failure() -> None:
    service = Service()
    service.start(part("One"))
    service.git.failing_commits = 3
    run = service.drive()
    assert run.plan is not None
    assert run.plan.status == "assembly_blocked"
    (failed,) = service.told(RunFailed)
    assert (failed.error_code, failed.retryable) == ("commit_failed_persistent", True)


def test_a_commit_that_keeps_failing_in_a_revision_starts_that_part_afresh_visibly_and_once() -> None:
    service = at_gate()
    service.git.failing_commits = 3
    service.request_changes("d")
    service.drive()
    decisions = [(e.decision, e.phase) for e in service.told(SteeringDecided)]
    assert decisions[:2] == [("in_place_steer", None), ("dispatch_fresh", "in_place_revision_failed_terminal")]
    assert service.directive("d").status == "applied"
    assert service.run.status == "awaiting_review"


def test_an_agent_that_fails_before_its_first_sign_is_asked_again_and_the_third_time_left_to_a_person() -> None:
    service = at_gate()
    before = len(service.agents.prompts)
    service.agents.behave = crashes
    service.request_changes("d")
    run = service.drive()
    assert len(service.agents.prompts) - before == 3
    assert states(service, "d") == ["initiated", "failed", "failed", "failed"]
    assert service.directive("d").status == "needs_attention"
    assert run.plan is not None
    assert (run.plan.status, run.plan.status_reason) == (
        "assembly_blocked",
        "assembly_blocked: steering_execution_exhausted",
    )
    assert run.plan.subtasks[1].status == "assemble_ready", "the last commit still stands"


def test_the_last_words_of_an_agent_that_fails_are_redacted_and_forgotten_with_the_run() -> None:
    key = "sk-proj-" + "a1" * 18

    def gasps(session: Session, prompt: str, observer: TurnObserver) -> None:
        raise AgentFailed("agent_exited", f"its last words: /home/ada/.env: KEY_OF_ADA {key}", retryable=True)

    service = at_gate()
    service.agents.behave = gasps
    service.request_changes("d")
    service.drive()
    failed = [e for e in service.told(RevisionExecution) if e.state == "failed"]
    assert {e.reason for e in failed} == {"agent_exited"}
    assert {str(e.message) for e in failed} == {"its last words: /home/ada/.env: KEY_OF_ADA [redacted]"}
    service.log.erase_texts(["r", *service.run.children])
    assert not any("ada" in repr(event) or "sk-proj" in repr(event) for event in service.events)


@pytest.mark.parametrize("is_seen", [True, False])
def test_nothing_that_an_agent_says_or_names_is_in_the_facts_themselves(is_seen: bool) -> None:
    def says_it_everywhere(session: Session, prompt: str, observer: TurnObserver) -> None:
        if is_seen:
            for kind in ("message", "thought", "plan", "stderr", "tool_call", "tool_result"):
                observer.update(AgentUpdate(kind=kind, call_id="call of Ada", title="Ada", text="to Ada"))
        raise AgentFailed("agent_exited", "its last words: Ada", retryable=True)

    service = at_gate()
    service.agents.behave = says_it_everywhere
    service.request_changes("d")
    service.drive()
    assert any("Ada" in repr(event) for event in service.events)
    service.log.erase_texts(["r", *service.run.children])
    assert not [event for event in service.events if "Ada" in repr(event)]


def test_a_call_and_its_result_have_the_same_id() -> None:
    def calls(session: Session, prompt: str, observer: TurnObserver) -> None:
        for call_id in ("1", "2"):
            observer.update(AgentUpdate(kind="tool_call", call_id=call_id, title="read", text="{}"))
            observer.update(AgentUpdate(kind="tool_result", call_id=call_id, text="read"))
        writes_its_part(session, prompt, observer)

    service = Service()
    service.agents.behave = calls
    service.start(part("One"))
    service.drive()
    called, returned = ([event.call_id for event in service.told(kind)] for kind in (ToolCalled, ToolReturned))
    assert called == returned
    assert len(set(called)) == 2


def test_a_directive_that_a_person_retries_is_carried_out_by_the_same_child() -> None:
    service = at_gate()
    child = service.child(1).run_id
    service.agents.behave = crashes
    service.request_changes("d")
    service.drive()
    service.agents.behave = writes_its_part
    service.shop.decide("r", lambda run: steering.resolve(run, "d", "retry"))
    assert service.drive().status == "awaiting_review"
    assert service.directive("d").status == "applied"
    assert service.child(1).run_id == child
    assert states(service, "d").count("effect_confirmed") == 1


def test_a_directive_that_a_person_gives_up_lets_the_run_go_on_to_its_gate() -> None:
    service = at_gate()
    service.agents.behave = crashes
    service.request_changes("d")
    service.drive()
    service.shop.decide("r", lambda run: steering.resolve(run, "d", "abandon"))
    assert service.drive().status == "awaiting_review"
    assert service.directive("d").status == "expired"


def test_an_agent_that_fails_after_its_first_sign_ends_its_child() -> None:
    def starts_and_crashes(session: Session, prompt: str, observer: TurnObserver) -> None:
        observer.update(AgentUpdate(kind="thought", text="On it."))
        raise AgentFailed("agent_exited", "it crashed", retryable=True)

    service = at_gate()
    service.request_changes("d")
    service.agents.behave = starts_and_crashes
    service.drive()
    assert service.told(RunFailed)[0].error_code == "agent_exited"
    phases = [e.phase for e in service.told(SteeringDecided)]
    assert "in_place_revision_failed_terminal" in phases


def test_a_turn_that_is_found_in_the_agents_history_is_continued_and_not_asked_again() -> None:
    service = at_gate()
    service.request_changes("d", words="Use metres.")

    def dies_with_the_service(session: Session, prompt: str, observer: TurnObserver) -> None:
        service.agents.behave = writes_its_part
        raise KeyboardInterrupt

    service.agents.behave = dies_with_the_service
    with pytest.raises(KeyboardInterrupt):
        service.drive()
    service.restart()
    service.drive()
    child = service.child(1)
    assert [(e.found_in_history, e.session_kept) for e in service.told(TurnInterrupted)] == [(True, True)]
    assert sum("Use metres." in prompt for prompt in service.agents.prompted(child.run_id)) == 1
    assert "You were interrupted" in service.agents.prompted(child.run_id)[-1]
    assert service.directive("d").status == "applied"


def test_a_session_that_is_gone_begins_at_the_last_commit_with_the_task_and_every_word() -> None:
    service = at_gate()
    service.request_changes("d1", words="Use metres.")
    service.drive()
    service.request_changes("d2", words="And say so.")

    def dies_half_done(session: Session, prompt: str, observer: TurnObserver) -> None:
        observer.update(AgentUpdate(kind="thought", text="On it."))
        session.files["half.txt"] = "half"
        service.agents.behave = writes_its_part
        raise KeyboardInterrupt

    service.agents.behave = dies_half_done
    with pytest.raises(KeyboardInterrupt):
        service.drive()
    service.restart()
    service.agents.sessions.clear()
    service.drive()
    child = service.child(1)
    prompt = service.agents.prompted(child.run_id)[-1]
    assert "# Your part: One" in prompt
    assert (prompt.count("Use metres."), prompt.count("And say so.")) == (1, 1)
    assert [(e.found_in_history, e.session_kept) for e in service.told(TurnInterrupted)] == [(False, False)]
    service.approve()
    service.drive()
    assert "half.txt" not in service.merged()
    assert len(service.merged()[f"{child.run_id[:8]}.txt"].splitlines()) == 3, "three turns, one line each"
    assert len([e for e in service.told(SessionOpened)]) == 2


def test_a_turn_that_is_cut_off_twenty_times_is_given_up() -> None:
    service = Service()
    service.start(part("One"))

    def dies(session: Session, prompt: str, observer: TurnObserver) -> None:
        observer.update(AgentUpdate(kind="thought", text="On it."))
        raise KeyboardInterrupt

    service.agents.behave = dies
    for _ in range(21):
        with pytest.raises(KeyboardInterrupt):
            service.drive()
        service.restart()
    service.drive()
    (failed,) = service.told(RunFailed)
    assert failed.error_code == "agent_interrupted_too_often"
    assert len(service.told(TurnOpened)) == 1


def test_a_child_that_changes_nothing_is_complete_and_the_gate_says_so() -> None:
    service = Service()
    service.start(part("One"))
    service.agents.behave = lambda *_: None
    run = service.drive()
    assert run.plan is not None
    assert run.plan.subtasks[1].status == "completed"
    assert run.assembly is not None
    assert not run.assembly.has_changes


def test_a_dependant_begins_with_what_its_producers_committed_even_while_they_are_revised() -> None:
    service = Service()
    service.start(part("One"), part("Two", 0))
    held: list[Event] = []

    def first_part_only(session: Session, prompt: str, observer: TurnObserver) -> None:
        writes_its_part(session, prompt, observer)
        if not held:
            held.append(service.events[-1])

    service.agents.behave = first_part_only
    service.drive()
    two = service.child(2)
    assert two.base is not None
    assert f"{service.child(1).run_id[:8]}.txt" in service.git.files(two.base.commit)
