"""A coordinator's graph is told again when a part of it changes hands."""

from collections.abc import Iterable

from steersman.domain.event import Draft, Event, Text
from steersman.domain.facts.graph import CoordinatorGraph, DrawnSubtask, child_graph, coordinator_graph
from steersman.domain.facts.topology import Topology, with_topology
from steersman.domain.process.dispatch import advance
from steersman.tests.domain.fleet import Fleet, part


def test_another_author_is_told_as_a_graph_once_and_a_step_of_the_same_one_is_not() -> None:
    fleet = Fleet(part("Write the tests"), part("Sell")).to_gate(capabilities=())
    fleet.signal("rai", 1, words="Once more.")
    graphs: list[CoordinatorGraph] = []
    while drafts := advance(fleet.run, fleet.now, fleet.team):
        told = with_topology(fleet.run, drafts)
        graphs.extend(draft.event for draft in told if isinstance(draft.event, CoordinatorGraph))
        fleet.put(drafts)
    (graph,) = graphs
    assert [node.agent for node in graph.nodes if node.node_type == "subtask"] == ["bob", "ann"]


class Drawn(Fleet):
    """A run whose graph is told beside each step, as the writer tells it."""

    def put(self, drafts: Iterable[Draft]) -> list[Event]:
        return super().put(with_topology(self.run, tuple(drafts)))


def test_the_whole_graph_is_told_once_and_after_it_what_each_step_has_changed() -> None:
    told = Drawn(part("One"), part("Two")).to_gate().told(Topology)
    assert [topology.kind for topology in told] == ["snapshot", *["delta"] * (len(told) - 1)]
    assert [topology.seq for topology in told] == list(range(1, len(told) + 1))
    whole, *steps = told
    assert len(steps) > 4
    assert (len(whole.nodes), whole.changed) == (3, ())
    assert {(len(step.nodes), step.edges) for step in steps} == {(0, ())}
    assert all(step.changed for step in steps)


def test_only_another_round_leads_back() -> None:
    parts = [
        DrawnSubtask(subtask_id=i, title=Text(f"Part {i}"), agent="ann", model="m", phase="", isolation="worktree")
        for i in (1, 2)
    ]
    back = {(edge.source, edge.target) for edge in coordinator_graph("r", parts).edges if edge.loopback}
    assert {target for _, target in back} == {"coordinator"}
    assert len(back) == 2
    assert not [edge for edge in child_graph().edges if edge.loopback]
