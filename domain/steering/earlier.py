"""Pauses and resumes of one child take effect one after the other, in the order of their receipts."""

from ..facts.directive import Directive, Verb
from ..facts.run import Run


def earlier(run: Run, directive: Directive, child_run_id: str, *verbs: Verb) -> tuple[Directive, ...]:
    """Return the open directives of these verbs that this child got before a directive."""
    return tuple(
        other
        for other in run.pending_directives()
        if other.position < directive.position and other.verb in verbs and child_run_id in other.targets
    )
