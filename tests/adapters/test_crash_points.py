"""A process dies at the append that is named, whatever its other threads append meanwhile."""

from datetime import UTC, datetime

import pytest

from steersman.adapters import crash_points
from steersman.adapters.crash_points import VARIABLE, with_crash_point
from steersman.adapters.memory import MemoryLog
from steersman.application.log_port import Append
from steersman.domain.catalogue import CATALOGUE
from steersman.domain.event import Draft
from steersman.domain.run_records import RunErased


class Died(BaseException):
    """The process has ended."""


def append(name: str) -> Append:
    """Return an append of a fact with the topic that is waited for."""
    draft = Draft(stream=name, event=RunErased(run_id="r", texts=0))
    return Append(drafts=(draft,), expected={name: 0}, at=datetime.now(UTC), principal="ada", command_id=name)


def test_an_append_that_comes_between_does_not_hide_the_one_that_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def die() -> None:
        raise Died

    monkeypatch.setattr(crash_points, "die", die)
    inner = MemoryLog(CATALOGUE)
    log = with_crash_point(inner, {VARIABLE: "stored run.erased"})
    store = inner.append

    def slowly(wanted: Append) -> object:
        monkeypatch.setattr(inner, "append", store)
        log.append(append("another"))
        return store(wanted)

    monkeypatch.setattr(inner, "append", slowly)
    with pytest.raises(Died):
        log.append(append("the one"))
    assert [fact.stream for fact in inner.read()] == ["another", "the one"]
