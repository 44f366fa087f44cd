"""A healthy log is never accused, whatever has happened to it; and a run's bundle says how far it is complete."""

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import proofbundle
import pytest

from steersman.adapters.audit.bundle import Bundle
from steersman.adapters.audit.log import audit
from steersman.adapters.audit.store import WholeLog
from steersman.adapters.clock import SYSTEM_CLOCK
from steersman.adapters.log.opening import accept_restore, rotate_key
from steersman.adapters.log_format.checkpoint_file import CheckpointFile
from steersman.adapters.log_format.signed_note import parse_checkpoint, sign
from steersman.application.ports.log import Append, Idempotency
from steersman.tests.audit.conftest import Loot, World, attack_bundle
from steersman.tests.audit.facts import AT, effect, put, received, said, steered, unsteered
from steersman.tests.audit.test_opening import restored
from steersman.tests.audit.test_tampering import found


def test_restarts_rotations_and_erased_texts_are_no_tampering(world: World) -> None:
    file = CheckpointFile(world.checkpoints)
    pins: list[str] = []
    for turn in range(3):
        log = world.open()
        unsteered(log, f"run {turn}")
        pins.append(log.checkpoint())
        assert log.erase_texts([f"run {turn}"], output_only=turn == 1) == 3
        log.close()
        rotate_key(world.recorder(), SYSTEM_CLOCK, world.ring, file)
    if world.kind == "bundle":
        world.export()
    verdict = world.audit(pins=pins, hmac_keys=world.hmac_keys)
    assert (verdict.verdict, verdict.finding, verdict.erased, verdict.pinned) == ("clean", None, 9, True)
    assert (verdict.facts, verdict.chained, len(verdict.signing_key_ids)) == (19, 19, 4)


def test_an_answer_that_is_stored_without_a_fact_is_no_tampering(store: World) -> None:
    log = store.open()
    unsteered(log, "one")
    head, pin = log.head(), log.checkpoint()
    kept = Idempotency(principal="ada", method="POST", path="/", key="k", body_digest="b", status=201, answer=b"{}")
    log.append(Append(drafts=(), expected={}, at=AT, principal="ada", command_id="c", idempotency=kept))
    assert (log.head(), log.checkpoint()) == (head, pin)
    log.close()
    again = store.open()
    unsteered(again, "two")
    assert store.audit(pins=[pin, again.checkpoint()], hmac_keys=store.hmac_keys).verdict == "clean"


def append_together(store: World, *names: str) -> list[list[int]]:
    """Let a process for each name append eighty facts, all at once; return the positions of each."""
    arguments = (store.kind, str(store.place), str(store.home))
    command = (sys.executable, "-P", "-m", "steersman.tests.audit.writer", *arguments)
    writers = [
        subprocess.Popen([*command, name, "8", "10"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for name in names
    ]
    assert [writer.stdout.readline() for writer in writers if writer.stdout] == ["ready 0\n"] * len(names)
    for writer in writers:
        assert writer.stdin
        writer.stdin.write("go\n")
        writer.stdin.flush()
    told = [writer.communicate()[0].split() for writer in writers]
    assert [writer.returncode for writer in writers] == [0] * len(names)
    return [[int(position) for position in words[1::2]] for words in told]


def test_processes_that_append_together_leave_one_sound_log(store: World) -> None:
    store.open().close()  # with its first fact
    written: list[int] = []
    # A busy machine may let one of them end before the other begins, which shows nothing.
    for turn in range(20):
        ours, theirs = append_together(store, f"one-{turn}", f"other-{turn}")
        written += ours + theirs
        if min(theirs) < max(ours) and min(ours) < max(theirs):
            break
    else:
        raise AssertionError("they took turns, each time")
    size = len(written) + 1
    assert sorted(written) == list(range(2, size + 1))
    log = store.open()
    verdict = store.audit(hmac_keys=store.hmac_keys, pins=[log.checkpoint()])
    assert (verdict.verdict, verdict.finding, verdict.size) == ("clean", None, size)
    assert verdict.chained == size


def test_an_accepted_restore_is_no_tampering_unless_somebody_pinned_what_was_lost(store: World) -> None:
    restored(store)
    lost = [note for note in store.checkpoints.read_text(encoding="utf-8").splitlines()][-1]
    accept_restore(store.recorder(), SYSTEM_CLOCK, store.ring, CheckpointFile(store.checkpoints))
    log = store.open()
    steered(log, "again")
    kept = log.evidence(2).checkpoint
    verdict = store.audit(hmac_keys=store.hmac_keys, pins=[kept])
    assert (verdict.verdict, verdict.finding) == ("steered", None)
    verdict = store.audit(pins=[json.loads(lost)])
    assert found(verdict) == ("tampered", 20, 7, "size")


def test_a_log_that_is_written_while_it_is_audited_is_sound_up_to_where_the_audit_began(store: World) -> None:
    log = store.open()
    unsteered(log)
    source = WholeLog(store.recorder(), store.checkpoints)

    class Busy:
        def opening(self):
            opening = source.opening()
            put(log, said("r", "Later."))
            return opening

        items = staticmethod(source.items)
        end = staticmethod(source.end)

    verdict = audit(Busy())
    assert (verdict.verdict, verdict.finding, verdict.facts) == ("clean", None, 6)


@pytest.fixture
def run_bundle(store: World) -> Path:
    log = store.open()
    unsteered(log, "other")
    steered(log)
    unsteered(log, "third")
    return store.export("r", store.home / "run.bundle")


def test_a_run_s_bundle_proves_every_fact_and_says_how_far_it_is_complete(store: World, run_bundle: Path) -> None:
    verdict = audit(Bundle(run_bundle), hmac_keys=store.hmac_keys)
    assert (verdict.verdict, verdict.finding, verdict.run) == ("steered", None, "r")
    assert (verdict.facts, verdict.complete_to, verdict.size, verdict.chained) == (16, 15, 26, 16)


def test_facts_that_are_left_out_of_a_run_s_bundle_are_missed(run_bundle: Path) -> None:
    def leave_out(loot: Loot) -> None:
        loot.rows = [row for row in loot.rows if "steering" not in row["topic"] and "revision" not in row["topic"]]

    attack_bundle(run_bundle, leave_out)
    verdict = audit(Bundle(run_bundle))
    assert found(verdict) == ("tampered", 20, 17, "root_sequence")
    assert (verdict.complete_to, verdict.steering) == (5, 0)


def test_a_run_s_bundle_leads_to_the_pin_that_it_was_exported_for(store: World, run_bundle: Path) -> None:
    pin = store.open().checkpoint()
    assert audit(Bundle(run_bundle), pins=[pin]).pinned
    for run in ("third", "third", "r"):
        put(store.open(), said(run, "One more."))
    later = store.export("r", store.home / "later.bundle")
    verdict = audit(Bundle(later), pins=[pin])
    assert (verdict.verdict, verdict.exit_code) == ("unchecked", 30)
    assert verdict.finding is not None
    assert "export it once more with --pin" in verdict.finding.reason
    verdict = audit(Bundle(store.export("r", later, pin)), pins=[pin])
    assert (verdict.verdict, verdict.pinned) == ("steered", True)
    header, rest = later.read_bytes().split(b"\n", 1)
    changed = json.loads(header)
    changed["opening"]["consistency"] = changed["opening"]["consistency"][::-1]
    later.write_bytes(json.dumps(changed).encode() + b"\n" + rest)
    assert found(audit(Bundle(later), pins=[pin]))[:2] == ("tampered", 20)


def test_a_run_s_bundle_leads_to_every_pin_that_its_own_facts_prove(store: World) -> None:
    log = store.open()
    pins: dict[str, list[str]] = {"r": [], "other": []}
    for n in range(12):
        run = "r" if n % 4 == 0 else "other"
        put(log, said(run, f"Word {n}."))
        pins[run].append(log.checkpoint())
    bundle = store.export("r")
    for pin in pins["r"]:
        verdict = audit(Bundle(bundle), pins=[pin])
        assert (verdict.verdict, verdict.finding, verdict.pinned) == ("clean", None, True)
    codes = {audit(Bundle(bundle), pins=[pin]).exit_code for pin in pins["other"]}
    assert codes == {0, 30}, "what stands beside a fact of the run is in its proof, and no more"
    keys = store.ring.newest()
    assert keys is not None
    end = parse_checkpoint(pins["r"][1])
    fork = sign(msgspec.structs.replace(end, root=bytes(32)), keys.signing)
    assert found(audit(Bundle(bundle), pins=[fork])) == ("tampered", 20, None, "pin")


def test_a_pin_of_another_log_is_no_pin(store: World, run_bundle: Path, tmp_path: Path) -> None:
    with_other_keys = World("sqlite", tmp_path / "other.db", tmp_path / "other", store._stack)
    with_other_keys.home.mkdir()
    pin = with_other_keys.open().checkpoint()
    assert found(audit(Bundle(run_bundle), pins=[pin])) == ("tampered", 20, None, "pin")
    assert audit(Bundle(run_bundle), pins=["nonsense"]).exit_code == 30
    assert audit(Bundle(run_bundle), hmac_keys={"f" * 32: bytes(32)}).exit_code == 30


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ([effect("r", "d")], "without an earlier receipt"),
        ([received("r", "d"), effect("r", "d", receipt="sha256:other")], "of another receipt"),
        ([received("r", "d"), effect("r", "d"), effect("r", "d")], "consumed twice"),
        ([effect("r", "d"), received("r", "d")], "without an earlier receipt"),
    ],
    ids=["no receipt", "another receipt", "twice", "receipt after effect"],
)
def test_an_effect_that_its_receipt_does_not_cover_is_found_though_it_is_signed(
    store: World, facts: list[object], reason: str
) -> None:
    log = store.open()
    for fact in facts:
        put(log, fact)
    verdict = store.audit()
    assert verdict.finding is not None
    assert (verdict.verdict, verdict.finding.position) == (
        "tampered",
        log.head() if "twice" in reason else verdict.finding.position,
    )
    assert reason in verdict.finding.reason


def test_a_receipt_verifies_offline_with_somebody_else_s_program(store: World) -> None:
    log = store.open()
    positions = steered(log)
    evidence = log.evidence(positions[0])
    key = log.key()
    assert key is not None
    answer = proofbundle.verify_tlog_proof(
        evidence.tlog_proof, evidence.envelope, key.verifier_key, expected_origin=key.origin
    )
    assert answer["ok"], answer
    assert (answer["index"], answer["tree_size"]) == (6, 16)
    changed = evidence.envelope.replace(b"amend", b"abort")
    assert not proofbundle.verify_tlog_proof(evidence.tlog_proof, changed, key.verifier_key)["ok"]
