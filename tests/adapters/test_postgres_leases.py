"""Leases on a real PostgreSQL. Silence is made by turning a replica's last sign of life back, not by waiting for it."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

from steersman.adapters.processes.lock import ProcessLock
from steersman.adapters.stores.postgres_leases import PostgresLeases
from steersman.adapters.stores.postgres_log import PostgresLog
from steersman.application.ports.leases import LeaseStanding
from steersman.application.ports.log import Fence, Fenced, LogUnavailable
from steersman.tests import live_agents
from steersman.tests.contracts.facts import CATALOGUE, append, note

STALE_SECONDS = 600.0


class Place:
    """One database, and as many clients of it as a test wants."""

    def __init__(self, url: str, directory: Path) -> None:
        self.url = url
        self.directory = directory
        self.log = PostgresLog(url, CATALOGUE)
        self.process = ProcessLock(directory)
        self.leases = PostgresLeases(url, STALE_SECONDS, self.process)

    def silence(self, replica: str) -> None:
        """Let a replica have been silent for too long."""
        with psycopg.connect(self.url) as connection:
            connection.execute(
                "UPDATE replicas SET renewed = renewed - interval '1 hour' WHERE replica = %s", (replica,)
            )

    def standing(self, replica: str, *, draining: bool = False) -> LeaseStanding:
        """Renew a replica that is alive."""
        found = self.leases.renew(replica, draining=draining)
        assert found is not None
        return found

    def append(self, fence: Fence | None, command_id: str) -> Any:
        """Append one fact."""
        version = len(self.log.read_stream("s"))
        return self.log.append(append(command_id, note("s"), expected={"s": version}, fence=fence))


@pytest.fixture
def place(new_database: Callable[[], str], tmp_path: Path) -> Iterator[Place]:
    """An empty database with two live replicas, a and b."""
    place = Place(new_database(), tmp_path)
    for replica in ("a", "b"):
        place.leases.enter(replica)
    try:
        yield place
    finally:
        place.leases.close()
        place.process.close()
        place.log.close()


def test_leases_are_in_the_schema_that_the_address_names(new_database: Callable[[], str], tmp_path: Path) -> None:
    url = new_database()
    with psycopg.connect(url) as connection:
        connection.execute("CREATE SCHEMA ours")
    place = Place(f"{url}{'&' if '?' in url else '?'}options=-csearch_path%3Dours", tmp_path)
    place.leases.enter("a")
    assert place.leases.claim("a", ["r"]) == {"r": 1}
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT root, replica FROM ours.leases").fetchall() == [("r", "a")]
    place.leases.close()
    place.log.close()
    place.process.close()


def test_a_run_is_claimed_by_one_and_by_another_only_when_that_one_is_silent(place: Place) -> None:
    assert place.leases.claim("a", ["r", "s"]) == {"r": 1, "s": 1}
    assert place.leases.claim("b", ["r", "s"]) == {}
    assert place.leases.claim("a", ["r"]) == {}
    assert place.standing("b").elsewhere == {"r", "s"}
    place.silence("a")
    assert place.standing("b").free == 2
    assert place.leases.claim("b", ["r"]) == {"r": 2}
    assert place.leases.claim_free("b", 10, []) == {"s": 2}
    assert place.standing("b").held == {"r": 2, "s": 2}


def test_who_was_silent_for_too_long_cannot_come_back_under_its_id(place: Place) -> None:
    place.leases.claim("a", ["r"])
    place.silence("a")
    assert place.leases.renew("a", draining=False) is None
    assert place.leases.renew("nobody", draining=False) is None


def test_an_append_under_an_epoch_that_is_over_stores_nothing(place: Place) -> None:
    place.leases.claim("a", ["r"])
    assert place.append(Fence(root="r", epoch=1), "one")
    place.silence("a")
    place.leases.claim("b", ["r"])
    with pytest.raises(Fenced):
        place.append(Fence(root="r", epoch=1), "two")
    with pytest.raises(Fenced):
        place.append(Fence(root="never leased", epoch=1), "three")
    assert place.append(Fence(root="r", epoch=2), "four")
    assert place.append(None, "five"), "a command of a person is not a driver's"
    assert [fact.command_id for fact in place.log.read()] == ["one", "four", "five"]


def test_a_repeated_append_finds_what_it_stored_although_its_epoch_is_over(place: Place) -> None:
    place.leases.claim("a", ["r"])
    stored = place.append(Fence(root="r", epoch=1), "one")
    place.silence("a")
    place.leases.claim("b", ["r"])
    assert place.append(Fence(root="r", epoch=1), "one") == stored


def test_what_is_released_is_free_and_what_is_closed_is_claimed_by_name_only(place: Place) -> None:
    place.leases.claim("a", ["r", "s"])
    place.leases.release("b", ["r", "s"])
    assert place.standing("a").held == {"r": 1, "s": 1}, "only its holder lets go of a run"
    place.leases.release("a", ["r"])
    place.leases.release("a", ["s"], closed=True)
    assert place.leases.counts() == {"held": 0, "free": 1}
    assert place.leases.claim_free("b", 10, []) == {"r": 2}
    assert place.leases.claim("b", ["s"]) == {"s": 2}
    assert place.leases.counts() == {"held": 2, "free": 0}


def test_free_runs_are_claimed_up_to_the_limit_and_none_that_were_declined(place: Place) -> None:
    names = [f"r{n}" for n in range(5)]
    place.leases.claim("a", names)
    place.leases.leave("a")
    assert len(place.leases.claim_free("b", 2, ["r0"])) == 2
    assert place.leases.claim_free("b", 10, ["r0"]).keys() == {"r3", "r4"}
    assert place.standing("b").free == 1


def test_who_drains_or_is_silent_is_no_longer_counted_among_those_that_drive(place: Place) -> None:
    place.leases.claim("a", ["r"])
    assert place.standing("b").loads == {"a": 1, "b": 0}
    place.standing("a", draining=True)
    assert place.standing("b").loads == {"b": 0}
    assert place.standing("b").elsewhere == {"r"}, "it keeps what it has until it lets go of it"


def test_the_holder_of_a_run_is_told_with_what_it_last_said(place: Place) -> None:
    assert place.leases.holder("r") is None
    place.leases.claim("a", ["r"])
    words = b'[{"effectId":"e","state":"waits_for_next_try","failures":2,"lastError":"full","nextTry":"then"}]'
    place.leases.report("b", {"r": b"[]"})
    place.leases.report("a", {"r": words})
    holder = place.leases.holder("r")
    assert holder is not None
    assert (holder.replica, holder.epoch, holder.alive, holder.effects[0].last_error) == ("a", 1, True, "full")
    place.silence("a")
    holder = place.leases.holder("r")
    assert holder is not None
    assert not holder.alive


def test_a_connection_that_was_cut_is_made_anew(place: Place) -> None:
    place.leases.claim("a", ["r"])
    with psycopg.connect(place.url, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE application_name = 'steersman leases'"
        )
    with pytest.raises(LogUnavailable, match="leases cannot be reached"):
        place.leases.renew("a", draining=False)
    assert place.standing("a").held == {"r": 1}


#: Enters, claims a run, starts a command under a keeper that inherits its lock, and waits to be killed.
NEIGHBOUR = """
import sys, time
from pathlib import Path
from steersman.adapters.processes.agent_process import start_keeper
from steersman.adapters.stores.postgres_leases import PostgresLeases
from steersman.adapters.processes.lock import ProcessLock

url, directory = sys.argv[1], Path(sys.argv[2])
process = ProcessLock(directory)
leases = PostgresLeases(url, 600.0, process)
leases.enter("neighbour")
print(*leases.claim("neighbour", ["r"]), flush=True)
keeper, _ = start_keeper({}, [process.descriptor])
print(keeper.pid, flush=True)
time.sleep(3600)
"""


def test_a_killed_process_of_this_machine_is_missed_at_once_and_not_before_its_keepers_are_gone(place: Place) -> None:
    command = [sys.executable, "-P", "-c", NEIGHBOUR, place.url, str(place.directory)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as neighbour:
        assert neighbour.stdout is not None
        assert neighbour.stdout.readline() == "r\n"
        keeper = int(neighbour.stdout.readline())
        assert place.standing("a").elsewhere == {"r"}
        halves = live_agents.family_of(keeper) | {keeper}
        for half in halves:
            os.kill(half, signal.SIGSTOP)
        neighbour.kill()
        neighbour.wait()
        assert place.standing("a").elsewhere == {"r"}, "something of it may still be at work"
        for half in halves:
            # The first that goes on may end the others before their turn comes.
            with suppress(ProcessLookupError):
                os.kill(half, signal.SIGCONT)
    live_agents.wait_until(lambda: place.standing("a").free == 1, "it is known to be gone")
    assert place.leases.claim("a", ["r"]) == {"r": 2}
