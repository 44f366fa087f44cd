"""`steersman doctor` says of an installation that `serve` would refuse, or serve without writing, what is wrong with it."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from steersman.ops.command_line import main
from steersman.tests.audit.conftest import World
from steersman.tests.audit.test_opening import restored


@pytest.fixture
def examined(store: World, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, tuple[bool | None, str]]]:
    """Examine the installation of a log that was put back, or would be if its checkpoints were kept."""
    data = store.home / "data"
    data.mkdir(mode=0o700)
    store.checkpoints = data / "checkpoints.log"
    if store.kind == "sqlite":
        store.place = data / "log.db"
    monkeypatch.setenv("STEERSMAN_DATABASE", store.place if store.kind == "postgres" else "")

    def examine(**variables: object) -> dict[str, tuple[bool | None, str]]:
        given = {"STEERSMAN_DATA": data, "STEERSMAN_KEYS": store.home / "keys"} | variables
        for name, value in given.items():
            monkeypatch.setenv(name, str(value))
        result = CliRunner().invoke(main, ["doctor", "--json"])
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        found = {one["name"]: (one["ok"], one["detail"]) for one in json.loads(result.stdout.splitlines()[0])}
        assert (result.exit_code == 1) == any(ok is False for ok, _ in found.values())
        return found

    return examine


Examined = Callable[..., dict[str, tuple[bool | None, str]]]


def test_an_installation_that_is_new_or_well_is_well(store: World, examined: Examined) -> None:
    assert examined()["keys"][0]
    if store.kind == "sqlite":
        assert examined()["log"] == (True, f"SQLite, {store.place}, with nothing in it yet")
        assert not store.place.exists()
    store.open().close()
    found = examined()
    assert (found["keys"][0], found["log"][0]) == (True, True)
    assert found["log"][1].endswith(", 1 facts")


def test_git_is_of_a_version_that_bounds_what_an_agent_may_plant_for_it(store: World, examined: Examined) -> None:
    program = store.home / "bin" / "git"
    program.parent.mkdir()
    path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
    for version, is_enough in (("2.39.0", False), ("2.39.1", True), ("2.40", True)):
        program.write_text(f"#!/bin/sh\necho git version {version}\n")
        program.chmod(0o755)
        ok, detail = examined(PATH=path)["git"]
        assert (ok, version in detail) == (is_enough, True)


def test_a_store_that_was_put_back_is_told_with_its_remedy(store: World, examined: Examined) -> None:
    restored(store)
    ok, detail = examined()["log"]
    assert (ok, "21 were signed" in detail, "accept-restore" in detail) == (False, True, True)


def test_keys_that_serve_refuses_are_refused(store: World, examined: Examined) -> None:
    store.open().close()
    keys = store.home / "keys"
    assert examined(STEERSMAN_KEYS=store.home / "data" / "keys")["keys"][0] is False
    assert examined(STEERSMAN_KEYS=store.home / "nowhere")["log"][0] is False
    keys.chmod(0o755)
    assert "by others" in examined(STEERSMAN_KEYS=keys)["keys"][1]
    keys.chmod(0o700)
    pem = next(keys.glob("*.pem"))
    pem.write_bytes(b"no key")
    found = examined()
    assert (found["keys"][0], found["log"][0]) == (False, False)
    shutil.rmtree(keys)
    keys.write_bytes(b"a file")
    assert examined()["keys"][0] is False


@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
def test_what_is_no_log_is_told(store: World, examined: Examined) -> None:
    path: Path = store.place
    path.write_bytes(b"")
    assert examined()["log"][0], "SQLite begins a database in it"
    path.write_bytes(b"no database" * 1000)
    assert examined()["log"][0] is False
    store.checkpoints.write_bytes(b"")
    path.unlink()
    assert examined()["log"] == (False, f"There is no log in {path.parent}.")
