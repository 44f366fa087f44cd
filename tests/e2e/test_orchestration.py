"""From a goal to a merged commit, over HTTP only."""

from steersman.tests.e2e.conftest import Repository
from steersman.tests.e2e.served import GATE, Api, part, write

DIAMOND = (
    part("first", write("a.txt", "a\n")),
    part("left", write("b.txt", "b\n"), needs=[0]),
    part("right", write("c.txt", "c\n"), needs=[0]),
    part("last", {"append": {"path": "a.txt", "text": "d\n"}}, needs=[1, 2]),
)


def test_a_goal_becomes_a_merge_commit_that_holds_the_work_of_all_children(api: Api, repository: Repository) -> None:
    before = repository.git("rev-parse", "main")
    run_id = api.orchestrate(api.project(repository.path), *DIAMOND)
    (gate,) = [frame.data for frame in api.until(run_id, GATE) if frame.event == GATE]
    assert repository.git("rev-parse", "main") == before
    assert api.get(f"/api/runs/{run_id}")["status"] == "awaiting_review"
    beats = api.get("/api/diagnostics/heartbeat")["tick_records"]
    assert {(beat["automation_name"], beat["error_count"]) for beat in beats} == {("Coordinator Heartbeat", 0)}
    files = api.get(f"/api/runs/{run_id}/assembly/files")
    assert [(file["path"], file["status"]) for file in files] == [(f"{n}.txt", "added") for n in "abc"]

    api.review(run_id, approved=True)
    done = api.until(run_id, "done")
    assert [frame.event for frame in done][-2:] == ["coordinator.assembly_completed", "done"]
    run = api.get(f"/api/runs/{run_id}")
    assert (run["status"], run["coordinator_status"]) == ("completed", "complete")
    assert run["merged_commit_hash"] == repository.git("rev-parse", "main")
    assert repository.git("rev-parse", "main^{tree}") == gate["treeHash"]
    assert len(repository.git("rev-list", "--parents", "-1", "main").split()) > 2, "the last commit is no merge"
    assert repository.files == {"README.md": "# A repository", "a.txt": "a\nd", "b.txt": "b", "c.txt": "c"}
    assert repository.git("status", "--porcelain") == ""
    assert repository.git("fsck", "--strict") == ""


def test_a_subtask_starts_only_when_what_it_depends_on_is_there(api: Api, repository: Repository) -> None:
    run_id = api.orchestrate(api.project(repository.path), *DIAMOND)
    steps = [(f.event, f.data["subtaskId"]) for f in api.until(run_id, GATE) if f.event.startswith("subtask.")]
    for needed, by in ((1, 2), (1, 3), (2, 4), (3, 4)):
        assert steps.index(("subtask.assemble_ready", needed)) < steps.index(("subtask.dispatched", by))
    plan = api.get(f"/api/runs/{run_id}/work-plan")
    assert plan["status"] == "in_review"
    children = api.get(f"/api/runs/{run_id}/children")
    assert [child["subtaskStatus"] for child in children] == ["assemble_ready"] * 4
    assert all(child["treeHash"] for child in children)


def test_a_declined_assembly_merges_nothing_and_takes_no_second_decision(api: Api, repository: Repository) -> None:
    before = repository.git("rev-parse", "main")
    run_id = api.orchestrate(api.project(repository.path), part("only", write("a.txt", "a\n")))
    assert api.review(run_id, 409, approved=True)["error"] == "no_assembly_review_pending"
    api.until(run_id, GATE)
    api.review(run_id, approved=False, feedback="Not this")
    assert api.review(run_id, 409, approved=True)["error"] == "no_assembly_review_pending"
    assert api.until(run_id, "done")[-2].event == "coordinator.assembly_declined"
    assert repository.git("rev-parse", "main") == before
    assert api.get(f"/api/runs/{run_id}")["status"] == "declined"


def test_without_a_plan_the_planner_agent_makes_one(api: Api, repository: Repository) -> None:
    run_id = api.orchestrate(api.project(repository.path), goal="Write a page about tides")
    api.until(run_id, GATE)
    assert len(api.get(f"/api/runs/{run_id}/work-plan")["subtasks"]) == 1
    api.review(run_id, approved=True)
    api.until(run_id, "coordinator.assembly_completed")
    assert [path for path in repository.files if path.startswith("rehearsal/")]


def test_two_children_in_conflict_are_shown_at_the_gate(api: Api, repository: Repository) -> None:
    parts = (part("one", write("a.txt", "one\n")), part("two", write("a.txt", "two\n")))
    run_id = api.orchestrate(api.project(repository.path), *parts)
    topic = "coordinator.integration_conflict_auto_resolved"
    (conflict,) = [frame.data for frame in api.until(run_id, GATE) if frame.event == topic]
    assert conflict["conflictingFiles"] == ["a.txt"]
    assert repository.git("show", f"{conflict['ref']}:a.txt") == "one"
    api.review(run_id, approved=True)
    api.until(run_id, "coordinator.assembly_completed")
    assert repository.files["a.txt"] == "two"


def test_a_dirty_checkout_at_the_merge_moves_nothing_and_keeps_the_gate_open(api: Api, repository: Repository) -> None:
    before = repository.git("rev-parse", "main")
    run_id = api.orchestrate(api.project(repository.path), part("only", write("a.txt", "a\n")))
    api.until(run_id, GATE)
    (repository.path / "README.md").write_text("Somebody is writing here\n", encoding="utf-8")
    refused = api.review(run_id, 409, approved=True)
    assert refused["error"] == "repository_dirty"
    assert refused["retryable"] is True
    assert repository.git("rev-parse", "main") == before
    assert (repository.path / "README.md").read_text(encoding="utf-8") == "Somebody is writing here\n"
    repository.git("checkout", "README.md")
    api.review(run_id, approved=True)
    api.until(run_id, "coordinator.assembly_completed")
    assert repository.files["a.txt"] == "a"


def test_an_agent_is_told_the_charter_of_the_member_that_it_works_for(api: Api, repository: Repository) -> None:
    project = api.project(repository.path, {"role_id": "software-engineer"}, {"role_id": "tester"})
    words = "# The second engineer\n\nYou weigh every word.\n"
    engineer, tester = (member["name"] for member in api.get(f"/api/projects/{project}/team")["members"])
    path = f"/api/projects/{project}/team/members/{engineer}/charter"
    assert api.http.put(path, json={"content": words}).status_code == 200
    echo = [
        part(name, {"echo_prompt": {"path": f"{name}.txt"}}, assignedAgent=member)
        for name, member in (("mine", engineer), ("theirs", tester))
    ]
    api.run_to_merge(project, *echo)
    assert f"# Your charter\n\n{words}" in repository.files["mine.txt"]
    assert f"# Your charter\n\n# {tester}\n\nYou are {tester}, Tester." in repository.files["theirs.txt"]
    assert "weigh every word" not in repository.files["theirs.txt"]
