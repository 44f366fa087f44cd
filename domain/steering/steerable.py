"""Whether a run takes words: one rule, for what the doors do and for what is shown of a run beforehand."""

from ..facts.run import CoordinatorRun
from . import parked


def takes_words(run: CoordinatorRun) -> bool:
    """
    Return whether somebody hears what is said to a run that is not being stopped: who is at work, the next gate, or, in
    a run that has ended, whoever goes on with it when it is redirected.
    """
    return not run.merging and (not run.ended or parked.can_resume(run, "redirect"))
