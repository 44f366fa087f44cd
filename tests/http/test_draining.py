"""A process that is to end: who waits is answered, and who cannot be answered any more is told to ask again."""

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from threading import Event
from typing import Any

from .conftest import Api, patient, served


def test_who_waits_for_an_effect_is_answered_as_soon_as_the_process_is_to_end(story: Any) -> None:
    story.start()
    story.advance()
    task = story.child(1)
    draining = story.api.services.draining
    try:
        with patient(story.api.services) as url, ThreadPoolExecutor(1) as pool:
            # Nobody drives this run, so the pause has no effect.
            answer = pool.submit(story.client.post, f"{url}/tasks/{task}/steer", json={"kind": "pause"})
            time.sleep(0.3)
            draining.set()
            response = answer.result()
        assert (response.status_code, response.json()["status"]) == (201, "queued")
        refused = story.client.post(f"/tasks/{task}/steer", json={"kind": "resume"})
        assert (refused.status_code, refused.json()["error"]) == (503, "draining")
    finally:
        draining.clear()


def test_a_request_that_the_end_of_the_process_cuts_short_is_503_and_may_be_sent_again(api: Any) -> None:
    asked, over = Event(), Event()

    class Slow:
        def __getattr__(self, name: str) -> Any:
            asked.set()
            over.wait(20)
            return getattr(api.services.views, name)

    with ThreadPoolExecutor(1) as pool, ExitStack() as clients:
        try:
            with served(replace(api.services, views=Slow())) as url:
                slow = Api(api.services, url)
                clients.enter_context(slow.stack)
                answer = pool.submit(slow.client().get, "/api/projects")
                answer.add_done_callback(lambda _: over.set())
                assert asked.wait(20)
                # The server ends here; it waits for its requests, but not for ever.
            response = answer.result()
        finally:
            over.set()
    assert (response.status_code, response.json()["error"]) == (503, "cut_short")
    assert response.json()["retryable"] is True
    assert response.headers["Retry-After"] == "1"
    assert response.headers["Content-Type"] == "application/problem+json"
