"""Whose word a verdict rests on is said first; a key, a pin or a witness of the verifier's own is what finds a new history."""

import json
import os
import shutil
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from steersman.adapters.audit.witness import EVIDENCE, PINS, Alarming, Unusable, Watcher
from steersman.adapters.clock import SYSTEM_CLOCK
from steersman.adapters.log.opening import rotate_key
from steersman.adapters.log_format.checkpoint_file import CheckpointFile, read_notes
from steersman.adapters.log_format.cosignature import cosign, cosigned_at, parse_witness
from steersman.adapters.log_format.keys import new_keys
from steersman.adapters.log_format.signed_note import NoteInvalid, parse_checkpoint, verifier_key
from steersman.ops.admin.audit_command import command
from steersman.tests.audit.conftest import World
from steersman.tests.audit.facts import put, said, steered, unsteered
from steersman.tests.audit.test_command import run as run  # noqa: PLC0414 - a fixture
from steersman.tests.audit.test_edges import change

AT = datetime(2026, 3, 1, 12, tzinfo=UTC)


def made_anew(store: World) -> World:
    """Let somebody who has everything but the old keys make the whole log anew, under keys of theirs."""
    for table in ("events", "{texts}", "nodes"):
        change(store, f"DELETE FROM {table}")
    change(store, "UPDATE head SET position = 0, edge = ?, mac = ?, signer = '', note = ''", b"", bytes(32))
    theirs = World(store.kind, store.place, store.home / "theirs", store._stack)
    theirs.home.mkdir()
    theirs.checkpoints = store.checkpoints
    store.checkpoints.unlink()
    log = theirs.open()
    steered(log)
    log.close()
    return theirs


def key_of(store: World) -> str:
    key = store.open().key()
    assert key is not None
    return key.verifier_key


def test_a_whole_log_made_anew_is_found_by_a_key_a_pin_or_the_keys_that_are_there(
    store: World, run: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = store.open()
    steered(log)
    key, pin = key_of(store), tmp_path / "pin"
    pin.write_text(log.checkpoint(), encoding="utf-8")
    for extra in ((), ("--key", key), ("--pin", pin), ("--key", key, "--pin", pin)):
        run("verify", *extra, expect=10)
    theirs = made_anew(store)
    monkeypatch.setenv("STEERSMAN_KEYS", str(theirs.ring.directory))
    shown = run("verify", expect=10).stdout
    assert shown.startswith("This rests on the log's own word: it names the key itself")
    verdict = json.loads(run("verify", "--json", expect=10).stdout)
    assert next(iter(verdict)) == "rests_on"
    assert (verdict["rests_on"].split(":")[0], verdict["pinned"]) == ("the log's own word", False)
    finding = json.loads(run("verify", "--key", key, "--json", expect=20).stdout)["finding"]
    assert (finding["field"], finding["expected"]) == ("key", key)
    run("verify", "--pin", pin, expect=20)
    run("classify", "r", "--key", key, expect=20)
    bundle = tmp_path / "bundle"
    run("export", "--all", "-o", bundle)
    run("verify", bundle, expect=10)
    run("verify", bundle, "--key", key, expect=20)
    assert "verifier_key" in run("verify", bundle, "--key", "nonsense", expect=30).stdout


def test_what_a_verdict_rests_on_is_the_best_that_the_verifier_brought(
    store: World, run: Callable[..., Result], tmp_path: Path
) -> None:
    log = store.open()
    steered(log)
    pin, bundle = tmp_path / "pin", tmp_path / "bundle"
    pin.write_text(log.checkpoint(), encoding="utf-8")
    run("export", "r", "-o", bundle)
    assert run("verify", bundle, "--pin", pin, expect=10).stdout.startswith("This rests on a checkpoint that you kept.")
    assert run("verify", bundle, "--key", key_of(store), expect=10).stdout.startswith(
        "This rests on a key that you gave"
    )


def test_a_key_that_was_rotated_away_still_tells_whose_log_it_is(store: World, run: Callable[..., Result]) -> None:
    log = store.open()
    unsteered(log)
    old = key_of(store)
    run("rotate-key")
    new = key_of(store)
    assert old != new
    for key in (old, new):
        assert json.loads(run("verify", "--key", key, "--json").stdout)["pinned"]


# The witness


class Remote:
    """A log as a witness sees it."""

    def __init__(self, log: Any) -> None:
        self.log = log
        self.note: str | None = None

    def checkpoint(self) -> str:
        return self.note or self.log.checkpoint()

    def verifier_key(self) -> tuple[str, Sequence[str]]:
        key = self.log.key()
        return key.verifier_key, key.endorsements

    def consistency(self, old: int, new: int) -> Sequence[str]:
        return self.log.consistency(old, new).hashes


def now() -> datetime:
    return AT


def test_a_cosignature_is_what_c2sp_describes() -> None:
    """Line, key id and message, byte for byte; the verification below uses nothing of ours but the parser of notes."""
    import base64
    import hashlib

    keys = new_keys()
    note = "example.com/log\n3\n" + base64.b64encode(bytes(32)).decode() + "\n\n\u2014 example.com/log AAAAAAAA\n"
    line = cosign(note, "witness.example/w", keys.signing, AT)
    dash, name, encoded = line.removesuffix("\n").split(" ")
    raw = base64.b64decode(encoded)
    assert (dash, name, len(raw)) == ("\u2014", "witness.example/w", 4 + 8 + 64)
    assert raw[:4] == hashlib.sha256(b"witness.example/w\n\x04" + keys.public).digest()[:4]
    seconds = int.from_bytes(raw[4:12], "big")
    assert seconds == int(AT.timestamp())
    signed = f"cosignature/v1\ntime {seconds}\n" + note[: note.index("\n\n") + 1]
    keys.signing.public_key().verify(raw[12:], signed.encode())
    hashed = hashlib.sha256(b"witness.example/w\n\x04" + keys.public).digest()[:4].hex()
    witness = parse_witness(f"witness.example/w+{hashed}+{base64.b64encode(bytes([4]) + keys.public).decode()}")
    assert cosigned_at(note + line, witness) == seconds
    assert cosigned_at(note, witness) is None
    with pytest.raises(NoteInvalid):
        cosigned_at(note.replace("\n3\n", "\n4\n") + line, witness)


def test_a_witness_keeps_what_it_has_seen_and_cosigns_what_goes_on_from_it(store: World) -> None:
    log, watcher = store.open(), Watcher(store.home / "witness", "example.org/witness")
    remote = Remote(log)
    assert watcher.visit(remote, now).grown is None
    unsteered(log)
    visit = watcher.visit(remote, now)
    assert (visit.size, visit.grown) == (6, 5)
    assert watcher.visit(remote, now).grown == 0
    assert watcher.witness is not None
    pins = list(read_notes(store.home / "witness" / PINS))
    assert [parse_checkpoint(pin).size for pin in pins] == [1, 6]
    assert [cosigned_at(pin, watcher.witness) for pin in pins] == [int(AT.timestamp())] * 2
    assert parse_witness(watcher.witness.verifier_key) == watcher.witness
    assert store.audit(pins=pins).pinned
    modes = {(store.home / "witness" / name).stat().st_mode & 0o777 for name in ("pins.log", "witness.pem", "log.key")}
    assert modes == {0o600}


@pytest.mark.parametrize("what", ["cut", "made anew", "made anew and longer"])
def test_a_witness_raises_an_alarm_and_keeps_the_evidence(store: World, what: str) -> None:
    log = store.open()
    steered(log)
    remote, watcher = Remote(log), Watcher(store.home / "witness", "example.org/witness")
    watcher.visit(remote, now)
    log.close()
    if what == "cut":
        remote.note = next(read_notes(store.checkpoints))
        remote.log = store.open()
    else:
        remote.log = made_anew(store).open()
        if what == "made anew and longer":
            put(remote.log, said("r", "More."))
    with pytest.raises(Alarming):
        watcher.visit(remote, now)
    assert len(list(read_notes(store.home / "witness" / PINS))) == 1
    assert list(read_notes(store.home / "witness" / EVIDENCE)) == [remote.checkpoint()]


def test_a_witness_sees_a_second_history_by_the_log_s_own_keys(store: World) -> None:
    """Whoever holds every key writes the past anew, as long as before or longer: only somebody else's pin finds that."""
    log = store.open()
    unsteered(log)
    kept = store.recorder().tree_head()
    steered(log, "s")
    remote, watcher = Remote(log), Watcher(store.home / "witness")
    watcher.visit(remote, now)
    size = log.head()
    log.close()
    store.attack(lambda loot: (loot.cut(6), loot.head.update(note=kept.note)))
    store.checkpoints.unlink()
    forged = store.open()
    while forged.head() < size:
        put(forged, said("s", "Nothing happened here."))
    remote.log = forged
    with pytest.raises(Alarming, match="told twice"):
        watcher.visit(remote, now)
    put(forged, said("s", "Nor here."))
    with pytest.raises(Alarming, match="changed"):
        watcher.visit(remote, now)
    assert store.audit().finding is None, "the log alone does not show it"


def test_a_witness_follows_a_rotation_and_nobody_else_s_key(store: World) -> None:
    log = store.open()
    unsteered(log)
    remote, watcher = Remote(log), Watcher(store.home / "witness")
    watcher.visit(remote, now)
    for _ in range(2):
        rotate_key(store.recorder(), SYSTEM_CLOCK, store.ring, CheckpointFile(store.checkpoints))
    put(log, said("r", "And on."))
    visit = watcher.visit(remote, now)
    assert (visit.grown, visit.key) == (3, key_of(store))
    stranger = verifier_key(visit.origin, new_keys().public)
    with pytest.raises(Alarming):
        Watcher(store.home / "another").visit(remote, now, stranger)
    with pytest.raises(Unusable):
        watcher.visit(remote, now, verifier_key("elsewhere.example/log", new_keys().public))
    remote.note = "nonsense"
    with pytest.raises(Unusable):
        watcher.visit(remote, now)


def test_a_witness_that_lost_its_pins_says_so(store: World) -> None:
    remote, watcher = Remote(store.open()), Watcher(store.home / "witness")
    watcher.visit(remote, now)
    (store.home / "witness" / PINS).write_text("garbled", encoding="utf-8")
    with pytest.raises(Unusable, match="is lost"):
        watcher.visit(remote, now)


def test_a_pin_that_the_witness_did_not_cosign_is_no_pin(
    store: World, run: Callable[..., Result], tmp_path: Path
) -> None:
    log, watcher = store.open(), Watcher(tmp_path / "witness", "example.org/witness")
    steered(log)
    watcher.visit(Remote(log), now)
    assert watcher.witness is not None
    word, pins = watcher.witness.verifier_key, tmp_path / "witness" / PINS
    run("verify", "--pin", pins, "--witness", word, expect=10)
    pin = tmp_path / "pin"
    pin.write_text(log.checkpoint(), encoding="utf-8")
    assert "is not cosigned by that witness" in run("verify", "--pin", pin, "--witness", word, expect=30).stdout
    run("verify", "--witness", word, expect=2)


# What scripts rely on


@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
def test_a_log_that_is_gone_is_told_with_the_size_that_was_pinned(
    store: World, run: Callable[..., Result], tmp_path: Path
) -> None:
    log = store.open()
    steered(log)
    pin = tmp_path / "pin"
    pin.write_text(log.checkpoint(), encoding="utf-8")
    log.close()
    for found in store.place.parent.glob("log.db*"):
        found.unlink()
    finding = json.loads(run("verify", "--pin", pin, "--json", expect=20).stdout)["finding"]
    assert (finding["position"], finding["last"], finding["expected"]) == (1, 16, "16")
    assert "A log of 16 facts was pinned" in finding["reason"]
    assert "16 facts" in run("verify", "--data", tmp_path / "nowhere", "--pin", pin, expect=30).stdout
    run("verify", expect=30)


@pytest.mark.parametrize("journal", [False, True], ids=["closed", "with a journal"])
def test_a_log_on_a_read_only_medium_is_verified_and_nothing_is_written(tmp_path: Path, journal: bool) -> None:
    """In a process of its own without the right to write past the permissions, as root on a read-only disk is."""
    from contextlib import ExitStack, closing

    from steersman.adapters.stores.sqlite_views import SqliteViews
    from steersman.application.views.project_views import catch_up
    from steersman.projections.catalogue import VIEWS

    live, medium = tmp_path / "live", tmp_path / "medium"
    live.mkdir()
    with ExitStack() as stack:
        world = World("sqlite", live / "log.db", tmp_path, stack)
        world.checkpoints = live / "checkpoints.log"
        log = world.open()
        steered(log)
        with closing(SqliteViews(live / "views.db")) as views:
            catch_up(views, log, VIEWS)
            if journal:
                medium.mkdir()
                for name in ("log.db", "log.db-wal", "views.db", "views.db-wal", "checkpoints.log"):
                    if (live / name).exists():
                        shutil.copyfile(live / name, medium / name)
                assert (medium / "log.db-wal").stat().st_size
    if not journal:
        shutil.copytree(live, medium)
        assert not (medium / "log.db-wal").exists()
    before = sorted(os.listdir(medium))
    for file in medium.iterdir():
        file.chmod(0o444)
    medium.chmod(0o555)
    try:
        shown = json.loads(on_read_only(medium, tmp_path / "keys"))
    finally:
        medium.chmod(0o755)
    assert (shown["verdict"], shown["finding"], shown["facts"]) == ("steered", None, 16)
    assert shown["views"] is not None
    assert sorted(os.listdir(medium)) == before


def on_read_only(medium: Path, keys: Path) -> str:
    """Verify in a process that has no capability to pass over permissions; return what it says."""
    import ctypes
    import subprocess

    from steersman.tests.e2e.served import STEERSMAN, environment

    libc = ctypes.CDLL(None, use_errno=True)

    def without_override() -> None:
        for capability in (
            1,
            2,
        ):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH; whoever has neither is refused, and needs not
            libc.prctl(24, capability, 0, 0, 0)

    done = subprocess.run(
        [*STEERSMAN, "audit", "verify", "--data", str(medium), "--json"],
        env=environment(STEERSMAN_KEYS=str(keys)),
        preexec_fn=without_override,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 10, done.stdout + done.stderr
    return done.stdout


def test_a_receipt_that_holds_ends_no_script(store: World, run: Callable[..., Result], tmp_path: Path) -> None:
    steered(store.open())
    file = tmp_path / "receipt.json"
    file.write_text(run("receipt", "d").stdout, encoding="utf-8")
    run("receipt", file, "--key", key_of(store), expect=0)
    file.write_text(file.read_text(encoding="utf-8").replace("amend", "abort").replace('"position":7', '"position":8'))
    run("receipt", file, "--key", key_of(store), expect=20)
    result = CliRunner().invoke(command, ["receipt", str(tmp_path / "none"), "--key", key_of(store)])
    assert (result.exit_code, isinstance(result.exception, SystemExit | click.ClickException)) == (30, True)
