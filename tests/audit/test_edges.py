"""What stands at the edges of a log: behind its head, before its first fact, and behind the last fact of a run."""

import json
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from steersman.adapters.audit.bundle import Bundle
from steersman.adapters.audit.log import audit
from steersman.adapters.audit.store import RunFacts, WholeLog
from steersman.adapters.clock import SYSTEM_CLOCK
from steersman.adapters.log.opening import accept_restore, rotate_key
from steersman.adapters.log_format.checkpoint_file import CheckpointFile
from steersman.adapters.log_format.keys import KeysRefused
from steersman.adapters.log_format.merkle import leaf_hash
from steersman.application.ports.log import LogRolledBack
from steersman.tests.audit.conftest import World
from steersman.tests.audit.facts import put, said, steered, unsteered


def change(store: World, statement: str, *values: Any) -> None:
    """Let somebody who can write the store, and has no key, change it; {texts} is where its texts are written."""
    if store.kind == "postgres":
        with psycopg.connect(store.place) as connection:
            connection.execute(statement.replace("?", "%s").replace("{texts}", "texts"), values)
        return
    recorder: Any = store.recorder()
    with recorder._immediate() as cursor:
        cursor.execute(statement.replace("{texts}", "kept_texts"), values)


def forge(store: World, position: int) -> None:
    """Put a fact of the run `r` where no signature reaches."""
    log = store.open()
    last = log.read_tree("r", limit=1_000)[-1]
    members = json.loads(store.recorder().rows("position", "", last.position - 1, 1)[0].state)
    members |= {"position": position, "root_sequence": 900, "run_sequence": 900, "version": 900}
    state = json.dumps(members, sort_keys=True, separators=(",", ":")).encode()
    change(
        store,
        "INSERT INTO events (position, stream, version, topic, state, run, run_sequence, root, root_sequence,"
        " command_id, at, leaf_hash) VALUES (?, ?, 900, ?, ?, 'r', 900, 'r', 900, 'c', ?, ?)",
        *(position, last.stream, last.topic, state, members["at"], leaf_hash(state)),
    )


@pytest.mark.parametrize(("level", "number"), [(4, 1), (4, 7), (8, 0)])
def test_a_node_at_a_place_that_the_tree_has_not_reached_is_found_before_the_log_stops_at_it(
    store: World, level: int, number: int
) -> None:
    steered(store.open())
    assert store.recorder().tree_head().edge.size < 32
    change(store, "INSERT INTO nodes (level, number, hash) VALUES (?, ?, ?)", level, number, bytes(32))
    verdict = store.audit()
    assert (verdict.verdict, verdict.finding.field) == ("tampered", "nodes")


@pytest.mark.parametrize("position", [-7, 0, 10_000])
def test_a_fact_that_stands_where_no_signature_reaches_is_found_and_nothing_is_stored_on_top(
    store: World, position: int
) -> None:
    steered(store.open())
    forge(store, position)
    assert not store.open().read_tree("r", after=899), "nobody who reads takes it for a fact"
    verdict = store.audit()
    assert (verdict.verdict, verdict.finding.position, verdict.finding.field) == ("tampered", position, "position")
    assert audit(RunFacts(store.recorder(), "r")).verdict == "tampered"
    with pytest.raises(LogRolledBack):
        put(store.open(), said("r", "On top."))


def test_a_chain_that_would_go_on_from_another_mac_is_found_before_it_does(store: World) -> None:
    steered(store.open())
    change(store, "UPDATE head SET mac = ?", b"\1" * 32)
    verdict = store.audit(hmac_keys=store.hmac_keys)
    assert (verdict.verdict, verdict.finding.field) == ("tampered", "head")
    with pytest.raises(LogRolledBack):
        put(store.open(), said("r", "On top."))
    with pytest.raises(KeysRefused, match="changed"):
        accept_restore(store.recorder(), SYSTEM_CLOCK, store.ring, CheckpointFile(store.checkpoints))


def test_a_run_that_ended_before_the_keys_were_rotated_is_as_sound_as_before(store: World) -> None:
    log = store.open()
    steered(log)
    rotate_key(store.recorder(), SYSTEM_CLOCK, store.ring, CheckpointFile(store.checkpoints))
    unsteered(log, "later")
    for verdict in (log.audit("r"), audit(Bundle(store.export("r"))), audit(RunFacts(store.recorder(), "later"))):
        assert (verdict.finding, verdict.verdict) in [(None, "steered"), (None, "clean")]
    assert log.audit("nobody's").facts == 0


class Busy:
    """A store to which somebody appends after each look at one part of it."""

    def __init__(self, recorder: Any, append: Callable[[], object]) -> None:
        self._recorder = recorder
        self._append = append

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._recorder, name)

        def looked(*args: Any) -> Any:
            answer = found(*args)
            self._append()
            return answer

        return looked


@pytest.mark.parametrize("whole", [True, False])
def test_a_log_that_grows_between_any_two_looks_at_it_is_sound(store: World, whole: bool) -> None:
    log = store.open()
    unsteered(log, "r")
    busy = Busy(store.recorder(), lambda: put(log, said("r", "Later.")))
    source = WholeLog(busy, store.checkpoints) if whole else RunFacts(busy, "r")
    verdict = audit(source)
    assert (verdict.verdict, verdict.finding) == ("clean", None)
