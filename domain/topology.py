"""
What watchers of a coordinator draw: its graph at the start, and how each node of it moves.

Both follow from other facts, and are appended together with those: `with_topology` is all that there is to it.
"""

from collections.abc import Iterable, Sequence
from typing import ClassVar, Literal

import msgspec

from .child_run import RunStarted
from .event import Draft, Event
from .graph import COORDINATOR, Part, WorkflowGraph, child_graph, coordinator_graph, full_graph
from .run import CoordinatorStarted, Run
from .work_plan import SubtaskDispatched, SubtaskMoved, SubtaskPending, WorkPlan, WorkPlanMade, moved

TOPOLOGY_VERSION = 1


class TopologyNode(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The coordinator, or a subtask, and how far it is."""

    id: str
    status: str
    subtask_id: int | None = None
    child_run_id: str | None = None
    assigned_agent: str | None = None
    selected_model_id: str | None = None


class TopologyEdge(msgspec.Struct, frozen=True, kw_only=True):
    """`to` starts when `from` is satisfied."""

    source: str = msgspec.field(name="from")
    target: str = msgspec.field(name="to")


class Topology(Event, frozen=True, kw_only=True):
    """The whole graph with its statuses (`snapshot`), or the nodes that one transition has changed (`delta`)."""

    TOPIC: ClassVar[str] = "coordinator.topology"

    version: int = TOPOLOGY_VERSION
    kind: Literal["snapshot", "delta"]
    #: Counts the facts of this topic in this run, from 1 and without a gap.
    seq: int
    coordinator_run_id: str
    work_plan_id: str
    work_plan_status: str
    nodes: tuple[TopologyNode, ...] = ()
    changed: tuple[TopologyNode, ...] = ()
    edges: tuple[TopologyEdge, ...] = ()
    emitted_at: str


def topology_stream(run_id: str) -> str:
    """Return the stream of a coordinator's topology; its versions are the `seq`."""
    return f"topology/{run_id}"


def with_topology(run: Run, drafts: Sequence[Draft]) -> Sequence[Draft]:
    """Return what a decision appends, with the graph behind each start of a run and a delta behind each transition."""
    kinds = CoordinatorStarted | RunStarted | SubtaskMoved
    if not any(isinstance(draft.event, kinds) for draft in drafts):
        return drafts
    plan, seq = run.plan, run.versions.get(topology_stream(run.run_id), 0)
    told: list[Draft] = []
    for draft in drafts:
        event = draft.event
        if isinstance(event, SubtaskMoved) and plan is not None and event.subtask_id in plan.subtasks:
            if seq == 0:
                told.append(_draft(run, _topology(run, plan, seq := 1, event, whole=True)))
            plan = _after(plan, event)
            told += [draft, _draft(run, _topology(run, plan, seq := seq + 1, event, whole=False))]
            continue
        told.append(draft)
        if isinstance(event, CoordinatorStarted):
            told.append(run.coordinator(_first_graph(run.run_id, drafts)))
        elif isinstance(event, RunStarted):
            told.append(run.on_child(event.run_id, child_graph()))
    return told


def _after(plan: WorkPlan, event: SubtaskMoved) -> WorkPlan:
    plan = moved(plan, event)
    # As the fold has it: a subtask that starts, or starts again, takes the whole plan back to its dispatch.
    again = isinstance(event, SubtaskDispatched | SubtaskPending)
    return msgspec.structs.replace(plan, status="dispatching") if again else plan


def _draft(run: Run, event: Topology) -> Draft:
    return Draft(stream=topology_stream(run.run_id), event=event, run=run.run_id, root=run.run_id)


def _topology(run: Run, plan: WorkPlan, seq: int, event: SubtaskMoved, *, whole: bool) -> Topology:
    return Topology(
        kind="snapshot" if whole else "delta",
        seq=seq,
        coordinator_run_id=run.run_id,
        work_plan_id=plan.work_plan_id,
        work_plan_status=plan.status,
        nodes=_nodes(plan, plan.subtasks) if whole else (),
        changed=() if whole else _nodes(plan, (event.subtask_id,)),
        edges=_edges(plan) if whole else (),
        emitted_at=event.timestamp_utc,
    )


def _nodes(plan: WorkPlan, subtask_ids: Iterable[int]) -> tuple[TopologyNode, ...]:
    parts = (plan.subtasks[subtask_id] for subtask_id in subtask_ids)
    subtasks = (
        TopologyNode(
            id=f"subtask-{part.subtask_id}",
            status=part.status,
            subtask_id=part.subtask_id,
            child_run_id=part.child_run_id,
            assigned_agent=part.assigned_agent,
            selected_model_id=part.model_id,
        )
        for part in parts
    )
    return (TopologyNode(id=COORDINATOR, status=plan.status), *subtasks)


def _edges(plan: WorkPlan) -> tuple[TopologyEdge, ...]:
    roots = ((COORDINATOR, part.subtask_id) for part in plan.subtasks.values() if not part.depends_on)
    needs = ((f"subtask-{n}", part.subtask_id) for part in plan.subtasks.values() for n in part.depends_on)
    return tuple(TopologyEdge(source=source, target=f"subtask-{target}") for source, target in (*roots, *needs))


def _first_graph(run_id: str, drafts: Sequence[Draft]) -> WorkflowGraph:
    made = next((draft.event for draft in drafts if isinstance(draft.event, WorkPlanMade)), None)
    if made is None:
        return full_graph()
    needs = {
        part.subtask_id: tuple(e.depends_on_subtask_id for e in made.dependencies if e.subtask_id == part.subtask_id)
        for part in made.subtasks
    }
    parts = [
        Part(
            subtask_id=part.subtask_id,
            title=part.title,
            agent=part.assigned_agent,
            model=part.selected_model_id,
            phase=part.phase,
            isolation=part.isolation,
            depends_on=needs[part.subtask_id],
        )
        for part in made.subtasks
    ]
    return coordinator_graph(run_id, parts)
