"""Cancel a run, put it aside, or delete it: each is on the log when its caller is answered, and the driver does the rest."""

from collections.abc import Sequence

import structlog

from ...domain.event import Fact
from ...domain.facts.run import CoordinatorRun, deletion_stream
from ...domain.rejected import RunNotFound
from ...domain.runs import records
from ...domain.steering import steering
from ...domain.steering.steering import SteerRun
from ..ports.log import ConcurrencyConflict, Undecodable
from ..writer.caller import Caller
from ..writer.run_log import Answering, RunLog

log = structlog.get_logger(__name__)

#: What a cancelled run, and each of its children, gives as its reason.
CANCELLED = "cancelled"


def cancel_run(
    root: str, directive_id: str, by: Caller, runs: RunLog, answer: Answering | None = None
) -> Sequence[Fact]:
    """
    Put a stop of the whole run on its log, as steering it to a stop does.

    Raises RunNotActive, RunNotSteerable, AlreadyMerged: it has ended, is being stopped, or is being merged.
    """
    stop = SteerRun(directive_id=directive_id, kind="stop", instruction="", principal=by.principal, ends_as=CANCELLED)
    return runs.decide(root, lambda run: steering.steer_run(run, stop, {}), by, answer)


def archive_run(root: str, by: Caller, runs: RunLog, answer: Answering | None = None) -> Sequence[Fact]:
    """Put the run aside; nothing is stored if it is put aside already."""
    return runs.decide(root, lambda run: records.archive(run, by.principal), by, answer)


def delete_run(root: str, by: Caller, runs: RunLog, answer: Answering | None = None) -> Sequence[Fact]:
    """
    Hide the run and its children from everybody; on return that is durable.

    What still is at work is stopped, and every word is erased, by the driver, however often the service dies.
    Where one of the run's facts cannot be decoded nobody drives it: then every word is erased on return, and what it
    left in its repository stays there.
    """
    try:
        return runs.decide(root, lambda run: records.delete(run, by.principal), by, answer)
    except Undecodable as undecodable:
        log.warning("a run that cannot be read is deleted", run=root, why=str(undecodable))
        return delete_unread(root, by, runs, answer)


def delete_unread(root: str, by: Caller, runs: RunLog, answer: Answering | None = None) -> Sequence[Fact]:
    """Hide a tree with a fact that cannot be decoded, and erase its words. Raises RunNotFound: it was deleted before."""
    # If we crash before the append, the run is still there and can be deleted again. If we crash after it, all that
    # was not erased is what was said between the two.
    runs.log.erase_tree_texts(root)
    drafts = records.delete(CoordinatorRun(run_id=root), by.principal)
    append = by.append(
        drafts, {deletion_stream(root): 0}, runs.clock.now(), answer(CoordinatorRun(), drafts) if answer else None
    )
    try:
        stored = runs.log.append(append)
    except ConcurrencyConflict as gone:
        raise RunNotFound from gone
    runs.log.erase_tree_texts(root)
    runs.forget(root)
    return stored
