"""Corrections from every door, with real agents, over HTTP and the command line."""

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from steersman.tests.e2e.conftest import Repository
from steersman.tests.e2e.served import GATE, Api, Frame, part, steersman, wait_until, write

#: What is shown here rests on no store; `test_restart.py` and `test_orchestration.py` go the same way on both.
STORES = ("sqlite",)

MARKER = "coordinator.revision_execution"
HANG = {"hang": {}}


def told(*steps: dict[str, Any], words: str = "Do it better.") -> str:
    """Return feedback that tells the rehearsal agent what to do."""
    return f"{words}\n```rehearsal\n{json.dumps(steps)}\n```"


def echo(path: str) -> dict[str, Any]:
    """Return the step that keeps the prompt in a file."""
    return {"echo_prompt": {"path": path}}


def directives(api: Api, run_id: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = api.get(f"/api/runs/{run_id}/steering")
    return found


def settled(api: Api, run_id: str) -> list[dict[str, Any]]:
    """Wait until every correction has ended; return them, oldest first."""
    ends = ("applied", "superseded", "expired", "needs_attention")
    return wait_until(
        lambda: all(d["status"] in ends for d in directives(api, run_id)) and directives(api, run_id), "all is settled"
    )


def at_work(api: Api, run_id: str, count: int) -> list[dict[str, Any]]:
    """Wait until so many workers have a session; return them by subtask."""

    def found() -> list[dict[str, Any]] | None:
        workers = [w for w in api.get(f"/api/fleet?run={run_id}") if w["session_id"]]
        return sorted(workers, key=lambda w: w["subtask_id"]) if len(workers) == count else None

    workers: list[dict[str, Any]] = wait_until(found, f"{count} workers are at work")
    return workers


def of(frames: Sequence[Frame], directive_id: str) -> list[str]:
    """Return what the feed says of a directive, as words."""
    said = [frame for frame in frames if frame.data.get("directiveId") == directive_id]
    return [
        ":".join(filter(None, (f.event.removeprefix("coordinator."), f.data.get("state") or f.data.get("status"))))
        for f in said
    ]


def test_requested_changes_revise_one_child_in_place_and_its_dependants_after_it(
    api: Api, repository: Repository
) -> None:
    parts = (
        part("first", write("one.txt", "rough\n")),
        part("second", write("two.txt", "second\n")),
        part("third", write("three.txt", "third\n"), needs=[0]),
    )
    run_id = api.orchestrate(api.project(repository.path), *parts)
    api.until(run_id, GATE)
    before = api.get(f"/api/runs/{run_id}/children")
    feedback = told(write("one.txt", "polished\n"), echo("prompt.txt"), words="POLISH-THIS")
    api.review(run_id, approved=False, request_changes=True, feedback=feedback, target_files=["one.txt"])
    feed = api.feed(run_id)
    frames = feed.until(GATE) + feed.until(GATE)
    feed.close()
    (directive,) = directives(api, run_id)
    after = api.get(f"/api/runs/{run_id}/children")
    assert [child["childRunId"] for child in after] == [child["childRunId"] for child in before]
    assert [a["treeHash"] == b["treeHash"] for a, b in zip(after, before, strict=True)] == [False, True, False]
    assert of(frames, directive["directiveId"]) == [
        "steering_received",
        "steering:queued",
        "steering:queued",  # the fresh budget
        "steering_decision",
        "assembly_changes_requested",
        "subtask.dispatched:dispatched",
        f"{MARKER.removeprefix('coordinator.')}:initiated",
        f"{MARKER.removeprefix('coordinator.')}:effect_confirmed",
        "steering:applied",
    ]
    again = [f.data["subtaskId"] for f in frames if f.event == "subtask.dispatched"]
    assert again == [1, 2, 3, 1, 3]
    api.review(run_id, approved=True)
    api.until(run_id, "coordinator.assembly_completed")
    assert repository.files["one.txt"] == "polished"
    assert repository.files["prompt.txt"].count("POLISH-THIS") == 1


def test_a_rejected_sole_author_starts_afresh_three_times_and_then_a_person_decides(
    api: Api, repository: Repository, tmp_path: Path
) -> None:
    body = {
        "name": "gated",
        "origin": "blank",
        "working_directory": str(repository.path),
        "build_test": {"command": ["sh", "-c", "test -f finished.txt"]},
    }
    project = api.post("/api/projects", body, 201)["project_id"]
    api.post(f"/api/projects/{project}/team/members", {"role_id": "software-engineer", "model_id": "forgetful"})
    run_id = api.orchestrate(project, part("only", write("a.txt", "a\n")), max_steering_iterations=10)
    frames = api.until(run_id, GATE)
    decisions = [f.data for f in frames if f.event == "coordinator.steering_decision" and not f.data["phase"]]
    assert [d["decision"] for d in decisions] == ["dispatch_fresh"] * 3 + ["proceed"]
    assert "coordinator.assembly_blocked" not in [f.event for f in frames]
    run = api.get(f"/api/runs/{run_id}")
    assert (run["status"], run["coordinator_status"]) == ("awaiting_review", "in_review")
    assert frames[-1].data["escalated"] is True
    assert len(frames[-1].data["accumulatedFeedback"]) == 4

    api.review(run_id, approved=False, request_changes=True, feedback="FINISH IT")
    api.until(run_id, "coordinator.gate_completed")
    wait_until(lambda: api.get(f"/api/runs/{run_id}")["status"] == "awaiting_review", "the gate is open again")
    assert repository.git("show", f"steersman/integration/{run_id}:finished.txt") == "x"


def test_a_paused_worker_stands_still_and_goes_on_without_loss(api: Api, repository: Repository) -> None:
    lines = 80
    append = {"append": {"path": "log.txt", "text": "a line\n", "times": lines, "every_ms": 50}}
    run_id = api.orchestrate(api.project(repository.path), part("writer", append))
    (worker,) = at_work(api, run_id, 1)
    task = worker["task_id"]
    folder = api.service.data / "worktrees" / task
    file = folder / "log.txt"
    wait_until(lambda: file.exists() and file.stat().st_size > 0, "the first line is written")
    receipt = api.post(f"/tasks/{task}/steer", {"kind": "pause", "reason": "look"}, 201)
    assert receipt["checkpoint_event_hash"]
    assert receipt["status"] == "applied"
    size = file.stat().st_size
    (paused,) = [f for f in api.until(task, "run.paused") if f.event == "run.paused"]
    signals = api.service.data / "signals" / worker["session_id"]
    assert [found.name for found in signals.iterdir()] == ["PAUSE"]
    # Where there are others, it says under which lease of the run it was written.
    has_others = "STEERSMAN_DATABASE" in api.service.variables
    assert ("epoch 1\n" in (signals / "PAUSE").read_text()) == has_others
    assert api.get(f"/api/fleet?run={run_id}")[0]["status"] == "paused"
    assert paused.data["treeHash"] == tree_of(repository, folder)
    api.post(f"/tasks/{run_id}:1/steer", {"kind": "guidance", "guidance": "Well done."}, 201)
    assert file.stat().st_size == size
    api.post(f"/tasks/{task}/steer", {"kind": "resume"}, 201)
    api.until(run_id, GATE)
    api.review(run_id, approved=True)
    api.until(run_id, "coordinator.assembly_completed")
    assert repository.files["log.txt"].splitlines() == ["a line"] * lines
    assert [d["status"] for d in settled(api, run_id)] == ["applied"] * 3
    assert not signals.exists()


def tree_of(repository: Repository, folder: Path) -> str:
    """Return the tree that the real git would commit of a worktree."""
    index = f"--git-dir={repository.path / '.git'}", f"--work-tree={folder}"
    repository.git(*index, "-c", "core.bare=false", "add", "--all")
    tree = repository.git(*index, "write-tree")
    repository.git("reset", "--quiet")
    return tree


def test_nothing_of_an_aborted_worker_lives(api: Api, repository: Repository) -> None:
    steps = (
        {"spawn": {"path": "canary.txt", "every_ms": 50, "detached": True}},
        {"say": "I do not listen"},
        {"hang": {"ignore_cancel": True, "ignore_term": True}},
    )
    run_id = api.orchestrate(api.project(repository.path), part("deaf", *steps))
    (worker,) = at_work(api, run_id, 1)
    canary = api.service.data / "worktrees" / worker["task_id"] / "canary.txt"
    wait_until(lambda: canary.exists() and canary.stat().st_size > 0, "the writer is at work")
    api.post(f"/tasks/{worker['task_id']}/steer", {"kind": "abort", "reason": "enough"}, 201)
    (directive,) = settled(api, run_id)
    assert directive["status"] == "applied"
    size = canary.stat().st_size
    killed = [f for f in api.until(worker["task_id"], "run.cancelled") if f.event == "run.processes_killed"]
    assert len(killed[0].data["pids"]) >= 2
    assert not any(Path(f"/proc/{pid}").exists() for pid in killed[0].data["pids"])
    assert (api.service.data / "signals" / worker["session_id"] / "SHUTDOWN").exists()
    api.until(run_id, "coordinator.assembly_blocked")
    assert canary.stat().st_size == size


def test_twenty_guidances_are_each_delivered_once_and_in_order(api: Api, repository: Repository) -> None:
    wait = {"append": {"path": "busy.txt", "text": "b\n", "times": 60, "every_ms": 50}}
    run_id = api.orchestrate(api.project(repository.path), part("busy", wait))
    (worker,) = at_work(api, run_id, 1)
    for number in range(20):
        guidance = told(echo("prompts.txt"), words=f"GUIDE-{number:02}")
        api.post(f"/tasks/{worker['task_id']}/steer", {"kind": "guidance", "guidance": guidance}, 201)
    api.until(run_id, GATE)
    assert [d["status"] for d in settled(api, run_id)] == ["applied"] * 20
    api.review(run_id, approved=True)
    api.until(run_id, "coordinator.assembly_completed")
    said = repository.files["prompts.txt"]
    places = [said.index(f"GUIDE-{number:02}") for number in range(20)]
    assert places == sorted(places)
    assert all(said.count(f"GUIDE-{number:02}") == 1 for number in range(20))


def test_a_fleet_is_steered_at_once_and_a_refusal_harms_nobody(api: Api, repository: Repository) -> None:
    count = 12
    parts = [part(f"worker {n}", {"say": "here"}, HANG) for n in range(count)]
    run_id = api.orchestrate(api.project(repository.path), *parts)
    workers = at_work(api, run_id, count)
    tasks = [worker["task_id"] for worker in workers]
    stranger = "00000000-0000-4000-8000-000000000000"
    redirect = told(write("done.txt", "done\n"), words="Do this instead.")
    body = {"kind": "redirect", "redirect_target": redirect, "tasks": [*tasks, stranger]}
    told_us = api.post("/api/fleet/steer", body, 201)
    assert [receipt["task_id"] for receipt in told_us["receipts"]] == tasks
    assert {receipt["batch_id"] for receipt in told_us["receipts"]} == {told_us["batch_id"]}
    assert [(refused["task_id"], refused["status"]) for refused in told_us["refused"]] == [(stranger, 404)]
    api.until(run_id, GATE)
    assert [d["status"] for d in settled(api, run_id)] == ["applied"] * count
    api.review(run_id, approved=False)


def test_the_command_line_steers_and_tells_who_is_at_work(api: Api, repository: Repository) -> None:
    run_id = api.orchestrate(api.project(repository.path), part("one", {"say": "here"}, HANG))
    (worker,) = at_work(api, run_id, 1)
    connection = {"STEERSMAN_SERVER_URL": api.service.url, "STEERSMAN_TOKEN": api.service.token}
    assert worker["task_id"] in steersman("fleet", "ls", **connection)
    said = steersman("fleet", "steer", worker["task_id"], "guidance", "--guidance", "hold on", **connection)
    assert said.startswith("Steered ")
    assert "a guidance needs" in steersman("fleet", "steer", "x", "guidance", expect=1, **connection).lower()
    steersman("fleet", "steer", "x", "sing", expect=2, **connection)
    viewer = {**connection, "STEERSMAN_TOKEN": api.service.issue("alice", "viewer")}
    assert "403" in steersman("fleet", "steer", worker["task_id"], "abort", expect=1, **viewer)
    assert "404" in steersman("fleet", "steer", f"{run_id}:7", "abort", expect=1, **connection)
    receipt = json.loads(steersman("fleet", "steer", "--run", run_id, "abort", "--json", **connection))
    assert receipt["receipts"][0]["kind"] == "abort"
    frames = api.until(run_id, "coordinator.assembly_blocked")
    (denied,) = [f.data for f in frames if f.event == "coordinator.steering_denied"]
    assert (denied["deniedPrincipal"], denied["target"]) == ("alice", worker["task_id"])


def test_of_decisions_that_race_one_wins_and_the_others_are_told(api: Api, repository: Repository) -> None:
    run_id = api.orchestrate(api.project(repository.path), part("one", write("one.txt", "1\n")))
    api.until(run_id, GATE)
    approve: tuple[str, dict[str, Any]] = (f"/api/runs/{run_id}/assembly/review", {"approved": True})
    redirect = (f"/api/runs/{run_id}/steer", {"kind": "redirect", "instruction": told(write("one.txt", "2\n"))})
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda call: api.http.post(call[0], json=call[1]).status_code, [approve, redirect] * 4))
    assert set(answers) <= {200, 201, 409}
    approvals, redirects = answers[::2].count(200), answers[1::2].count(201)
    # The first redirect closes the gate; one that comes after it finds a run at work, and steers that.
    assert (approvals, redirects) == (1, 0) or (approvals == 0 and redirects >= 1)


def test_a_stop_ends_the_run_and_everything_under_it(api: Api, repository: Repository) -> None:
    parts = [part("one", {"say": "here"}, HANG), part("two", {"say": "here"}, HANG)]
    run_id = api.orchestrate(api.project(repository.path), *parts)
    at_work(api, run_id, 2)
    api.post(f"/api/runs/{run_id}/steer", {"kind": "stop"}, 201)
    frames = api.until(run_id, "run.cancelled")
    assert frames[-1].data["reason"] == "steering_stop"
    assert api.get(f"/api/runs/{run_id}")["status"] == "failed"
    assert (
        api.post(f"/api/runs/{run_id}/steer", {"kind": "send", "instruction": "hello"}, 409)["error"]
        == "run_not_active"
    )


def test_a_stop_that_races_a_revision_wins_and_the_revision_is_told(api: Api, repository: Repository) -> None:
    run_id = api.orchestrate(api.project(repository.path), part("one", write("one.txt", "1\n")))
    api.until(run_id, GATE)
    changes = {"approved": False, "request_changes": True, "feedback": told({"say": "again"}, HANG)}
    calls = [(f"/api/runs/{run_id}/assembly/review", changes), (f"/api/runs/{run_id}/steer", {"kind": "stop"})]
    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda call: api.http.post(call[0], json=call[1]).status_code, calls))
    assert answers[1] == 201
    assert answers[0] in (200, 409)
    api.until(run_id, "run.cancelled")
    ends = {d["kind"]: d["status"] for d in directives(api, run_id)}
    assert ends["stop"] == "applied"
    assert ends.get("redirect") in (None, "superseded", "applied")
