"""What the log asks of a store: to lock its head, to know and to write rows, and to read them again."""

from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Literal, Protocol

from eventsourcing.domain import EventSourcingError
from eventsourcing.persistence import (
    DatabaseError,
    DataError,
    IntegrityError,
    NotSupportedError,
    PersistenceError,
    ProgrammingError,
)

from ...application.ports.log import Answered, AnswerKey, ConcurrencyConflict, LogUnavailable
from ..log_format.entry import Entry
from ..log_format.event_codec import StoredRow, StoredText
from ..log_format.head import Head
from .numbering import BatchNeeds, Known, Numbered

Order = Literal["position", "version", "run_sequence", "root_sequence"]


class Transaction(Protocol):
    """A write transaction that holds the log's head: nobody else writes until it ends."""

    def known(self, wanted: BatchNeeds, answers_since: str) -> Known:
        """
        Return what the log holds of *wanted*; answers older than *answers_since* are absent.

        It may be asked again for more names.
        """
        ...

    def write(self, numbered: Numbered, now: str, answers_since: str) -> None:
        """Write facts, texts, answers and the new head; drop answers older than *answers_since*, now and then."""
        ...


class Recorder(Protocol):
    """A store of facts. Every method may be called from any thread and raises LogUnavailable when the store is away."""

    def transaction(self) -> AbstractContextManager[Transaction]:
        """
        Lock the head. Leaving the block commits: then all of it is durable and visible. An error in it rolls back.

        Raises:
            LogUnavailable: also when it is not known whether the commit succeeded.
            ConcurrencyConflict: a row was there already, so somebody wrote without the lock.
        """
        ...

    def rows(self, order: Order, name: str, after: int, limit: int) -> list[StoredRow]:
        """Return the facts of the log, stream, run or tree (without output) called *name*, ascending from *after*."""
        ...

    def words(self, positions: Sequence[int]) -> dict[int, dict[str, StoredText]]:
        """Return the words of these facts that are not erased, by position and digest."""
        ...

    def head(self) -> int:
        """Return the last durable position."""
        ...

    def bounds(self) -> tuple[int, int, int]:
        """Return the head's position, and the first and the last one that a fact has: 1 and 0 if there is none."""
        ...

    def run_head(self, run: str) -> int:
        """Return the run's last run_sequence, 0 if it has none."""
        ...

    def tree_head(self) -> Head:
        """Return the head: the edge of the tree, who signs it, and the newest checkpoint."""
        ...

    def hashes(self, level: int, first: int, count: int) -> list[bytes]:
        """Return stored hashes of the tree, ascending from the index *first*; level 0 are the leaves."""
        ...

    def receipts(self, positions: Sequence[int]) -> dict[int, tuple[bytes, bytes | None]]:
        """Return the leaf hash and the MAC of these facts."""
        ...

    def entries(self, root: str | None, after: int, limit: int) -> list[Entry]:
        """Return rows as they are, for an auditor: of the log by position, or of a tree by root_sequence."""
        ...

    def log_entries(self) -> list[Entry]:
        """Return the rows of the facts that the log holds about itself."""
        ...

    def answered(self, key: AnswerKey, answers_since: str) -> Answered | None:
        """Return the stored answer, unless it is older than *answers_since*."""
        ...

    def erase(self, runs: Sequence[str], *, output_only: bool, before: str | None) -> int:
        """Erase words and salts for good; return how many: no statement finds one that was erased before."""
        ...

    def erase_stream(self, stream: str) -> int:
        """Erase the words and salts of one stream for good; return how many."""
        ...

    def erase_tree(self, root: str) -> int:
        """Erase the words and salts of a coordinator's tree for good; return how many."""
        ...

    def close(self) -> None:
        """Release what the recorder holds; it is not used again."""
        ...


@contextmanager
def translated() -> Generator[None]:
    """Let no driver's or library's error out: a store that is away is LogUnavailable, a row that was there ConcurrencyConflict."""
    try:
        yield
    except IntegrityError as error:
        raise ConcurrencyConflict(str(error)) from error
    except (ProgrammingError, DataError, NotSupportedError):
        raise  # our own mistake: waiting would not mend it
    except (DatabaseError, PersistenceError, EventSourcingError) as error:
        raise LogUnavailable(str(error) or type(error).__name__) from error
