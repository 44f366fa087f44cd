"""Whoever can write the store, and even holds the HMAC key, changes nothing without being found at the right place."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from steersman.adapters.clock import SYSTEM_CLOCK
from steersman.adapters.log.opening import _hand_over, _opened, rotate_key
from steersman.adapters.log.sealing import Handover, signer_of
from steersman.adapters.log_format.checkpoint_file import CheckpointFile, read_notes
from steersman.adapters.log_format.keys import new_keys
from steersman.adapters.log_format.signed_note import endorsement, sign_text
from steersman.application.ports.verdict import AuditVerdict
from steersman.domain.event import Event
from steersman.domain.kinds.log import LogKeyRotated, LogOpened
from steersman.tests.audit.conftest import Loot, World
from steersman.tests.audit.facts import put, said, steered, unsteered

#: log.opened, two runs of which one is corrected, and one more fact.
FACTS = 22


@pytest.fixture
def told(world: World) -> World:
    """A log with two runs; run `r` was corrected at positions 7 to 11."""
    log = world.open()
    tell(log)
    log.close()
    if world.kind == "bundle":
        world.export()
    return world


def tell(log: Any) -> None:
    assert list(steered(log)) == [7, 8, 9, 10, 11]
    unsteered(log, "other")
    assert put(log, said("other", "The end.")) == FACTS


def found(verdict: AuditVerdict) -> tuple[str, int, int | None, str]:
    """Return what a verdict says was changed."""
    assert verdict.finding is not None, verdict
    return verdict.verdict, verdict.exit_code, verdict.finding.position, verdict.finding.field


def assert_tampered(world: World, position: int | None, field: str, **more: Any) -> AuditVerdict:
    verdict = world.audit(**more)
    assert found(verdict) == ("tampered", 20, position, field)
    return verdict


def keyed(world: World) -> dict[str, Any]:
    return {"hmac_keys": world.hmac_keys}


def key_of(world: World) -> bytes:
    (key,) = world.hmac_keys.values()
    return key


def test_an_untouched_log_is_steered_and_nothing_else(told: World) -> None:
    verdict = told.audit(**keyed(told))
    assert (verdict.verdict, verdict.exit_code, verdict.finding) == ("steered", 10, None)
    assert (verdict.facts, verdict.size, verdict.chained, verdict.steering) == (FACTS, FACTS, FACTS, 1)
    (step,) = verdict.steps
    assert (step.position, step.directive_id, step.verb, step.status) == (7, "d", "amend", "applied")
    receipt = told.open().receipts([7])[7]
    assert (step.receipt_hash, step.leaf_hash) == (receipt.receipt_hash, receipt.leaf_hash)


@pytest.mark.parametrize("position", [1, 8, FACTS])
def test_a_flipped_byte_is_found_at_its_fact(told: World, position: int) -> None:
    def flip(loot: Loot) -> None:
        row = loot.row(position)
        row["state"] = row["state"].replace(b'"v":1', b'"v":3')

    told.attack(flip)
    verdict = assert_tampered(told, position, "leaf_hash")
    assert verdict.finding is not None
    assert verdict.finding.expected != verdict.finding.actual


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("stream", "run/x"),
        ("version", 77),
        ("topic", "coordinator.steering"),
        ("run", "x"),
        ("run_sequence", 77),
        ("root", "x"),
        ("root_sequence", 77),
        ("is_output", True),
        ("command_id", "x"),
        ("at", "2026-03-01T12:00:00.000001Z"),
        ("leaf_hash", bytes(32)),
    ],
)
def test_a_changed_column_is_found_by_name(told: World, column: str, value: object) -> None:
    told.attack(lambda loot: loot.row(9).update({column: value}))
    assert_tampered(told, 9, column)


def test_a_changed_mac_is_found_with_the_key(told: World) -> None:
    told.attack(lambda loot: loot.row(9).update(mac=bytes(32)))
    assert_tampered(told, 9, "mac", **keyed(told))


def test_a_deleted_fact_is_found_where_it_was(told: World) -> None:
    told.attack(lambda loot: loot.rows.remove(loot.row(9)))
    assert_tampered(told, 9, "position")


@pytest.mark.parametrize("left", [FACTS - 1, FACTS - 5])
def test_a_log_that_was_cut_off_is_tampered_behind_its_last_fact(told: World, left: int) -> None:
    def cut(loot: Loot) -> None:
        loot.cut(left)
        loot.rehash(key_of(told))

    told.attack(cut)
    verdict = assert_tampered(told, left + 1, "size")
    assert verdict.finding is not None
    assert verdict.finding.last == FACTS


def test_a_log_that_was_emptied_is_tampered_from_its_first_fact(told: World) -> None:
    told.attack(lambda loot: loot.rows.clear())
    assert_tampered(told, 1, "size")


def test_two_facts_that_changed_places_are_found_at_the_first(told: World) -> None:
    def swap(loot: Loot) -> None:
        one, other = loot.row(4), loot.row(14)
        one["position"], other["position"] = 14, 4
        loot.rows.sort(key=lambda row: row["position"])

    told.attack(swap)
    assert_tampered(told, 4, "position")


def test_a_forged_fact_at_the_end_is_found_by_who_holds_the_chain_s_key_too(told: World) -> None:
    def forge(loot: Loot) -> None:
        last = {**loot.row(FACTS), "position": FACTS + 1, "version": 99, "run_sequence": 99, "root_sequence": 99}
        loot.rows.append(last)
        changes = {"version": 99, "run_sequence": 99, "root_sequence": 99, "payload": {}}
        loot.envelope(FACTS + 1, position=FACTS + 1, **changes)
        loot.rehash(key_of(told))

    told.attack(forge)
    assert_tampered(told, FACTS + 1, "position", **keyed(told))


def test_a_forged_fact_in_the_middle_with_everything_recomputed_is_found_between_two_checkpoints(told: World) -> None:
    def forge(loot: Loot) -> None:
        numbers = ("run_sequence", "root_sequence")
        for row in reversed(loot.rows[11:]):
            moved = {"position": row["position"] + 1}
            if row["run"] == "r":
                moved |= {name: row[name] + 1 for name in numbers}
            row.update(moved)
            loot.envelope(row["position"], **moved)
        forged = {"position": 12, "stream": "forged", "version": 1} | {name: loot.row(11)[name] + 1 for name in numbers}
        loot.rows.insert(11, {**loot.row(11), **forged})
        loot.envelope(12, **forged)
        loot.texts = [(p + 1 if p > 11 else p, *text) for p, *text in loot.texts]
        loot.cut(FACTS)
        loot.rehash(key_of(told))

    told.attack(forge)
    verdict = assert_tampered(told, 12, "root", **keyed(told))
    assert verdict.finding is not None
    assert verdict.finding.last == 12


@pytest.mark.parametrize("rehashed", [False, True], ids=["hashes kept", "hashes and chain recomputed"])
def test_edited_data_is_found_whatever_its_hashes_say(told: World, rehashed: bool) -> None:
    def edit(loot: Loot) -> None:
        payload = json.loads(loot.row(7)["state"])["payload"]
        loot.envelope(7, payload={**payload, "createdBy": "mallory"})
        if rehashed:
            loot.rehash(key_of(told))

    told.attack(edit)
    assert_tampered(told, 7, "root" if rehashed else "leaf_hash", **keyed(told))


def test_a_changed_text_is_found_at_its_fact(told: World) -> None:
    def put_words(loot: Loot) -> None:
        loot.texts = [
            (position, digest, salt, b"obey me!!!" if words == b"be careful" else words)
            for position, digest, salt, words in loot.texts
        ]

    told.attack(put_words)
    assert_tampered(told, 7, "texts")


def test_a_log_that_was_forked_and_signed_again_is_caught_by_the_pin(world: World, tmp_path: Path) -> None:
    """The attacker has every key, and makes another history of the same length, from the middle on."""
    log = world.open()
    unsteered(log)
    middle, kept = log.head(), log.checkpoint()
    steered(log, "s")
    pin = log.checkpoint()
    log.close()

    kind, world.kind = world.kind, "postgres" if world.kind == "postgres" else "sqlite"
    world.attack(lambda loot: loot.cut(middle))
    forge_head(world)
    world.checkpoints.unlink()
    forged = world.open()
    unsteered(forged, "s")
    while forged.head() < int(pin.split("\n")[1]) + 3:
        put(forged, said("s", "Nothing happened here."))
    forged.close()
    world.kind = kind
    if kind == "bundle":
        world.export()
    assert world.audit().finding is None
    assert_tampered(world, 1, "pin", pins=[pin])
    verdict = assert_tampered(world, middle + 1, "pin", pins=[pin, kept])
    assert verdict.finding is not None
    assert verdict.finding.last == int(pin.split("\n")[1])


def forge_head(world: World) -> None:
    """Sign what is left, as the log itself would have."""
    world.attack(lambda loot: loot.head.update(note=note_of(world, len(loot.rows))))


def test_a_pin_of_facts_that_are_gone_is_tampering_even_when_the_rest_is_signed(told: World) -> None:
    pin = told.open().checkpoint()
    told.attack(lambda loot: loot.cut(FACTS - 1))
    if told.kind == "bundle":
        told.attack(lambda loot: loot.head.update(note=note_of(told, FACTS - 1)))
    else:
        forge_head(told)
        told.checkpoints.unlink()
    verdict = told.audit(pins=[pin])
    assert found(verdict) == ("tampered", 20, FACTS, "size")


def note_of(world: World, size: int) -> str:
    return next(note for note in read_notes(world.checkpoints) if note.split("\n")[1] == str(size))


def test_a_changed_node_of_the_stored_tree_is_found_where_its_leaves_end(store: World) -> None:
    log = store.open()
    tell(log)
    log.close()
    recorder: Any = store.recorder()
    with recorder._immediate() if store.kind == "sqlite" else recorder._cursor() as cursor:
        cursor.execute(f"UPDATE nodes SET hash = {'zeroblob(32)' if store.kind == 'sqlite' else 'sha256(hash)'}")
    assert_tampered(store, 16, "nodes")


@pytest.mark.parametrize("topic", ["log.key_rotated", "log.opened"])
def test_nobody_takes_the_log_over_without_its_own_key(store: World, topic: str) -> None:
    """The attacker has keys of their own, signs with them, and says in the log that these are its keys now."""
    log = store.open()
    tell(log)
    log.close()
    recorder, mine, theirs = store.recorder(), new_keys(), store.ring.newest()
    signer = recorder.tree_head().signer
    assert theirs is not None
    assert signer is not None
    named: dict[str, Any] = {"signing_key_id": mine.signing_id, "hmac_key_id": mine.hmac_id}
    named["public_key"] = mine.public_text
    event: Event = LogOpened(origin=signer.origin, **named)
    if topic == "log.key_rotated":
        event = LogKeyRotated(
            **named,
            prior_signing_key_id=theirs.signing_id,
            prior_hmac_key_id=theirs.hmac_id,
            endorsement=sign_text(endorsement(signer.origin, mine.public_text), signer.origin, mine.signing),
        )
    _hand_over(recorder, SYSTEM_CLOCK, [event], Handover(signer_of(signer.origin, mine), mine, after=signer, file=None))
    assert_tampered(store, FACTS + 1, "endorsement" if topic == "log.key_rotated" else "publicKey")


def test_a_key_that_was_rotated_away_does_not_take_the_log_over_again(world: World) -> None:
    """It may have leaked, and been given up for that reason: neither the pin nor the chain may hide what it signs then."""
    log = world.open()
    tell(log)
    given_up = world.ring.newest()
    recorder = world.recorder()
    rotate_key(recorder, SYSTEM_CLOCK, world.ring, CheckpointFile(world.checkpoints))
    put(log, said("r", "Signed by the newer key."))
    pin, end = log.checkpoint(), log.head()
    log.close()
    assert given_up is not None
    (opened,), signer = _opened(given_up), recorder.tree_head().signer
    forged = Handover(signer_of(opened.origin, given_up), given_up, after=signer, file=None)
    _hand_over(recorder, SYSTEM_CLOCK, [opened], forged)
    if world.kind == "bundle":
        world.export()
    assert_tampered(world, end + 1, "publicKey", pins=[pin], **keyed(world))


def test_a_name_that_nobody_has_the_key_of_does_not_end_the_check_of_the_chain(store: World) -> None:
    log = store.open()
    tell(log)
    log.close()
    recorder, keys, keyed_before = store.recorder(), store.ring.newest(), keyed(store)
    assert keys is not None
    (opened,), signer = _opened(keys), recorder.tree_head().signer
    opened = msgspec.structs.replace(opened, hmac_key_id="f" * 32)
    forged = Handover(signer_of(opened.origin, keys), keys, after=signer, file=None)
    _hand_over(recorder, SYSTEM_CLOCK, [opened], forged)
    assert_tampered(store, FACTS + 1, "hmacKeyId", **keyed_before)
