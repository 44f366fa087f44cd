"""A service that is killed at a bad moment, and one that takes its place."""

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from steersman.tests.e2e.conftest import Repository
from steersman.tests.e2e.served import GATE, MANY_LIVES_SECONDS, Api, Frame, Service, part, wait_until, write

LINES = 60
KILLS = 3


def slow(path: str) -> dict[str, object]:
    """Return the step that appends one line after the other: a kill strikes in the middle of it."""
    return {"append": {"path": path, "text": f"a line of {path}\n", "times": LINES, "every_ms": 40}}


# The file that lets an agent go on. It lies in the agent's own worktree, for nothing else is the same file in its box.
GO_ON = "go on"


def held() -> dict[str, object]:
    """Return the step that keeps an agent at work until it is let go: on any machine it is there to be killed."""
    return {"run": ["sh", "-c", f"until test -e '{GO_ON}'; do sleep 0.1; done; rm '{GO_ON}'"]}


def processes_of(service: Service) -> list[int]:
    """Return the agents of a service, and whatever they have started: their command or their folder is in its data."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and service.process is not None and int(entry.name) != service.process.pid:
            try:
                words = (entry / "cmdline").read_text(errors="replace") + os.readlink(entry / "cwd")
            except OSError:
                continue
            if str(service.data) in words:
                found.append(int(entry.name))
    return found


def size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def has_grown(file: Path, before: int) -> bool:
    """Whether a slow writer has come further, or has written everything."""
    return size(file) > before or size(file) == LINES * len(f"a line of {file.name}\n")


def numbers(frames: Sequence[Frame]) -> list[int | None]:
    return [frame.id for frame in frames if frame.event != "done"]


@pytest.mark.timeout(MANY_LIVES_SECONDS)
def test_a_run_goes_on_after_every_kill_and_does_nothing_twice(service: Service, repository: Repository) -> None:
    api = Api(service.start())
    canary = {"spawn": {"path": "canary.txt", "every_ms": 50, "detached": True}}
    parts = (
        part("left", canary, slow("left.txt"), held()),
        part("right", slow("right.txt"), held()),
        part("last", write("last.txt", "done\n"), needs=[0, 1]),
    )
    run_id = api.orchestrate(api.project(repository.path), *parts)
    feed = api.feed(run_id)
    seen = feed.until("subtask.running")
    seen += feed.until("subtask.running")
    feed.close()
    children = {f.data["subtaskId"]: f.data["childRunId"] for f in seen if f.event == "subtask.dispatched"}
    files = [service.data / "worktrees" / children[n] / f"{side}.txt" for n, side in ((1, "left"), (2, "right"))]
    for _ in range(KILLS):
        before = [size(file) for file in files]
        wait_until(lambda before=before: all(map(has_grown, files, before)), "both work")
        assert len(processes_of(service)) >= 2
        service.kill()
        wait_until(lambda: not processes_of(service), "no agent of the dead service is left")
        service.start()
    for file in files:
        (file.parent / GO_ON).touch()
    api = Api(service)
    feed = api.feed(run_id, seen[-1].id)
    seen += feed.until(GATE)
    api.review(run_id, approved=True)
    seen += feed.until("done")
    feed.close()

    assert numbers(seen) == list(range(1, len(seen)))
    assert api.until(run_id, "done") == seen
    assert [f.data["subtaskId"] for f in seen if f.event == "subtask.dispatched"] == [1, 2, 3]
    assert repository.files["left.txt"].splitlines() == ["a line of left.txt"] * LINES
    assert repository.files["right.txt"].splitlines() == ["a line of right.txt"] * LINES
    for path in ("left.txt", "right.txt", "last.txt"):
        assert len(repository.git("log", "--no-merges", "--format=%H", "--", path).splitlines()) == 1
    assert not processes_of(service)
    for child in api.get(f"/api/runs/{run_id}/children"):
        frames = api.until(child["childRunId"], "done")
        assert numbers(frames) == list(range(1, len(frames)))


def test_a_gate_stays_open_across_a_kill(service: Service, repository: Repository) -> None:
    api = Api(service.start())
    run_id = api.orchestrate(api.project(repository.path), part("only", write("a.txt", "a\n")))
    seen = api.until(run_id, GATE)
    service.kill()
    api = Api(service.start())
    assert api.get(f"/api/runs/{run_id}")["status"] == "awaiting_review"
    api.review(run_id, approved=True)
    assert api.until(run_id, "done")[: len(seen)] == seen
    assert repository.files["a.txt"] == "a"


def test_an_approval_that_was_answered_is_merged_whatever_happens_next(
    service: Service, repository: Repository
) -> None:
    api = Api(service.start())
    run_id = api.orchestrate(api.project(repository.path), part("only", write("a.txt", "a\n")))
    api.until(run_id, GATE)
    api.review(run_id, approved=True)
    service.kill()
    api = Api(service.start())
    topics = [frame.event for frame in api.until(run_id, "done")]
    assert topics.count("coordinator.assembly_merge_completed") == 1
    assert repository.files["a.txt"] == "a"
    assert repository.git("status", "--porcelain") == ""
    wait_until(lambda: not repository.git("branch", "--list", "steersman/*"), "the branches are cleared away")
    assert len(repository.git("worktree", "list").splitlines()) == 1


def test_a_service_that_is_told_to_end_leaves_its_work_to_the_next(service: Service, repository: Repository) -> None:
    api = Api(service.start())
    run_id = api.orchestrate(api.project(repository.path), part("slow", slow("slow.txt")))
    feed = api.feed(run_id)
    seen = feed.until("subtask.running")
    file = service.data / "worktrees" / seen[-1].data["childRunId"] / "slow.txt"
    wait_until(lambda: size(file), "it works")
    assert service.stop() == 0
    assert not processes_of(service)
    feed.close()
    api = Api(service.start())
    feed = api.feed(run_id, seen[-1].id)
    seen += feed.until(GATE)
    feed.close()
    assert numbers(seen) == list(range(1, len(seen) + 1))
    api.review(run_id, approved=True)
    api.until(run_id, "coordinator.assembly_completed")
    assert repository.files["slow.txt"].splitlines() == ["a line of slow.txt"] * LINES
