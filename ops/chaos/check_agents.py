"""What agents did beside the log: never two at work in one workplace, and nobody left behind."""

from collections.abc import Iterable, Mapping

from .agent import NOT_ALONE
from .facts import SeenFact, Violation


def one_agent_in_each_workplace(facts: Iterable[SeenFact]) -> list[Violation]:
    """No agent found another live one in its workplace (see agent.py, which looks, and says so in its last words)."""
    return [
        Violation(
            invariant="one agent a workplace",
            message=f"{fact.type} at {fact.position}: {NOT_ALONE}",
            root=fact.root,
            about=(str(fact.run),),
        )
        for fact in facts
        if NOT_ALONE in str(fact.payload)
    ]


def nobody_is_left(processes: Mapping[int, str]) -> list[Violation]:
    """Once the service has ended, nothing that it started works in a workplace."""
    return [
        Violation(invariant="nobody is left", message=f"the process {pid} still works in {workplace}")
        for pid, workplace in processes.items()
    ]
