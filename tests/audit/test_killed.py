"""`kill -9` in the middle of appends: what was acknowledged is there, once, proved, and file and store agree."""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter

from steersman.adapters.log_format.checkpoint_file import read_notes
from steersman.adapters.log_format.merkle import proves_inclusion
from steersman.adapters.log_format.signed_note import bytes_of, parse_checkpoint
from steersman.tests.audit.conftest import World

CALLERS = 64
#: Another number is other moments.
SEED = int(os.environ.get("STEERSMAN_TEST_SEED", "9"))
#: A batch takes some milliseconds: the kill may come at any time of it.
LONGEST_DELAY_SECONDS = 0.03
#: How many acknowledged appends there have to be; 10,000 where somebody has the time.
APPENDS = int(os.environ.get("STEERSMAN_TEST_APPENDS", "600"))
#: After how many of them a process is killed, at most.
MOST_IN_A_LIFE = max(150, APPENDS // 12)


def test_every_acknowledged_append_survives_kill_9_once_and_with_its_proof(store: World) -> None:
    acknowledged: dict[str, int] = {}
    chance, lives = random.Random(SEED), 0
    while len(acknowledged) < APPENDS:
        lives += 1
        until, delay = chance.randrange(MOST_IN_A_LIFE // 3, MOST_IN_A_LIFE), chance.uniform(0, LONGEST_DELAY_SECONDS)
        acknowledged |= one_life(store, f"life{lives}", until, delay)
    assert lives > 3
    log = store.open()
    size = log.head()
    newest = [parse_checkpoint(note) for note in read_notes(store.checkpoints)][-1]
    assert newest == parse_checkpoint(log.checkpoint())
    assert newest.size == size
    stored = Counter(fact.command_id for after in range(0, size, 500) for fact in log.read(after, 500))
    assert max(stored.values()) == 1
    for command_id, position in acknowledged.items():
        assert stored[command_id] == 1
        (fact,) = log.read(position - 1, 1)
        assert fact.command_id == command_id
    for position in chance.sample(sorted(acknowledged.values()), 25):
        proof = log.inclusion(position - 1, size)
        hashes = [bytes_of(step) for step in proof.hashes]
        assert proves_inclusion(bytes.fromhex(proof.leaf_hash), position - 1, size, hashes, newest.root)
    verdict = store.audit(hmac_keys=store.hmac_keys)
    assert (verdict.verdict, verdict.finding, verdict.chained) == ("clean", None, size)


def one_life(store: World, name: str, until: int, delay: float) -> dict[str, int]:
    """Let a process append until so many appends were acknowledged, kill it, and return what it had said by then."""
    arguments = (store.kind, str(store.place), str(store.home), name, str(CALLERS))
    writer = subprocess.Popen(
        [sys.executable, "-P", "-m", "steersman.tests.audit.writer", *arguments], stdout=subprocess.PIPE
    )
    assert writer.stdout is not None
    with writer.stdout:
        lines = [writer.stdout.readline() for _ in range(until)]
        time.sleep(delay)
        writer.kill()
        lines += writer.stdout.readlines()
    assert writer.wait() == -signal.SIGKILL, "the writer ended by itself"
    return {name: int(position) for name, position in (line.decode().split() for line in lines)}
