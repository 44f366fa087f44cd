"""A run's record: cancelled, put aside, tried again, deleted. What is deleted is gone from every answer."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from steersman.application.ports.log import Undecodable
from steersman.application.writer.run_log import RunLog
from steersman.domain.process.effects import EndWorkers, next_effects
from steersman.domain.runs import review
from steersman.domain.work import workers
from steersman.http.request.given import Services

from .conftest import served

TEXTS = ("Sell things", "All of it", "Looking.", "Secret words")


def post(story: Any, action: str, **headers: str) -> Any:
    """Post an action of the run."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return story.client.post(f"/api/runs/{story.run_id}/{action}", headers=named)


def end(story: Any) -> None:
    """Do what a stop asks for: no agent is alive here."""
    story.advance()
    (stop,) = [e for e in next_effects(story.run) if isinstance(e, EndWorkers)]
    at = story.api.services.clock.now()
    killed = {child: () for child in story.run.children}
    story.decide(lambda run: workers.confirm_end(run, stop.directive_id, killed, at))


def fail(story: Any) -> None:
    """Let the run fail where nothing can be taken up."""
    story.decide(lambda run: review.fail_run(run, error_code="agent_exited", message="It broke.", retryable=True))


def test_a_cancelled_run_has_a_receipt_and_ends_with_its_children(api: Any, story: Any) -> None:
    story.start()
    story.advance()
    response = post(story, "cancel")
    assert response.status_code == 200
    body = {"run_id": story.run_id, "status": "in_progress", "cancelled": True, "already_terminal": False}
    assert response.json() == body
    (directive,) = story.run.directives.values()
    assert (directive.verb, directive.created_by) == ("stop", api.name("alice"))
    assert post(story, "cancel").json() == body
    assert len(story.run.directives) == 1
    end(story)
    run = story.client.get(f"/api/runs/{story.run_id}", headers=api.settled()).json()
    assert (run["status"], run["result"]) == ("failed", "cancelled")
    child = story.client.get(f"/api/runs/{next(iter(story.run.children))}", headers=api.settled()).json()
    assert (child["status"], child["result"]) == ("failed", "cancelled")
    assert post(story, "cancel").json() == body | {"status": "failed", "cancelled": False, "already_terminal": True}


def test_a_run_that_is_being_merged_is_not_cancelled(story: Any) -> None:
    story.to_gate()
    story.client.post(f"/api/runs/{story.run_id}/review", json={"approved": True}).raise_for_status()
    response = post(story, "cancel")
    assert (response.status_code, response.json()["error"]) == (409, "already_merged")


def test_an_archived_run_keeps_its_first_time_and_is_listed_with_it(api: Any, story: Any) -> None:
    story.start()
    response = post(story, "archive")
    assert (response.status_code, set(response.json())) == (200, {"run_id", "archived_at"})
    assert post(story, "archive").json() == response.json()
    at = response.json()["archived_at"]
    assert story.client.get(f"/api/runs/{story.run_id}", headers=api.settled()).json()["archived_at"] == at
    listed = story.client.get(f"/api/projects/{story.project_id}/runs", headers=api.settled()).json()
    assert [run["archived_at"] for run in listed] == [at]


def test_a_failed_run_is_tried_again_as_a_new_run_with_the_same_plan(api: Any, story: Any) -> None:
    story.start()
    post(story, "cancel").raise_for_status()
    end(story)
    before = story.run
    response = post(story, "retry")
    assert response.status_code == 201
    new = response.json()["run_id"]
    assert response.json() == {"run_id": new, "retried_from": story.run_id, "status": "in_progress"}
    assert response.headers["location"] == f"/api/runs/{new}"
    assert story.run == before
    again = api.services.runs.run(new)
    assert (str(again.goal), again.user) == ("Sell things", api.name("alice"))
    assert [(str(s.title), s.depends_on) for s in again.plan.subtasks.values()] == [("Build", ()), ("Test", (1,))]
    shown = story.client.get(f"/api/runs/{new}", headers=api.settled()).json()
    assert shown["retried_from"] == story.run_id


def test_a_failed_run_with_a_recovery_point_goes_on_itself(api: Any, story: Any) -> None:
    story.start()
    story.advance()
    fail(story)
    response = post(story, "retry")
    body = {"run_id": story.run_id, "retried_from": None, "status": "in_progress", "resumed": True}
    assert (response.status_code, response.json()) == (200, body)
    story.advance()
    assert story.run.status == "in_progress"


def test_a_chain_of_retries_ends_after_three(api: Any, story: Any) -> None:
    story.start()
    responses: list[Any] = []
    for _ in range(4):
        post(story, "cancel").raise_for_status()
        end(story)
        responses.append(post(story, "retry"))
        story.run_id = responses[-1].json().get("run_id")
    assert [response.status_code for response in responses] == [201, 201, 201, 409]
    assert responses[-1].json()["error"] == "retry_limit_reached"


def test_only_a_failed_run_is_tried_again(story: Any) -> None:
    story.to_gate()
    refused = post(story, "retry")
    assert (refused.status_code, refused.json()["error"]) == (409, "run_not_retryable")
    story.client.post(f"/api/runs/{story.run_id}/review", json={"approved": False}).raise_for_status()
    assert post(story, "retry").json()["error"] == "run_not_retryable"


def test_a_retry_with_a_key_starts_one_run(story: Any) -> None:
    story.start()
    post(story, "cancel").raise_for_status()
    end(story)
    first, second = post(story, "retry", Idempotency_Key="k"), post(story, "retry", Idempotency_Key="k")
    assert first.json() == second.json()


def retry_at_once(story: Any, times: int = 8) -> list[Any]:
    """Send a retry this often at once, without a key."""
    with ThreadPoolExecutor(times) as pool:
        return list(pool.map(lambda _: post(story, "retry"), range(times)))


def test_one_run_comes_of_a_failed_run_however_often_and_by_whom_it_is_tried_again(api: Any, story: Any) -> None:
    story.start()
    post(story, "cancel").raise_for_status()
    end(story)
    answers = retry_at_once(story)
    (made,) = [answer.json()["run_id"] for answer in answers if answer.status_code == 201]
    post(story, "archive").raise_for_status()
    for refused in (*(one for one in answers if one.status_code != 201), post(story, "retry", Idempotency_Key="late")):
        assert (refused.status_code, refused.json()["error"]) == (409, "already_retried")
        assert (refused.json()["retried_as"], refused.json()["retryable"]) == (made, False)
    listed = story.client.get(f"/api/projects/{story.project_id}/runs", headers=api.settled()).json()
    assert sorted(run["execution_id"] for run in listed) == sorted([story.run_id, made])


def test_a_failed_run_with_a_recovery_point_is_taken_up_once(story: Any) -> None:
    story.start()
    story.advance()
    fail(story)
    answers = retry_at_once(story)
    assert [answer.status_code for answer in answers].count(200) == 1
    assert {answer.json()["error"] for answer in answers if answer.status_code != 200} == {"run_not_retryable"}
    assert len(story.run.directives) == 1
    story.advance()
    assert story.run.status == "in_progress"
    assert len(story.run.directives) == 1


def test_a_run_that_is_deleted_while_it_is_tried_again_has_no_successor_with_its_words(
    services: Services, story: Any
) -> None:
    story.start()
    post(story, "cancel").raise_for_status()
    end(story)

    class Late:
        """Repositories over which a deletion comes between the look at the failed run and the append."""

        def __getattr__(self, name: str) -> Any:
            return getattr(services.repositories, name)

        def tip(self, *arguments: Any) -> Any:
            story.client.delete(f"/api/runs/{story.run_id}")
            return services.repositories.tip(*arguments)

    with served(replace(services, repositories=Late())) as url:
        head = services.log.head()
        response = story.client.post(f"{url}/api/runs/{story.run_id}/retry")
        assert (response.status_code, response.json()["error"]) == (404, "run_not_found")
        after = services.log.read(head)
    assert "coordinator.started" not in [fact.topic for fact in after]


@pytest.fixture
def deleted(api: Any, story: Any) -> Any:
    """A run at its gate, with a directive of its own, that was just deleted."""
    story.to_gate()
    steered = story.client.post(f"/api/runs/{story.run_id}/steer", json={"kind": "send", "instruction": TEXTS[3]})
    story.directive_id = steered.raise_for_status().json()["directiveId"]
    story.children = list(story.run.children)
    # Every look that is remembered, is remembered from before.
    for run_id in (story.run_id, *story.children):
        assert story.client.get(f"/api/runs/{run_id}", headers=api.settled()).status_code == 200
    response = story.client.delete(f"/api/runs/{story.run_id}")
    assert (response.status_code, response.content) == (204, b"")
    return story


RUN_PATHS = (
    "", "/work-plan", "/children", "/events", "/stream", "/steering", "/assembly/files", "/assembly/files/README",
)  # fmt: skip


@pytest.mark.parametrize("path", RUN_PATHS)
def test_a_deleted_run_and_its_children_are_404(deleted: Any, path: str) -> None:
    for run_id in (deleted.run_id, *deleted.children):
        assert deleted.client.get(f"/api/runs/{run_id}{path}").status_code == 404


def test_a_run_that_cannot_be_read_can_be_deleted(services: Services, story: Any) -> None:
    story.start()
    story.advance()

    class Garbled:
        """The log, with a fact of this run that cannot be decoded."""

        def __getattr__(self, name: str) -> Any:
            return getattr(services.log, name)

        def read_tree(self, root: str, *_: int) -> Any:
            raise Undecodable(9, root, "garbled")

    log: Any = Garbled()
    with served(replace(services, log=log, runs=RunLog(log, services.clock))) as url:
        assert story.client.delete(f"{url}/api/runs/{story.run_id}").status_code == 204
        assert story.client.delete(f"{url}/api/runs/{story.run_id}").status_code == 404
    assert story.client.get(f"/api/runs/{story.run_id}").status_code == 404
    assert not [words for words in TEXTS if words in repr(services.log.read_tree(story.run_id))]


def test_a_deleted_run_takes_no_command_and_has_no_receipt(deleted: Any) -> None:
    client, path = deleted.client, f"/api/runs/{deleted.run_id}"
    head = deleted.api.services.log.head()
    sent = [
        client.post(f"{path}/steer", json={"kind": "stop"}),
        client.post(f"{path}/review", json={"approved": True}),
        client.post(f"{path}/cancel"),
        client.post(f"{path}/archive"),
        client.post(f"{path}/retry"),
        client.delete(path),
        client.post(f"/tasks/{deleted.children[0]}/steer", json={"kind": "pause"}),
        client.get(f"{path}/steering/{deleted.directive_id}"),
        client.get(f"/api/receipts/{deleted.directive_id}"),
    ]
    assert [response.status_code for response in sent] == [404] * len(sent)
    assert deleted.api.services.log.head() == head


def test_a_deleted_run_is_in_no_list_and_no_feed(api: Any, deleted: Any) -> None:
    client = deleted.client
    for path in (f"/api/projects/{deleted.project_id}/runs", "/api/fleet"):
        assert client.get(path, headers=api.settled()).json() == []
    facts = client.get("/api/events?limit=1000").json()
    assert facts
    assert not [fact for fact in facts if fact["root"] == deleted.run_id]
    assert not [words for words in TEXTS if words in str(facts)]


def test_a_feed_that_is_open_when_its_run_is_deleted_ends(api: Any, story: Any) -> None:
    story.start()
    with story.client.stream("GET", f"/api/runs/{story.run_id}/stream") as feed:
        lines = feed.iter_lines()
        assert any(line.startswith("event: coordinator.started") for line in lines)
        story.client.delete(f"/api/runs/{story.run_id}").raise_for_status()
        assert "event: done" in list(lines)
