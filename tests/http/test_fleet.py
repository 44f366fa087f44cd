"""
The fleet is shown as it is: who works, who is paused, and who waits for a place to work. A command for many workers
reaches each once.
"""

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from steersman.domain import follow
from steersman.http import worker_steering

GUIDANCE = {"kind": "guidance", "guidance": "Mind the gap."}


def at_work(story: Any, *parts: Sequence[int]) -> list[str]:
    """Start a run with a part for each of these, after the parts that it names; return the tasks that are at work."""
    story.project()
    plan = {"subtasks": [{"title": f"Part {n}", "dependsOn": after} for n, after in enumerate(parts)]}
    body = {"goal": "Sell things", "start_mode": "direct", "plan": plan}
    answer = story.client.post(f"/api/projects/{story.project_id}/orchestrations", json=body).raise_for_status()
    story.run_id = answer.json()["runId"]
    story.advance()
    return [part.child_run_id for part in story.run.plan.subtasks.values() if part.child_run_id]


def steer(story: Any, key: str | None = None, **body: Any) -> Any:
    """Steer the fleet."""
    headers = {} if key is None else {"Idempotency-Key": key}
    return story.client.post("/api/fleet/steer", json={**GUIDANCE, **body}, headers=headers)


def test_a_worker_that_is_paused_before_it_has_its_place_is_shown_as_paused(story: Any) -> None:
    story.start()
    story.advance()

    def status() -> str:
        (worker,) = story.client.get(f"/api/fleet?run={story.run_id}").json()
        return str(worker["status"])

    assert status() == "waiting_for_place"
    answer = story.client.post(
        "/api/fleet/steer", json={"kind": "pause", "selector": {"run": story.run_id, "status": "active"}}
    )
    assert answer.status_code == 201, answer.text
    for _ in range(2):
        story.decide(lambda run: follow.follow(run, story.api.services.clock.now(), ()))
    assert status() == "pausing"


def test_a_worker_that_is_named_in_many_ways_is_steered_once(story: Any) -> None:
    first, second = at_work(story, (), ())
    names = [first, f"{story.run_id}:1", first.upper(), f"{story.run_id.upper()}:1", second, second]
    answer = steer(story, tasks=names).json()
    assert [receipt["task_id"] for receipt in answer["receipts"]] == [first, second]
    assert [list(directive.targets) for directive in story.run.directives.values()] == [[first], [second]]


@pytest.mark.parametrize("kind", ["pause", "abort"])
def test_every_receipt_is_on_the_log_before_any_effect_is_waited_for_and_all_are_waited_for_at_once(
    story: Any, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(worker_steering, "EFFECT_SECONDS", 2.0)
    tasks = at_work(story, (), (), (), ())
    began = time.monotonic()
    with ThreadPoolExecutor(1) as pool:
        # Nobody drives this run, so no command has an effect.
        waiting = pool.submit(story.client.post, "/api/fleet/steer", json={"kind": kind, "tasks": tasks})
        while len(story.run.directives) < len(tasks) and not waiting.done():
            time.sleep(0.01)
        assert time.monotonic() - began < 4.0
        assert not waiting.done()
        answer = waiting.result()
    assert 2.0 <= time.monotonic() - began < 6.0
    assert [receipt["status"] for receipt in answer.json()["receipts"]] == ["queued"] * 4
