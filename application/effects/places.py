"""The names under which agents may have worked for a run: each has a workplace and a home of its own."""

from collections.abc import Sequence

from ...domain.facts.gates import ORDER
from ...domain.facts.run import CoordinatorRun
from .answer_question import answering_name

#: Who works for a coordinator in a workplace of their own before there is a plan.
ROLES = ("plan", "outcome")


def places_of(run: CoordinatorRun) -> Sequence[str]:
    """Return every name that work for the run, or for a child of it, may have been done under."""
    own = (*run.children, *(f"{run.run_id}-{part}" for part in (*ROLES, *ORDER)))
    return (run.run_id, *own, *map(answering_name, run.children))
