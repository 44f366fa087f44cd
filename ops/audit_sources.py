"""What an audit from the command line reads: stores opened to read, pins, keys, views; and how far it is."""

import sys
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec
import psycopg
from eventsourcing.persistence import PersistenceError
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ..adapters.audit.log import audit
from ..adapters.audit.store import WholeLog
from ..adapters.log.checkpoint_file import CheckpointFile, read_notes
from ..adapters.log.keys import HMAC_KEY_BYTES, Keyring, KeysRefused, key_id
from ..adapters.log.merkle import subtree_root
from ..adapters.log.opening import NothingToAccept
from ..adapters.log.signed_note import MAX_NOTE_CHARACTERS, NoteInvalid, parse_checkpoint
from ..adapters.memory import MemoryWakeups
from ..adapters.postgres_log import LogDatastore, PostgresRecorder
from ..adapters.sqlite_log import SqliteRecorder, open_datastore
from ..application.check_views import check
from ..application.log_port import LogUnavailable
from ..application.verdict import Finding, Verdict
from ..projections.catalogue import VIEWS
from .output import note
from .refused import Refused
from .scratch_views import scratch_views
from .settings import Settings
from .wiring import open_stores, sealing

#: How often a progress is told where no bar can be drawn.
LINE_EVERY = 100_000

AnyRecorder = SqliteRecorder | PostgresRecorder


@contextmanager
def reading(settings: Settings) -> Generator[AnyRecorder]:
    """Give the store, opened to read only. Raises Refused."""
    with ExitStack() as stack:
        recorder: AnyRecorder
        if settings.database:
            recorder = PostgresRecorder(LogDatastore(settings.database))
        elif not (settings.data / "log.db").is_file():
            raise Refused(f"There is no log in {settings.data}.")
        else:
            recorder = SqliteRecorder(open_datastore(settings.data / "log.db", read_only=True))
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


def audit_data(settings: Settings, pins: Sequence[str], hmac_keys: Mapping[str, bytes]) -> Verdict:
    """Return the verdict on a store, and on the views beside it. Raises Refused when it is not to be reached."""
    with reading(settings) as recorder, counting("facts", _size_of(recorder)) as progress:
        source = WholeLog(recorder, settings.checkpoints)
        verdict = audit(source, pins=pins, hmac_keys=hmac_keys, progress=progress)
    return _with_views(settings, verdict) if verdict.finding is None else verdict


def _size_of(recorder: AnyRecorder) -> int | None:
    """Return how many facts the store says it holds, for a bar."""
    try:
        return recorder.head()
    except (LogUnavailable, IndexError, TypeError):
        return None


def _with_views(settings: Settings, verdict: Verdict) -> Verdict:
    """Fold the facts again, and compare with the views as far as these are; a view that is not there is no fault."""
    if not settings.database and not (settings.data / "views.db").exists():
        return verdict
    with (
        open_stores(settings, MemoryWakeups()) as stores,
        scratch_views() as scratch,
        counting("facts folded again", verdict.size) as progress,
    ):
        found = check(stores.views, stores.log, VIEWS, scratch, progress)
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


def read_pin(path: Path) -> str:
    """Return the checkpoint in a file: a note, or the last one of a file of checkpoints. Raises Refused."""
    try:
        kept = deque(read_notes(path), maxlen=1)
        if kept:
            return kept[0]
        with path.open("rb") as file:
            text = file.read(MAX_NOTE_CHARACTERS).decode()
        parse_checkpoint(text)
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
