"""`steersman audit`: every verdict has its exit code, and what is no bundle is a verdict, never a traceback."""

import json
import os
import random
import stat
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from steersman.adapters.log_format.keys import new_keys
from steersman.adapters.log_format.signed_note import verifier_key
from steersman.adapters.stores.postgres_views import PostgresViews
from steersman.adapters.stores.sqlite_views import SqliteViews
from steersman.application.views.project_views import catch_up
from steersman.ops.admin.audit_command import command
from steersman.projections import outstanding_directives
from steersman.tests.audit.conftest import World, attack_bundle
from steersman.tests.audit.facts import received, said, steered, unsteered
from steersman.tests.audit.test_opening import back_up, put, restored
from steersman.tests.audit.test_tampering import note_of


@pytest.fixture
def run(store: World, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Run a command on the store, and fail if it ends with a traceback."""
    if store.kind == "postgres":
        monkeypatch.setenv("STEERSMAN_DATABASE", store.place)
    else:
        monkeypatch.delenv("STEERSMAN_DATABASE", raising=False)
    data = store.home / "data"
    data.mkdir()
    monkeypatch.setenv("STEERSMAN_DATA", str(data))
    monkeypatch.setenv("STEERSMAN_KEYS", str(store.home / "keys"))
    store.checkpoints = data / "checkpoints.log"
    if store.kind == "sqlite":
        store.place = data / "log.db"

    def invoke(*arguments: object, expect: int = 0) -> Result:
        result = CliRunner().invoke(command, [str(argument) for argument in arguments])
        assert result.exit_code == expect, (arguments, result.output, result.exception)
        assert result.exception is None or isinstance(result.exception, SystemExit | click.ClickException)
        return result

    return invoke


def test_a_bundle_is_exported_and_verified_elsewhere(store: World, run: Callable[..., Result], tmp_path: Path) -> None:
    log = store.open()
    unsteered(log, "other")
    steered(log)
    whole, one, clean = tmp_path / "all", tmp_path / "one", tmp_path / "clean"
    run("export", "--all", "--output", whole)
    run("export", "r", "-o", one)
    run("export", "other", "-o", clean)
    key = next(store.ring.directory.glob("*.hmac"))
    verdict = json.loads(run("verify", whole, "--hmac-key", key, "--json", expect=10).stdout)
    assert (verdict["verdict"], verdict["facts"], verdict["chained"], verdict["steering"]) == ("steered", 21, 21, 1)
    assert "complete to 15 at size 21" in run("verify", one, expect=10).stdout
    assert "\nclean\n" in run("verify", clean).stdout
    assert "\nclean\n" in run("classify", "other").stdout
    assert "amend by ada (human-review): applied" in run("classify", "r", expect=10).stdout
    assert json.loads(run("verify", "--json", expect=10).stdout)["facts"] == 21


def test_a_verdict_says_how_much_of_the_chain_the_keys_could_check(
    store: World, run: Callable[..., Result], tmp_path: Path
) -> None:
    log = store.open()
    unsteered(log)
    (old,) = store.ring.directory.glob("*.hmac")
    run("rotate-key")
    put(log, said("r", "And on."))
    log.close()
    both = [part for key in store.ring.directory.glob("*.hmac") for part in ("--hmac-key", key)]
    shown = run("verify", "--hmac-key", old).stdout
    assert "7 of 8 entries of the chain checked; the others are by keys that you did not bring" in shown
    assert "8 of 8 entries of the chain checked\n" in run("verify", *both).stdout
    assert "8 of 8 entries of the chain checked\n" in run("verify").stdout, "the keys are where they are"
    store.ring.directory.rename(tmp_path / "elsewhere")
    shown = run("verify").stdout
    assert "entries of the chain" not in shown
    assert "the chain of MACs was not checked: only the log and its HMAC key can tell" in shown


def test_a_bundle_that_cannot_be_written_leaves_the_one_before_as_it_was(
    store: World, run: Callable[..., Result], tmp_path: Path
) -> None:
    log = store.open()
    steered(log)
    bundle = tmp_path / "out" / "bundle"
    bundle.parent.mkdir()
    bundle.write_bytes(b"the only copy")
    bundle.chmod(0o600)
    run("export", "no-such-run", "-o", bundle, expect=1)
    # One block of 1024 bytes, as on a full disk; a process of its own, because that holds for all that it writes.
    full = "ulimit -f 1; exec python -P -m steersman.ops.command_line audit export --all -o"
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", f'{full} "$1"', "-", bundle],
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": path},
        check=False,
    )
    assert (done.returncode, done.stderr) == (
        1,
        f"Error: The file cannot be written: File too large. {bundle} is as it was.\n",
    )
    assert (bundle.read_bytes(), os.listdir(bundle.parent)) == (b"the only copy", ["bundle"])
    run("export", "--all", "-o", tmp_path / "nowhere" / "bundle", expect=1)
    link = tmp_path / "link"
    link.symlink_to(bundle)
    run("export", "--all", "-o", link)
    assert (link.is_symlink(), stat.S_IMODE(bundle.stat().st_mode)) == (True, 0o600)
    run("verify", bundle, expect=10)


def test_tampering_and_what_cannot_be_checked_have_their_codes(
    store: World, run: Callable[..., Result], tmp_path: Path
) -> None:
    log = store.open()
    unsteered(log)
    pin, bundle = tmp_path / "pin", tmp_path / "bundle"
    pin.write_text(log.checkpoint(), encoding="utf-8")
    run("export", "--all", "-o", bundle)
    attack_bundle(bundle, lambda loot: (loot.cut(4), loot.head.update(note=note_of(store, 4))))
    run("verify", bundle)
    answer = json.loads(run("verify", bundle, "--pin", pin, "--json", expect=20).stdout)
    assert (answer["finding"]["position"], answer["finding"]["last"]) == (5, 6)
    store.attack(lambda loot: loot.row(3).update(topic="x"))
    shown = run("verify", expect=20).stdout
    assert "position     3" in shown
    assert "field        topic" in shown
    run("verify", tmp_path / "nothing", expect=30)
    run("verify", "--data", tmp_path / "nowhere", expect=20 if store.kind == "postgres" else 30)
    run("verify", bundle, "--pin", bundle, expect=30)
    run("verify", bundle, "--hmac-key", pin, expect=30)
    shown = json.loads(run("verify", bundle, "--pin", tmp_path / "no-pin", "--json", expect=30).stdout)
    assert "no-pin holds no checkpoint" in shown["finding"]["reason"]
    shown = run("classify", "r", "--data", tmp_path / "nowhere", expect=30 if store.kind == "sqlite" else 20).stdout
    assert ("the log's own word" in shown) == (store.kind == "postgres"), "nothing was read, so nothing names a key"
    run("verify", bundle, "--data", tmp_path, expect=2)
    run("export", expect=2)
    run("export", "no-such-run", "-o", tmp_path / "none", expect=1)
    run("classify", "no-such-run", expect=30)


def test_a_receipt_is_checked_offline_with_the_public_key_alone(
    store: World, run: Callable[..., Result], tmp_path: Path
) -> None:
    log = store.open()
    steered(log)
    file, key = tmp_path / "receipt.json", log.key()
    assert key is not None
    file.write_text(run("receipt", "d").stdout, encoding="utf-8")
    shown = run("receipt", file, "--key", key.verifier_key).stdout
    assert "receiptHash was not checked: only the log and its HMAC key can tell" in shown
    run("receipt", "nobody", expect=1)
    genuine = json.loads(file.read_bytes())
    for member in ("position", "leaf", "index", "leafHash", "payloadHash", "proof", "size", "root", "checkpoint"):
        value: Any = genuine[member]
        changed = value + 1 if isinstance(value, int) else value[::-1]
        file.write_text(json.dumps({**genuine, member: changed}), encoding="utf-8")
        result = CliRunner().invoke(command, ["receipt", str(file), "--key", key.verifier_key])
        assert result.exit_code in (20, 30), (member, result.output)
    other = json.dumps({**genuine, "receiptHash": "00" * 32})
    assert json.loads(other).keys() == genuine.keys()
    file.write_text(other, encoding="utf-8")
    verdict = json.loads(run("receipt", file, "--key", key.verifier_key, "--json").stdout)
    assert verdict["not_checked"] == ["receiptHash"], "no receipt holds what that takes, and whoever reads it hears so"
    run("receipt", file, "--key", "nonsense", expect=30)


def test_what_is_wrong_with_a_receipt_is_what_is_named(
    store: World, run: Callable[..., Result], tmp_path: Path
) -> None:
    log = store.open()
    steered(log)
    key, file = log.key(), tmp_path / "receipt.json"
    assert key is not None
    genuine = json.loads(run("receipt", "d").stdout)
    changes = {"index": 7, "size": 9, "leafHash": "00", "directiveId": "e", "payloadHash": "x", "position": 3}
    for member, value in changes.items():
        file.write_text(json.dumps({**genuine, member: value}), encoding="utf-8")
        shown = run("receipt", file, "--key", key.verifier_key, "--json", expect=20).stdout
        finding = json.loads(shown)["finding"]
        assert finding["field"] == {"position": "index"}.get(member, member)
        assert finding["expected"] != finding["actual"]
        assert "the log's own word" not in run("receipt", file, "--key", key.verifier_key, expect=20).stdout
    file.write_text(json.dumps(genuine), encoding="utf-8")
    name, other = key.verifier_key.partition("+")[0], new_keys().public
    for stranger in (verifier_key(name, other), verifier_key("another.log", other)):
        finding = json.loads(run("receipt", file, "--key", stranger, "--json", expect=20).stdout)["finding"]
        assert (finding["field"], finding["expected"] != finding["actual"]) == ("checkpoint", True)
    assert "--key takes the verifier_key" in run("receipt", file, "--key", "nonsense", expect=30).stdout
    file.write_text(log.evidence(genuine["position"]).tlog_proof, encoding="utf-8")
    assert "ask for the receipt as JSON" in run("receipt", file, "--key", key.verifier_key, expect=30).stdout


def test_a_pin_is_the_last_checkpoint_of_a_file_and_is_looked_at_before_a_bundle_is_made_for_it(
    store: World, run: Callable[..., Result], tmp_path: Path
) -> None:
    log = store.open()
    steered(log)
    unsteered(log, "other")
    bundle, kept = tmp_path / "bundle", tmp_path / "kept.log"
    kept.write_bytes(b"\n" + store.checkpoints.read_bytes())
    last = note_of(store, 21)
    run("export", "r", "-o", bundle, "--pin", kept)
    note = tmp_path / "note"
    note.write_text(last, encoding="utf-8")
    assert json.loads(run("verify", bundle, "--pin", note, "--json", expect=10).stdout)["pinned"]
    bundle.unlink()
    note.write_text(last.replace("\n21\n", "\n20\n"), encoding="utf-8")
    for useless in (store.ring.directory / "nothing", bundle, tmp_path, note):
        code = 2 if useless == tmp_path else 1
        run("export", "r", "-o", bundle, "--pin", useless, expect=code)
        assert not bundle.exists()
    run("export", "r", "--pin", kept, "--pin", kept, expect=2)
    assert "one at most" in " ".join(run("export", "--help").stdout.split())


def test_the_keeper_s_commands_rotate_keys_and_accept_a_restore(store: World, run: Callable[..., Result]) -> None:
    restored(store)
    run("rotate-key", expect=1)
    told = run("accept-restore").stderr
    assert "had signed 21 facts" in told
    assert "revoked after the backup was made work again" in told
    assert told.endswith(
        "Then start every replica again.\n" if store.kind == "postgres" else "start the service again.\n"
    )
    run("accept-restore", expect=1)
    run("rotate-key")
    log = store.open()
    assert put(log, said("r", "And on.")) == 9
    run("verify")


@pytest.mark.parametrize("lost", [1, 3])
def test_no_view_keeps_a_fact_that_an_accepted_restore_gave_up(
    store: World, run: Callable[..., Result], lost: int
) -> None:
    """Accepting writes a fact: where one is lost, the log is as long again as the view that has folded the lost one."""
    log = store.open()
    unsteered(log)
    restore = back_up(store)
    for n in range(lost):
        put(log, received("r", f"lost {n}"))
    view = outstanding_directives.VIEW
    folded = PostgresViews(store.place) if store.kind == "postgres" else SqliteViews(store.place.parent / "views.db")
    with closing(folded) as views:
        catch_up(views, log, [view])
        assert len(views.list(view.name, "open")) == lost
        log.close()
        restore()
        run("accept-restore")
        log = store.open()
        catch_up(views, log, [view])
        put(log, received("r", "kept"))
        catch_up(views, log, [view])
        assert [row.key for row in views.list(view.name, "open")] == ["kept"]
        run("accept-restore", expect=1)
        assert [row.key for row in views.list(view.name, "open")] == ["kept"], (
            "nothing was accepted, so nothing is dropped"
        )
    log.close()
    run("verify", expect=10)


def test_no_bundle_however_broken_ends_in_a_traceback(tmp_path: Path, postgres_free_world: World) -> None:
    log = postgres_free_world.open()
    steered(log)
    good = postgres_free_world.export().read_bytes()
    file, chance = tmp_path / "broken", random.Random(7)
    broken = [b"", b"\n", b"{}", b"[]", b"null", b"\xff" * 1000, b"[" * 100_000, chance.randbytes(10_000)]
    broken += [good[: chance.randrange(len(good))] for _ in range(60)]
    broken += [good + b"x", good[: good.index(b"\n") + 1], good.replace(b'"facts":', b'"facts":1'), good[1:]]
    for _ in range(250):
        changed = bytearray(good)
        for _ in range(chance.randrange(1, 4)):
            changed[chance.randrange(len(changed))] = chance.randrange(256)
        broken.append(bytes(changed))
    lines = good.splitlines(keepends=True)
    for _ in range(60):
        some = lines.copy()
        some.insert(chance.randrange(len(some)), some.pop(chance.randrange(len(some))))
        broken.append(b"".join(some))
    codes = set[int]()
    for bundle in broken:
        file.write_bytes(bundle)
        result = CliRunner().invoke(command, ["verify", str(file)])
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        unharmed = [line for line in bundle.splitlines() if b'{"checkpoint"' not in line[:14]]
        if result.exit_code == 10:  # only what says the same may still be called sound
            assert said_the_same(unharmed, good), bundle
        codes.add(result.exit_code)
    assert codes >= {20, 30}
    assert codes <= {10, 20, 30}


def said_the_same(lines: list[bytes], good: bytes) -> bool:
    """Whether a bundle holds the facts of a good one, in its order; checkpoints between them may be gone."""
    facts = [json.loads(line)["envelope"] for line in lines if b'"envelope"' in line]
    return facts == [json.loads(line)["envelope"] for line in good.splitlines() if b'"envelope"' in line]


@pytest.fixture
def postgres_free_world(tmp_path: Path) -> Any:
    from contextlib import ExitStack

    home = tmp_path / "world"
    home.mkdir()
    with ExitStack() as stack:
        yield World("sqlite", home / "log.db", home, stack)
