"""The shape of a run's work, as nodes and edges that a client draws without knowing the run: no status is in it."""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import ClassVar, Literal

import msgspec
from msgspec import UNSET, UnsetType

from ..event import Event, Text

Variant = Literal["full", "child", "coordinator"]
NodeKind = Literal["live", "planned"]
NodeType = Literal["agent", "action", "gate", "terminal", "subtask"]
Cardinality = Literal["direct", "fanout", "fanin"]

COORDINATOR = "coordinator"
_ASSEMBLY = "planned:assembly-"


class GraphNode(msgspec.Struct, frozen=True, kw_only=True):
    """A step; `child_graph_ref` names the run, if any, whose own graph is inside of it."""

    id: str
    label: Text
    role: str
    kind: NodeKind = "live"
    node_type: NodeType
    child_graph_ref: str | None = None
    agent: str | UnsetType = UNSET
    model: str | UnsetType = UNSET
    phase: str | UnsetType = UNSET
    isolation: str | UnsetType = UNSET
    child_run_id: str | UnsetType = UNSET


class GraphEdge(msgspec.Struct, frozen=True, kw_only=True):
    """What comes after what; a loopback leads back to an ancestor, for another round."""

    source: str = msgspec.field(name="from")
    target: str = msgspec.field(name="to")
    cardinality: Cardinality
    loopback: bool


class Graph(Event, frozen=True, kw_only=True):
    """Nodes and edges."""

    graph_id: str = msgspec.field(name="graph_id")
    variant: Variant
    start_node_id: str = msgspec.field(name="start_node_id")
    nodes: tuple[GraphNode, ...]
    edges: tuple[GraphEdge, ...]


class WorkflowGraph(Graph, frozen=True, kw_only=True):
    """The shape of the run at its start."""

    TOPIC: ClassVar[str] = "run.workflow_graph"


class CoordinatorGraph(Graph, frozen=True, kw_only=True):
    """The shape of a coordinator's work after it became another one, or as the assembly begins."""

    TOPIC: ClassVar[str] = "coordinator.graph"


class DrawnSubtask(msgspec.Struct, frozen=True, kw_only=True):
    """What is drawn of a subtask."""

    subtask_id: int
    title: Text
    agent: str
    model: str
    phase: str
    isolation: str
    child_run_id: str | None = None
    depends_on: tuple[int, ...] = ()


def full_graph() -> WorkflowGraph:
    """Return the graph of a run that goes its whole way by itself, or whose plan is not made yet."""
    nodes = (
        _node("agent", "Agent", "agent", "agent"),
        _node("rai", "RAI review", "rai", "agent"),
        _node("review", "Review", "review", "gate"),
        _node("merge", "Merge", "merge", "action"),
        _node("scribe", "Scribe", "scribe", "agent"),
    )
    edges = _edges(_chain([node.id for node in nodes]), [("rai", "agent"), ("review", "agent")])
    return WorkflowGraph(
        graph_id="agentweaver-workflow-full", variant="full", start_node_id="agent", nodes=nodes, edges=edges
    )


def child_graph() -> WorkflowGraph:
    """Return the graph of a child run: what it makes is reviewed and merged by its coordinator."""
    nodes = (
        _node("agent", "Agent", "agent", "agent"),
        _node("commit", "Commit", "commit", "action"),
        _node("assemble-ready", "Ready to assemble", "assemble-ready", "terminal"),
    )
    edges = _edges(_chain([node.id for node in nodes]), [])
    return WorkflowGraph(
        graph_id="agentweaver-workflow-child", variant="child", start_node_id="agent", nodes=nodes, edges=edges
    )


def coordinator_graph(run_id: str, parts: Sequence[DrawnSubtask]) -> WorkflowGraph:
    """Return the graph of a coordinator: its subtasks as they depend on each other, then the collective assembly."""
    stages = [
        _node(f"{_ASSEMBLY}rai", "Assembly RAI review", "rai", "agent", kind="planned"),
        _node(f"{_ASSEMBLY}review", "Assembly review", "review", "gate", kind="planned"),
        _node(f"{_ASSEMBLY}merge", "Assembly merge", "merge", "action", kind="planned"),
        _node(f"{_ASSEMBLY}scribe", "Assembly scribe", "scribe", "agent", kind="planned"),
    ]
    needed = {needed for part in parts for needed in part.depends_on}
    forward = [(COORDINATOR, _id(part.subtask_id)) for part in parts if not part.depends_on]
    forward += [(_id(needs), _id(part.subtask_id)) for part in parts for needs in part.depends_on]
    forward += [(_id(part.subtask_id), stages[0].id) for part in parts if part.subtask_id not in needed]
    forward += _chain([stage.id for stage in stages])
    again = [(stages[0].id, COORDINATOR), (stages[1].id, COORDINATOR)]
    return WorkflowGraph(
        graph_id=f"coordinator:{run_id}",
        variant="coordinator",
        start_node_id=COORDINATOR,
        nodes=(
            _node(COORDINATOR, "Coordinator", COORDINATOR, "agent"),
            *(_subtask(part) for part in parts),
            *stages,
        ),
        edges=_edges(forward, again),
    )


def _id(subtask_id: int) -> str:
    return f"plan:subtask-{subtask_id}"


def _node(name: str, label: str, role: str, node_type: NodeType, kind: NodeKind = "live") -> GraphNode:
    return GraphNode(id=name, label=Text(label), role=role, kind=kind, node_type=node_type)


def _subtask(part: DrawnSubtask) -> GraphNode:
    return GraphNode(
        id=_id(part.subtask_id),
        label=part.title,
        role="subtask",
        node_type="subtask",
        child_graph_ref=f"run:{part.child_run_id}" if part.child_run_id else None,
        agent=part.agent or UNSET,
        model=part.model or UNSET,
        phase=part.phase or UNSET,
        isolation=part.isolation or UNSET,
        child_run_id=part.child_run_id or UNSET,
    )


def _chain(names: Sequence[str]) -> list[tuple[str, str]]:
    return list(pairwise(names))


def _edges(forward: Sequence[tuple[str, str]], again: Iterable[tuple[str, str]]) -> tuple[GraphEdge, ...]:
    """Loopbacks count for no degree, so that a revision cycle does not look like a fan."""
    outward, inward = Counter(source for source, _ in forward), Counter(target for _, target in forward)

    def edge(source: str, target: str) -> GraphEdge:
        cardinality: Cardinality = "fanout" if outward[source] > 1 else "fanin" if inward[target] > 1 else "direct"
        return GraphEdge(source=source, target=target, cardinality=cardinality, loopback=False)

    back = (GraphEdge(source=source, target=target, cardinality="direct", loopback=True) for source, target in again)
    return (*(edge(*ends) for ends in forward), *back)
