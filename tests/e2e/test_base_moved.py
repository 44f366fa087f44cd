"""Somebody commits to the originating branch while the work stands at the gate."""

from typing import Any

from steersman.tests.e2e.conftest import Repository
from steersman.tests.e2e.served import GATE, Api, part, wait_until, write

#: What agents, places and branches do is the same on each store.
STORES = ("sqlite",)

LINES = "".join(f"line {number}\n" for number in range(20))


def at_gate(api: Api, repository: Repository, *steps: Any) -> str:
    """One part, whose agent does this to a file of twenty lines."""
    (repository.path / "a.txt").write_text(LINES, encoding="utf-8")
    repository.commit("Twenty lines")
    run_id = api.orchestrate(api.project(repository.path), part("only", *steps))
    api.until(run_id, GATE)
    return run_id


def commit(repository: Repository, name: str, text: str) -> str:
    (repository.path / name).write_text(text, encoding="utf-8")
    return repository.commit(f"Changed {name}")


def gates(api: Api, run_id: str) -> list[Any]:
    events = api.get(f"/api/runs/{run_id}/events?limit=500")
    return [event["payload"] for event in events if event["type"] == GATE]


def test_work_that_meets_the_branchs_own_changes_is_reviewed_once_more_and_lands_as_it_was_seen(
    api: Api, repository: Repository
) -> None:
    ours, theirs = LINES.replace("line 15\n", "ours\n"), LINES.replace("line 2\n", "theirs\n")
    run_id = at_gate(api, repository, write("a.txt", ours))
    moved = commit(repository, "a.txt", theirs)
    refused = api.post(f"/api/runs/{run_id}/commit", {}, 409)
    assert (refused["error"], refused["files"]) == ("base_moved", ["a.txt"])
    frames = api.until(run_id, "coordinator.base_moved")
    api.until(run_id, GATE, after=frames[-1].id)
    first, second = gates(api, run_id)
    assert repository.git("rev-parse", "main") == moved
    assert (second["reason"], second["movedFiles"], second["base"]["commit"]) == ("base_moved", ["a.txt"], moved)
    both = theirs.replace("line 15\n", "ours\n")
    assert repository.git("show", f"{second['commitHash']}:a.txt") == both.strip()
    run = api.get(f"/api/runs/{run_id}")
    assert (run["tree_hash"], run["moved_files"]) == (second["treeHash"], ["a.txt"])
    (told,) = [wait for wait in api.get(f"/api/runs/{run_id}/explain")["waits"] if wait["who"] == "person"]
    assert "main has meanwhile changed a.txt, too" in told["what"]
    stale = api.review(run_id, 409, approved=True, tree_hash=first["treeHash"])
    assert stale["error"] == "head_moved_since_review"
    api.review(run_id, approved=True, tree_hash=second["treeHash"])
    api.until(run_id, "coordinator.assembly_completed")
    assert repository.files["a.txt"] == both.strip()
    assert repository.git("rev-parse", "main^{tree}") == second["treeHash"]
    assert repository.git("status", "--porcelain") == ""


def test_an_approval_that_is_repeated_lands_nothing_else_and_a_new_one_lands_what_stands_at_the_gate_then(
    api: Api, repository: Repository
) -> None:
    run_id = at_gate(api, repository, write("a.txt", LINES.replace("line 15\n", "ours\n")))
    moved = commit(repository, "a.txt", LINES.replace("line 2\n", "theirs\n"))
    approve = (f"/api/runs/{run_id}/review", {"approved": True})
    key = {"Idempotency-Key": "approval-1"}
    refused = api.post(*approve, 409, **key)
    assert (refused["error"], refused["retryable"]) == ("base_moved", False)
    api.until(run_id, GATE, after=api.until(run_id, "coordinator.base_moved")[-1].id)

    assert api.post(*approve, 409, **key)["error"] == "head_moved_since_review"

    assert repository.git("rev-parse", "main") == moved
    # It names no tree, as a client need not: then it is about what the gate shows.
    assert api.post(*approve)["status"] == "merged"
    assert repository.git("rev-parse", "main^{tree}") == gates(api, run_id)[-1]["treeHash"]


def test_work_beside_the_branchs_own_changes_lands_at_once(api: Api, repository: Repository) -> None:
    run_id = at_gate(api, repository, write("b.txt", "b\n"))
    commit(repository, "a.txt", "theirs\n")
    api.review(run_id, approved=True)
    api.until(run_id, "coordinator.assembly_completed")
    assert len(gates(api, run_id)) == 1
    assert (repository.files["a.txt"], repository.files["b.txt"]) == ("theirs", "b")


def test_work_that_would_bring_back_a_commit_that_was_dropped_from_the_branch_is_reviewed_once_more(
    api: Api, repository: Repository
) -> None:
    commit(repository, "secret.txt", "secret\n")
    run_id = at_gate(api, repository, write("b.txt", "b\n"))
    repository.git("reset", "--quiet", "--hard", "HEAD~2")
    kept = repository.git("rev-parse", "main")
    refused = api.post(f"/api/runs/{run_id}/commit", {}, 409)
    assert (refused["error"], refused["files"]) == ("base_moved", ["a.txt", "secret.txt"])
    api.until(run_id, GATE, after=api.until(run_id, "coordinator.base_moved")[-1].id)
    assert repository.git("rev-parse", "main") == kept
    second = gates(api, run_id)[-1]
    assert (second["reason"], second["base"]["commit"]) == ("base_moved", kept)
    shown = wait_until(lambda: api.get(f"/api/runs/{run_id}/assembly/files"), "the files are shown")
    assert {file["path"] for file in shown} == {"a.txt", "b.txt", "secret.txt"}
    (told,) = [wait for wait in api.get(f"/api/runs/{run_id}/explain")["waits"] if wait["who"] == "person"]
    assert "what was taken out of a.txt, secret.txt comes back with it" in told["what"]
    api.review(run_id, approved=True, tree_hash=second["treeHash"])
    api.until(run_id, "coordinator.assembly_completed")
    assert repository.git("rev-parse", "main^{tree}") == second["treeHash"]
    assert repository.git("status", "--porcelain") == ""


def test_a_retry_after_a_conflict_brings_all_of_the_work_to_the_gate_on_top_of_the_branch_and_moves_it(
    api: Api, repository: Repository
) -> None:
    run_id = at_gate(api, repository, write("a.txt", "ours\n"), write("b.txt", "b\n"))
    moved = commit(repository, "a.txt", "theirs\n")
    api.review(run_id, approved=True)
    api.until(run_id, "coordinator.assembly_merge_failed")
    assert repository.git("rev-parse", "main") == moved
    assert api.post(f"/api/runs/{run_id}/retry", {})["resumed"]
    recovered = api.until(run_id, "coordinator.recovered")[-1]
    api.until(run_id, GATE, after=recovered.id)
    gate = gates(api, run_id)[-1]
    (conflict,) = gate["conflicts"]
    assert (conflict["paths"], gate["reason"], gate["base"]["commit"]) == (["a.txt"], "base_moved", moved)
    assert repository.git("show", f"{conflict['ref']}:a.txt") == "theirs"
    files = {file["path"]: file["conflicts"] for file in api.get(f"/api/runs/{run_id}/assembly/files")}
    assert files == {"a.txt": [{"branch": conflict["branch"], "ref": conflict["ref"]}], "b.txt": []}
    # The agent did the same again, so its predecessor's commit is what it hands on.
    assert api.get(f"/api/runs/{run_id}")["left_out"] == []
    api.review(run_id, approved=True, tree_hash=gate["treeHash"])
    api.until(run_id, "coordinator.assembly_completed")
    assert repository.git("rev-parse", "main") != moved
    assert (repository.files["a.txt"], repository.files["b.txt"]) == ("ours", "b")
