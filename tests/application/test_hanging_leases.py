"""A store of leases that does not answer: what is under way ends in time all the same."""

import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence

import pytest

from steersman.adapters.clock import SYSTEM_CLOCK
from steersman.adapters.stores.memory import MemoryLog
from steersman.application.driving.keep_leases import LeaseKeeper
from steersman.application.ports.effect_state import EffectState
from steersman.application.ports.leases import Holder, LeaseStanding
from steersman.application.ports.tenure import LeaseLost
from steersman.application.writer.run_log import RunLog
from steersman.domain.kinds.catalogue import CATALOGUE
from steersman.tests.live_agents import PATIENCE_SECONDS, wait_until

STALE_SECONDS = 1.5


class HangingLeases:
    """Leases of nothing, which can be made to answer nobody."""

    stale_seconds = STALE_SECONDS

    def __init__(self) -> None:
        self.entered: list[str] = []
        self.hangs = threading.Event()
        self.answers = threading.Event()
        self.answers.set()

    def enter(self, replica: str) -> None:
        self.entered.append(replica)

    def renew(self, replica: str, *, draining: bool) -> LeaseStanding | None:
        if not self.answers.is_set():
            self.hangs.set()
            assert self.answers.wait(PATIENCE_SECONDS)
        return LeaseStanding(held={}, loads={replica: 0}, elsewhere=frozenset(), free=0)

    def claim(self, replica: str, roots: Sequence[str]) -> Mapping[str, int]:
        return {}

    def claim_free(self, replica: str, limit: int, declined: Sequence[str]) -> Mapping[str, int]:
        return {}

    def release(self, replica: str, roots: Sequence[str], *, closed: bool = False) -> None:
        return

    def leave(self, replica: str) -> None:
        return

    def report(self, replica: str, effects: Mapping[str, bytes]) -> None:
        return

    def holder(self, root: str) -> Holder | None:
        return None

    def counts(self) -> Mapping[str, int]:
        return {}


class Driven:
    """Who drives: it ends when it is let, and may fail at it."""

    def __init__(self) -> None:
        self.failures = 0
        self.is_leaving = threading.Event()
        self.may_leave = threading.Event()
        self.left = threading.Event()

    def wake(self, root: str) -> None:
        return

    def busy(self) -> frozenset[str]:
        return frozenset()

    def forget(self, roots: Iterable[str]) -> None:
        return

    def states(self) -> Mapping[str, Sequence[EffectState]]:
        return {}

    def leave_all(self) -> None:
        self.is_leaving.set()
        assert self.may_leave.wait(PATIENCE_SECONDS)
        if self.failures:
            self.failures -= 1
            raise RuntimeError("can't start new thread")
        self.left.set()


class House:
    """A keeper over them, which has had its first life confirmed."""

    def __init__(self) -> None:
        self.leases = HangingLeases()
        self.driven = Driven()
        ids = iter(range(1_000))
        renewed = threading.Event()
        runs = RunLog(MemoryLog(CATALOGUE), SYSTEM_CLOCK)
        self.keeper = LeaseKeeper(self.leases, runs, lambda: str(next(ids)), lambda _: renewed.set())
        self.keeper.start(self.driven)
        assert renewed.wait(PATIENCE_SECONDS)

    def hang(self) -> None:
        """Answer nobody any more."""
        self.leases.answers.clear()
        assert self.leases.hangs.wait(PATIENCE_SECONDS)


@pytest.fixture
def house() -> Iterator[House]:
    """One process."""
    house = House()
    yield house
    house.leases.answers.set()
    house.driven.may_leave.set()
    house.keeper.stop()


@pytest.mark.parametrize("failures", [0, 1])
def test_what_is_under_way_is_ended_in_time_while_the_renewal_hangs(house: House, failures: int) -> None:
    house.driven.failures = failures
    house.driven.may_leave.set()
    house.hang()
    assert house.driven.left.wait(20 * STALE_SECONDS)
    assert not house.leases.answers.is_set()
    with pytest.raises(LeaseLost):
        house.keeper.check()


def test_nobody_begins_anew_before_everything_has_ended(house: House) -> None:
    house.hang()
    assert house.driven.is_leaving.wait(20 * STALE_SECONDS)
    lives = len(house.leases.entered)
    house.leases.answers.set()
    time.sleep(STALE_SECONDS)
    assert len(house.leases.entered) == lives
    house.driven.may_leave.set()
    wait_until(lambda: len(house.leases.entered) > lives, "it begins anew")
