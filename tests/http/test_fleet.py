"""
The fleet is shown as it is: who works, who is paused, and who waits for a place to work. A command for many workers
reaches each once.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from steersman.application.ports.log import LogUnavailable
from steersman.application.writer.run_log import RunLog
from steersman.domain.steering import follow
from steersman.http.request.given import Services
from steersman.tests.live_agents import wait_until

from .conftest import Api, Story, patient, served

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
    assert [list(directive.targets) for directive in story.run.received()] == [[first], [second]]


@pytest.mark.parametrize("kind", ["pause", "abort"])
def test_every_receipt_is_on_the_log_before_any_effect_is_waited_for(story: Any, kind: str) -> None:
    tasks = at_work(story, (), (), (), ())
    draining = story.api.services.draining
    try:
        with patient(story.api.services) as url, ThreadPoolExecutor(1) as pool:
            # Nobody drives this run, so no command has an effect, and the first wait would last for ever.
            waiting = pool.submit(story.client.post, f"{url}/api/fleet/steer", json={"kind": kind, "tasks": tasks})
            wait_until(lambda: len(story.run.directives) == len(tasks), "every receipt is stored")
            assert not waiting.done()
            draining.set()
            answer = waiting.result()
    finally:
        draining.clear()
    assert [receipt["status"] for receipt in answer.json()["receipts"]] == ["queued"] * 4


def test_a_repetition_is_for_the_same_workers_and_answers_the_same_when_others_began_later(story: Any) -> None:
    first, other = at_work(story, (), (), (0,))
    selector = {"run": story.run_id, "status": "active"}
    asked = steer(story, "one", selector=selector)
    assert [receipt["task_id"] for receipt in asked.json()["receipts"]] == [first, other]
    assert "idempotent-replayed" not in asked.headers
    story.advance()
    story.work(1)
    story.advance()
    later = story.child(3)
    head = story.api.services.log.head()
    again = steer(story, "one", selector=selector)
    assert (again.status_code, again.headers["idempotent-replayed"]) == (201, "true")
    assert unchanging(again) == unchanging(asked)
    assert story.api.services.log.head() == head
    anew = steer(story, "two", selector=selector)
    assert [receipt["task_id"] for receipt in anew.json()["receipts"]] == [other, later]


def test_a_repetition_is_answered_when_nobody_is_at_work_any_more(story: Any) -> None:
    at_work(story, ())
    selector = {"run": story.run_id, "status": "active"}
    asked = steer(story, "one", selector=selector)
    story.work(1)
    again = steer(story, "one", selector=selector)
    assert (again.status_code, again.headers["idempotent-replayed"]) == (201, "true")
    assert unchanging(again) == unchanging(asked)
    assert steer(story, "two", selector=selector).status_code == 400


def test_another_command_under_the_same_key_is_422_and_nobody_is_steered(story: Any) -> None:
    first, second = at_work(story, (), ())
    assert steer(story, "one", tasks=[first]).status_code == 201
    head = story.api.services.log.head()
    for other in ({"tasks": [first, second]}, {"tasks": [second]}, {"tasks": [first], "guidance": "Another thing."}):
        refused = steer(story, "one", **other)
        assert (refused.status_code, refused.json()["error"]) == (422, "idempotency_key_spent")
    assert story.api.services.log.head() == head


def test_a_refusal_within_a_batch_is_the_answer_to_its_repetitions_too(story: Any) -> None:
    (first,) = at_work(story, ())
    story.work(1)
    asked = steer(story, "one", kind="abort", guidance="", tasks=[first, "nope"])
    assert [one["error"] for one in asked.json()["refused"]] == ["run_not_found", "run_not_active"]
    again = steer(story, "one", kind="abort", guidance="", tasks=[first, "nope"])
    assert (again.json(), again.headers["idempotent-replayed"]) == (asked.json(), "true")


def test_a_key_stays_free_when_whoever_asks_may_steer_nobody_or_nobody_is_selected(story: Any) -> None:
    (task,) = at_work(story, ())
    body = {**GUIDANCE, "tasks": [task]}
    key = {"Idempotency-Key": "one"}
    looks = story.api.client("alice", "viewer")
    assert looks.post("/api/fleet/steer", json=body, headers=key).status_code == 403
    assert steer(story, "one", selector={"run": story.run_id, "status": "paused"}).status_code == 400
    assert "idempotent-replayed" not in steer(story, "one", tasks=[task]).headers


class Dying:
    """A log that is there for so many appends, and then is not."""

    def __init__(self, log: Any, appends: int) -> None:
        self._log = log
        self.left = appends

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    def append(self, append: Any) -> Any:
        """Store it, or nothing."""
        self.left -= 1
        if self.left < 0:
            raise LogUnavailable("it died")
        return self._log.append(append)


@pytest.mark.parametrize("appends", range(5))
def test_a_repetition_after_a_crash_completes_what_is_missing_for_the_same_workers(
    services: Services, story: Story, appends: int
) -> None:
    first, second, third = at_work(story, (), (), (), (0,))
    selector = {"run": story.run_id, "status": "active"}
    dying = Dying(services.log, appends)
    with served(replace(services, log=dying, runs=RunLog(dying, services.clock))) as url:
        crashed = Story(Api(services, url), Path())
        with crashed.api.stack:
            token = story.client.headers["Authorization"]
            crashed.client.headers["Authorization"] = token
            assert steer(crashed, "one", selector=selector).status_code == (201 if appends == 4 else 503)
    assert len(story.run.directives) == max(0, appends - 1)
    if appends > 1:  # the first has its receipt: let it end, so that the fourth begins
        story.advance()
        story.work(1)
        story.advance()
        assert story.child(4)
    asked, again = steer(story, "one", selector=selector), steer(story, "one", selector=selector)
    assert [receipt["task_id"] for receipt in asked.json()["receipts"]] == [first, second, third]
    assert ("idempotent-replayed" in asked.headers, "idempotent-replayed" in again.headers) == (appends == 4, True)
    assert unchanging(again) == unchanging(asked)
    directives = list(story.run.received())
    assert [list(directive.targets) for directive in directives] == [[first], [second], [third]]
    assert {directive.batch_id for directive in directives} == {asked.json()["batch_id"]}


def test_repetitions_that_meet_in_one_process_or_in_two_make_one_batch(services: Services, story: Any) -> None:
    tasks = at_work(story, *[()] * 6)
    with served(services) as url, httpx.Client(base_url=url, headers=story.client.headers, timeout=60) as other:
        clients = [story.client, other] * 8

        def send(client: httpx.Client) -> httpx.Response:
            return client.post("/api/fleet/steer", json={**GUIDANCE, "tasks": tasks}, headers={"Idempotency-Key": "m"})

        with ThreadPoolExecutor(len(clients)) as pool:
            answers = list(pool.map(send, clients))
    assert {answer.status_code for answer in answers} <= {201, 409}
    assert {answer.json()["error"] for answer in answers if answer.status_code == 409} <= {"idempotency_key_in_flight"}
    made = [unchanging(answer) for answer in answers if answer.status_code == 201]
    assert made == [made[0]] * len(made)
    assert [list(directive.targets) for directive in story.run.received()] == [[task] for task in tasks]


def unchanging(answer: Any) -> Any:
    """Return an answer without what is told anew each time: how far each command is."""
    told = answer.json()
    for receipt in told["receipts"]:
        del receipt["status"]
    return told
