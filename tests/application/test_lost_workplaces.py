"""A workplace that is not the one that was made: nothing in it is taken for work, nothing missing is read as a deletion."""

from pathlib import Path

import pytest

from steersman.application.ports.agents import AgentFailed, AgentUpdate, TurnEnd, TurnObserver
from steersman.application.ports.git import WorkplaceState
from steersman.domain.facts.child_run import RunFailed, SessionOpened, TreeCommitted, TurnInterrupted, TurnOpened
from steersman.domain.process.dispatch import advance
from steersman.tests.application.outside import Session, writes_its_part
from steersman.tests.application.service import Service, part

STATES: tuple[WorkplaceState, ...] = ("vanished", "replaced", "unfinished")
WORDS = {
    "vanished": "was deleted while it was worked on",
    "replaced": "Something else was put in the place",
    "unfinished": "was found half made",
}


def own(service: Service) -> str:
    """The file that the child's agent writes."""
    return f"{service.child(1).run_id[:8]}.txt"


def place(service: Service) -> Path:
    return service.shop.worktree(service.child(1).run_id)


def follow(service: Service) -> None:
    while service.shop.decide("r", lambda run: advance(run, service.clock.now())):
        pass


def lands_whole(service: Service, *, lines: int) -> None:
    """What comes to the gate and lands is what was there before, and the part, one line for each turn."""
    assert service.run.status == "awaiting_review", service.run.plan
    service.approve()
    service.drive()
    merged = service.merged()
    assert set(merged) == {"a.txt", own(service)}
    assert len(merged[own(service)].splitlines()) == lines


@pytest.mark.parametrize("state", STATES)
def test_one_that_is_lost_under_its_agent_is_made_anew_and_the_turn_asked_again(state: WorkplaceState) -> None:
    service = Service()
    service.start(part("One"))

    def loses_it(session: Session, prompt: str, observer: TurnObserver) -> None:
        writes_its_part(session, prompt, observer)
        service.agents.behave = writes_its_part
        service.git.spoil(place(service), state)

    service.agents.behave = loses_it
    service.drive()
    (lost,) = service.told(TurnInterrupted)
    assert (lost.workplace, lost.session_kept, lost.found_in_history) == (state, False, False)
    assert len(service.told(TurnOpened)) == 1
    assert len({event.session_id for event in service.told(SessionOpened)}) == 2
    first, second = service.agents.prompted(service.child(1).run_id)
    assert WORDS[state] in second
    assert "What is lost" not in first
    assert "# Your part: One" in second
    assert first.splitlines()[0] == second.splitlines()[0], "the same turn"
    lands_whole(service, lines=1)


@pytest.mark.parametrize("state", STATES)
def test_one_that_is_lost_between_two_turns_is_noticed_before_the_next(state: WorkplaceState) -> None:
    service = Service()
    service.start(part("One"))
    commit, lost = service.git.commit_workplace, list[str]()

    def is_asked_for_more(session: Session, prompt: str, observer: TurnObserver) -> None:
        writes_its_part(session, prompt, observer)
        service.agents.behave = writes_its_part
        service.command("g", "guidance", 1, words="Use metres.")
        follow(service)

    def commits_and_loses(*args: object) -> object:
        made = commit(*args)
        if not lost:
            lost.append(state)
            service.git.spoil(place(service), state)
        return made

    service.agents.behave = is_asked_for_more
    service.git.commit_workplace = commits_and_loses
    service.drive()
    assert [event.workplace for event in service.told(TurnInterrupted)] == [state]
    prompt = service.agents.prompted(service.child(1).run_id)[-1]
    assert WORDS[state] in prompt
    assert prompt.count("Use metres.") == 1
    assert "What was committed is in your worktree" in prompt
    lands_whole(service, lines=2)


@pytest.mark.parametrize("state", STATES)
def test_one_that_is_lost_while_the_service_is_down_is_noticed_before_its_agent_is_told_to_go_on(
    state: WorkplaceState,
) -> None:
    service = Service()
    service.start(part("One"))

    def dies_with_the_service(session: Session, prompt: str, observer: TurnObserver) -> None:
        observer.update(AgentUpdate(kind="thought", text="On it."))
        session.files["half.txt"] = "half"
        service.agents.behave = writes_its_part
        raise KeyboardInterrupt

    service.agents.behave = dies_with_the_service
    with pytest.raises(KeyboardInterrupt):
        service.drive()
    service.restart()
    service.git.spoil(place(service), state)
    service.drive()
    assert [event.workplace for event in service.told(TurnInterrupted)] == [state]
    prompts = service.agents.prompted(service.child(1).run_id)
    assert not [prompt for prompt in prompts if "You were interrupted" in prompt]
    assert WORDS[state] in prompts[-1]
    lands_whole(service, lines=1)


def test_a_crash_before_it_is_made_anew_lets_nobody_load_the_session_that_knows_of_other_files() -> None:
    service = Service()
    service.start(part("One"))
    make = service.git.make_workplace

    def loses_it(session: Session, prompt: str, observer: TurnObserver) -> None:
        writes_its_part(session, prompt, observer)
        service.agents.behave = writes_its_part
        service.git.spoil(place(service), "vanished")
        service.git.make_workplace = dies

    def dies(*args: object) -> None:
        service.git.make_workplace = make
        make(*args)
        raise KeyboardInterrupt

    service.agents.behave = loses_it
    with pytest.raises(KeyboardInterrupt):
        service.drive()
    service.restart()
    service.drive()
    assert len({event.session_id for event in service.told(SessionOpened)}) == 2
    assert WORDS["vanished"] in service.agents.prompted(service.child(1).run_id)[-1]
    lands_whole(service, lines=1)


def test_one_that_is_lost_again_and_again_is_given_up_and_a_person_is_asked() -> None:
    service = Service()
    service.start(part("One"))

    def loses_it(session: Session, prompt: str, observer: TurnObserver) -> None:
        writes_its_part(session, prompt, observer)
        service.git.spoil(place(service), "replaced")

    service.agents.behave = loses_it
    run = service.drive()
    assert run.plan is not None
    assert run.plan.status == "assembly_blocked"
    (failed,) = service.told(RunFailed)
    assert failed.error_code == "agent_interrupted_too_often"
    assert "replaced" in str(failed.message)
    assert len(service.agents.prompts) == 21
    assert not service.told(TreeCommitted)


@pytest.mark.parametrize("after", [0, 1])
def test_one_that_cannot_be_made_ends_the_child_with_the_code_that_says_why(after: int) -> None:
    service = Service()
    service.start(part("One"))

    def loses_it(session: Session, prompt: str, observer: TurnObserver) -> None:
        writes_its_part(session, prompt, observer)
        service.git.spoil(place(service), "vanished")
        service.git.unmade = ["filter_failed"]

    service.agents.behave = loses_it
    service.git.unmade = ["filter_failed"] if after == 0 else []
    run = service.drive()
    assert run.plan is not None
    assert run.plan.status == "assembly_blocked"
    assert [event.error_code for event in service.told(RunFailed)] == ["filter_failed"]
    service.agents.behave = writes_its_part
    service.steer("r1", "redirect", words="It is mended.")
    service.drive()
    assert "(filter_failed)" in service.agents.prompts[-1][1]
    lands_whole(service, lines=1)


@pytest.mark.parametrize("way", ["died", "stalled", "gave up"])
def test_a_turn_that_ends_badly_because_its_workplace_is_lost_is_asked_again_and_nobody_is_blamed(way: str) -> None:
    service = Service()
    service.shop.stall_seconds = 0.3 if way == "stalled" else 60.0
    service.start(part("One"))

    def loses_it(session: Session, prompt: str, observer: TurnObserver) -> TurnEnd:
        writes_its_part(session, prompt, observer)
        service.agents.behave = writes_its_part
        service.shop.stall_seconds = 60.0
        service.git.spoil(place(service), "replaced")
        if way == "died":
            raise AgentFailed("agent_exited", "status 3", retryable=True)
        return session.hang() if way == "stalled" else TurnEnd(stop_reason="cancelled", message="")

    service.agents.behave = loses_it
    service.drive()
    assert [event.workplace for event in service.told(TurnInterrupted)] == ["replaced"]
    assert WORDS["replaced"] in service.agents.prompts[-1][1]
    assert not service.told(RunFailed)
    assert not [event for event in service.told(TreeCommitted) if event.unfinished]
    lands_whole(service, lines=1)
