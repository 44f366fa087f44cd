"""Agents that fail end their own child run, in words that programs understand, and nothing else."""

from pathlib import Path

import pytest

from steersman.tests.e2e.conftest import Repository
from steersman.tests.e2e.served import GATE, Api, part, wait_until, write

BLOCKED = "coordinator.assembly_blocked"
MAX_KEPT_BYTES = 5 * 1024 * 1024


def failure_of(api: Api, run_id: str) -> dict[str, object]:
    """Return what the only child's `run.failed` says, once it has failed."""
    frames = api.until(run_id, BLOCKED)
    (child_id,) = {f.data["childRunId"] for f in frames if f.event == "subtask.dispatched"}
    failed = api.until(child_id, "done")[-2]
    assert failed.event == "run.failed"
    assert api.get(f"/api/runs/{child_id}")["status"] == "failed"
    return failed.data


@pytest.mark.parametrize(
    ("agent", "code"),
    [("missing", "agent_not_installed"), ("nonsense", "agent_protocol_error"), ("leaver", "agent_exited")],
)
def test_an_agent_that_never_works_fails_its_child_run(api: Api, repository: Repository, agent: str, code: str) -> None:
    project = api.project(repository.path, {"role_id": "tester", "model_id": agent})
    failure = failure_of(api, api.orchestrate(project, part("only", write("a.txt", "a\n"))))
    assert failure["errorCode"] == code
    assert set(failure) == {"message", "errorCode", "retryable"}
    assert failure["message"]


@pytest.mark.parametrize("step", [{"crash": {"exit": 3}}, {"fail": "I cannot do this"}])
def test_an_agent_that_gives_up_in_the_middle_fails_its_child_run(
    api: Api, repository: Repository, step: dict[str, object]
) -> None:
    failure = failure_of(api, api.orchestrate(api.project(repository.path), part("only", step)))
    assert failure["errorCode"]
    assert isinstance(failure["retryable"], bool)


def test_what_depends_on_a_failed_subtask_never_starts_and_nothing_is_merged(api: Api, repository: Repository) -> None:
    before = repository.git("rev-parse", "main")
    parts = (part("bad", {"fail": "no"}), part("after", write("a.txt", "a\n"), needs=[0]), part("other"))
    run_id = api.orchestrate(api.project(repository.path), *parts)
    frames = api.until(run_id, BLOCKED)
    assert 2 not in [f.data["subtaskId"] for f in frames if f.event == "subtask.dispatched"]
    assert {1, 2} <= set(frames[-1].data["ineligibleSubtaskIds"])
    api.review(run_id, 409, approved=True)
    assert repository.git("rev-parse", "main") == before


def test_a_flood_fills_neither_the_log_nor_the_memory(api: Api, repository: Repository) -> None:
    process = api.service.process
    assert process is not None
    before = resident_bytes(process.pid)
    project = api.project(repository.path, {"role_id": "tester", "model_id": "flood"})
    run_id = api.orchestrate(project, part("only"))
    frames = api.until(run_id, "subtask.completed", "subtask.failed")
    assert frames[-1].event == "subtask.completed"
    child_id = frames[-1].data["childRunId"]
    stored = api.until(child_id, "done")
    topics = [frame.event for frame in stored]
    assert topics.count("run.output_truncated") == 1
    kept = sum(len(f.data.get("delta") or f.data.get("data") or "") for f in stored)
    assert 0 < kept < MAX_KEPT_BYTES
    wait_until(lambda: resident_bytes(process.pid) < before + 200 * 1024 * 1024, "the service is small again")


def test_a_broken_agent_keeps_nobody_else_from_working(api: Api, repository: Repository) -> None:
    members = ({"role_id": "tester", "model_id": "leaver"}, {"role_id": "architect"})
    project = api.project(repository.path, *members)
    bad = part("bad", assignedAgent="tester")
    good = part("good", write("a.txt", "a\n"), assignedAgent="architect")
    frames = api.until(api.orchestrate(project, bad, good), BLOCKED)
    steps = {(f.event, f.data["subtaskId"]) for f in frames if f.event.startswith("subtask.")}
    assert {("subtask.failed", 1), ("subtask.assemble_ready", 2)} <= steps
    assert api.until(api.orchestrate(project, good), GATE)


def resident_bytes(pid: int) -> int:
    """Return how much memory a process holds."""
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return pages * 4096
