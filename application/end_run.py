"""Cancel a run, put it aside, or delete it: each is on the log when its caller is answered, and the driver does the rest."""

from collections.abc import Sequence

from ..domain import run_records, steering
from ..domain.event import Fact
from ..domain.steering import SteerRun
from .caller import Caller
from .run_log import Answering, RunLog

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
    return runs.decide(root, lambda run: run_records.archive(run, by.principal), by, answer)


def delete_run(root: str, by: Caller, runs: RunLog, answer: Answering | None = None) -> Sequence[Fact]:
    """
    Hide the run and its children from everybody; on return that is durable.

    What still is at work is stopped, and every word is erased, by the driver, however often the service dies.
    """
    return runs.decide(root, lambda run: run_records.delete(run, by.principal), by, answer)
