"""Agents that fail: what they had half done is kept, they are started afresh, and in the end a person is asked why."""

import shutil
from pathlib import Path

import pytest

from steersman.tests.e2e.conftest import Repository
from steersman.tests.e2e.served import GATE, Api, Service, part, wait_until, write

#: What agents, places and branches do is the same on each store.
STORES = ("sqlite",)

BLOCKED = "coordinator.assembly_blocked"
MAX_KEPT_BYTES = 5 * 1024 * 1024
#: What is kept of an agent's output in the test of how much it may report.
KEPT_OF_A_FLOOD = 64 * 1024
#: How often a part is tried whose agent fails in a way that may be over the next time.
ATTEMPTS = 4
#: Writes half of the part and dies, unless it finds that half.
DIES_ONCE = {"run": ["sh", "-c", "test -e half.txt || { echo half > half.txt; kill -9 $PPID; }"]}


def failures_of(api: Api, run_id: str) -> list[dict[str, object]]:
    """Return what the `run.failed` of each of the only part's children says, once a person is asked."""
    frames = api.until(run_id, BLOCKED)
    children = dict.fromkeys(f.data["childRunId"] for f in frames if f.event == "subtask.dispatched")
    failures: list[dict[str, object]] = []
    for child_id in children:
        failed = api.until(child_id, "done")[-2]
        assert failed.event == "run.failed"
        assert api.get(f"/api/runs/{child_id}")["status"] == "failed"
        failures.append(failed.data)
    (missing,) = frames[-1].data["ineligibleSubtasks"]
    assert missing["reason"] == failures[-1]["message"]
    return failures


@pytest.mark.parametrize(
    ("agent", "code", "attempts"),
    [
        ("missing", "agent_not_installed", 1),
        ("nonsense", "agent_protocol_error", ATTEMPTS),
        ("leaver", "agent_exited", ATTEMPTS),
    ],
)
def test_an_agent_that_never_works_fails_its_child_run(
    api: Api, repository: Repository, agent: str, code: str, attempts: int
) -> None:
    project = api.project(repository.path, {"role_id": "tester", "model_id": agent})
    failures = failures_of(api, api.orchestrate(project, part("only", write("a.txt", "a\n"))))
    assert [failure["errorCode"] for failure in failures] == [code] * attempts
    for failure in failures:
        assert set(failure) == {"message", "errorCode", "retryable"}
        assert failure["message"]


@pytest.mark.parametrize(
    ("step", "code", "attempts"),
    [
        ({"crash": {"exit": 3}}, "agent_exited", ATTEMPTS),
        ({"fail": "I cannot do this"}, "agent_turn_failed", ATTEMPTS),
        ({"end": "cancelled"}, "agent_turn_cancelled", ATTEMPTS),
        ({"end": "max_tokens"}, "agent_turn_limit", ATTEMPTS),
        ({"end": "refusal"}, "agent_refused", 1),
    ],
)
def test_an_agent_that_gives_up_in_the_middle_is_started_afresh_as_long_as_that_may_help(
    api: Api, repository: Repository, step: dict[str, object], code: str, attempts: int
) -> None:
    run_id = api.orchestrate(api.project(repository.path), part("only", {"say": "I am tired."}, step))
    failures = failures_of(api, run_id)
    assert [failure["errorCode"] for failure in failures] == [code] * attempts
    assert all("It said last: I am tired." in str(failure["message"]) for failure in failures)


def test_an_agent_that_dies_once_is_started_again_with_what_it_had_half_done_and_told_so(
    api: Api, repository: Repository
) -> None:
    steps = ({"say": "Half of it is there."}, DIES_ONCE, {"echo_prompt": {"path": "prompt.txt"}})
    run_id = api.run_to_merge(api.project(repository.path), part("only", *steps))
    (again,) = [f for f in api.until(run_id, "done") if f.event == "coordinator.subtask_redispatched"]
    assert (again.data["reason"], again.data["attempt"]) == ("exit_redispatch", 1)
    assert (repository.path / "half.txt").read_text(encoding="utf-8") == "half\n"
    prompt = (repository.path / "prompt.txt").read_text(encoding="utf-8")
    assert "Yours is attempt 2 of 4" in prompt
    assert "(agent_exited)" in prompt
    assert "Half of it is there." in prompt
    assert "What was half done is in your worktree" in prompt
    assert "Unfinished: only" in repository.git("log", "--format=%s", "main")


def test_a_workplace_that_is_deleted_while_its_agent_sleeps_deletes_nothing(api: Api, repository: Repository) -> None:
    steps = (write("a.txt", "a\n"), {"sleep_ms": 4_000}, {"echo_prompt": {"path": "prompt.txt"}})
    before = set(repository.git("ls-tree", "-r", "--name-only", "main").split())
    run_id = api.orchestrate(api.project(repository.path), part("only", *steps))
    (child_id,) = {f.data["childRunId"] for f in api.until(run_id, "subtask.running") if "childRunId" in f.data}
    workplace = api.service.data / "worktrees" / child_id
    wait_until(lambda: (workplace / "a.txt").exists(), "the agent has written")
    shutil.rmtree(workplace, ignore_errors=True)
    api.until(run_id, GATE)
    lost = [f.data for f in api.until(child_id, "run.assemble_ready") if f.event == "turn.interrupted"]
    assert [(found["workplace"], found["sessionKept"]) for found in lost] == [("vanished", False)]
    api.review(run_id, approved=True)
    api.until(run_id, "done")
    assert set(repository.git("ls-tree", "-r", "--name-only", "main").split()) == {*before, "a.txt", "prompt.txt"}
    assert "was deleted while it was worked on" in repository.git("show", "main:prompt.txt")


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
    frames = api.until(run_id, "subtask.failed")
    assert frames[-1].data["cause"] == "agent_output_limit"
    child_id = frames[-1].data["childRunId"]
    stored = api.until(child_id, "done")
    topics = [frame.event for frame in stored]
    assert topics.count("run.output_truncated") == 1
    kept = sum(len(f.data.get("delta") or f.data.get("data") or "") for f in stored)
    assert 0 < kept < MAX_KEPT_BYTES
    wait_until(lambda: resident_bytes(process.pid) < before + 200 * 1024 * 1024, "the service is small again")


def test_an_endless_flood_of_calls_ends_its_turn_with_its_cause_and_what_was_half_done_is_kept(
    service: Service, repository: Repository
) -> None:
    service.variables["STEERSMAN_TURN_OUTPUT_MIB"] = "1"
    (repository.path / ".steersman").mkdir()
    (repository.path / ".steersman" / "settings.yml").write_text(f"max_output_bytes: {KEPT_OF_A_FLOOD}\n")
    repository.commit("Keep little of what agents say")
    api = Api(service.start())
    steps = (write("half.txt", "half\n"), {"say": "I go round in circles."}, {"flood": {}})
    run_id = api.orchestrate(api.project(repository.path), part("only", *steps))
    failures = failures_of(api, run_id)
    assert [failure["errorCode"] for failure in failures] == ["agent_output_limit"] * ATTEMPTS
    assert all("It said last: I go round in circles." in str(failure["message"]) for failure in failures)
    children = [f.data["childRunId"] for f in api.until(run_id, BLOCKED) if f.event == "subtask.dispatched"]
    for child_id in children:
        topics = [frame.event for frame in api.until(child_id, "done")]
        assert topics.count("run.output_truncated") == 1
        assert len(topics) < KEPT_OF_A_FLOOD / 512 + 20
    assert repository.git("show", f"steersman/{children[0]}:half.txt") == "half"
    wait_until(lambda: not api.get(f"/api/runs/{run_id}/explain")["effects"], "nothing is under way any more")


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
