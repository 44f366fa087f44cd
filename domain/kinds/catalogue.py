"""Every kind of fact, by its TOPIC. A fact whose module is not named here cannot be read back."""

from collections.abc import Iterator

from ..event import Event, Unknown
from ..facts import (
    agent_output,
    asking,
    assembly,
    child_run,
    directive,
    gates,
    graph,
    held,
    leases,
    outcome_spec,
    run,
    run_records,
    spending,
    topology,
    work_plan,
)
from ..projects import project, project_facts, webhook_facts
from . import log

_MODULES = (
    agent_output,
    asking,
    assembly,
    child_run,
    directive,
    gates,
    graph,
    held,
    leases,
    log,
    outcome_spec,
    project,
    project_facts,
    run,
    run_records,
    spending,
    topology,
    webhook_facts,
    work_plan,
)


def _concrete(kind: type[Event]) -> Iterator[type[Event]]:
    for sub in kind.__subclasses__():
        if "TOPIC" in vars(sub) and sub is not Unknown and sub.__module__ in {module.__name__ for module in _MODULES}:
            yield sub
        yield from _concrete(sub)


CATALOGUE: dict[str, type[Event]] = {}
for _kind in _concrete(Event):
    # Two kinds under one name would make old facts unreadable, so it is refused at the first import.
    if CATALOGUE.setdefault(_kind.TOPIC, _kind) is not _kind:
        raise TypeError(f"{_kind.__name__} and {CATALOGUE[_kind.TOPIC].__name__} share the topic {_kind.TOPIC!r}")
