"""The end of a run's record over HTTP: merged twice the same, cancelled with its agents, deleted without a trace."""

import os
from contextlib import suppress
from pathlib import Path

from steersman.tests.e2e.conftest import Repository
from steersman.tests.e2e.served import GATE, Api, Service, part, steersman, wait_until, write

SECRET = "the goose flies at midnight"


def test_an_approval_is_answered_merged_and_so_is_the_same_again(api: Api, repository: Repository) -> None:
    run_id = api.orchestrate(api.project(repository.path), part("only", write("a.txt", "a\n")))
    api.until(run_id, GATE)
    for _ in range(2):
        answer = api.post(f"/api/runs/{run_id}/review", {"approved": True})
        assert answer["status"] == "merged"
        assert answer["merge_result"] == f"merged:{repository.git('rev-parse', 'main')}"
    assert repository.files["a.txt"] == "a"


def test_a_merge_into_a_branch_that_has_gone_another_way_is_answered_with_the_files(
    api: Api, repository: Repository
) -> None:
    run_id = api.orchestrate(api.project(repository.path), part("only", write("README.md", "ours\n")))
    api.until(run_id, GATE)
    (repository.path / "README.md").write_text("theirs\n", encoding="utf-8")
    theirs = repository.commit("Another way")
    answer = api.post(f"/api/runs/{run_id}/commit", {})
    assert (answer["status"], answer["conflicting_files"]) == ("merge_failed", ["README.md"])
    assert answer["merge_result"].startswith("conflict:")
    assert repository.git("rev-parse", "main") == theirs


def test_a_cancelled_run_has_no_agent_left_and_can_be_started_again(
    api: Api, shared_service: Service, repository: Repository
) -> None:
    steps = [{"spawn": {"path": "canary.txt", "every_ms": 50, "detached": True}}, {"hang": {"ignore_term": True}}]
    run_id = api.orchestrate(api.project(repository.path), part("one", *steps))
    api.until(run_id, "subtask.running")
    (child,) = api.get(f"/api/runs/{run_id}/children")
    canary = shared_service.data / "worktrees" / child["childRunId"] / "canary.txt"
    wait_until(canary.exists, "the agent has left a writer behind")
    answer = api.post(f"/api/runs/{run_id}/cancel", {})
    assert (answer["cancelled"], answer["already_terminal"]) == (True, False)
    cancelled = [f.data["reason"] for f in api.until(run_id, "done") if f.event == "run.cancelled"]
    assert cancelled == ["cancelled"]
    assert api.get(f"/api/runs/{child['childRunId']}")["result"] == "cancelled"
    assert not _who_writes(canary)
    again = api.post(f"/api/runs/{run_id}/retry", {}, 201)
    assert again["retried_from"] == run_id
    api.post(f"/api/runs/{again['run_id']}/cancel", {})


def test_a_run_that_is_deleted_while_it_works_leaves_nothing_though_the_service_is_killed(
    service: Service, repository: Repository
) -> None:
    service.start()
    api = Api(service)
    project = api.project(repository.path)
    kept = api.run_to_merge(project, part("kept", write("kept.txt", "kept\n")))
    steps = [{"say": SECRET}, write(f"{SECRET}.txt", SECRET), {"hang": {"ignore_cancel": True}}]
    run_id = api.orchestrate(project, part(SECRET, *steps), goal=SECRET)
    child = api.until(run_id, "subtask.running")[-1].data["childRunId"]
    worktree = service.data / "worktrees" / child
    wait_until((worktree / f"{SECRET}.txt").exists, "the agent has written")
    checkpoint = _checkpoint(api)
    assert api.http.delete(f"/api/runs/{run_id}").status_code == 204
    service.kill()
    service.start()
    api = Api(service)
    for gone in (run_id, child):
        assert api.http.get(f"/api/runs/{gone}").status_code == 404
    wait_until(lambda: not worktree.exists(), "the worktree is gone")
    wait_until(lambda: not _branches(repository), "the branches are gone")
    wait_until(lambda: not _holds(service, SECRET), "no file of the service holds a word of it")
    assert api.get(f"/api/runs/{kept}")["status"] == "completed"
    size, root = checkpoint
    now, _ = _checkpoint(api)
    proof = api.get(f"/api/log/proof/consistency?from={size}&to={now}")
    assert proof["old_root"] == root
    # Steered, by the stop that the deletion made; and not tampered with.
    verdict = steersman("audit", "verify", "--data", service.data, expect=10, **service.variables)
    assert "texts erased" in verdict


def test_a_deleted_project_leaves_no_word_of_it_and_none_of_its_runs(service: Service, repository: Repository) -> None:
    service.start()
    api = Api(service)
    project = api.project(repository.path)
    api.http.patch(f"/api/projects/{project}", json={"name": SECRET}).raise_for_status()
    both = [part(f"{SECRET} {n}", write("kept.txt", f"{SECRET} {n}\n")) for n in (1, 2)]
    merged = api.run_to_merge(project, *both)
    assert repository.git("for-each-ref", "refs/steersman/conflicts")
    steps = [{"say": SECRET}, write("b.txt", SECRET), {"hang": {"ignore_cancel": True}}]
    working = api.orchestrate(project, part("hangs", *steps), goal=SECRET)
    child = api.until(working, "subtask.running")[-1].data["childRunId"]
    wait_until((service.data / "worktrees" / child / "b.txt").exists, "the agent has written")
    tip = repository.git("rev-parse", "main")
    assert api.http.delete(f"/api/projects/{project}?confirm=true").status_code == 204
    wait_until(lambda: api.http.get(f"/api/projects/{project}").status_code == 404, "the project is gone")
    for gone in (merged, working, child):
        assert api.http.get(f"/api/runs/{gone}").status_code == 404
    wait_until(
        lambda: not repository.git("for-each-ref", "refs/heads/steersman", "refs/steersman"), "its refs are gone"
    )
    wait_until(lambda: not _holds(service, SECRET), "no file of the service holds a word of it")
    assert repository.git("rev-parse", "main") == tip
    verdict = steersman("audit", "verify", "--data", service.data, expect=10, **service.variables)
    assert "texts erased" in verdict


def _checkpoint(api: Api) -> tuple[int, str]:
    """Return the size and root of the log, as it is signed now."""
    lines = api.http.get("/api/log/checkpoint").raise_for_status().text.splitlines()
    return int(lines[1]), lines[2]


def _branches(repository: Repository) -> str:
    return repository.git("branch", "--list", "steersman/*")


def _holds(service: Service, words: str) -> list[Path]:
    """Return the files of the service, and of its built-in agent, that hold these words."""
    found: list[Path] = []
    for directory, _, names in os.walk(service.data):
        for path in (Path(directory, name) for name in names):
            # What is gone meanwhile holds nothing.
            with suppress(FileNotFoundError):
                if words.encode() in path.read_bytes():
                    found.append(path)
    return found


def _who_writes(path: Path) -> list[int]:
    """Return the processes that hold this file open or run in its directory."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if os.path.realpath(os.readlink(entry / "cwd")).startswith(str(path.parent)):
                    found.append(int(entry.name))
            except OSError:
                continue
    return found
