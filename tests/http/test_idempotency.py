"""A command with a key is carried out once, however often and from however many threads it is sent."""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from threading import Event
from typing import Any

import httpx
import pytest

from steersman.adapters.clock import SystemClock
from steersman.adapters.stores.memory import MemoryLog
from steersman.application.writer.caller import Answer, Caller, IdempotencyKey
from steersman.application.writer.run_log import RunLog
from steersman.domain.kinds.catalogue import CATALOGUE
from steersman.http.request.given import Services

from .conftest import Api, Story, served


def project(repository: Path, name: str = "x") -> dict[str, str]:
    return {"name": name, "working_directory": str(repository)}


def test_the_same_key_and_body_get_the_first_answer_again(api: Api, repository: Path) -> None:
    client = api.client()
    first = client.post("/api/projects", json=project(repository), headers=key("a"))
    head = api.services.log.head()
    again = client.post("/api/projects", json=project(repository), headers=key("a"))
    assert (first.status_code, again.status_code) == (201, 201)
    assert again.content == first.content
    for name in ("location", "steersman-position", "content-type"):
        assert again.headers[name] == first.headers[name]
    assert "idempotent-replayed" not in first.headers
    assert again.headers["idempotent-replayed"] == "true"
    assert api.services.log.head() == head


def test_every_post_takes_a_key(api: Api, story: Story, repository: Path) -> None:
    story.to_gate()
    client = story.client
    posts = {
        "/api/projects": project(repository),
        f"/api/projects/{story.project_id}/team/members": {"role_id": "architect"},
        f"/api/projects/{story.project_id}/orchestrations": {"goal": "x", "start_mode": "direct"},
        f"/api/runs/{story.run_id}/assembly/review": {"approved": False},
    }
    for path, body in posts.items():
        first = client.post(path, json=body, headers=key("b"))
        again = client.post(path, json=body, headers=key("b"))
        assert first.status_code in (200, 201), first.text
        assert (again.status_code, again.content) == (first.status_code, first.content)
        assert again.headers["idempotent-replayed"] == "true"


def test_the_same_key_with_another_body_is_422_and_says_that_the_key_is_spent(api: Api, repository: Path) -> None:
    client = api.client()
    client.post("/api/projects", json=project(repository), headers=key("c")).raise_for_status()
    head = api.services.log.head()
    response = client.post("/api/projects", json=project(repository, "y"), headers=key("c"))
    assert (response.status_code, response.json()["error"]) == (422, "idempotency_key_spent")
    assert (response.json()["key_state"], response.json()["retryable"]) == ("spent", False)
    assert api.services.log.head() == head


def test_a_key_belongs_to_its_principal_and_path(api: Api, story: Story, repository: Path) -> None:
    story.project()
    for client in (story.client, api.client("bob")):
        assert client.post("/api/projects", json=project(repository), headers=key("d")).status_code == 201
    path = f"/api/projects/{story.project_id}/team/members"
    assert story.client.post(path, json={"role_id": "architect"}, headers=key("d")).status_code == 200


def test_a_refusal_leaves_the_key_free(api: Api, story: Story, repository: Path) -> None:
    story.project()
    path = f"/api/projects/{story.project_id}/orchestrations"
    body = {"goal": "x", "start_mode": "direct"}
    moved = repository.rename(repository.with_name("elsewhere"))
    assert story.client.post(path, json=body, headers=key("e")).status_code == 409
    moved.rename(repository)
    response = story.client.post(path, json=body, headers=key("e"))
    assert response.status_code == 201
    assert "idempotent-replayed" not in response.headers


def test_a_replay_does_not_ask_whether_the_command_would_still_be_possible(api: Api, story: Story) -> None:
    story.to_gate()
    path = f"/api/runs/{story.run_id}/assembly/review"
    first = story.client.post(path, json={"approved": False}, headers=key("f"))
    again = story.client.post(path, json={"approved": False}, headers=key("f"))
    assert (first.status_code, again.status_code) == (200, 200)
    assert story.client.post(path, json={"approved": False}).status_code == 409


@pytest.mark.parametrize("wrong", ["", "a b", "x" * 256, "\u00e4", "a\tb"])
def test_a_key_that_is_none_is_400_and_nothing_is_stored(api: Api, repository: Path, wrong: str) -> None:
    head = api.services.log.head()
    response = api.client().post(
        "/api/projects", json=project(repository), headers={"Idempotency-Key": wrong.encode("latin-1")}
    )
    assert response.status_code == 400
    assert api.services.log.head() == head


def test_a_key_of_255_characters_is_taken(api: Api, repository: Path) -> None:
    longest = "".join(chr(0x21 + n % 94) for n in range(255))
    response = api.client().post("/api/projects", json=project(repository), headers={"Idempotency-Key": longest})
    assert response.status_code == 201


def test_fifty_threads_with_one_key_make_one_project(api: Api, repository: Path) -> None:
    client = api.client()

    def send(_: int) -> Any:
        return client.post("/api/projects", json=project(repository), headers=key("g"))

    with ThreadPoolExecutor(50) as pool:
        responses = list(pool.map(send, range(50)))
    assert {response.status_code for response in responses} <= {201, 409}
    made = [r for r in responses if r.status_code == 201]
    assert len({r.content for r in made}) == 1
    assert len([r for r in made if "idempotent-replayed" not in r.headers]) == 1
    for refused in (r for r in responses if r.status_code == 409):
        assert (refused.json()["error"], refused.json()["key_state"]) == ("idempotency_key_in_flight", "in_flight")
        assert refused.json()["retryable"] is True
        assert refused.headers["retry-after"]
    assert len(client.get("/api/projects", headers=api.settled()).json()) == 1


class Paused:
    """Repositories that let a command wait in the middle."""

    def __init__(self, repositories: Any) -> None:
        self._repositories = repositories
        self.reached, self.go_on = Event(), Event()

    def inspect(self, path: Path) -> Any:
        self.reached.set()
        assert self.go_on.wait(60)
        return self._repositories.inspect(path)


def test_a_request_whose_twin_is_under_way_is_409_and_told_to_come_back(services: Services, repository: Path) -> None:
    paused = Paused(services.repositories)
    with served(replace(services, repositories=paused)) as url, ThreadPoolExecutor(1) as pool:
        api = Api(services, url)
        with api.stack:
            client = api.client()
            body = project(repository)
            first = pool.submit(client.post, "/api/projects", json=body, headers=key("h"))
            assert paused.reached.wait(60)
            second = client.post("/api/projects", json=body, headers=key("h"))
            assert (second.status_code, second.json()["error"]) == (409, "idempotency_key_in_flight")
            assert second.headers["retry-after"] == "1"
            paused.go_on.set()
            assert first.result().status_code == 201
            third = client.post("/api/projects", json=body, headers=key("h"))
            assert (third.status_code, third.content) == (201, first.result().content)


class Racing:
    """A log on which another process stores the same request between our look and our append."""

    def __init__(self, log: Any, body_digest: str | None) -> None:
        self._log = log
        self._body_digest = body_digest

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    def append(self, append: Any) -> Any:
        if (mine := append.idempotency) is not None:
            twin = Caller(
                principal=append.principal,
                command_id=f"twin of {append.command_id}",
                key=IdempotencyKey(
                    method=mine.method, path=mine.path, key=mine.key, body_digest=self._body_digest or mine.body_digest
                ),
            )
            told = Answer(status=mine.status, body=mine.answer)
            (self.stored,) = self._log.append(twin.append(append.drafts, append.expected, append.at, told))
        return self._log.append(append)


@pytest.mark.parametrize(("digest", "status"), [(None, 201), ("0" * 64, 422)])
def test_who_loses_the_race_at_the_append_replays_the_winner(
    services: Services, repository: Path, digest: str | None, status: int
) -> None:
    head = services.log.head()
    with served(replace(services, log=(racing := Racing(services.log, digest)))) as url:
        api = Api(services, url)
        with api.stack:
            response = api.client().post("/api/projects", json=project(repository), headers=key(f"i{status}"))
            assert response.status_code == status
            if status == 201:
                assert response.json()["project_id"] == racing.stored.event.project_id
                assert response.headers["idempotent-replayed"] == "true"
    assert services.log.head() == head + 1, "the winner's, and nothing of the loser's"


class LateLook:
    """A log of a process that looks for an answer just before another process stores it."""

    def __init__(self, log: Any, meanwhile: Callable[[], object]) -> None:
        self._log = log
        self._meanwhile: list[Callable[[], object]] = [meanwhile]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    def answered(self, *row: str) -> Any:
        found = self._log.answered(*row)
        while self._meanwhile:
            self._meanwhile.pop()()
        return found


def test_who_is_refused_because_of_what_its_own_twin_did_elsewhere_gets_that_answer(
    services: Services, api: Api, repository: Path
) -> None:
    client = api.client()
    project_id = client.post("/api/projects", json=project(repository)).json()["project_id"]
    path, member = f"/api/projects/{project_id}/team/members", {"role_id": "tester", "name": "twin"}
    answers: list[Any] = []

    def elsewhere() -> None:
        answers.append(client.post(path, json=member, headers=key("twin")))

    with served(replace(services, log=LateLook(services.log, elsewhere))) as url:
        late = api.stack.enter_context(httpx.Client(base_url=url, headers=client.headers, timeout=60, verify=False))
        answers.append(late.post(path, json=member, headers=key("twin")))
        other = late.post(path, json=member, headers=key("another"))
    assert [answer.status_code for answer in answers] == [answers[0].status_code] * 2
    assert answers[0].is_success
    assert answers[1].content == answers[0].content
    assert answers[1].headers["idempotent-replayed"] == "true"
    assert other.status_code == 409


class MovableClock(SystemClock):
    """A clock that can be put forward."""

    ahead = timedelta()

    def now(self) -> datetime:
        """Return the time that this clock shows."""
        return super().now() + self.ahead


@pytest.fixture
def moved(services: Services, repository: Path) -> Iterator[tuple[Story, MovableClock]]:
    """A story with a log of its own, whose clock can be put forward."""
    clock = MovableClock()
    log = MemoryLog(CATALOGUE, clock=clock)
    with served(own := replace(services, log=log, runs=RunLog(log, clock), clock=clock)) as url:
        api = Api(own, url)
        with api.stack:
            yield Story(api, repository), clock


@pytest.mark.parametrize(
    ("door", "members"),
    [
        ("/api/runs/{run}/steer", {"kind": "send", "instruction": "{words}"}),
        ("/tasks/{child}/steer", {"kind": "guidance", "guidance": "{words}"}),
        ("/api/fleet/steer", {"kind": "guidance", "guidance": "{words}", "tasks": ["{child}"]}),
    ],
)
def test_a_key_that_is_used_again_once_it_is_forgotten_makes_another_directive_and_harms_none(
    moved: tuple[Story, MovableClock], door: str, members: dict[str, Any]
) -> None:
    story, clock = moved
    story.start()
    story.advance()
    said = ("The first.", "The second.")
    for words in said:
        path = door.format(run=story.run_id, child=story.child(1))
        body = json.dumps(members).replace("{words}", words).replace("{child}", story.child(1))
        answer = story.client.post(path, content=body, headers=key("again"))
        assert (answer.status_code, "idempotent-replayed" in answer.headers) == (201, False)
        clock.ahead += timedelta(hours=25)
    steering = f"/api/runs/{story.run_id}/steering"
    directives = story.client.get(steering).json()
    assert tuple(directive["instruction"] for directive in directives) == said
    for directive in directives:
        history = story.client.get(f"{steering}/{directive['id']}").json()["history"]
        assert [step["type"] for step in history].count("coordinator.steering_received") == 1


def key(name: str) -> dict[str, str]:
    """The header with a key."""
    return {"Idempotency-Key": f"key-{name}"}
