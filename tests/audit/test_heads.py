"""The head, the chain and the file of checkpoints are audited, too, and nobody is accused by what anybody can write."""

import json
from collections.abc import Callable

import msgspec
import pytest
from click.testing import Result

from steersman.adapters.audit.log import audit
from steersman.adapters.audit.store import RunFacts
from steersman.adapters.log.sealing import signer_of
from steersman.adapters.log_format.checkpoint_file import read_notes
from steersman.adapters.log_format.head import signer_text
from steersman.adapters.log_format.keys import new_keys
from steersman.adapters.log_format.signed_note import parse_checkpoint, sign
from steersman.tests.audit.conftest import World
from steersman.tests.audit.facts import put, said, steered
from steersman.tests.audit.test_command import run as run  # noqa: PLC0414 - a fixture
from steersman.tests.audit.test_edges import change
from steersman.tests.audit.test_tampering import found


@pytest.fixture
def told(store: World) -> World:
    steered(store.open())
    return store


def audits(store: World) -> list[tuple[str, int, int | None, str]]:
    """Return what is found in the whole log, and in the run."""
    return [found(store.audit()), found(audit(RunFacts(store.recorder(), "r")))]


def test_an_emptied_or_foreign_signer_in_the_head_is_found(told: World) -> None:
    signer = told.recorder().tree_head().signer
    assert signer is not None
    other = signer_of(signer.origin, new_keys())
    for value in ("", signer_text(other), signer_text(msgspec.structs.replace(signer, origin="elsewhere.example/log"))):
        change(told, "UPDATE head SET signer = ?", value)
        assert audits(told) == [("tampered", 20, None, "signer")] * 2
    change(told, "UPDATE head SET signer = ?", signer_text(signer))
    assert told.audit().verdict == "steered"


def test_a_changed_note_in_the_head_is_found(told: World) -> None:
    head, keys = told.recorder().tree_head(), told.ring.newest()
    assert keys is not None
    right = parse_checkpoint(head.note)
    older = next(read_notes(told.checkpoints))
    forged = sign(right, new_keys().signing)
    for note in (older, forged, ""):
        change(told, "UPDATE head SET note = ?", note)
        assert found(told.audit()) in [("tampered", 20, None, field) for field in ("note", "checkpoint")]
        assert audit(RunFacts(told.recorder(), "r")).verdict in ("tampered", "unchecked")
    change(told, "UPDATE head SET note = ?", head.note)
    assert told.audit().verdict == "steered"


def test_a_changed_mac_is_a_finding_where_the_keys_are_and_is_said_to_be_unchecked_where_not(
    store: World, run: Callable[..., Result]
) -> None:
    log = store.open()
    steered(log)
    change(store, "UPDATE events SET mac = ? WHERE position = 7", b"\1" * 32)
    for arguments in (("verify",), ("classify", "r")):
        shown = json.loads(run(*arguments, "--json", expect=20).stdout)
        assert (shown["finding"]["position"], shown["finding"]["field"]) == (7, "mac")
    assert log.audit("r").verdict == "tampered", "the service has the keys"
    store.ring.directory.rename(store.home / "elsewhere")
    for arguments in (("verify",), ("classify", "r")):
        shown = run(*arguments, expect=10).stdout
        assert "the chain of MACs was not checked" in shown
        assert "receipt, not checked, 0101" in shown
        assert json.loads(run(*arguments, "--json", expect=10).stdout)["not_checked"] == ["the chain of MACs"]


@pytest.mark.parametrize("by", ["nobody", "a stranger", "our key, wrongly"])
def test_a_line_of_the_checkpoint_file_that_nobody_signed_accuses_nobody_and_is_told(told: World, by: str) -> None:
    right = parse_checkpoint(told.recorder().tree_head().note)
    larger, changed = (msgspec.structs.replace(right, size=999), msgspec.structs.replace(right, root=bytes(32)))
    lines = list[str]()
    for forged in (larger, changed):
        note = sign(forged, new_keys().signing)
        if by == "nobody":
            note = f"{forged.text}\n\u2014 {forged.origin} AAAAAAAA\n"
        elif by == "our key, wrongly":
            note = f"{forged.text}\n{told.recorder().tree_head().note.split(chr(10) * 2)[1]}"
        lines.append(json.dumps(note))
    with told.checkpoints.open("a", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
    verdict = told.audit()
    assert (verdict.verdict, verdict.finding, verdict.ignored_checkpoints) == ("steered", None, 2)
    if by == "our key, wrongly":
        assert put(told.open(), said("r", "And on.")) == 17, "nor does it keep the service from starting"


def test_what_a_key_of_ours_signed_counts_whatever_the_log_says_of_itself(
    store: World, run: Callable[..., Result]
) -> None:
    """The log was made anew under another key; the file beside it is the old one."""
    log = store.open()
    steered(log)
    log.close()
    note = store.recorder().tree_head().note
    for table in ("events", "{texts}", "nodes"):
        change(store, f"DELETE FROM {table}")
    change(store, "UPDATE head SET position = 0, edge = ?, mac = ?, signer = '', note = ''", b"", bytes(32))
    theirs = World(store.kind, store.place, store.home / "theirs", store._stack)
    theirs.home.mkdir()
    steered(theirs.open(), "r")
    theirs.checkpoints.write_text(json.dumps(note) + "\n", encoding="utf-8")
    assert json.loads(run("verify", "--json", expect=20).stdout)["verdict"] == "tampered"
