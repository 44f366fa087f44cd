"""A run's graph as `GET /api/runs/{id}/graph` shows it, drawn from the rows of its views."""

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from ..domain.event import Text, map_texts
from ..domain.facts import graph
from ..domain.facts.graph import GraphEdge, WorkflowGraph
from .work_plan_view import WorkPlanView


class NodeView(msgspec.Struct, frozen=True, kw_only=True):
    """A step; `child_graph_ref` names the run, if any, whose own graph is inside of it."""

    id: str
    label: str | None
    role: str
    kind: Literal["live", "planned"]
    node_type: Literal["agent", "action", "gate", "terminal", "subtask"]
    child_graph_ref: str | None
    agent: str | UnsetType = UNSET
    model: str | UnsetType = UNSET
    phase: str | UnsetType = UNSET
    isolation: str | UnsetType = UNSET
    child_run_id: str | UnsetType = UNSET


class GraphDescriptor(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes and edges that a client draws without knowing the run. Statuses are on the feeds, not here."""

    graph_id: str
    variant: Literal["full", "child", "coordinator"]
    start_node_id: str
    nodes: tuple[NodeView, ...]
    edges: tuple[GraphEdge, ...]


def of_run(*, is_child: bool, plan: WorkPlanView | None) -> GraphDescriptor:
    """Return the graph of a run: a child's, a coordinator's with its plan, or what every other run goes through."""
    if is_child:
        return shown(graph.child_graph())
    return shown(graph.full_graph() if plan is None else graph.coordinator_graph(plan.coordinator_run_id, _parts(plan)))


def shown(drawn: WorkflowGraph) -> GraphDescriptor:
    """Return the graph with its words."""
    return msgspec.convert(map_texts(drawn, lambda text: text.value), GraphDescriptor)


def _parts(plan: WorkPlanView) -> list[graph.DrawnSubtask]:
    needs: dict[int, tuple[int, ...]] = {}
    for edge in plan.dependencies:
        needs[edge.subtask_id] = (*needs.get(edge.subtask_id, ()), edge.depends_on_subtask_id)
    return [
        graph.DrawnSubtask(
            subtask_id=part.subtask_id,
            title=Text(part.title),
            agent=part.assigned_agent,
            model=part.selected_model_id,
            phase=part.phase,
            isolation=part.isolation,
            child_run_id=part.child_run_id,
            depends_on=needs.get(part.subtask_id, ()),
        )
        for part in plan.subtasks
    ]
