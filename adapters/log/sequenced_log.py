"""Open a log over a store: the tables are there, whoever seals it has looked at its head, and one thread writes it."""

from collections.abc import Mapping
from typing import Protocol, TypedDict

from ...application.ports.outside import Announce, Clock
from ...domain.event import Event
from ..clock import SYSTEM_CLOCK
from ..log_format.event_codec import EventCodec
from .recorder import Recorder
from .sequencer import UNOBSERVED, Observer, Sequencer, ignore
from .stored_log import Opens, StoredLog, unsealed


class NewRecorder(Recorder, Protocol):
    """A store that may not have its tables yet."""

    def create_table(self) -> None:
        """On return the tables are there, whoever made them."""
        ...


class LogOptions(TypedDict, total=False):
    """How a log is opened, beside what is stored in it."""

    clock: Clock
    announce: Announce
    seal: Opens
    observer: Observer


class SequencedLog(StoredLog):
    """The event log of one process. It owns the recorder."""

    def __init__(
        self,
        recorder: NewRecorder,
        catalogue: Mapping[str, type[Event]],
        *,
        clock: Clock = SYSTEM_CLOCK,
        announce: Announce = ignore,
        seal: Opens = unsealed,
        observer: Observer = UNOBSERVED,
    ) -> None:
        try:
            recorder.create_table()
            sealing = seal(recorder, clock)
        except BaseException:
            recorder.close()
            raise
        super().__init__(
            recorder, EventCodec(catalogue), lambda commit: Sequencer(commit, announce, observer), clock, sealing
        )
        self._sealing = sealing

    @property
    def rolled_back(self) -> str | None:
        """Why nothing is stored, and what to do, once the store was seen to be put back to an earlier state; else None."""
        return self._sealing.rolled_back
