"""The whole job from the command line: a goal in a repository becomes a merged commit, and nobody writes JSON by hand."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from steersman.tests.e2e.conftest import Repository
from steersman.tests.e2e.served import STEERSMAN, Service, environment, part, steersman, wait_until, write

#: What agents, places and branches do is the same on each store.
STORES = ("sqlite",)

WAITS_FOR_YOU = 8


class Person:
    """Somebody at a terminal, whose runs are nobody else's."""

    def __init__(self, service: Service, repository: Repository, folder: Path) -> None:
        self.service = service
        self.repository = repository
        self.folder = folder
        self.variables = {
            "STEERSMAN_SERVER_URL": service.url,
            "STEERSMAN_TOKEN": service.issue(f"person-{uuid4().hex[:8]}"),
        }

    def says(self, *arguments: object, expect: int = 0) -> str:
        """Run a command that ends so, and return what it prints."""
        return steersman(*arguments, expect=expect, **self.variables)

    def json(self, *arguments: object, expect: int = 0) -> Any:
        """Run a command that ends so, and return what it prints for programs."""
        done = subprocess.run(
            [*STEERSMAN, *map(str, arguments), "--json"],
            env=environment(**self.variables),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == expect, f"{arguments} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
        return json.loads(done.stdout)

    def runs(self, *parts: Any, expect: int = WAITS_FOR_YOU, more: tuple[object, ...] = ()) -> Any:
        """Start a run with these parts, or without a plan, and follow it to where it waits; return it."""
        plan: tuple[object, ...] = ()
        if parts:
            file = self.folder / f"{uuid4().hex}.json"
            file.write_text(json.dumps(parts), encoding="utf-8")
            plan = ("--plan", file)
        told = self.json("run", "A goal", "--repo", self.repository.path, *plan, *more, "--wait", expect=expect)
        assert told["exit"] == expect
        return told["run"]

    def waits(self, *arguments: object) -> list[str]:
        """Return the kinds of what waits."""
        return [item["kind"] for item in self.json("waiting", *arguments)]


@pytest.fixture
def person(shared_service: Service, repository: Repository, tmp_path: Path) -> Person:
    """Somebody with a repository that the service has never seen."""
    return Person(shared_service, repository, tmp_path)


def test_a_goal_in_a_repository_that_nobody_registered_becomes_a_merged_commit(person: Person) -> None:
    folder = person.repository.path / "docs"
    folder.mkdir()
    told = person.says("run", "A page about the sea", "--repo", folder, "--wait", expect=WAITS_FOR_YOU)
    assert "waits for you" in told
    assert "steersman approve" in told
    (item,) = person.json("waiting")
    run = item["run_id"]
    assert item["kind"] == "gate"
    assert run in person.says("waiting")
    assert "+# A page about the sea" in person.says("diff", run)
    assert "Approved tree" in person.says("approve", "--wait")
    assert "rehearsal/a-page-about-the-sea.md" in person.repository.files
    assert person.waits() == []
    assert "completed" in person.says("show", run[:8])


def test_a_second_goal_uses_the_project_that_is_there(person: Person) -> None:
    first = person.json("run", "One", "--repo", person.repository.path)
    second = person.json("run", "Two", "--repo", person.repository.path)
    assert first["project_id"] == second["project_id"]
    assert first["run_id"] != second["run_id"]
    assert {run["execution_id"] for run in person.json("runs", "ls")} == {first["run_id"], second["run_id"]}
    for run in (first, second):
        person.says("cancel", run["run_id"])


def test_a_run_begins_from_the_branch_and_with_the_agent_that_are_named(person: Person) -> None:
    person.repository.git("branch", "release")
    run = person.runs(part("only", write("a.txt", "a\n")), more=("--base", "release", "--agent", "rehearsal"))
    assert (run["originating_branch"], run["model_id"]) == ("release", "rehearsal")
    person.says("approve", run["run_id"], "--wait")
    assert person.repository.git("show", "release:a.txt") == "a"
    assert "a.txt" not in person.repository.files


def test_changes_are_asked_for_and_what_comes_of_them_is_declined(person: Person) -> None:
    run = person.runs(part("only", write("a.txt", "a\n")))
    again = person.json("changes", run["run_id"], "Say more.", "--file", "a.txt", "--wait", expect=WAITS_FOR_YOU)
    assert again["run"]["waiting"] == ["gate"]
    assert "Nothing is merged" in person.says("decline", run["run_id"], "--reason", "Not this.")
    assert person.json("show", run["run_id"])["run"]["status"] == "declined"
    assert "a.txt" not in person.repository.files


def test_work_goes_onto_a_new_branch_once_the_budget_is_raised_that_it_waited_for(person: Person) -> None:
    used = {"usage": {"input": 80, "output": 20, "cost": 0.25}}
    parts = (part("one", used, write("a.txt", "a\n")), part("two", used, write("b.txt", "b\n"), needs=(0,)))
    more = ("--deliver", "branch", "--deliver-branch", "feature/sea", "--budget-money", "0.25", "--budget-minutes", 60)
    run = person.runs(*parts, more=more)["run_id"]
    assert person.waits(run) == ["budget"]
    assert f"steersman budget {run} --money" in person.says("waiting", run)
    told = person.says("show", run)
    assert "100 in all" in told
    assert "0.25 USD" in told
    assert "may use: 60 minutes, 1.00 USD" in person.says("budget", run, "--money", "1.00")
    wait_until(lambda: person.waits(run) == ["gate"], "the other part is done")
    assert "on the new branch feature/sea" in person.says("approve", run, "--wait")
    assert person.repository.git("show", "feature/sea:b.txt") == "b"
    assert set(person.repository.files) == {"README.md"}
    assert person.repository.git("rev-parse", "main") == person.repository.git("merge-base", "main", "feature/sea")


def test_what_a_goal_means_is_confirmed_with_the_same_word(person: Person) -> None:
    run = person.runs(more=("--define",))
    assert person.waits() == ["outcome_spec"]
    told = person.json("approve", run["run_id"], "--wait", expect=WAITS_FOR_YOU)
    assert told["run"]["waiting"] == ["gate"]


def test_what_agents_ask_is_answered_allowed_and_denied(person: Person) -> None:
    tool = {"tool": {"name": "web_fetch", "input": {"url": "https://example.org"}}}
    run = person.runs(part("only", {"ask": "Which colour?"}, tool, {"tool": {"name": "other", "input": {}}}))
    assert "Which colour?" in person.says("waiting")
    person.says("answer", "Blue.")
    for word, kind in (("allow", "web_fetch"), ("deny", "other")):
        (item,) = wait_until(lambda: person.json("waiting", "--kind", "tool"), "the agent asks for its tool")
        assert item["detail"]["tool_name"] == kind
        told = person.says(word, item["id"][:12])
        assert f"{'allowed' if word == 'allow' else 'denied'}: " in told
        wait_until(lambda was=item["id"]: was not in person.says("waiting"), "it is answered")
    person.says("cancel", run["run_id"])


def test_why_a_run_stands_still_is_said_with_the_agents_last_words_and_so_is_the_way_out(person: Person) -> None:
    words = "session/new: Authentication required"
    run = person.runs(part("only", {"fail": words}))
    told = person.says("show", run["run_id"])
    assert words in told
    assert f'steersman retry {run["run_id"]} "…"' in told
    assert person.waits() == ["blocked"]
    assert words in person.says("runs", "explain", run["run_id"])
    lines = [json.loads(line) for line in person.service.log.splitlines() if run["run_id"] in line]
    (lost,) = [line for line in lines if line["event"] == "a part of a plan has no result"]
    assert words in lost["error"]
    # Its agent has failed as often as it may by itself; a person's word begins a new count.
    more = person.json("retry", run["run_id"], "Once more.", "--wait", expect=WAITS_FOR_YOU)["run"]
    assert (more["run_id"], more["waiting"]) == (run["run_id"], ["blocked"])
    # One that is given up can be tried as a new run.
    assert "cancelled" in person.says("cancel", run["run_id"])
    person.says("runs", "watch", run["run_id"], "--until-waits", expect=7)
    assert f"steersman retry {run['run_id']}" in person.says("show", run["run_id"])
    again = person.json("retry", run["run_id"], "--wait", expect=WAITS_FOR_YOU)["run"]
    assert again["run_id"] in person.says("show", run["run_id"])
    assert again["retried_from"] == run["run_id"]
    person.says("cancel", again["run_id"])


def test_a_plan_that_stands_still_goes_on_with_a_persons_words(person: Person) -> None:
    run = person.runs(part("only", write("a.txt", "a\n")), more=("--agent", "missing"))
    assert run["waiting"] == ["blocked"]
    assert "steersman-no-such-agent" in person.says("show", run["run_id"])
    again = person.json("retry", run["run_id"], "Once more.", "--wait", expect=WAITS_FOR_YOU)
    assert again["run"]["waiting"] == ["blocked"]
    person.says("cancel", run["run_id"])


def test_a_run_is_steered_while_it_works(person: Person) -> None:
    run = person.runs(part("only", write("a.txt", "a\n")))
    assert "Steered run" in person.says("steer", run["run_id"], "stop")
    wait_until(lambda: person.json("show", run["run_id"])["run"]["status"] == "failed", "it has stopped")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("run", "ls"), "Nothing was started. Did you mean `steersman runs ls`?"),
        (("run", "show", "x"), "Nothing was started. Did you mean `steersman runs show x`?"),
        (("run", "Two", "words"), 'Nothing was started. Put the goal in quotes: steersman run "Two words"'),
        (("runz",), "Did you mean `steersman run` or `steersman runs`?"),
    ],
)
def test_a_slip_starts_nothing_and_is_told_what_was_meant(arguments: tuple[str, ...], said: str) -> None:
    assert said in steersman(*arguments, expect=2)


def test_what_cannot_be_started_says_what_to_do_and_registers_nothing(person: Person, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    assert "is in no git repository" in person.says("run", "A goal", "--repo", outside, expect=1)
    broken = tmp_path / "plan.json"
    broken.write_text("{", encoding="utf-8")
    assert "the plan is no JSON" in person.says(
        "run", "A goal", "--repo", person.repository.path, "--plan", broken, expect=1
    )
    assert person.service.client(person.variables["STEERSMAN_TOKEN"]).get("/api/projects").json() == []
    assert "No gate that waits" in person.says("approve", expect=1)
    assert "No run that you may see" in person.says("show", "ffff", expect=1)


def test_whoever_has_several_gates_names_the_one_that_they_mean(person: Person) -> None:
    runs = [person.runs(part("only", write(name, "x\n")))["run_id"] for name in ("a.txt", "b.txt")]
    told = person.says("approve", expect=1)
    assert all(run in told for run in runs)
    person.says("approve", runs[1], "--wait")
    assert set(person.repository.files) == {"README.md", "b.txt"}


def test_the_service_and_the_token_can_be_named_with_each_command(person: Person) -> None:
    named = ("--server", person.service.url, "--token", person.variables["STEERSMAN_TOKEN"])
    for command in (("runs", "ls"), ("waiting",)):
        assert steersman(*command, *named, "--json", STEERSMAN_SERVER_URL="http://127.0.0.1:9").strip() == "[]"


def test_an_address_that_there_is_not_is_not_said_to_be_reached_by_others(tmp_path: Path) -> None:
    told = steersman("serve", "--host", "nosuchhost.invalid", "--port", 0, "--data", tmp_path / "data", expect=1)
    assert "cannot be listened on" in told
    assert "other machines" not in told


def test_agents_are_tried_out_and_what_one_lacks_is_said(shared_service: Service) -> None:
    beside = ("--data", shared_service.data, "--check")
    assert "opened a session" in steersman("agents", "rehearsal", *beside, **shared_service.variables)
    told = steersman("agents", "rehearsal", "missing", "leaver", *beside, expect=1, **shared_service.variables)
    assert "'steersman-no-such-agent' is not on PATH" in told
    assert "agent_exited" in told
    assert "leaver, missing: see above." in told
    assert "names no agent nobody" in steersman("agents", "nobody", *beside, expect=1, **shared_service.variables)
    assert not [home for home in (shared_service.data / "homes").iterdir() if home.name.startswith("check-")]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_are_told_how_to_complete(shell: str) -> None:
    assert "_STEERSMAN_COMPLETE" in steersman("completion", shell)


def test_the_names_of_commands_are_completed() -> None:
    asked = environment(_STEERSMAN_COMPLETE="bash_complete", COMP_WORDS="steersman app", COMP_CWORD="1")
    program = Path(sys.executable).with_name("steersman")
    done = subprocess.run([program], env=asked, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.split() == ["plain,approve"]
