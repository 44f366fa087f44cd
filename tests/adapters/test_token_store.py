"""Tokens: shown once, kept as digests, and the same in every process at once."""

import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from steersman.adapters.stores.token_store import NoSuchToken, SqliteTokens, TokenStore, digest, open_tokens
from steersman.application.ports.log import LogUnavailable


@pytest.fixture(params=["sqlite", "postgresql"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """A function that opens the same tokens again, as another process would."""
    database = request.getfixturevalue("postgres_url") if request.param == "postgresql" else None
    stores: list[TokenStore] = []

    def another() -> TokenStore:
        stores.append(open_tokens(tmp_path, database))
        return stores[-1]

    yield another
    for store in stores:
        store.close()


def test_a_token_works_everywhere_from_the_moment_it_is_issued(opened: Any) -> None:
    serving, issuing = opened(), opened()
    assert serving.authenticate("anything") is None
    raw = issuing.issue("alice", "operator")
    assert serving.authenticate(raw) == ("alice", "operator")
    assert serving.authenticate(raw + "x") is None
    assert serving.authenticate(raw[:-1]) is None
    assert serving.authenticate("") is None


def test_a_revoked_token_works_nowhere_and_is_still_listed(opened: Any) -> None:
    serving, issuing = opened(), opened()
    keeps, loses = issuing.issue("alice", "viewer"), issuing.issue("bob", "operator")
    listed = {token.user: token for token in issuing.list()}
    revoked = issuing.revoke(listed["bob"].id[:8])
    assert (revoked.user, revoked.scope) == ("bob", "operator")
    assert revoked.revoked_at is not None
    assert serving.authenticate(loses) is None
    assert serving.authenticate(keeps) == ("alice", "viewer")
    assert [(t.user, t.revoked_at is None) for t in serving.list()] == [("alice", True), ("bob", False)]
    assert issuing.revoke(listed["bob"].id).revoked_at == revoked.revoked_at, "revoking again changes nothing"


@pytest.mark.parametrize("prefix", ["", "zz", "%", "'"])
def test_a_prefix_that_names_no_token_or_several_revokes_none(opened: Any, prefix: str) -> None:
    store = opened()
    raws = [store.issue("alice", "operator"), store.issue("bob", "operator")]
    with pytest.raises(NoSuchToken):
        store.revoke(prefix)
    assert all(store.authenticate(raw) is not None for raw in raws)


def test_no_two_tokens_are_the_same_however_many_are_issued_at_once(opened: Any) -> None:
    store = opened()
    with ThreadPoolExecutor(8) as pool:
        raws = list(pool.map(lambda n: store.issue(f"user {n}", "viewer"), range(40)))
    assert len(set(raws)) == 40
    assert [store.authenticate(raw) for raw in raws] == [(f"user {n}", "viewer") for n in range(40)]


@pytest.mark.parametrize("user", ["", " ", "a\nb", "x" * 201, "\N{SNOWMAN}" * 100, "a\0"])
def test_a_user_must_have_a_name_that_can_be_shown(opened: Any, user: str) -> None:
    store = opened()
    with pytest.raises(ValueError, match="user"):
        store.issue(user, "viewer")
    assert store.list() == []


@pytest.mark.parametrize(
    "user", ["coordinator", " Coordinator ", "AGENT", "autopilot", "log", "steersman", "gate:rai", "\uff2c\uff2f\uff27"]
)
def test_nobody_gets_a_token_under_a_name_of_the_service_itself(opened: Any, user: str) -> None:
    store = opened()
    with pytest.raises(ValueError, match="service itself"):
        store.issue(user, "operator")
    assert store.list() == []


def test_the_file_holds_no_token_and_is_its_owners_alone(tmp_path: Path) -> None:
    store = open_tokens(tmp_path)
    raw = store.issue("alice", "operator")
    held = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert raw.encode() not in held
    assert raw.removeprefix("steersman_").encode() not in held
    assert digest(raw).encode() in held
    assert stat.S_IMODE((tmp_path / "tokens.db").stat().st_mode) & 0o077 == 0


def test_tokens_that_cannot_be_read_say_so(tmp_path: Path) -> None:
    store = TokenStore(SqliteTokens(tmp_path / "tokens.db"))
    (tmp_path / "tokens.db").write_bytes(b"no database" * 1000)
    with pytest.raises(LogUnavailable):
        store.authenticate("anything")
