"""The graph of a run in its three variants, and the facts by which a client keeps its drawing of it current."""

from typing import Any

import pytest

from steersman.domain.event import Text
from steersman.domain.facts.graph import DrawnSubtask, coordinator_graph
from steersman.domain.process import dispatch
from steersman.domain.projects.team import Member
from steersman.domain.runs.planning import ProposedSubtask, make_plan

UNKNOWN = "f36800fd-f2f8-418c-958e-aae3e4921ba6"
FORWARD = {"from": "coordinator", "to": "plan:subtask-1", "cardinality": "direct", "loopback": False}


def graph_of(story: Any, run_id: str) -> Any:
    """The graph as it is answered."""
    return story.client.get(f"/api/runs/{run_id}/graph", headers=story.api.settled()).raise_for_status().json()


def facts(story: Any, topic: str, run_id: str = "") -> list[Any]:
    """The payloads of a run's facts of one topic."""
    query = f"/api/runs/{run_id or story.run_id}/events?limit=1000&type={topic}"
    return [event["payload"] for event in story.client.get(query).raise_for_status().json()]


def test_a_coordinators_graph_leads_through_its_plan_to_the_assembly_and_back(story: Any) -> None:
    story.start()
    graph = graph_of(story, story.run_id)
    assert (graph["graph_id"], graph["variant"], graph["start_node_id"]) == (
        f"coordinator:{story.run_id}", "coordinator", "coordinator"
    )  # fmt: skip
    nodes = {node["id"]: node for node in graph["nodes"]}
    assert nodes["coordinator"] == {
        "id": "coordinator", "label": "Coordinator", "role": "coordinator", "kind": "live",
        "node_type": "agent", "child_graph_ref": None,
    }  # fmt: skip
    first = nodes["plan:subtask-1"]
    assert (first["label"], first["role"], first["node_type"], first["kind"]) == ("Build", "subtask", "subtask", "live")
    assert (first["child_graph_ref"], first["isolation"]) == (None, "worktree")
    assert "child_run_id" not in first
    assert [(n["id"], n["kind"], n["node_type"], n["role"]) for n in graph["nodes"][3:]] == [
        ("planned:assembly-rai", "planned", "agent", "rai"),
        ("planned:assembly-review", "planned", "gate", "review"),
        ("planned:assembly-merge", "planned", "action", "merge"),
        ("planned:assembly-scribe", "planned", "agent", "scribe"),
    ]
    assert graph["edges"][0] == FORWARD
    assert [(edge["from"], edge["to"], edge["loopback"]) for edge in graph["edges"][1:]] == [
        ("plan:subtask-1", "plan:subtask-2", False),
        ("plan:subtask-2", "planned:assembly-rai", False),
        ("planned:assembly-rai", "planned:assembly-review", False),
        ("planned:assembly-review", "planned:assembly-merge", False),
        ("planned:assembly-merge", "planned:assembly-scribe", False),
        ("planned:assembly-rai", "coordinator", True),
        ("planned:assembly-review", "coordinator", True),
    ]


def test_a_dispatched_subtask_leads_to_its_childs_own_graph(story: Any) -> None:
    story.start()
    story.advance()
    child = story.child(1)
    node = next(node for node in graph_of(story, story.run_id)["nodes"] if node["id"] == "plan:subtask-1")
    assert (node["child_graph_ref"], node["child_run_id"]) == (f"run:{child}", child)
    graph = graph_of(story, child)
    assert (graph["variant"], graph["start_node_id"]) == ("child", "agent")
    assert facts(story, "run.workflow_graph", child) == [graph]


def test_a_run_without_a_plan_goes_the_full_way(story: Any) -> None:
    story.project()
    body = {"goal": "Sell things", "start_mode": "direct"}
    started = story.client.post(f"/api/projects/{story.project_id}/orchestrations", json=body).raise_for_status()
    story.run_id = started.json()["runId"]
    graph = graph_of(story, story.run_id)
    assert (graph["graph_id"], graph["variant"], graph["start_node_id"]) == (
        "agentweaver-workflow-full", "full", "agent"
    )  # fmt: skip
    assert {"from": "agent", "to": "rai", "cardinality": "direct", "loopback": False} in graph["edges"]
    assert {"from": "review", "to": "agent", "cardinality": "direct", "loopback": True} in graph["edges"]
    assert facts(story, "run.workflow_graph") == [graph]


def test_the_graph_at_the_start_is_on_the_feed_once(story: Any) -> None:
    story.start()
    before = graph_of(story, story.run_id)
    story.advance()
    assert facts(story, "run.workflow_graph") == [before]


def test_the_graph_is_told_again_as_an_assembly_begins_with_the_runs_inside(story: Any) -> None:
    story.to_gate()
    graph = graph_of(story, story.run_id)
    assert facts(story, "coordinator.graph") == [graph]
    nodes = {node["id"]: node for node in graph["nodes"]}
    assert nodes["plan:subtask-1"]["child_graph_ref"] == f"run:{story.child(1)}"


def test_a_plan_that_is_made_later_is_told_as_a_graph_of_its_own(story: Any) -> None:
    story.project()
    body = {"goal": "Sell things", "start_mode": "direct"}
    started = story.client.post(f"/api/projects/{story.project_id}/orchestrations", json=body).raise_for_status()
    story.run_id = started.json()["runId"]
    team = [Member(name="ann", role_id="tester", role_title="Tester", model_id=None)]
    made = make_plan("w", [ProposedSubtask(title="One")], team, {"ann": "rehearsal"}, {})
    story.decide(lambda run: (run.on_plan(made, "w"),))
    (told,) = facts(story, "coordinator.graph")
    assert told == graph_of(story, story.run_id)
    assert "plan:subtask-1" in [node["id"] for node in told["nodes"]]


def test_fans_are_told_by_forward_edges_alone() -> None:
    def part(subtask_id: int, *needs: int) -> DrawnSubtask:
        return DrawnSubtask(
            subtask_id=subtask_id, title=Text(""), agent="a", model="m", phase="none", isolation="", depends_on=needs
        )

    edges = coordinator_graph("r", [part(1), part(2), part(3, 1, 2)]).edges
    said = {(edge.source, edge.target): edge.cardinality for edge in edges}
    assert said["coordinator", "plan:subtask-1"] == said["coordinator", "plan:subtask-2"] == "fanout"
    assert said["plan:subtask-1", "plan:subtask-3"] == said["plan:subtask-2", "plan:subtask-3"] == "fanin"
    assert said["planned:assembly-rai", "planned:assembly-review"] == "direct"
    assert said["planned:assembly-rai", "coordinator"] == "direct"


def test_each_transition_is_followed_by_its_delta_and_the_first_by_a_snapshot_before_it(story: Any) -> None:
    story.to_gate()
    events = story.client.get(f"/api/runs/{story.run_id}/events?limit=1000").json()
    topics = [event["type"] for event in events]
    for index, topic in enumerate(topics):
        if topic.startswith("subtask."):
            delta, step = events[index + 1]["payload"], events[index]["payload"]
            assert topics[index + 1] == "coordinator.topology"
            changed = {node["id"]: node["status"] for node in delta["changed"]}
            assert (delta["kind"], changed[f"subtask-{step['subtaskId']}"]) == ("delta", step["status"])
    told = facts(story, "coordinator.topology")
    assert [payload["seq"] for payload in told] == list(range(1, len(told) + 1))
    snapshot = told[0]
    assert topics.index("coordinator.topology") < topics.index("subtask.dispatched")
    assert (snapshot["version"], snapshot["kind"], snapshot["workPlanStatus"]) == (1, "snapshot", "planned")
    assert [(node["id"], node["status"]) for node in snapshot["nodes"]] == [
        ("coordinator", "planned"), ("subtask-1", "pending"), ("subtask-2", "pending")
    ]  # fmt: skip
    assert snapshot["edges"] == [
        {"from": "coordinator", "to": "subtask-1"}, {"from": "subtask-1", "to": "subtask-2"}
    ]  # fmt: skip


def test_what_the_deltas_add_up_to_is_what_the_run_is(story: Any) -> None:
    story.to_gate()
    nodes: dict[str, Any] = {}
    for payload in facts(story, "coordinator.topology"):
        nodes |= {node["id"]: node for node in (*payload["nodes"], *payload["changed"])}
    for subtask in story.run.plan.subtasks.values():
        node = nodes[f"subtask-{subtask.subtask_id}"]
        assert (node["status"], node["childRunId"]) == (subtask.status, subtask.child_run_id)


def test_a_decision_that_stores_nothing_tells_nothing(story: Any) -> None:
    story.start()
    story.advance()
    head = story.api.services.log.head()
    story.decide(lambda run: dispatch.advance(run, story.api.services.clock.now()))
    assert story.api.services.log.head() == head


@pytest.mark.parametrize(("run_id", "status", "word"), [(UNKNOWN, 404, "run_not_found"), ("x", 400, "invalid_run_id")])
def test_the_graph_of_no_run_is_refused(api: Any, run_id: str, status: int, word: str) -> None:
    response = api.client().get(f"/api/runs/{run_id}/graph")
    assert (response.status_code, response.json()["error"]) == (status, word)


def test_a_graph_is_for_those_who_may_see_the_run(api: Any, story: Any) -> None:
    story.start()
    assert api.client("mallory").get(f"/api/runs/{story.run_id}/graph").status_code == 403
    assert api.anonymous().get(f"/api/runs/{story.run_id}/graph").status_code == 401
