"""What an audit from the command line reads: stores opened to read, pins, keys, views; and how far it is."""

import os
import shutil
import sqlite3
import sys
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import psycopg
from eventsourcing.persistence import PersistenceError
from eventsourcing.sqlite import SQLiteDatastore
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ...adapters.audit.log import audit
from ...adapters.audit.store import WholeLog
from ...adapters.clock import SYSTEM_CLOCK
from ...adapters.log.opening import NothingToAccept
from ...adapters.log.proofs import hmac_keys_of
from ...adapters.log.sealing import Unsealed
from ...adapters.log.stored_log import StoredLog
from ...adapters.log_format.checkpoint_file import CheckpointFile, read_notes
from ...adapters.log_format.cosignature import cosigned_at, parse_witness
from ...adapters.log_format.event_codec import EventCodec
from ...adapters.log_format.keys import HMAC_KEY_BYTES, Keyring, KeysRefused, key_id
from ...adapters.log_format.merkle import subtree_root
from ...adapters.log_format.signed_note import MAX_NOTE_CHARACTERS, NoteInvalid, parse_checkpoint
from ...adapters.stores.memory import MemoryWakeups
from ...adapters.stores.postgres_log import LogDatastore, PostgresRecorder
from ...adapters.stores.postgres_views import PostgresViews
from ...adapters.stores.sqlite_log import SqliteRecorder, open_datastore
from ...adapters.stores.sqlite_views import SqliteViews
from ...application.ports.log import LogUnavailable, Proposal, Stored, Tell
from ...application.ports.verdict import AuditVerdict, Finding, rests_on
from ...application.views.check_views import check
from ...domain.kinds.catalogue import CATALOGUE
from ...projections.catalogue import VIEWS
from ..output import note
from ..refused import Refused
from ..serving.wiring import open_stores, sealing
from ..settings import Settings
from .scratch_views import scratch_views

#: How often a progress is told where no bar can be drawn.
LINE_EVERY = 100_000

AnyRecorder = SqliteRecorder | PostgresRecorder


class NoLog(Refused):
    """There is no store where one should be."""


@contextmanager
def reading(settings: Settings) -> Generator[AnyRecorder]:
    """Give the store, opened to read only: it may lie where nothing can be written. Raises Refused."""
    with ExitStack() as stack:
        recorder: AnyRecorder
        if settings.database:
            recorder = PostgresRecorder(LogDatastore(settings.database))
        elif not (settings.data / "log.db").is_file():
            raise NoLog(f"There is no log in {settings.data}.")
        else:
            recorder = SqliteRecorder(_open_to_read(settings.data / "log.db", stack))
        stack.callback(recorder.close)
        try:
            yield recorder
        except (LogUnavailable, PersistenceError, psycopg.Error) as error:
            raise Refused(f"The log cannot be read: {error}") from error


@contextmanager
def keeping(settings: Settings) -> Generator[tuple[AnyRecorder, Keyring, CheckpointFile]]:
    """Give the store with its keys and its file of checkpoints, to change who signs. Raises Refused."""
    sealing(settings)  # refuses keys that lie in the data directory
    with reading(settings):
        pass  # there is a log
    recorder: AnyRecorder
    if settings.database:
        recorder = PostgresRecorder(LogDatastore(settings.database))
    else:
        recorder = SqliteRecorder(open_datastore(settings.data / "log.db"))
    try:
        yield recorder, Keyring(settings.keys), CheckpointFile(settings.checkpoints)
    except NothingToAccept as error:
        raise Refused("The store holds what was signed last, so there is nothing to accept.") from error
    except (KeysRefused, LogUnavailable, PersistenceError, psycopg.Error) as error:
        raise Refused(str(error)) from error
    finally:
        recorder.close()


def audit_data(
    settings: Settings, pins: Sequence[str], keys: Sequence[str], hmac_keys: Mapping[str, bytes]
) -> AuditVerdict:
    """
    Return the verdict on a store, and on the views beside it. Raises Refused when it is not to be reached.

    What keys of the log are on this machine are used: the chain is checked where no *hmac_keys* were brought, and what one
    of its signing keys signed counts, whatever the log says of itself by now.
    """
    ring, pinned = held_keys(settings), max(map(_size_of_pin, pins), default=0)
    chain = hmac_keys or hmac_keys_of(ring)
    try:
        with reading(settings) as recorder, counting("facts", _size_of(recorder)) as progress:
            source = WholeLog(recorder, settings.checkpoints, _public_keys(ring))
            verdict = audit(source, pins=pins, keys=keys, hmac_keys=chain, needs_key=bool(hmac_keys), progress=progress)
            return _with_views(settings, recorder, ring, verdict) if verdict.finding is None else verdict
    except NoLog as error:
        if not pinned:
            raise
        return _without_log(settings, pinned, error.message)


def _without_log(settings: Settings, pinned: int, reason: str) -> AuditVerdict:
    """Return the verdict where no log is, though somebody pinned one; a directory that is not there may be the wrong one."""
    finding = Finding(
        reason=f"{reason} A log of {pinned} facts was pinned.",
        position=1,
        last=pinned,
        field="size",
        expected=str(pinned),
        actual="0",
    )
    return AuditVerdict(
        rests_on=rests_on(has_pin=True, has_key=False),
        verdict="tampered" if settings.data.is_dir() else "unchecked",
        pinned=True,
        finding=finding,
    )


def held_keys(settings: Settings) -> Keyring | None:
    """Return the keys of the log that are on this machine, None for none that can be used."""
    ring = Keyring(settings.keys)
    try:
        return ring if ring.all() else None
    except (KeysRefused, OSError) as error:
        note(f"The keys in {settings.keys} are not used: {error}")
        return None


def _public_keys(ring: Keyring | None) -> list[bytes]:
    return [] if ring is None else [keys.public for keys in ring.all()]


def _size_of_pin(pin: str) -> int:
    return parse_checkpoint(pin).size


def _open_to_read(path: Path, stack: ExitStack) -> SQLiteDatastore:
    """Return the store, wherever it lies. SQLite wants to make files beside it; where it cannot, nobody else writes it, too."""
    if os.access(path.parent, os.W_OK) or _is_readable(path):
        return open_datastore(path, read_only=True)
    journal = path.with_name(f"{path.name}-wal")
    if not journal.exists() or not journal.stat().st_size:
        return open_datastore(path, read_only=True, immutable=True)
    # What was committed last is in the journal, which can only be read where it can be put in order.
    return open_datastore(copied(path, stack), read_only=True)


def copied(path: Path, stack: ExitStack) -> Path:
    """Return a copy of a SQLite file with its journal, which is gone when the stack ends."""
    folder = Path(stack.enter_context(TemporaryDirectory(prefix="steersman-audit-")))
    for found in (path, path.with_name(f"{path.name}-wal")):
        if found.exists():
            shutil.copyfile(found, folder / found.name)
    return folder / path.name


def _is_readable(path: Path) -> bool:
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.Error:
        return False
    return True


def _size_of(recorder: AnyRecorder) -> int | None:
    """Return how many facts the store says it holds, for a bar."""
    try:
        return recorder.head()
    except LogUnavailable:
        return None


class NobodyWrites:
    """What puts nothing into a log that is only read."""

    def append(self, proposal: Proposal) -> Stored:
        """Refuse. Raises LogUnavailable."""
        raise LogUnavailable("this log was opened to be read")

    def submit(self, proposal: Proposal, tell: Tell) -> None:
        """Refuse. Raises LogUnavailable."""
        raise LogUnavailable("this log was opened to be read")

    def close(self) -> None:
        """Nothing waits here."""


def _with_views(settings: Settings, recorder: AnyRecorder, ring: Keyring | None, verdict: AuditVerdict) -> AuditVerdict:
    """Fold the facts again, and compare with the views as far as these are; a view that is not there is no fault."""
    path = settings.data / "views.db"
    if not settings.database and not path.exists():
        return verdict
    log = StoredLog(recorder, EventCodec(CATALOGUE), lambda _: NobodyWrites(), SYSTEM_CLOCK, Unsealed(ring))
    with (
        ExitStack() as stack,
        scratch_views() as scratch,
        counting("facts folded again", verdict.size) as progress,
    ):
        if not settings.database and not os.access(path.parent, os.W_OK):
            path = copied(path, stack)
        views = PostgresViews(settings.database) if settings.database else SqliteViews(path)
        stack.callback(views.close)
        found = check(views, log, VIEWS, scratch, progress)
    for checked in found:
        if checked.differences:
            finding = Finding(
                reason="a view is not what the facts fold into",
                field=f"{checked.view} {checked.differences[0].key}",
                last=checked.position,
            )
            return msgspec.structs.replace(verdict, verdict="tampered", finding=finding)
    return msgspec.structs.replace(verdict, views=sum(checked.comparable for checked in found))


def drop_views(settings: Settings) -> None:
    """On return nothing is left of what was folded so far; the service folds again what the log holds."""
    with open_stores(settings, MemoryWakeups()) as stores:
        for view in VIEWS:
            for head in stores.views.heads(view.name):
                stores.views.drop(view.name, head.generation)


def read_pin(path: Path, witness: str | None = None) -> str:
    """
    Return the checkpoint in a file: a note, or the last one of a file of checkpoints.

    Raises Refused, also when the *witness* with that verifier key has not cosigned it.
    """
    try:
        kept = deque(read_notes(path), maxlen=1)
        if kept:
            text = kept[0]
        else:
            with path.open("rb") as file:
                text = file.read(MAX_NOTE_CHARACTERS).decode()
            parse_checkpoint(text)
        if witness is not None and cosigned_at(text, parse_witness(witness)) is None:
            raise Refused(f"{path} is not cosigned by that witness.")
    except (OSError, UnicodeDecodeError, NoteInvalid) as error:
        raise Refused(f"{path} holds no checkpoint: {error}") from error
    return text


def check_pin(path: Path, pin: str, recorder: AnyRecorder) -> None:
    """Return if what the store holds goes on from the pin, so that a bundle can lead to it. Raises Refused."""
    found, size = parse_checkpoint(pin), recorder.tree_head().edge.size
    if found.size > size or (found.size and subtree_root(0, found.size, recorder.hashes) != found.root):
        raise Refused(
            f"{path} is no checkpoint of what this log holds, so no bundle leads to it. What that means, "
            "`steersman audit verify --pin` says of the data directory."
        )


def read_hmac_keys(paths: Sequence[Path]) -> dict[str, bytes]:
    """Return the keys in these files, 64 hex digits each, by their names. Raises Refused."""
    keys: dict[str, bytes] = {}
    for path in paths:
        try:
            with path.open("rb") as file:
                key = bytes.fromhex(file.read(4 * HMAC_KEY_BYTES).decode("ascii"))
        except (OSError, ValueError) as error:
            raise Refused(f"{path} holds no HMAC key: {error}") from error
        if len(key) != HMAC_KEY_BYTES:
            raise Refused(f"{path} holds no HMAC key of {2 * HMAC_KEY_BYTES} hex digits.")
        keys[key_id(key)] = key
    return keys


@contextmanager
def counting(what: str, size: int | None) -> Generator[Callable[[int], object]]:
    """Give what is told how many facts were looked at: a bar on a terminal, a line now and then elsewhere."""
    console = Console(file=sys.stderr)
    if not console.is_terminal:
        yield lambda facts: note(f"{facts} {what}") if facts and facts % LINE_EVERY == 0 else None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(what, total=size)
        yield lambda facts: bar.update(task, completed=facts)
