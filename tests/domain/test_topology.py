"""A coordinator's graph is told again when a part of it changes hands."""

from steersman.domain.facts.graph import CoordinatorGraph
from steersman.domain.facts.topology import with_topology
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
