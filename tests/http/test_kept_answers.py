"""What is kept of a keyed command's answer has no words in it, so that nothing of them outlives an erasure."""

import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from steersman.adapters.clock import SystemClock
from steersman.adapters.stores.memory import MemoryLog, MemoryRecorder, MemoryWakeups
from steersman.adapters.stores.memory_views import MemoryViews
from steersman.adapters.stores.postgres_log import PostgresLog
from steersman.adapters.stores.sqlite_log import SqliteLog
from steersman.application.views.keep_views import ViewKeeper
from steersman.application.writer.run_log import RunLog
from steersman.domain.kinds.catalogue import CATALOGUE
from steersman.domain.work import agent_requests, turns
from steersman.http.request.given import Services

from .conftest import Api, Story, own_feed, served

WORD = "Zanzibar"
PLAN = {"subtasks": [{"title": f"Build {WORD}", "scope": WORD}, {"title": WORD, "dependsOn": [0]}]}


class Kept:
    """A store of the log, and what it keeps of answers."""

    def __init__(self, kind: str, place: Any) -> None:
        self._kind = kind
        self._place = place

    def log(self, announce: Any) -> Any:
        """Open the log."""
        match self._kind:
            case "memory":
                return MemoryLog(CATALOGUE, recorder=self._place, announce=announce)
            case "sqlite":
                return SqliteLog(self._place, CATALOGUE, announce=announce)
            case _:
                return PostgresLog(self._place, CATALOGUE, announce=announce)

    def answers(self) -> dict[str, str]:
        """Every answer that is kept, by the path of its command and what was sent."""
        select = "SELECT method, path, answer FROM idempotency"
        match self._kind:
            case "memory":
                found = [(r.idempotency.method, r.idempotency.path, r.idempotency.answer)
                         for r, _ in self._place._answers.values()]  # fmt: skip
            case "sqlite":
                with closing(sqlite3.connect(self._place)) as connection:
                    found = connection.execute(select).fetchall()
            case _:
                with psycopg.connect(self._place) as connection:
                    found = connection.execute(select).fetchall()
        return {f"{method} {path}": bytes(answer).decode() for method, path, answer in found}


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Kept:
    """Each kind of store, empty."""
    match request.param:
        case "memory":
            return Kept("memory", MemoryRecorder())
        case "sqlite":
            return Kept("sqlite", tmp_path / "log.db")
        case _:
            return Kept("postgres", request.getfixturevalue("postgres_url"))


@pytest.fixture
def told(services: Services, kept: Kept, repository: Path) -> Iterator[Story]:
    """A story over a log on that store."""
    clock, wakeups, views = SystemClock(), MemoryWakeups(), MemoryViews()
    log = kept.log(wakeups.announce)
    with ExitStack() as stack:
        stack.callback(log.close)
        keeper = ViewKeeper(views, log, wakeups)
        keeper.start()
        stack.callback(keeper.stop)
        own = replace(services, log=log, runs=RunLog(log, clock), clock=clock, views=views)
        hub = stack.enter_context(own_feed(own))
        url = stack.enter_context(served(replace(own, feed=hub)))
        api = Api(own, url)
        stack.enter_context(api.stack)
        yield Story(api, repository)


def send(story: Story, method: str, path: str, body: Any = None) -> Any:
    """Send a command under a key."""
    response = story.client.request(method, path, json=body, headers={"Idempotency-Key": "k"})
    assert response.is_success, response.text
    return response.json() if response.content else None


def registered(story: Story) -> dict[str, str]:
    """The body that registers the repository."""
    return {"name": WORD, "working_directory": str(story.repository)}


def ask(story: Story, child: str) -> str:
    """Have a child's agent ask something; return the id of its question."""
    at, base = story.api.services.clock.now(), story.run.base
    story.decide(lambda run: turns.prepare_worktree(run, child, base, "/trees/x", at))
    story.decide(lambda run: turns.open_session(run, child, "session", ()))
    story.decide(lambda run: turns.open_turn(run, child))
    story.decide(lambda run: agent_requests.ask_question(run, child, WORD)[1])
    (request,) = story.run.children[child].requests
    return request


def say_everything(story: Story) -> None:
    """Send every kind of keyed command that takes somebody's words."""
    story.project_id = send(story, "POST", "/api/projects", registered(story))["project_id"]
    project = f"/api/projects/{story.project_id}"
    send(story, "PATCH", project, {"name": f"{WORD} again"})
    send(story, "POST", f"{project}/team/members", {"role_id": "tester", "custom_role_title": f"Of {WORD}"})
    member = f"{project}/team/members/tester"
    send(story, "PATCH", member, {"new_role_id": "architect", "custom_role_title": f"For {WORD}"})
    send(story, "PUT", f"{member}/charter", {"content": f"You know {WORD}."})
    body = {"goal": f"Go to {WORD}", "start_mode": "direct", "plan": PLAN}
    story.run_id = send(story, "POST", f"{project}/orchestrations", body)["runId"]
    run = f"/api/runs/{story.run_id}"
    story.advance()
    child = story.child(1)
    send(story, "POST", f"{run}/steer", {"kind": "amend", "instruction": f"See {WORD}"})
    send(story, "POST", f"/tasks/{child}/steer", {"kind": "guidance", "guidance": f"{WORD}!"})
    send(story, "POST", "/api/fleet/steer", {"kind": "guidance", "guidance": f"{WORD}?", "tasks": [child]})
    question = ask(story, child)
    send(story, "POST", f"/api/runs/{child}/questions/{question}/answer", {"answer": WORD})
    send(story, "POST", f"{run}/cancel")


def test_no_kept_answer_has_anybodys_words_and_each_repetition_is_given_them(told: Story, kept: Kept) -> None:
    say_everything(told)
    answers = kept.answers()
    assert len(answers) == 11
    assert [path for path, answer in answers.items() if WORD in answer or str(told.repository) in answer] == []
    again = send(told, "POST", "/api/projects", registered(told))
    assert (again["name"], again["working_directory"]) == (WORD, str(told.repository))
    charter = f"/api/projects/{told.project_id}/team/members/tester/charter"
    said = {"content": f"You know {WORD}."}
    assert send(told, "PUT", charter, said) == {"member_name": "tester"} | said


def test_a_repetition_after_the_deletion_is_told_of_it_and_does_nothing(told: Story) -> None:
    told.project_id = send(told, "POST", "/api/projects", registered(told))["project_id"]
    told.client.delete(f"/api/projects/{told.project_id}?confirm=true").raise_for_status()
    head = told.api.services.log.head()
    again = told.client.post("/api/projects", json=registered(told), headers={"Idempotency-Key": "k"})
    assert (again.status_code, again.json()["error"]) == (404, "project_not_found")
    assert WORD not in again.text
    assert told.api.services.log.head() == head
