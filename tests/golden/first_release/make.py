"""
Made `sample.tar.xz` and `answers.jsonl`, once, at release b04f626. Kept to tell what they are, not for later releases.

The sample is what that release left on disk when it was killed: a data directory, the keys and the project's repository.
It was run from the root of the checkout:

    .venv/bin/python -P -m steersman.tests.golden.first_release.make

These runs are in it, all made by the rehearsal agent through the service, over HTTP, in one life that ends with SIGKILL:

    merged      planned by the planner; two authors of one file, so that a conflict's ref was kept
    declined    at its gate
    failed      its planner gave up
    blocked     one of two parts failed: it is parked until somebody steers
    gate        four children's work waits for a decision
    turn        one part is committed, the agent of the second was killed in the middle of its turn, a third waits for it
    paused      its only child was stopped in the middle of a turn
    asking      one child waits for leave to use a tool, another for an answer
    revising    changes were requested at the gate; their execution has begun and is not proved
    redirected  a redirect at the gate is on the log, and nothing is decided about it: the service died of that append

The keys in it have never signed anything else.
"""

import json
import os
import shutil
import sqlite3
import tarfile
import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from steersman.adapters.stores.crash_points import VARIABLE
from steersman.tests.e2e.conftest import Repository
from steersman.tests.e2e.served import GATE, Api, Service, part, wait_until, write
from steersman.tests.golden.first_release.sample import PLACE, SAMPLE, Kept, alone, store

#: The redirect is the third correction on the log, after a pause and a request for changes.
LAST_APPEND = "stored coordinator.steering_received 3"
LINES = 60
SLOW_MILLISECONDS = 50
SLEEP_MILLISECONDS = 2_000
#: Some lines, and the agent is in the middle of its turn.
BEGUN_BYTES = 20
BLOCKED = "coordinator.assembly_blocked"
CLEARED = "run.worktrees_removed"
MARKER = "coordinator.revision_execution"
RECEIVED = "coordinator.steering_received"
DECIDED = "coordinator.steering_decision"
ASKED = {"tool.approval_required", "agent.question_asked"}


def slowly(path: str) -> dict[str, Any]:
    """Return the step that writes one line after the other."""
    return {"append": {"path": path, "text": "a line\n", "times": LINES, "every_ms": SLOW_MILLISECONDS}}


def told(*steps: dict[str, Any], words: str) -> str:
    """Return words that tell the rehearsal agent what to do."""
    return f"{words}\n~~~~rehearsal\n{json.dumps(steps)}\n~~~~"


def page(folder: str) -> dict[str, Any]:
    """Return the part of a plan that writes one page."""
    return part(f"Write {folder}", write(f"{folder}/page.txt", "as it was\n"))


def topics(api: Api, run_id: str) -> list[str]:
    """Return the types of a run's events so far."""
    return [event["type"] for event in api.get(f"/api/runs/{run_id}/events?limit=1000")]


def child_of(api: Api, run_id: str, subtask_id: int) -> str:
    """Wait until a part has a child run; return its id."""

    def found() -> str | None:
        children = api.get(f"/api/runs/{run_id}/children")
        return next((child["childRunId"] for child in children if child["subtaskId"] == subtask_id), None)

    child: str = wait_until(found, f"part {subtask_id} has a child run")
    return child


def await_file(api: Api, child: str, path: str, size: int = 1) -> None:
    """Wait until a child's agent has written so much of a file."""
    file = api.service.data / "worktrees" / child / path
    wait_until(lambda: file.exists() and file.stat().st_size >= size, f"{path} is written")


def answers(api: Api, run_id: str) -> dict[str, Any]:
    """Return what is said of a run and its children, by path."""
    children = api.get(f"/api/runs/{run_id}/children") if "subtask.dispatched" in topics(api, run_id) else []
    ids = [child["childRunId"] for child in children]
    paths = [f"/api/runs/{run}{of}" for run in (run_id, *ids) for of in ("", "/events?limit=1000")]
    if children:
        paths += [f"/api/runs/{run_id}/work-plan", f"/api/runs/{run_id}/children"]
    return {path: api.get(path) for path in paths}


def end_some(api: Api, project: str) -> dict[str, str]:
    """Take some runs to where nothing more happens to them; return their ids by name."""
    plan = {"plan": [part(f"Write {name}", write("merged/both.txt", f"{name}\n")) for name in ("this", "that")]}
    merged = api.orchestrate(project, goal=told(plan, words="Two hands in one file"))
    api.until(merged, GATE)
    api.review(merged, approved=True)
    declined = api.orchestrate(project, page("declined"))
    api.until(declined, GATE)
    api.review(declined, approved=False, feedback="Not this.")
    failed = api.orchestrate(project, goal=told({"fail": "I cannot plan this."}, words="Something impossible"))
    blocked = api.orchestrate(project, part("Fail", {"fail": "I cannot do this."}), page("blocked"))
    for run_id in (merged, declined, failed):
        api.until(run_id, "done")
    api.until(blocked, BLOCKED)

    def cleared() -> bool:
        # What is parked keeps its worktrees.
        return [event["type"] for event in api.get("/api/events?limit=1000")].count(CLEARED) == 3

    wait_until(cleared, "the worktrees of those that ended are gone")
    return {"merged": merged, "declined": declined, "failed": failed, "blocked": blocked}


def begin_some(api: Api, project: str) -> dict[str, str]:
    """Take some runs to where they wait for a person; return their ids by name."""
    pages = [
        part(f"Write page {n}", write(f"gate/{n}.txt", f"page {n}\n"), needs=[0] if n > 1 else []) for n in range(1, 5)
    ]
    gate = api.orchestrate(project, *pages)
    fetch = {"tool": {"name": "web_fetch", "input": {"url": "https://example.org/a"}}}
    asking = api.orchestrate(
        project,
        part("Fetch", fetch, write("asking/fetched.txt", "fetched\n")),
        part("Ask", {"ask": "Which colour?"}, write("asking/answered.txt", "answered\n")),
    )
    steps = (
        write("paused/begun.txt", "begun\n"),
        {"sleep_ms": SLEEP_MILLISECONDS},
        write("paused/ended.txt", "ended\n"),
    )
    paused = api.orchestrate(project, part("Write slowly", *steps))
    child = child_of(api, paused, 1)
    await_file(api, child, "paused/begun.txt")
    api.post(f"/tasks/{child}/steer", {"kind": "pause", "reason": "Let me look."}, 201)
    api.until(child, "run.paused")
    revising, redirected = (api.orchestrate(project, page(name)) for name in ("revising", "redirected"))
    for run_id in (gate, revising, redirected):
        api.until(run_id, GATE)
    for number in (1, 2):
        child = child_of(api, asking, number)
        wait_until(lambda child=child: ASKED & set(topics(api, child)), "it asks")
    return {"gate": gate, "asking": asking, "paused": paused, "revising": revising, "redirected": redirected}


def die(api: Api, project: str, runs: dict[str, str]) -> dict[str, str]:
    """Let the service die while an agent is in the middle of its turn, and two corrections are open."""
    turn = api.orchestrate(
        project,
        part("Begin", write("turn/first.txt", "first\n")),
        part("Go on", write("turn/begun.txt", "begun\n"), slowly("turn/lines.txt"), needs=[0]),
        part("End", write("turn/last.txt", "last\n"), needs=[1]),
    )
    await_file(api, child_of(api, turn, 2), "turn/lines.txt", BEGUN_BYTES)
    better = told(write("revising/page.txt", "revised\n"), words="Say it better.")
    other = told(write("redirected/page.txt", "redirected\n"), words="Say something else.")
    api.review(
        runs["revising"],
        approved=False,
        request_changes=True,
        feedback=better,
        target_files=["revising/page.txt"],
    )
    wait_until(lambda: MARKER in topics(api, runs["revising"]), "its execution has begun")
    with api.service.dying():
        api.post(f"/api/runs/{runs['redirected']}/steer", {"kind": "redirect", "instruction": other}, 201)
    return runs | {"turn": turn}


def fold(database: Path) -> None:
    """Put what was stored so far into the database itself: each page of it once, not as often as it was written."""
    with closing(sqlite3.connect(database, timeout=60)) as connection:
        busy, _, _ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    assert not busy, f"{database} is in use"


def check_what_was_caught(data: Path, runs: dict[str, str]) -> None:
    """Fail if the service died a moment too early or too late for a run to be what this file says of it."""
    with tempfile.TemporaryDirectory() as copied:
        # A copy, for whoever opens a log that was left like this begins to tidy it up.
        for name in ("log.db", "log.db-wal"):
            shutil.copy(data / name, copied)
        with closing(sqlite3.connect(Path(copied, "log.db"))) as connection:
            asked = "SELECT topic, state FROM events WHERE root = ? ORDER BY position"
            told_of = {name: connection.execute(asked, (run_id,)).fetchall() for name, run_id in runs.items()}
    markers = [state for topic, state in told_of["revising"] if topic == MARKER]
    assert len(markers) == 1, "the revision has come too far"
    assert b"initiated" in markers[0]
    topics_of = {name: [topic for topic, _ in found] for name, found in told_of.items()}
    assert DECIDED not in topics_of["redirected"]
    assert topics_of["redirected"].count(RECEIVED) == 1
    assert topics_of["turn"].count("agent.turn.end") == 1
    assert topics_of["paused"][-1] == "coordinator.steering"


def pack(entries: Sequence[Path]) -> None:
    """Pack these of PLACE, the same for the same files, whoever packs them."""

    def plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = ""
        entry.mtime = int(entry.mtime)
        return entry

    with tarfile.open(SAMPLE, "w:xz", format=tarfile.PAX_FORMAT, preset=9) as tar:
        for path in entries:
            tar.add(path, path.relative_to(PLACE), recursive=False, filter=plain)


def live(home: Path) -> None:
    """Let the service have the life that the sample is of, and store it."""
    repository = Repository(PLACE / "repository")
    settings = {"STEERSMAN_KEYS": str(PLACE / "keys"), "STEERSMAN_MAX_AGENTS": "12", VARIABLE: LAST_APPEND}
    service = Service(home, PLACE / "data", **settings)
    try:
        api = Api(service.start())
        project = api.project(repository.path)
        ended = end_some(api, project)
        said = {name: answers(api, run_id) for name, run_id in ended.items()}
        begun = begin_some(api, project)
        for name in ("log.db", "views.db"):
            fold(service.data / name)
        runs = die(api, project, ended | begun)
    finally:
        service.close()
    assert not list((service.data / "worktrees").glob("*/paused/ended.txt")), "it was not stopped in time"
    check_what_was_caught(service.data, runs)
    pack(sorted(PLACE.rglob("*")))
    store([Kept(name=name, run_id=run_id, answers=said.get(name, {})) for name, run_id in runs.items()])


def main() -> None:
    """Make the sample and the answers."""
    os.environ["GIT_TEMPLATE_DIR"] = ""  # the sample hooks of whoever runs this are none of it
    with alone(), tempfile.TemporaryDirectory() as home:
        shutil.rmtree(PLACE, ignore_errors=True)
        PLACE.mkdir(mode=0o700)
        try:
            live(Path(home))
        finally:
            shutil.rmtree(PLACE)


if __name__ == "__main__":
    main()
