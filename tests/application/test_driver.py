"""The product's driver: what is outstanding is under way once, in as many places as there are, and nobody holds the others."""

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from steersman.application.driving.back_off import BackOff
from steersman.application.driving.rounds import MAX_ROUNDS, Rounds
from steersman.application.ports.agents import AgentFailed, AgentUpdate, TurnEnd, TurnObserver
from steersman.application.ports.log import Undecodable
from steersman.domain.facts.asking import AnswerDelivered
from steersman.domain.facts.child_run import Paused, ProcessesKilled, RunFailed, TurnOpened
from steersman.domain.facts.directive import RevisionExecution
from steersman.domain.facts.run import CoordinatorRun
from steersman.domain.process.effects import Effect, ResumeWorker
from steersman.domain.work import answers
from steersman.tests.application.outside import Session, writes_its_part
from steersman.tests.application.service import Service, part
from steersman.tests.live_agents import PATIENCE_SECONDS, InBackground, wait_until


@pytest.fixture
def service() -> Iterator[Service]:
    # What is waited for in seconds elsewhere is waited for in moments here; no test asserts a time.
    service = Service()
    service.wait_only(pause=0.2, end_turn=0.5)
    service.back_off = BackOff(first_seconds=0.01)
    yield service
    service.stop()
    assert not service.agents.alive


class Hanging:
    """Agents that hang once they have begun, until the test lets them go."""

    def __init__(self, *, heeds_cancel: bool = True) -> None:
        self.heeds_cancel = heeds_cancel
        self.sessions: list[Session] = []
        self.free = threading.Event()

    def __call__(self, session: Session, prompt: str, observer: TurnObserver) -> TurnEnd | None:
        observer.update(AgentUpdate(kind="thought", text="On it."))
        if self.free.is_set():
            writes_its_part(session, prompt, observer)
            return None
        self.sessions.append(session)
        return session.hang(heeds_cancel=self.heeds_cancel)


def under_way_in(service: Service) -> Sequence[Effect]:
    """What the driver carries out now."""
    return service.driver.under_way() if service.driver is not None else ()


def gate(run: CoordinatorRun) -> bool:
    return run.status == "awaiting_review"


def test_a_run_is_driven_to_its_gate_and_each_effect_carried_out_once(service: Service) -> None:
    service.start(part("One"), part("Two"), part("Three", 0, 1))
    service.serve(open_runs=["r"])
    service.wait(gate)
    opened = Counter(fact.run for fact in service.facts if isinstance(fact.event, TurnOpened))
    assert list(opened.values()) == [1, 1, 1]
    assert service.agents.opened == 3


def test_what_the_log_held_before_the_start_is_found_by_the_sweep(service: Service) -> None:
    service.start(part("One"))
    service.serve(open_runs=["r"])
    service.wait(gate)
    service.approve()
    assert service.wait(lambda run: run.worktrees_removed).result == "assembly_complete"


def test_no_more_agents_are_at_work_than_there_are_places(service: Service) -> None:
    most, now, lock = [0], [0], threading.Lock()

    def counted(session: Session, prompt: str, observer: TurnObserver) -> None:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        writes_its_part(session, prompt, observer)
        with lock:
            now[0] -= 1

    service.agents.behave = counted
    service.start(*(part(f"Part {n}") for n in range(6)))
    service.serve(max_agents=2, open_runs=["r"])
    service.wait(gate)
    assert most[0] <= 2


def test_a_paused_child_gives_up_its_place_and_takes_it_up_again(service: Service) -> None:
    hanging = Hanging()
    service.agents.behave = hanging
    service.start(part("One"), part("Two"))
    service.serve(max_agents=1, open_runs=["r"])
    service.wait(lambda _: len(hanging.sessions) == 1)
    service.command("p", "pause", 1)
    service.wait(lambda run: run.children[service.child(1).run_id].status == "paused")
    service.wait(lambda _: len(hanging.sessions) == 2, "for the other to get the place")
    hanging.free.set()
    service.command("r", "resume", 1)
    service.command("g", "redirect", 2, words="Now.")
    service.wait(gate)
    assert [service.directive(d).status for d in ("p", "r", "g")] == ["applied", "applied", "applied"]
    assert len(service.told(Paused)) == 1


class Asking:
    """Agents of which the first asks before it writes; the others work until they are let go."""

    def __init__(self) -> None:
        self.at_work: list[Session] = []
        self.free = threading.Event()

    def __call__(self, session: Session, prompt: str, observer: TurnObserver) -> TurnEnd | None:
        observer.update(AgentUpdate(kind="thought", text="On it."))
        if "# Your part: One" in session.history + prompt:
            observer.question("1", "Which colour?")
        else:
            self.at_work.append(session)
            while not self.free.wait(0.005):
                if session.killed.is_set():
                    return None
        writes_its_part(session, prompt, observer)
        return None


def until_asked(service: Service) -> str:
    """Return the id of the question that waits for an answer."""

    def pending(run: CoordinatorRun) -> list[str]:
        return [
            r.request_id for child in run.children.values() for r in child.requests.values() if r.state == "pending"
        ]

    (asked,) = pending(service.wait(pending, "for a question"))
    return asked


def answer_without_a_place(service: Service, others: str) -> Asking:
    """Let the only place be taken by another part while the first one asks, and then answer that one."""
    service.agents.behave = asking = Asking()
    service.start(part("One"), *(part(title) for title in others.split()))
    service.serve(max_agents=1, open_runs=["r"])
    asked = until_asked(service)
    service.wait(lambda _: len(asking.at_work) == 1, "for the next one to get the place")
    service.shop.decide("r", lambda run: answers.answer(run, asked, "Blue.", "alice"))

    def waits(_: CoordinatorRun) -> bool:
        states = service.driver.states().get("r", ()) if service.driver else ()
        work = f"{service.child(1).run_id}/work"
        return any(s.effect_id == work and s.state == "waits_for_place" for s in states)

    service.wait(waits, "for the first one to stand in line")
    assert not service.told(AnswerDelivered)
    return asking


def test_who_waits_for_an_answer_holds_no_place_and_goes_on_before_whoever_is_new(service: Service) -> None:
    asking = answer_without_a_place(service, "Two Three")
    asking.free.set()
    service.wait(gate)
    order = [type(fact.event) for fact in service.facts if isinstance(fact.event, AnswerDelivered | TurnOpened)]
    assert order == [TurnOpened, TurnOpened, AnswerDelivered, TurnOpened]


@pytest.mark.parametrize("verb", ["redirect", "pause", "abort"])
def test_whoever_waits_for_a_place_with_an_answer_is_steered_without_one(service: Service, verb: str) -> None:
    asking = answer_without_a_place(service, "Two")
    service.command("s", verb, 1, words="Go right." if verb == "redirect" else "")
    if verb == "redirect":
        service.wait(lambda _: len(service.told(TurnOpened)) == 3, "for its next turn to wait for a place")
        asking.free.set()
    service.wait(lambda _: service.directive("s").status == "applied")
    asking.free.set()
    if verb == "pause":
        service.command("u", "resume", 1)
    service.wait(gate if verb != "abort" else lambda run: run.plan and run.plan.status == "assembly_blocked")
    assert not service.told(AnswerDelivered)


def test_an_answer_that_found_no_place_before_the_service_died_is_there_for_whoever_asks_again(
    service: Service,
) -> None:
    asking = answer_without_a_place(service, "Two")
    service.stop()
    service.restart()
    asking.free.set()
    service.serve(max_agents=1, open_runs=["r"])
    service.wait(gate)
    assert len(service.told(AnswerDelivered)) == 1


def paused_in_its_turn(service: Service) -> Session:
    """Let a child be stopped in the middle of its turn; return its session."""
    hanging = Hanging(heeds_cancel=False)
    service.agents.behave = hanging
    service.start(part("One"))
    service.serve(open_runs=["r"])
    service.wait(lambda _: hanging.sessions)
    service.command("p", "pause", 1)
    service.wait(lambda _: service.directive("p").status == "applied")
    assert hanging.sessions[0].stopped
    return hanging.sessions[0]


def test_a_child_that_cannot_be_continued_is_paused_until_it_can(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = paused_in_its_turn(service)
    tried, may, go_on = threading.Event(), threading.Event(), session.continue_processes

    def unruly() -> None:
        tried.set()
        if not may.is_set():
            raise AgentFailed("agent_processes_unruly", "continue took more than 60 s", retryable=True)
        go_on()

    monkeypatch.setattr(session, "continue_processes", unruly)
    service.command("c", "resume", 1)
    assert tried.wait(PATIENCE_SECONDS)
    service.wait(lambda _: service.driver is not None and service.driver.held(), "for another try")
    assert service.child(1).status == "paused"
    may.set()
    service.wait(lambda _: service.directive("c").status == "applied")
    assert service.child(1).status == "in_progress"
    assert not session.stopped


def test_a_child_that_is_paused_while_it_is_continued_is_stopped_in_the_end(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = paused_in_its_turn(service)
    paused_again, go_on = threading.Event(), session.continue_processes

    def slowly() -> None:
        paused_again.wait(1.0)
        go_on()

    def pause_again() -> None:
        service.wait(lambda _: service.child(1).status == "in_progress")
        service.command("q", "pause", 1)
        service.wait(lambda _: service.directive("q").status == "applied")
        paused_again.set()

    monkeypatch.setattr(session, "continue_processes", slowly)
    pausing = InBackground(pause_again)
    service.command("c", "resume", 1)
    pausing.result()
    service.wait(lambda _: not any(isinstance(effect, ResumeWorker) for effect in under_way_in(service)))
    assert (service.child(1).status, session.stopped) == ("paused", True)


def test_a_child_that_is_paused_across_a_restart_is_asked_nothing_until_it_is_resumed(service: Service) -> None:
    hanging = Hanging(heeds_cancel=False)
    service.agents.behave = hanging
    service.start(part("One"))
    service.serve(open_runs=["r"])
    service.wait(lambda _: len(hanging.sessions) == 1)
    service.command("p", "pause", 1)
    service.wait(lambda run: service.directive("p").status == "applied")
    assert hanging.sessions[0].stopped, "its turn did not end, so it was stopped in the middle"
    service.stop()
    service.restart()
    opened = service.agents.opened
    service.serve(open_runs=["r"])
    service.steer("s", "send", 1, words="Still there?")
    service.wait(lambda run: run.directives["s"].action is not None)
    assert service.agents.opened == opened
    hanging.free.set()
    service.command("r", "resume", 1)
    service.wait(gate)
    assert [service.directive(d).status for d in ("p", "s", "r")] == ["applied", "applied", "applied"]


def test_an_abort_leaves_nothing_alive_and_nothing_is_started_again_meanwhile(service: Service) -> None:
    hanging = Hanging(heeds_cancel=False)
    service.agents.behave = hanging
    service.start(part("One"), part("Two"))
    service.serve(open_runs=["r"])
    service.wait(lambda _: len(hanging.sessions) == 2)
    opened = service.agents.opened
    # The other child is slow to die: the first must stay dead all the while.
    slow = next(s for s in hanging.sessions if s.request.run_id == service.child(2).run_id)
    release, kill = threading.Event(), slow.kill

    def slowly() -> tuple[int, ...]:
        release.wait(10)
        return tuple(kill())

    slow.kill = slowly
    service.steer("s", "stop")
    first = next(s for s in hanging.sessions if s is not slow)
    assert first.killed.wait(10)
    service.wait(lambda run: service.driver is not None and len(service.driver.under_way()) >= 2)
    alive = {s for s in service.agents.alive if s.request.run_id == first.request.run_id}
    assert not alive
    release.set()
    run = service.wait(lambda run: run.ended)
    assert run.result == "steering_stop"
    assert service.agents.opened == opened
    assert sorted(e.pids for e in service.told(ProcessesKilled)) == [(4711,), (4711,)]
    assert not service.told(RunFailed)


def test_guidance_that_an_aborted_child_was_asked_is_charged_no_failure(service: Service) -> None:
    hanging = Hanging()
    service.agents.behave = hanging
    service.start(part("One"))
    service.serve(open_runs=["r"])
    service.wait(lambda _: len(hanging.sessions) == 1)
    service.agents.behave = lambda session, prompt, observer: session.hang(heeds_cancel=False)
    service.command("g", "redirect", 1, words="Left.")
    service.wait(lambda run: run.directives["g"].status == "executing")
    opened = service.agents.opened
    service.command("a", "abort", 1)
    service.wait(lambda run: not run.directives["a"].open)
    assert [e.state for e in service.told(RevisionExecution) if e.directive_id == "g"] == ["initiated"]
    assert service.directive("g").status == "superseded"
    assert service.agents.opened == opened


def test_a_redirect_cuts_the_turn_short_and_is_the_next_thing_that_the_agent_hears(service: Service) -> None:
    hanging = Hanging()
    service.agents.behave = hanging
    service.start(part("One"))
    service.serve(open_runs=["r"])
    service.wait(lambda _: len(hanging.sessions) == 1)
    hanging.free.set()
    service.command("d", "redirect", 1, words="Go right.")
    service.wait(gate)
    prompts = service.agents.prompted(service.child(1).run_id)
    assert [prompt.count("Go right.") for prompt in prompts] == [0, 1]
    assert service.directive("d").status == "applied"


def test_an_agent_that_does_not_heed_a_redirect_is_killed_and_its_session_loaded(service: Service) -> None:
    hanging = Hanging(heeds_cancel=False)
    service.agents.behave = hanging
    service.start(part("One"))
    service.serve(open_runs=["r"])
    service.wait(lambda _: len(hanging.sessions) == 1)
    hanging.free.set()
    service.command("d", "redirect", 1, words="Go right.")
    service.wait(gate)
    assert service.agents.opened == 2
    assert len(service.agents.sessions) == 1
    assert service.directive("d").status == "applied"


def test_a_redirect_of_a_child_without_a_place_does_not_spin(service: Service) -> None:
    hanging = Hanging()
    service.agents.behave = hanging
    service.start(part("One"), part("Two"))
    service.serve(max_agents=1, open_runs=["r"])
    service.wait(lambda _: len(hanging.sessions) == 1)
    waiting = next(c.run_id for c in service.run.children.values() if c.turn is None)
    subtask = service.run.children[waiting].subtask_id
    service.command("d", "redirect", subtask, words="Go right.")
    service.wait(lambda run: run.directives["d"].action is not None)
    hanging.free.set()
    for session in hanging.sessions:
        session.cancel()
    service.wait(gate)
    assert service.directive("d").status == "applied"


def test_stop_leaves_no_fact_about_the_runs_and_no_process(service: Service) -> None:
    hanging = Hanging()
    service.agents.behave = hanging
    service.start(part("One"), part("Two"))
    service.serve(open_runs=["r"])
    service.wait(lambda _: len(hanging.sessions) == 2)
    before = [fact.topic for fact in service.facts if not fact.event.OUTPUT]
    service.stop()
    assert [fact.topic for fact in service.facts if not fact.event.OUTPUT] == before
    assert not service.agents.alive


def test_an_effect_that_fails_is_held_and_tried_again_and_the_run_goes_on(service: Service) -> None:
    service.start(part("One"))
    broken, integrate = [3], service.git.integrate

    def sometimes(*args: Any, **kwargs: Any) -> Any:
        if broken[0]:
            broken[0] -= 1
            raise OSError("no space left on device")
        return integrate(*args, **kwargs)

    service.git.integrate = sometimes
    service.serve(open_runs=["r"])
    service.wait(gate)
    assert broken == [0]
    assert service.driver is not None
    service.wait(lambda run: service.driver is not None and not service.driver.held())


def test_a_run_whose_log_cannot_be_read_does_not_hold_the_others(service: Service) -> None:
    service.start(part("One"))
    service.serve(open_runs=["no such run", "r"])
    service.wait(gate)
    assert service.driver is not None
    assert {held.run_id for held in service.driver.held()} == {"no such run"}


def test_a_planner_without_a_usable_answer_gives_one_part_for_the_whole_goal(service: Service) -> None:
    asked: list[str] = []

    def planner(session: Session, prompt: str, observer: TurnObserver) -> str | None:
        if "Decompose the goal" not in prompt:
            writes_its_part(session, prompt, observer)
            return None
        asked.append(prompt)
        return "I would rather not.\n```json\n[{]\n```"

    service.agents.behave = planner
    service.start()
    service.serve(open_runs=["r"])
    run = service.wait(gate)
    assert run.plan is not None
    assert [str(s.title) for s in run.plan.subtasks.values()] == ["Sell things"]
    assert len(asked) == 1


def test_a_planner_that_dies_fails_its_run_with_a_typed_reason(service: Service) -> None:
    def dies(session: Session, prompt: str, observer: TurnObserver) -> None:
        raise AgentFailed("agent_exited", "it crashed", retryable=True)

    service.agents.behave = dies
    service.start()
    service.serve(open_runs=["r"])
    run = service.wait(lambda run: run.worktrees_removed)
    assert (run.status, run.result) == ("failed", "agent_exited")
    assert not service.git.workplaces


def test_a_stop_while_the_planner_works_ends_the_run_as_stopped(service: Service) -> None:
    began = threading.Event()

    def hangs(session: Session, prompt: str, observer: TurnObserver) -> TurnEnd:
        began.set()
        return session.hang(heeds_cancel=False)

    service.agents.behave = hangs
    service.start()
    service.serve(open_runs=["r"])
    assert began.wait(20)
    service.steer("s", "stop")
    run = service.wait(lambda run: run.worktrees_removed)
    assert (run.status, run.result) == ("failed", "steering_stop")
    assert service.directive("s").status == "applied"


def test_each_round_over_the_open_runs_tells_what_it_came_to_and_only_the_newest_are_kept(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.wait_only(sweep=0.05)
    service.start(part("One"))
    service.serve(open_runs=["r"])
    service.wait(gate)
    driver = service.driver
    assert driver is not None
    wait_until(lambda: len(driver.rounds()) > 1, "a second round")
    assert driver.rounds()[-1].acted == 1
    wait_until(lambda: driver.rounds()[0].acted == 0, "a round with nothing to do")
    assert {found.failed for found in driver.rounds()} == {0}
    monkeypatch.setattr(service.shop.runs, "run", lambda _: 1 / 0)
    wait_until(lambda: driver.rounds()[0].failed == 1, "a round that fails")
    monkeypatch.undo()
    rounds = Rounds()
    for n in range(MAX_ROUNDS + 5):
        rounds.add(["acted"] * n, 0.5, str(n))
    assert [found.acted for found in rounds.newest()] == list(range(MAX_ROUNDS + 4, 4, -1))
    assert rounds.newest()[0].milliseconds == 500


def test_a_fact_that_cannot_be_read_keeps_nobody_from_hearing_of_the_runs_behind_it(service: Service) -> None:
    read = service.log.read
    unreadable = service.log.head() + 1

    def reading(after: int = 0, limit: int = 500) -> Any:
        facts = read(after, limit)
        if facts and facts[0].position == unreadable:
            raise Undecodable(unreadable, "another", "of a newer release")
        return [fact for fact in facts if fact.position < unreadable or after >= unreadable]

    service.log.read = reading
    service.serve()
    service.start(part("elsewhere"), run_id="another")
    service.start(part("one"))
    service.wait(lambda run: run.status == "awaiting_review", "for the gate of the other run")


def test_an_effect_for_which_the_system_has_no_thread_is_tried_again(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, refused = threading.Thread.start, list[str]()

    def scarce(thread: threading.Thread) -> None:
        if thread.name.endswith("/work") and not refused:
            refused.append(thread.name)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", scarce)
    service.start(part("one"))
    service.serve(open_runs=["r"])
    service.wait(lambda run: run.status == "awaiting_review", "for the gate")
    assert refused
