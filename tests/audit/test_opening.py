"""A log is signed by its own keys only, and a store that was put back is noticed before anything is added to it."""

import os
import shutil
import stat
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from steersman.adapters.clock import SYSTEM_CLOCK
from steersman.adapters.log.opening import NothingToAccept, accept_restore, rotate_key, sealed_by
from steersman.adapters.log_format.checkpoint_file import CheckpointFile, read_notes
from steersman.adapters.log_format.head import Head, Signer, edge_bytes, read_head, signer_text
from steersman.adapters.log_format.keys import Keyring, KeysRefused
from steersman.adapters.log_format.merkle import Edge
from steersman.adapters.log_format.signed_note import key_hash, parse_checkpoint, parse_note, signers
from steersman.adapters.stores.postgres_log import PostgresLog
from steersman.adapters.stores.sqlite_log import SqliteLog
from steersman.application.ports.log import LogRolledBack, LogUnavailable
from steersman.domain.kinds.catalogue import CATALOGUE
from steersman.domain.kinds.log import LogKeyRotated, LogOpened
from steersman.tests.audit.conftest import World
from steersman.tests.audit.facts import put, said, steered, unsteered
from steersman.tests.audit.test_tampering import note_of


def sizes(path: Path) -> list[int]:
    return [parse_checkpoint(note).size for note in read_notes(path)]


def back_up(world: World) -> Callable[[], None]:
    """Return what puts the store back to what it is now."""
    head = world.recorder().tree_head()
    values = (head.mac, signer_text(head.signer))

    def restore() -> None:
        world.attack(lambda loot: (loot.cut(head.edge.size), loot.head.update(note=head.note)))
        recorder: Any = world.recorder()
        if world.kind == "sqlite":
            with recorder._immediate() as cursor:
                cursor.execute("UPDATE head SET mac = ?, signer = ?", values)
        else:
            with recorder._cursor() as cursor:
                cursor.execute("UPDATE head SET mac = %s, signer = %s", values)

    return restore


def restored(world: World, rotations: int = 0) -> None:
    """Let a store lose its last facts, and rotations of its keys, as an old backup does; the files beside it stay."""
    log = world.open()
    unsteered(log)
    log.close()
    restore = back_up(world)
    for _ in range(rotations):
        rotate_key(world.recorder(), SYSTEM_CLOCK, world.ring, CheckpointFile(world.checkpoints))
    log = world.open()
    steered(log, "lost")
    log.close()
    restore()


def test_the_first_fact_names_the_keys_and_every_later_open_finds_them(store: World) -> None:
    log = store.open()
    (first,) = log.read()
    keys = store.ring.newest()
    assert keys is not None
    assert isinstance(first.event, LogOpened)
    assert (first.position, first.run, first.event.signing_key_id, first.event.hmac_key_id) == (
        1,
        None,
        keys.signing_id,
        keys.hmac_id,
    )
    unsteered(log)
    unsteered(store.open(), "other")
    assert [f.topic for f in log.read()].count("log.opened") == 1


def test_keys_are_for_nobody_else(tmp_path: Path) -> None:
    ring = Keyring(tmp_path / "state" / "keys")
    made = ring.make()
    files = [ring.directory, *ring.directory.iterdir()]
    assert [stat.S_IMODE(file.stat().st_mode) for file in files] == [0o700, 0o600, 0o600]
    newest = ring.newest()
    assert newest is not None
    assert (newest.signing_id, newest.hmac) == (made.signing_id, ring.get(made.signing_id, made.hmac_id).hmac)
    for file in files:
        mode = file.stat().st_mode
        file.chmod(0o640 if file.is_file() else 0o750)
        with pytest.raises(KeysRefused, match="by others"):
            ring.newest()
        file.chmod(mode)


def test_keys_that_are_not_keys_are_refused_by_name(tmp_path: Path) -> None:
    ring = Keyring(tmp_path / "keys")
    one, other = ring.make(), ring.make()
    pem = ring.directory / f"{one.signing_id}.pem"
    pem.write_bytes((ring.directory / f"{other.signing_id}.pem").read_bytes())
    with pytest.raises(KeysRefused, match="another key"):
        ring.get(one.signing_id, one.hmac_id)
    pem.write_bytes(b"nonsense")
    with pytest.raises(KeysRefused, match="cannot be read"):
        ring.get(one.signing_id, one.hmac_id)
    with pytest.raises(KeysRefused, match="not the HMAC key"):
        ring.get(other.signing_id, one.hmac_id)


def test_keys_that_another_process_forgets_at_this_moment_are_none(tmp_path: Path) -> None:
    ring = Keyring(tmp_path / "keys")
    made = ring.make()
    # Listed, and not there any more when it is read.
    (ring.directory / "ffff.pem").symlink_to("nowhere")
    newest = ring.newest()
    assert newest is not None
    assert newest.signing_id == made.signing_id
    assert [keys.public for keys in ring.all()] == [made.public]


def test_a_process_that_holds_other_keys_does_not_open_the_log(store: World) -> None:
    store.open().close()
    store.ring = Keyring(store.home / "elsewhere")
    with pytest.raises(KeysRefused, match="not in"):
        store.open()
    store.ring.make()
    with pytest.raises(KeysRefused, match="not in"):
        store.open()


def test_facts_that_nobody_signed_are_not_vouched_for_later(tmp_path: Path) -> None:
    log = SqliteLog(tmp_path / "log.db", CATALOGUE)
    put(log, said("r", "Nobody signed this."))
    log.close()
    seal = sealed_by(Keyring(tmp_path / "keys"), CheckpointFile(tmp_path / "checkpoints.log"))
    with pytest.raises(KeysRefused, match="nobody signed"):
        SqliteLog(tmp_path / "log.db", CATALOGUE, seal=seal)
    assert Keyring(tmp_path / "keys").newest() is None


def test_a_signed_log_takes_nothing_from_a_process_without_its_keys(store: World) -> None:
    store.open().close()
    other = (SqliteLog if store.kind == "sqlite" else PostgresLog)(store.place, CATALOGUE)
    with pytest.raises(LogUnavailable, match="without its keys"):
        put(other, said("r", "Unsigned."))
    assert other.head() == 1
    other.close()


def test_every_commit_is_in_the_file_before_it_is_answered(store: World) -> None:
    log = store.open()
    for turn in range(3):
        position = put(log, said("r", "one"), said("r", "two"))
        assert sizes(store.checkpoints)[-1] == position == 3 + 2 * turn
    assert sizes(store.checkpoints) == [1, 3, 5, 7]
    log.close()
    store.open().close()
    assert sizes(store.checkpoints) == [1, 3, 5, 7]


def test_a_file_that_is_behind_the_store_is_repaired(store: World) -> None:
    """A process died between its commit and the file; the file even ends in half a line."""
    log = store.open()
    unsteered(log)
    log.close()
    lines = store.checkpoints.read_bytes().splitlines(keepends=True)
    store.checkpoints.write_bytes(b"".join(lines[:-1]) + lines[-1][:40])
    assert put(store.open(), said("r", "And on.")) == 7
    assert sizes(store.checkpoints) == [1, 2, 4, 6, 7]


def test_a_store_that_was_put_back_takes_nothing_until_that_is_accepted(store: World) -> None:
    restored(store)
    log = store.open()
    with pytest.raises(LogRolledBack, match="21 were signed"):
        put(log, said("r", "Too late."))
    assert log.head() == 6
    log.close()
    (opened,) = accept_restore(store.recorder(), SYSTEM_CLOCK, store.ring, CheckpointFile(store.checkpoints))
    assert (opened.prior_size, opened.signing_key_id) == (21, store.ring.newest().signing_id)
    lost = parse_checkpoint(note_of(store, 21))
    assert (opened.prior_origin, lost.origin != opened.origin) == (lost.origin, True)
    log = store.open()
    assert log.read(6)[0].event == opened
    assert put(log, said("r", "And on.")) == 8
    with pytest.raises(NothingToAccept):
        accept_restore(store.recorder(), SYSTEM_CLOCK, store.ring, CheckpointFile(store.checkpoints))
    assert log.checkpoint().startswith(opened.origin)


@pytest.mark.parametrize("rotations", [1, 2])
def test_a_log_that_is_put_back_behind_a_rotation_goes_on_with_the_newer_key(store: World, rotations: int) -> None:
    """The old one may have leaked, and been given up for that reason."""
    restored(store, rotations)
    (old,) = {signer.signing_id for signer in [store.recorder().tree_head().signer] if signer}
    lost = [note for note in read_notes(store.checkpoints)][-1]
    for keys in store.ring.directory.glob(f"{old}.pem"):
        os.utime(keys)  # copied back last: when a file was made says nothing of which key is newer
    accept_restore(store.recorder(), SYSTEM_CLOCK, store.ring, CheckpointFile(store.checkpoints))
    log = store.open()
    assert put(log, said("r", "And on.")) == 9
    key, note = log.key(), log.checkpoint()
    assert key is not None
    origin, keys = parse_checkpoint(note).origin, {each.signing_id: each for each in store.ring.all()}
    hashes = {signing_id: key_hash(origin, each.public) for signing_id, each in keys.items()}
    assert key.signing_key_id != old
    signed_lost = {line.key_hash for line in parse_note(lost)[1]}
    assert key_hash(parse_checkpoint(lost).origin, keys[key.signing_key_id].public) in signed_lost
    assert signers(note, {hashes[name]: keys[name].public for name in keys}) == {hashes[key.signing_key_id]}
    # No checkpoint of the new name is vouched for by the old key alone.
    notes = [note for note in read_notes(store.checkpoints) if parse_checkpoint(note).origin == origin]
    assert all({line.key_hash for line in parse_note(note)[1]} - {hashes[old]} for note in notes)
    verdict = store.audit(hmac_keys=store.hmac_keys, pins=[note])
    assert (verdict.verdict, verdict.finding, verdict.facts, verdict.chained) == ("clean", None, 9, 9)
    assert verdict.signing_key_ids[-1] == key.signing_key_id
    verdict = store.audit(pins=[lost])
    assert (verdict.verdict, verdict.finding and verdict.finding.reason) == (
        "tampered",
        "facts that were pinned are missing",
    )


def test_keys_that_were_put_back_with_the_log_sign_nothing_more_once_it_had_newer_ones(store: World) -> None:
    restored(store, rotations=1)
    signer, file = store.recorder().tree_head().signer, CheckpointFile(store.checkpoints)
    assert signer is not None
    newer = store.ring.directory.rename(store.home / "newer keys")
    store.ring.directory.mkdir(mode=0o700)
    for name in (f"{signer.signing_id}.pem", f"{signer.signing_id}.hmac"):
        copied = store.ring.directory / name
        copied.touch(mode=0o600)
        copied.write_bytes((newer / name).read_bytes())
    with pytest.raises(KeysRefused, match="newest keys"):
        store.open()
    with pytest.raises(KeysRefused, match="newest keys"):
        accept_restore(store.recorder(), SYSTEM_CLOCK, store.ring, file)
    store.ring = Keyring(newer)
    accept_restore(store.recorder(), SYSTEM_CLOCK, store.ring, file)
    assert put(store.open(), said("r", "And on."))


@pytest.mark.parametrize("times", [1, 3])
def test_a_backup_from_before_an_accepted_restore_is_accepted_too(store: World, times: int) -> None:
    """Each time histories end that the backup knows nothing of; every one of them is named, and the log is written again."""
    file, ended = CheckpointFile(store.checkpoints), list[str]()
    log = store.open()
    unsteered(log)
    kept = log.checkpoint()
    restore = back_up(store)
    for turn in range(1 + times):
        unsteered(log, f"lost {turn}")
        ended.append(log.checkpoint())
        log.close()
        restore()
        opened = accept_restore(store.recorder(), SYSTEM_CLOCK, store.ring, file)
        found = [parse_checkpoint(note) for note in ended]
        assert [(each.prior_origin, each.prior_size) for each in opened] == [(each.origin, each.size) for each in found]
        log = store.open()
        assert log.rolled_back is None
    assert put(log, said("r", "And on.")) == 6 + len(ended) + 1
    with pytest.raises(NothingToAccept):
        accept_restore(store.recorder(), SYSTEM_CLOCK, store.ring, file)
    verdict = store.audit(hmac_keys=store.hmac_keys, pins=[kept, log.checkpoint()])
    assert (verdict.verdict, verdict.finding, verdict.chained) == ("clean", None, log.head())
    assert verdict.origin == parse_checkpoint(log.checkpoint()).origin
    for note in ended:
        finding = store.audit(pins=[note]).finding
        assert finding is not None
        assert (finding.reason, finding.position) == ("facts that were pinned are missing", 7)


@pytest.mark.parametrize("lost", [1, 5])
def test_a_store_that_is_put_back_under_a_running_process_takes_nothing_more(store: World, lost: int) -> None:
    """PostgreSQL fails over to a copy that was behind: what is gone was signed, and no second history is begun."""
    log = store.open()
    unsteered(log)
    restore = back_up(store)
    for _ in range(lost):
        put(log, said("r", "Gone."))
    restore()
    assert log.rolled_back is None
    for _ in range(2):
        with pytest.raises(LogRolledBack, match=f"holds 6 facts, and {6 + lost} were signed.*accept-restore"):
            put(log, said("r", "A second history."))
    assert (log.head(), "accept-restore" in str(log.rolled_back)) == (6, True)
    log.close()
    assert str(store.open().rolled_back).startswith(f"the store holds 6 facts, and {6 + lost} were signed")


def test_a_store_that_was_emptied_or_replaced_begins_no_second_history(store: World) -> None:
    log = store.open()
    unsteered(log)
    log.close()
    store.attack(lambda loot: (loot.rows.clear(), loot.texts.clear(), loot.head.update(note="")))
    recorder: Any = store.recorder()
    if store.kind == "sqlite":
        with recorder._immediate() as cursor:
            cursor.execute("UPDATE head SET signer = '', mac = zeroblob(32)")
    else:
        with recorder._cursor() as cursor:
            cursor.execute("UPDATE head SET signer = '', mac = decode(repeat('00', 32), 'hex')")
    log = store.open()
    with pytest.raises(LogRolledBack, match="does not know"):
        put(log, said("r", "A second history."))
    (opened,) = accept_restore(store.recorder(), SYSTEM_CLOCK, store.ring, CheckpointFile(store.checkpoints))
    assert opened.prior_size == 6
    assert store.open().read()[0].event == opened


def test_a_store_with_another_history_of_the_same_length_takes_nothing(store: World) -> None:
    restored(store)
    shutil.copy(store.checkpoints, store.home / "kept")
    store.checkpoints.unlink()
    log = store.open()
    while log.head() < 25:
        put(log, said("r", "Another history."))
    log.close()
    shutil.copy(store.home / "kept", store.checkpoints)
    with pytest.raises(LogRolledBack, match="not those that were signed"):
        put(store.open(), said("r", "Too late."))


def test_a_head_that_somebody_wrote_takes_nothing(store: World) -> None:
    log = store.open()
    unsteered(log)
    log.close()
    note = note_of(store, 4)
    store.attack(lambda loot: loot.head.update(note=note))
    with pytest.raises(LogRolledBack, match="head of the store"):
        put(store.open(), said("r", "Too late."))


def test_rotation_is_a_fact_that_both_keys_sign_and_a_running_process_follows(store: World) -> None:
    log = store.open()
    unsteered(log)
    old = store.ring.newest()
    assert old is not None
    rotated = rotate_key(store.recorder(), SYSTEM_CLOCK, store.ring, CheckpointFile(store.checkpoints))
    note = log.checkpoint()
    new = store.ring.get(rotated.signing_key_id, rotated.hmac_key_id)
    origin = parse_checkpoint(note).origin
    known = {key_hash(origin, key.public): key.public for key in (old, new)}
    assert signers(note, known) == frozenset(known)
    assert put(log, said("r", "And on.")) == 8
    assert len(parse_note(log.checkpoint())[1]) == 1
    assert signers(log.checkpoint(), known) == {key_hash(origin, new.public)}
    assert isinstance(log.read(6)[0].event, LogKeyRotated)
    assert log.key().signing_key_id == new.signing_id
    log.close()
    store.open().close()


class Full:
    """A file that cannot be written, as often as it is told."""

    def __init__(self, file: CheckpointFile) -> None:
        self.file = file
        self.times = 0
        self.half = False
        self._append = file._append
        file._append = self.append

    def append(self, line: bytes) -> int:
        if self.times:
            self.times -= 1
            if self.half:
                with self.file.path.open("ab") as file:
                    file.write(line[:50])
            raise OSError(28, "No space left on device")
        return self._append(line)


@pytest.mark.parametrize("half", [False, True], ids=["nothing written", "half a line written"])
def test_a_full_disk_refuses_writes_and_loses_nothing_that_was_acknowledged(tmp_path: Path, half: bool) -> None:
    file = CheckpointFile(tmp_path / "checkpoints.log")
    log = SqliteLog(tmp_path / "log.db", CATALOGUE, seal=sealed_by(Keyring(tmp_path / "keys"), file))
    put(log, said("r", "one"))
    full = Full(file)
    full.times, full.half = 6, half
    for attempt in range(2):
        with pytest.raises(LogUnavailable, match="No space"):
            put(log, said("r", "two"), command_id=f"c{attempt}")
    assert log.head() == 3, "only the first is stored, unanswered; then nothing more until the disk is well"
    with pytest.raises(LogUnavailable):
        put(log, said("r", "two"), command_id="c0")
    assert put(log, said("r", "two"), command_id="c0") == 3
    assert put(log, said("r", "three"), command_id="c1") == 4
    assert sizes(file.path) == [1, 2, 3, 4]
    log.close()


def test_a_lost_acknowledgement_is_answered_only_once_its_checkpoint_is_in_the_file(store: World) -> None:
    log = store.open()
    recorder: Any = log._recorder
    transaction = recorder.transaction

    @contextmanager
    def lossy() -> Generator[Any]:
        with transaction() as inner:
            yield inner
        recorder.transaction = transaction
        raise LogUnavailable("the connection died after the commit")

    recorder.transaction = lossy
    assert put(log, said("r", "one")) == 2
    assert sizes(store.checkpoints) == [1, 2]


def test_processes_that_begin_a_log_together_agree_on_its_keys(postgres_url: str, tmp_path: Path) -> None:
    ring, path = Keyring(tmp_path / "keys"), tmp_path / "checkpoints.log"

    def begin(_: int) -> PostgresLog:
        return PostgresLog(postgres_url, CATALOGUE, seal=sealed_by(ring, CheckpointFile(path)))

    with ThreadPoolExecutor(4) as threads:
        logs = list(threads.map(begin, range(4)))
        positions = list(threads.map(lambda log: put(log, said(f"r{id(log)}", "Here.")), logs))
    assert sorted(positions) == [2, 3, 4, 5]
    assert max(sizes(path)) == 5
    for log in logs:
        log.close()
    assert os.listdir(ring.directory)


def test_a_head_is_read_as_it_was_written() -> None:
    head = Head(Edge(3, (b"\x01" * 32, b"\x02" * 32)), b"\x03" * 32, Signer("o", "s", "h", "p"), "note\n")
    stored = (head.edge.size, edge_bytes(head.edge), head.mac, signer_text(head.signer), head.note)
    assert read_head(*stored) == head
    assert read_head(0, b"", bytes(32), "", "") == Head()
