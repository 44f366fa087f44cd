"""No random byte is given twice: not to two askers, and not to a process that was forked meanwhile."""

import os
from concurrent.futures import ThreadPoolExecutor
from uuid import UUID

import pytest

from steersman.application.writer.randomness import DRAWN_BYTES, Randomness


def test_what_is_taken_is_as_much_as_was_asked_for_however_much_is_left() -> None:
    randomness = Randomness()
    counts = [0, 1, DRAWN_BYTES - 2, 16, DRAWN_BYTES + 1]
    assert [len(randomness.take(count)) for count in counts] == counts


def test_ids_are_of_version_4_and_no_two_of_them_are_the_same_whoever_asks() -> None:
    randomness = Randomness()
    with ThreadPoolExecutor(8) as pool:
        taken = [pool.submit(randomness.new_id) for _ in range(4_000)]
    ids = [one.result() for one in taken]
    assert len(set(ids)) == len(ids)
    assert {UUID(found).version for found in ids} == {4}


def test_few_draws_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    draws: list[int] = []

    def draw(count: int) -> bytes:
        draws.append(count)
        return bytes(count)

    monkeypatch.setattr(os, "urandom", draw)
    randomness = Randomness()
    for _ in range(512):
        randomness.new_id()
    assert draws == [DRAWN_BYTES, DRAWN_BYTES]


def test_a_forked_process_draws_for_itself() -> None:
    randomness = Randomness()
    randomness.take(1)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, randomness.take(16))
        os._exit(0)
    os.waitpid(child, 0)
    theirs = os.read(read, 16)
    os.close(read)
    os.close(write)
    assert len(theirs) == 16
    assert theirs != randomness.take(16)
