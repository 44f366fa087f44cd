"""A proof of a part proves its end, or says that nobody does: a run that was cut short is never clean."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from steersman.adapters.audit.bundle import Bundle
from steersman.adapters.audit.log import audit
from steersman.adapters.audit.store import RunFacts
from steersman.adapters.clock import SYSTEM_CLOCK
from steersman.adapters.log.opening import rotate_key
from steersman.adapters.log.sealing import OneKey
from steersman.adapters.log_format.checkpoint_file import CheckpointFile
from steersman.adapters.log_format.entry import Unreadable
from steersman.adapters.log_format.keys import new_keys
from steersman.adapters.log_format.merkle import edge_root
from steersman.adapters.log_format.signed_note import parse_checkpoint
from steersman.adapters.log_format.tree_heads import TreeHead, parse_tree_head, sign_tree_head
from steersman.tests.audit.conftest import Loot, World, attack_bundle
from steersman.tests.audit.facts import put, said, steered, unsteered
from steersman.tests.audit.test_command import run as run  # noqa: PLC0414 - a fixture
from steersman.tests.audit.test_edges import change, forge
from steersman.tests.audit.test_tampering import found


@pytest.fixture
def told(store: World) -> World:
    """A log in which run `r` was corrected behind its fifth fact, and another run went on."""
    log = store.open()
    unsteered(log, "other")
    steered(log)
    unsteered(log, "third")
    return store


def of_run(store: World) -> Path:
    return store.export("r", store.home / "run.bundle")


def header(path: Path, **changes: Any) -> None:
    """Write other members into what a bundle says of itself."""
    first, rest = path.read_bytes().split(b"\n", 1)
    members = json.loads(first)
    members["opening"] |= changes
    path.write_bytes(json.dumps(members).encode() + b"\n" + rest)


def uncorrected(loot: Loot) -> None:
    """Cut a run's bundle before its first correction."""
    loot.cut(next(row["position"] for row in loot.rows if "steering" in row["topic"]) - 1)


def test_a_run_s_bundle_that_is_cut_before_its_first_correction_is_not_clean(told: World) -> None:
    bundle, pin = of_run(told), told.open().checkpoint()
    assert audit(Bundle(bundle)).open_at_end is False
    attack_bundle(bundle, uncorrected)
    for pins in ([], [pin]):
        assert found(audit(Bundle(bundle), pins=pins)) == ("tampered", 20, None, "root_sequence")


def test_a_bundle_that_nobody_vouches_for_at_its_end_is_open_and_not_clean(told: World) -> None:
    bundle, pin = of_run(told), told.open().checkpoint()
    header(bundle, tree_head=None)
    verdict = audit(Bundle(bundle))
    assert (verdict.verdict, verdict.open_at_end, verdict.complete_to) == ("steered", True, 15)
    attack_bundle(bundle, uncorrected)
    for pins in ([], [pin]):
        verdict = audit(Bundle(bundle), pins=pins)
        assert (verdict.verdict, verdict.exit_code, verdict.open_at_end) == ("open", 30, True)
        assert verdict.finding is not None
        assert verdict.finding.reason.startswith("open at its end")


def test_a_head_of_an_earlier_end_does_not_close_a_later_bundle(told: World) -> None:
    log = told.open()
    early = json.loads(told.export("other", told.home / "early").read_bytes().split(b"\n", 1)[0])["opening"]
    put(log, said("other", "More."))
    later = told.export("other", told.home / "later")
    assert audit(Bundle(later)).verdict == "clean"
    header(later, tree_head=early["tree_head"])
    assert audit(Bundle(later)).verdict == "open"


def test_a_head_of_another_run_or_by_another_key_closes_nothing(told: World) -> None:
    bundle, other = of_run(told), told.export("other", told.home / "other")
    theirs = json.loads(other.read_bytes().split(b"\n", 1)[0])["opening"]["tree_head"]
    header(bundle, tree_head=theirs)
    assert audit(Bundle(bundle)).open_at_end
    head, keys = told.recorder().tree_head(), new_keys()
    assert head.signer is not None

    class Theirs(OneKey):
        def get(self, signing_id: str, hmac_id: str) -> Any:
            return self.keys

    header(bundle, tree_head=sign_tree_head(Theirs(keys), head, "r", 15))
    assert found(audit(Bundle(bundle))) == ("tampered", 20, None, "tree_head")
    header(bundle, tree_head=head.note)
    assert found(audit(Bundle(bundle))) == ("tampered", 20, None, "tree_head")


def test_a_bundle_is_open_towards_a_pin_that_is_newer(told: World) -> None:
    bundle = told.export("other", told.home / "other")
    log = told.open()
    put(log, said("other", "And on."))
    verdict = audit(Bundle(bundle), pins=[log.checkpoint()])
    assert (verdict.verdict, verdict.open_at_end, verdict.pinned) == ("open", True, False)
    assert verdict.finding is not None
    assert "the pin is of 27 facts" in verdict.finding.reason


def test_a_head_is_signed_by_the_key_in_force(told: World) -> None:
    rotate_key(told.recorder(), SYSTEM_CLOCK, told.ring, CheckpointFile(told.checkpoints))
    assert audit(Bundle(told.export("other", told.home / "other"))).verdict == "clean"
    verdict = told.open().audit("other")
    assert verdict.tree_head is not None
    assert parse_tree_head(verdict.tree_head).length == 5


def test_a_tree_head_is_a_note_that_is_no_checkpoint(told: World) -> None:
    verdict = told.open().audit("r")
    assert verdict.tree_head is not None
    head = told.recorder().tree_head()
    assert head.signer is not None
    text = verdict.tree_head.split("\n\n")[0].split("\n")
    assert text[:4] == [f"{head.signer.origin}/tree-head@v1", "r", "15", "26"]
    assert parse_tree_head(verdict.tree_head) == TreeHead(
        origin=head.signer.origin, run="r", length=15, size=26, root=edge_root(head.edge)
    )
    with pytest.raises(ValueError, match="base64"):
        parse_checkpoint(verdict.tree_head)


def test_without_the_keys_a_bundle_is_written_and_open(
    store: World, run: Callable[..., Result], tmp_path: Path
) -> None:
    unsteered(store.open())
    run("export", "r", "-o", tmp_path / "closed")
    assert "complete to 5 at size 6" in run("verify", tmp_path / "closed").stdout
    store.ring.directory.rename(tmp_path / "elsewhere")
    said_so = run("export", "r", "-o", tmp_path / "open").stderr
    assert "Nobody vouches that the run has no more" in said_so
    shown = run("verify", tmp_path / "open", expect=30).stdout
    assert "\nopen\n" in shown
    assert "complete to" not in shown
    assert json.loads(run("verify", tmp_path / "open", "--json", expect=30).stdout)["open_at_end"]
    run("classify", "r")  # who has the store needs no key to see where a run ends


@pytest.mark.parametrize("forgets", ["rows", "rows and nodes"])
def test_a_store_that_was_cut_is_tampered_for_its_runs_too(told: World, forgets: str) -> None:
    log = told.open()
    assert log.audit("other").verdict == "clean"
    change(told, "DELETE FROM events WHERE position > 10")
    if forgets == "rows and nodes":
        change(told, "DELETE FROM nodes")
    for run_id in ("other", "r", "third"):
        for verdict in (log.audit(run_id), audit(RunFacts(told.recorder(), run_id))):
            assert (verdict.verdict, verdict.exit_code) == ("tampered", 20), run_id


def test_a_forged_row_under_a_raised_head_is_no_correction(told: World) -> None:
    forge(told, 27)
    change(told, "UPDATE head SET position = 27")
    assert found(audit(RunFacts(told.recorder(), "r")))[:2] == ("tampered", 20)
    assert told.open().audit("r").verdict == "tampered"


@pytest.mark.parametrize("hidden", ["root = 'x', run = 'x'", "root = NULL, root_sequence = NULL"])
def test_the_last_facts_of_a_run_are_missed_when_they_are_hidden_from_it(told: World, hidden: str) -> None:
    change(told, f"UPDATE events SET {hidden} WHERE root = 'other' AND root_sequence > 3")
    verdict = audit(RunFacts(told.recorder(), "other"))
    assert found(verdict) == ("tampered", 20, None, "root_sequence")
    change(told, "UPDATE events SET state = leaf_hash WHERE position = 5")
    with pytest.raises(Unreadable, match="audit it"):
        told.export("other", told.home / "bundle")


def test_a_process_that_has_looked_at_the_log_notices_what_is_taken_from_it_later(told: World) -> None:
    log = told.open()
    assert log.audit("third").verdict == "clean"
    change(told, "DELETE FROM events WHERE root = 'third' AND root_sequence > 3")
    assert log.audit("third").verdict == "tampered"
