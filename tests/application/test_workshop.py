"""Whoever ends a run may rely on it that nothing of its agent is alive: also of one that is starting, or just ending."""

import threading
from collections.abc import Callable

import pytest

from steersman.application.effects.workshop import StillOpening
from steersman.application.ports.agents import AgentFailed, SessionRequest
from steersman.tests.application.outside import ScriptedAgents, Session
from steersman.tests.application.service import Service, part
from steersman.tests.live_agents import PATIENCE_SECONDS, InBackground, wait_until


class SlowAgents(ScriptedAgents):
    """Agents that start, and end, when they are let."""

    def __init__(self, service: Service) -> None:
        super().__init__(service.git)
        self.is_opening = threading.Event()
        self.may_open = threading.Event()
        self.may_close = threading.Event()
        #: How often an agent cannot be ended.
        self.unruly = 0

    def open(self, request: SessionRequest) -> Session:
        self.is_opening.set()
        assert self.may_open.wait(PATIENCE_SECONDS)
        opened = super().open(request)
        session = SlowSession(self, request, opened.session_id)
        self.alive = {session}
        return session


class SlowSession(Session):
    """One of them."""

    def __init__(self, agents: SlowAgents, request: SessionRequest, session_id: str) -> None:
        super().__init__(agents, request, session_id)
        self._slow = agents

    def close(self) -> None:
        assert self._slow.may_close.wait(PATIENCE_SECONDS)
        if self._slow.unruly:
            self._slow.unruly -= 1
            raise AgentFailed("agent_processes_unruly", "killing took more than 60 s", retryable=True)
        super().close()


class House:
    """A workshop with one agent for the run `c`, which a worker uses until it is let go."""

    def __init__(self) -> None:
        self.service = Service()
        self.service.start(part("One"))
        self.shop = self.service.shop
        self.agents = self.shop.agents = SlowAgents(self.service)
        self.worked = 0
        self.may_leave = threading.Event()
        self.work = InBackground(self.have_it_worked)
        assert self.agents.is_opening.wait(PATIENCE_SECONDS)

    def have_it_worked(self) -> None:
        """Open the session, use it, and leave."""
        request = SessionRequest(model_id="rehearsal", run_id="c", cwd=self.shop.worktree("c"))
        with self.shop.session(request):
            self.worked += 1
            assert self.may_leave.wait(PATIENCE_SECONDS)


def test_a_kill_waits_for_an_agent_that_is_starting_and_it_does_not_begin_to_work() -> None:
    house = House()
    house.agents.may_close.set()
    kill = InBackground(lambda: house.shop.kill("c"))
    assert kill.runs_on(0.1)
    house.agents.may_open.set()
    assert kill.result() == (4711,)
    with pytest.raises(AgentFailed, match="being started"):
        house.work.result()
    assert not house.worked
    assert not house.agents.alive


@pytest.mark.parametrize("ask", ["kill", "opened_session_of"])
def test_nobody_says_that_nothing_is_alive_of_an_agent_that_does_not_come_to_the_end_of_its_start(
    ask: str,
) -> None:
    house = House()
    house.service.wait_only(open=0.05)
    asked: Callable[[str], object] = getattr(house.shop, ask)
    with pytest.raises(StillOpening):
        asked("c")
    house.agents.may_close.set()
    house.agents.may_open.set()
    house.may_leave.set()
    if ask == "kill":
        with pytest.raises(AgentFailed, match="being started"):
            house.work.result()
    assert not house.work.runs_on(PATIENCE_SECONDS)
    assert house.worked == (ask != "kill")
    assert house.shop.kill("c") == ()


def test_an_agent_that_is_just_ending_is_not_taken_for_gone() -> None:
    house = House()
    house.agents.may_open.set()
    house.may_leave.set()
    wait_until(lambda: house.worked, "the worker is at work")
    assert house.work.runs_on(0.1)
    kill = InBackground(lambda: house.shop.kill("c"))
    assert kill.runs_on(0.1)
    assert house.shop.opened_session_of("c") is not None
    assert house.shop.session_of("c") is None
    house.agents.may_close.set()
    kill.result()
    house.work.result()
    assert house.shop.opened_session_of("c") is None


def left_by_an_unruly_agent() -> House:
    house = House()
    house.agents.unruly = 1
    for let in (house.agents.may_open, house.agents.may_close, house.may_leave):
        let.set()
    with pytest.raises(AgentFailed, match="killing took"):
        house.work.result()
    return house


def test_an_agent_that_could_not_be_ended_stays_known_until_it_is() -> None:
    house = left_by_an_unruly_agent()
    assert house.agents.alive
    assert house.shop.opened_session_of("c") is not None
    assert house.shop.kill("c") == (4711,)
    assert house.shop.opened_session_of("c") is None


def test_no_other_agent_begins_to_work_beside_one_that_could_not_be_ended() -> None:
    house = left_by_an_unruly_agent()
    (first,) = house.agents.alive
    house.have_it_worked()
    assert first.killed.is_set()
    assert house.worked == 2
