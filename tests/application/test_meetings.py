"""What happens outside meets what is said meanwhile: at the very moment where one reads the log and the other writes it."""

import contextlib
import threading
from collections.abc import Callable
from typing import Any

import pytest

from steersman.application.driving import drive_runs
from steersman.application.effects.carry_out import carry_out
from steersman.application.effects.workshop import Closing
from steersman.application.ports.agents import AgentFailed, SessionRequest, TurnObserver
from steersman.application.ports.git import WorkplaceState
from steersman.application.ports.log import LogUnavailable
from steersman.domain.facts.child_run import Paused
from steersman.domain.process.dispatch import advance
from steersman.domain.process.effects import (
    AssembleChildren,
    EndWorkers,
    MakePlan,
    PauseWorker,
    WorkOnSubtask,
    next_effects,
)
from steersman.domain.work import child_ends
from steersman.tests.application.outside import Session
from steersman.tests.application.service import Service, part


def follow(service: Service) -> None:
    while service.shop.decide("r", lambda run: advance(run, service.clock.now())):
        pass


def effects(service: Service, kind: type[Any]) -> list[Any]:
    return [effect for effect in next_effects(service.run) if isinstance(effect, kind)]


def carry(service: Service, kind: type[Any]) -> None:
    follow(service)
    for effect in effects(service, kind):
        carry_out(effect, service.shop)


def just_before_the_agent_starts(service: Service, say: Callable[[], None]) -> None:
    """Let *say* happen after the child's thread has read the log, and before it has an agent."""
    look, said = service.git.look_at, list[int]()

    def hooked(*args: Any) -> WorkplaceState:
        found = look(*args)
        # It is the last thing before the agent is opened.
        if not said:
            said.append(1)
            say()
        return found

    service.git.look_at = hooked


def test_an_abort_that_finds_no_agent_keeps_one_from_being_started() -> None:
    service = Service()
    service.start(part("One"))

    def abort() -> None:
        service.command("a", "abort", 1)
        carry(service, EndWorkers)
        assert service.directive("a").status == "applied"

    just_before_the_agent_starts(service, abort)
    carry(service, WorkOnSubtask)
    assert service.agents.opened == 0


def test_a_pause_that_finds_no_agent_keeps_one_from_being_started() -> None:
    service = Service()
    service.start(part("One"))
    waited: list[int] = []

    def pause() -> None:
        service.command("p", "pause", 1)
        carry(service, PauseWorker)
        assert service.child(1).status == "paused"

    class Waits(Exception):
        pass

    def wait_until(*_: object) -> bool:
        waited.append(1)
        raise Waits

    just_before_the_agent_starts(service, pause)
    vars(service.shop)["wait_until"] = wait_until
    with pytest.raises(Waits):
        carry(service, WorkOnSubtask)
    assert (service.agents.opened, service.agents.prompts) == (0, [])


def test_a_pause_waits_for_an_agent_that_is_just_being_started_and_stops_it() -> None:
    service = Service()
    service.wait_only(pause=0.1)
    service.start(part("One"))
    opening, go_on, opened = threading.Event(), threading.Event(), service.agents.open
    stopped: list[bool] = []

    def slowly(request: SessionRequest) -> Session:
        opening.set()
        assert go_on.wait(60)
        return opened(request)

    service.agents.open = slowly
    service.agents.behave = lambda session, prompt, observer: session.hang()
    follow(service)
    (work,) = effects(service, WorkOnSubtask)

    def work_until_the_service_ends() -> None:
        with contextlib.suppress(Closing):
            carry_out(work, service.shop)

    thread = threading.Thread(target=work_until_the_service_ends, daemon=True)
    thread.start()
    assert opening.wait(60)
    service.command("p", "pause", 1)
    follow(service)
    (pause,) = effects(service, PauseWorker)
    pausing = threading.Thread(target=carry_out, args=(pause, service.shop), daemon=True)
    pausing.start()
    assert not service.told(Paused), "nobody knows yet what the agent that is being started will do"
    go_on.set()
    pausing.join(60)
    assert len(service.told(Paused)) == 1
    stopped += [session.stopped for session in service.agents.alive]
    assert stopped == [True]
    service.shop.close()
    thread.join(60)


def test_a_round_that_was_left_before_anybody_was_told_of_it_does_not_stand_in_the_next_ones_way() -> None:
    service = Service()
    service.start(part("One"))
    carry(service, WorkOnSubtask)
    follow(service)
    (assemble,) = effects(service, AssembleChildren)
    service.log.fault_at = service.log.appends + 1
    with pytest.raises(LogUnavailable):
        carry_out(assemble, service.shop)
    assert "steersman/integration/r" in service.git.branches, "the branch has moved, and the log knows nothing of it"
    service.steer("g", "redirect", 1)
    assert service.drive().status == "awaiting_review"
    assert service.run.assembly is not None
    assert service.run.assembly.round == 2


def test_a_dependant_that_begins_while_its_producer_is_revised_has_what_that_one_committed() -> None:
    service = Service()
    service.start(part("One"), part("Two", 0))
    carry(service, WorkOnSubtask)
    follow(service)
    service.command("g", "guidance", 1, words="Once more.")
    follow(service)
    two = next(e for e in effects(service, WorkOnSubtask) if e.child_run_id == service.child(2).run_id)
    assert len(effects(service, WorkOnSubtask)) == 2
    carry_out(two, service.shop)
    base = service.child(2).base
    assert base is not None
    assert f"{service.child(1).run_id[:8]}.txt" in service.git.files(base.commit)


def test_a_planner_that_dies_of_a_stop_is_no_failure_of_its_effect() -> None:
    service = Service()
    service.start()

    def stopped(session: Session, prompt: str, observer: TurnObserver) -> None:
        service.steer("s", "stop")
        raise AgentFailed("agent_exited", "it was killed", retryable=True)

    service.agents.behave = stopped
    (plan,) = effects(service, MakePlan)
    carry_out(plan, service.shop)
    carry(service, EndWorkers)
    assert service.run.result == "steering_stop"


def test_an_effect_that_has_nothing_to_do_yet_is_held_instead_of_being_tried_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(drive_runs, "carry_out", lambda effect, shop: None)
    service = Service()
    service.start(part("One"))
    service.serve(open_runs=["r"])
    driver = service.driver
    assert driver is not None
    service.wait(lambda _: driver.held())
    (held,) = driver.held()
    assert held.error.startswith("NothingCameOfIt")
    service.stop()


def test_an_agent_that_is_hard_to_kill_does_not_hold_the_other_runs() -> None:
    service = Service()
    service.start(part("One"))
    service.agents.behave = lambda session, prompt, observer: session.hang(heeds_cancel=False)
    service.serve(open_runs=["r"])
    service.wait(lambda _: service.agents.prompts)
    (session,) = service.agents.alive
    killing, release, kill = threading.Event(), threading.Event(), session.kill

    def slowly() -> tuple[int, ...]:
        killing.set()
        assert release.wait(60)
        return tuple(kill())

    session.kill = slowly
    child, now = service.child(1).run_id, service.clock.now()
    service.shop.decide(
        "r", lambda run: child_ends.fail_child(run, child, now, error_code="x", message="", retryable=True)
    )
    assert killing.wait(60)
    service.agents.behave = lambda *_: None
    service.start(part("Other"), run_id="q")
    service.wait(lambda _: service.runs.run("q").ended, "for the other run")
    assert not release.is_set()
    release.set()
    service.stop()


@pytest.mark.parametrize("door", ["review", "steer"])
def test_a_request_at_a_gate_that_opened_anew_meanwhile_is_about_the_work_that_stands_there_now(door: str) -> None:
    service = Service()
    service.start(part("One"), part("Two"))
    service.drive()
    changed_files, heads = service.git.changed_files, list[str]()

    def hooked(repository: Any, base: str, head: str) -> Any:
        heads.append(head)
        if len(heads) == 1:
            service.git.changed_files = changed_files
            service.request_changes("sooner")
            service.drive()
            service.git.changed_files = hooked
        return changed_files(repository, base, head)

    service.git.changed_files = hooked
    if door == "review":
        service.request_changes("later")
    else:
        service.steer("later", "redirect")
    now = [service.child(subtask_id).head for subtask_id in (1, 2)]
    assert heads[-2:] == [head.commit for head in now if head]
