"""
What watchers of a coordinator draw: its graph, whenever it becomes another one, and how each node of it moves.

Both follow from other facts, and are appended together with those: `with_topology` is all that there is to it.
"""

from collections.abc import Iterable, Sequence
from typing import ClassVar, Literal

import msgspec

from ..event import Draft, Event
from .assembly import AssemblyStarted
from .child_run import RunStarted
from .graph import (
    COORDINATOR,
    CoordinatorGraph,
    DrawnSubtask,
    WorkflowGraph,
    child_graph,
    coordinator_graph,
    full_graph,
)
from .run import CoordinatorRun, CoordinatorStarted
from .work_plan import (
    ISOLATION,
    SubtaskDispatched,
    SubtaskMoved,
    SubtaskPending,
    WorkPlan,
    WorkPlanMade,
    moved,
    planned,
)

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


def graph_stream(run_id: str) -> str:
    """Return the stream of a coordinator's graphs: nobody decides by them, so nobody waits for them."""
    return f"graph/{run_id}"


def with_topology(run: CoordinatorRun, drafts: Sequence[Draft]) -> Sequence[Draft]:
    """
    Return what a decision appends, with the graph behind each start of a run and a delta behind each transition.

    The coordinator's graph ends it when the plan is made, a part gets another author, or an assembly begins.
    """
    kinds = CoordinatorStarted | RunStarted | SubtaskMoved | WorkPlanMade | AssemblyStarted
    if not any(isinstance(draft.event, kinds) for draft in drafts):
        return drafts
    plan, seq = run.plan, run.versions.get(topology_stream(run.run_id), 0)
    told: list[Draft] = []
    redrawn = False
    for draft in drafts:
        event = draft.event
        if isinstance(event, SubtaskMoved) and plan is not None and event.subtask_id in plan.subtasks:
            redrawn = redrawn or event.assigned_agent != plan.subtasks[event.subtask_id].assigned_agent
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
        elif isinstance(event, WorkPlanMade) and run.exists:
            plan, redrawn = planned(event), True
        elif isinstance(event, AssemblyStarted):
            redrawn = True
    if redrawn and plan is not None:
        told.append(
            Draft(stream=graph_stream(run.run_id), event=_graph(run.run_id, plan), run=run.run_id, root=run.run_id)
        )
    return told


def _graph(run_id: str, plan: WorkPlan) -> CoordinatorGraph:
    drawn = coordinator_graph(run_id, _parts(plan))
    return CoordinatorGraph(**{name: getattr(drawn, name) for name in CoordinatorGraph.__struct_fields__})


def _after(plan: WorkPlan, event: SubtaskMoved) -> WorkPlan:
    plan = moved(plan, event)
    # As the fold has it: a subtask that starts, or starts again, takes the whole plan back to its dispatch.
    again = isinstance(event, SubtaskDispatched | SubtaskPending)
    return msgspec.structs.replace(plan, status="dispatching") if again else plan


def _draft(run: CoordinatorRun, event: Topology) -> Draft:
    return Draft(stream=topology_stream(run.run_id), event=event, run=run.run_id, root=run.run_id)


def _topology(run: CoordinatorRun, plan: WorkPlan, seq: int, event: SubtaskMoved, *, whole: bool) -> Topology:
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
    return full_graph() if made is None else coordinator_graph(run_id, _parts(planned(made)))


def _parts(plan: WorkPlan) -> list[DrawnSubtask]:
    return [
        DrawnSubtask(
            subtask_id=part.subtask_id,
            title=part.title,
            agent=part.assigned_agent,
            model=part.model_id,
            phase=part.phase,
            isolation=ISOLATION,
            child_run_id=part.child_run_id,
            depends_on=part.depends_on,
        )
        for part in plan.subtasks.values()
    ]
