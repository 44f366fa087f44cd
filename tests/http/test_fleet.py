"""The fleet is shown as it is: who works, who is paused, and who waits for a place to work."""

from typing import Any

from steersman.domain import follow


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
