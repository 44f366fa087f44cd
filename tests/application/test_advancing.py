"""What follows from a command is decided by whoever drives its run, from what the writer keeps and nothing else."""

from typing import Any

import pytest

from steersman.application.driving.advancing import Advancing
from steersman.application.effects import workshop
from steersman.domain.facts.directive import SteeringReceived
from steersman.tests.application.service import Service, part


def at_the_gate() -> Service:
    """Return a service whose run waits for a person, and that decides from now on what follows."""
    service = Service()
    service.start(part("One"), part("Two"))
    service.drive()
    service.runs.states.following = Advancing(service.shop)
    return service


def test_who_could_take_over_is_known_without_reading_the_log_while_its_head_is_held(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    service = at_the_gate()

    def read(*_: Any) -> Any:
        raise AssertionError("the log was read")

    monkeypatch.setattr(workshop, "load_project", read)
    service.request_changes("d")
    assert service.directive("d").action is not None
    (received,) = (fact for fact in service.facts if isinstance(fact.event, SteeringReceived))
    assert service.facts[-1].at >= received.at


def test_a_project_that_is_not_kept_is_read() -> None:
    service = at_the_gate()
    kept = service.runs.states.project("p")
    assert kept.team
    service.runs.states.settle(None)
    run = service.run
    assert not service.runs.states.project("p").team
    assert service.shop.project(run).team
