"""Receivers of notices: held by one process at a time, and kept with how far each was told, whoever looks."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from steersman.adapters.stores.receiver_store import ReceiverStore, open_receivers
from steersman.application.ports.notices import Receiver, SigningSecret

ONE = Receiver(
    id="one",
    url="https://a/",
    secrets=(SigningSecret(secret="whsec_x"),),
    created_at=1.5,
    told=70_000,
    next_try=1e10 + 0.5,
)


@pytest.fixture(params=["sqlite", "postgresql"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """A function that opens the same receivers again, as another process would."""
    database = request.getfixturevalue("postgres_url") if request.param == "postgresql" else None
    stores: list[ReceiverStore] = []

    def another() -> ReceiverStore:
        stores.append(open_receivers(tmp_path, database))
        return stores[-1]

    yield another
    for store in stores:
        store.remove("one")
        store.close()


def test_a_receiver_is_what_was_kept_last_with_its_own_secrets(opened: Any) -> None:
    here, there = opened(), opened()
    here.add(ONE)
    there.add(msgspec.structs.replace(ONE, url="https://b/"))
    assert there.get("one") == ONE
    assert ONE in there.every()
    assert here.hold("one", "h", now=10.0, until=20.0)
    further = msgspec.structs.replace(ONE, told=2**52, failures=3, secrets=())
    fresh = (SigningSecret(secret="whsec_y"), SigningSecret(secret="whsec_x", until=7.25))
    there.replace_secrets("one", fresh)
    assert here.save(further, "h")
    assert there.get("one") == msgspec.structs.replace(further, secrets=fresh)
    there.remove("one")
    assert here.get("one") is None
    assert not here.save(further, "h")


def test_only_one_holds_a_receiver_until_it_lets_go_or_its_time_is_over(opened: Any) -> None:
    here, there = opened(), opened()
    here.add(ONE)
    assert here.hold("one", "h", now=10.0, until=20.0)
    assert here.hold("one", "h", now=11.0, until=21.0)
    assert not there.hold("one", "t", now=20.5, until=30.0)
    assert not there.save(ONE, "t")
    assert there.hold("one", "t", now=21.0, until=31.0)
    assert not here.save(ONE, "h")
    there.let_go("t")
    assert here.hold("one", "h", now=22.0, until=32.0)
    assert not here.hold("another", "h", now=0.0, until=1.0)
