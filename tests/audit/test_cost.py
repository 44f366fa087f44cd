"""An append costs the same in a long log as in a short one, with its leaves, its chain and its checkpoint."""

from pathlib import Path
from typing import Any

import pytest

from steersman.adapters.log.opening import sealed_by
from steersman.adapters.log_format.checkpoint_file import CheckpointFile
from steersman.adapters.log_format.keys import Keyring
from steersman.adapters.stores.sqlite_log import SqliteLog
from steersman.domain.kinds.catalogue import CATALOGUE
from steersman.tests.audit.conftest import World
from steersman.tests.audit.facts import put, said

SMALL, LARGE, COUNTED = 400, 12_000, 40


def fill(log: Any, upto: int) -> None:
    while (head := log.head()) < upto:
        put(log, *(said(f"r{head + n}", "x") for n in range(min(2000, upto - head))))


def test_sqlite_executes_the_same_statements_whatever_the_log_s_length(tmp_path: Path) -> None:
    seal = sealed_by(Keyring(tmp_path / "keys"), CheckpointFile(tmp_path / "checkpoints.log"))
    log = SqliteLog(tmp_path / "log.db", CATALOGUE, seal=seal)
    recorder: Any = log._recorder
    seen: list[str] = []
    connection = recorder.datastore.pool.get_connection()
    connection._sqlite_conn.set_trace_callback(seen.append)
    recorder.datastore.pool.put_connection(connection)

    def cost() -> set[str]:
        seen.clear()
        position = put(log, said(f"counted {log.head()}", "x"))
        assert position % 16, "a node that is completed is one statement more"
        return {statement.split(" VALUES")[0].split(" WHERE")[0].split(" SET")[0] for statement in seen}

    fill(log, SMALL)
    small = cost()
    fill(log, LARGE)
    assert small == cost()
    assert len(small) < 12
    log.close()


@pytest.mark.parametrize("size", [1, 15, 16, 17, 255, 256, 257])
def test_proofs_are_there_at_every_size_that_completes_a_node(store: World, size: int) -> None:
    log = store.open()
    fill(log, size)
    verdict = store.audit()
    assert (verdict.finding, verdict.size) == (None, size)
    assert log.inclusion(size - 1, size).root == log.consistency(1, size).new_root
