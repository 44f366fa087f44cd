"""A frame as the bytes that go over the wire, the same for whoever sends it."""

from ...domain.event import Fact
from .timeline import Frame, frame, log_frame


def of_run(fact: Fact) -> bytes:
    """Return a fact as it is sent on the feed of its run: its id is the run_sequence."""
    return _sent(frame(fact))


def of_log(fact: Fact) -> bytes:
    """Return a fact as it is sent on the feed of the whole log: its id is the position."""
    return _sent(log_frame(fact))


def _sent(shown: Frame) -> bytes:
    # JSON has no line break outside its strings' escapes, so the data is one line.
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (shown.id, shown.event.encode(), shown.data)
