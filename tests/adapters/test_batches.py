"""What a batch asks of the store, and how it dates what it stores."""

from datetime import datetime, timedelta
from typing import Any

import pytest

from steersman.adapters.clock import SYSTEM_CLOCK
from steersman.adapters.log.numbering import BatchNeeds, Known
from steersman.application.ports.log import LogUnavailable, Stored
from steersman.application.writer.caller import Caller
from steersman.application.writer.run_log import Deciding
from steersman.tests.adapters.test_writing import NOW, Faulty, Follows, House, guided, said


class Asked(Faulty):
    """Tables that note the commands whose facts they were asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.commands: list[str] = []

    def known(self, wanted: BatchNeeds, answers_since: str) -> Known:
        self.commands += wanted.commands
        return super().known(wanted, answers_since)


def first_try(house: House, command_id: str) -> Deciding:
    """Return a command whose id was made for it alone."""
    by = Caller(principal="alice", command_id=command_id)
    return Deciding(house.root, said(command_id), by, house.runs.states, SYSTEM_CLOCK, None, is_first_try=True)


@pytest.fixture
def asked() -> Asked:
    return Asked()


@pytest.fixture
def house(asked: Asked) -> House:
    house = House(asked)
    asked.commands.clear()
    return house


def test_a_first_try_is_not_looked_for_and_another_one_is(house: House, asked: Asked) -> None:
    house.together(first_try(house, "new"), house.command(said("perhaps"), "perhaps"))
    assert asked.commands == ["perhaps"]
    assert house.words() == ["new", "perhaps"]


def test_a_submitted_command_is_a_first_try(house: House, asked: Asked) -> None:
    outcomes: list[Any] = []
    house.runs.submit(house.root, said("a"), Caller(principal="alice", command_id="a"), outcomes.append)
    assert isinstance(outcomes[0], Stored)
    assert asked.commands == []


def test_a_first_try_whose_commit_was_not_acknowledged_is_found_and_not_decided_again(
    house: House, asked: Asked
) -> None:
    batch = [first_try(house, "a"), first_try(house, "b")]
    asked.unacknowledged = 1
    with pytest.raises(LogUnavailable):
        house.together(*batch)
    outcomes = house.together(*batch)
    assert [outcome.is_repeat for outcome in outcomes] == [True, True]
    assert asked.commands == ["a", "b"]
    first = outcomes[0].facts[0].position
    assert [(fact.position, fact.command_id) for fact in house.log.read(first - 1)] == [(first, "a"), (first + 1, "b")]


class Ticking:
    """A clock that is a second further each time it is looked at."""

    def __init__(self) -> None:
        self._looks = 0

    def now(self) -> datetime:
        self._looks += 1
        return NOW + timedelta(seconds=self._looks)


def test_what_follows_from_a_command_is_not_dated_before_it(house: House) -> None:
    clock = Ticking()
    house.log._writing._clock = clock  # pyright: ignore[reportPrivateUsage]
    house.runs.states.following = Follows()
    by = Caller(principal="alice", command_id="a")
    (outcome,) = house.together(Deciding(house.root, guided, by, house.runs.states, clock, None))
    facts = house.log.read(outcome.facts[0].position - 1)
    assert [fact.topic for fact in facts][-1] == "coordinator.steering_decision"
    assert [fact.at for fact in facts] == sorted(fact.at for fact in facts)
