"""Pauses and resumes of one child take effect one after the other, in the order of their receipts."""

from ..facts.directive import SteeringDirective, Verb
from ..facts.run import CoordinatorRun


def earlier(
    run: CoordinatorRun, directive: SteeringDirective, child_run_id: str, *verbs: Verb
) -> tuple[SteeringDirective, ...]:
    """Return the open directives of these verbs that this child got before a directive."""
    return tuple(
        other
        for other in run.pending_directives()
        if other.position < directive.position and other.verb in verbs and child_run_id in other.targets
    )
