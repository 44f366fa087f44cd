"""A run's files: its worktree as it is now, what it changed, and never anything outside of it."""

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from steersman.adapters.git.repositories import GitRepositories
from steersman.domain.git import Commit
from steersman.domain.work import child_ends, turns

AT = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)
UNKNOWN = "f36800fd-f2f8-418c-958e-aae3e4921ba6"
OUTSIDE = "what nobody may read"


class Worker:
    """The first child of a story, with a real worktree."""

    def __init__(self, story: Any, tmp_path: Path) -> None:
        story.start()
        story.advance()
        self.story = story
        self.id = story.child(1)
        self.tree = tmp_path / "trees" / self.id
        self.branch = story.run.children[self.id].branch
        self.git = GitRepositories(tmp_path / "scratch")

    def prepare(self) -> "Worker":
        """Make the worktree, and say so on the log."""
        base = self.story.run.base
        self.tree.parent.mkdir()
        self.git.make_workplace(self.story.repository, self.tree, base.commit)
        self.git.point_branch(self.story.repository, self.branch, None, base.commit)
        self.story.decide(lambda run: turns.prepare_worktree(run, self.id, base, str(self.tree), AT))
        self.story.decide(lambda run: turns.open_session(run, self.id, "session", ()))
        self.story.decide(lambda run: turns.open_turn(run, self.id))
        return self

    def commit(self) -> Commit:
        """End the turn and commit what is there."""
        parent = self.story.run.children[self.id].head
        made = self.git.commit_workplace(self.story.repository, self.tree, parent.commit, AT, "Worked")
        self.git.point_branch(self.story.repository, self.branch, parent.commit, made.commit)
        self.story.decide(lambda run: turns.start_turn(run, self.id))
        self.story.decide(lambda run: turns.end_turn(run, self.id, "end_turn"))
        self.story.decide(lambda run: turns.commit_tree(run, self.id, made))
        return made

    def get(self, path: str, expect: int = 200) -> Any:
        """What is answered about the child run."""
        headers = self.story.api.settled()
        response = self.story.client.get(f"/api/runs/{self.id}/{path}", headers=headers)
        assert response.status_code == expect, response.text
        return response.json()

    def listed(self, which: str) -> list[tuple[str, str]]:
        """The changed files and how they changed."""
        return [(file["path"], file["status"]) for file in self.get(f"files?filter={which}")]


@pytest.fixture
def worker(story: Any, tmp_path: Path) -> Worker:
    """A child run that waits for its worktree."""
    return Worker(story, tmp_path)


def test_the_workspace_is_the_worktree_as_it_is_now(worker: Worker) -> None:
    worker.prepare()
    (worker.tree / "src" / "deep").mkdir(parents=True)
    (worker.tree / "src" / "deep" / "new.txt").write_text("one\ntwo\n")
    (worker.tree / "README").unlink()
    (worker.tree / "same.txt").write_text("same\n")
    found = {entry.pop("path"): entry for entry in worker.get("workspace")}
    assert list(found) == ["README", "same.txt", "src", "src/deep", "src/deep/new.txt"]
    assert found["README"] == {"is_folder": False, "status": "deleted", "added_lines": 0, "removed_lines": 1}
    assert found["src"] == {"is_folder": True, "status": None, "added_lines": None, "removed_lines": None}
    assert found["src/deep/new.txt"] == {
        "is_folder": False, "status": "added", "added_lines": 2, "removed_lines": 0
    }  # fmt: skip
    worker.commit()
    assert {entry["path"]: entry["status"] for entry in worker.get("workspace")}["same.txt"] == "added"


def test_looking_changes_nothing_in_the_worktree(worker: Worker) -> None:
    worker.prepare()
    (worker.tree / "new.txt").write_text("new\n")
    index = worker.tree / ".git/index"
    before = index.read_bytes(), sorted(os.listdir(worker.tree))
    worker.get("workspace")
    worker.get("files")
    assert (index.read_bytes(), sorted(os.listdir(worker.tree))) == before


def test_a_workspace_is_empty_then_conflicting_then_there_then_gone(worker: Worker) -> None:
    assert worker.get("workspace") == []
    assert worker.get("files") == []
    worker.prepare()
    assert [entry["path"] for entry in worker.get("workspace")] == ["README"]
    worker.git.remove_workplace(worker.story.repository, worker.tree, None)
    refused = worker.get("workspace", 409)
    assert (refused["error"], refused["retryable"]) == ("worktree_not_ready", True)
    worker.story.decide(
        lambda run: child_ends.fail_child(run, worker.id, AT, error_code="agent_exited", message="", retryable=True)
    )
    assert worker.get("workspace", 404)["error"] == "worktree_not_found"


def test_files_are_listed_by_where_the_change_is(worker: Worker) -> None:
    worker.prepare()
    (worker.tree / "first.txt").write_text("1\n")
    (worker.tree / "README").write_text("changed\n")
    worker.commit()
    (worker.tree / "second.txt").write_text("2\n")
    (worker.tree / "first.txt").write_text("1, again\n")
    assert worker.listed("committed") == [("README", "modified"), ("first.txt", "added")]
    assert worker.listed("uncommitted") == [("first.txt", "modified"), ("second.txt", "added")]
    assert worker.listed("all") == [("README", "modified"), ("first.txt", "added"), ("second.txt", "added")]
    assert worker.listed("last-commit") == [("README", "modified"), ("first.txt", "added")]
    worker.git.remove_workplace(worker.story.repository, worker.tree, None)
    assert worker.listed("all") == worker.listed("committed")
    assert worker.listed("uncommitted") == []


def test_before_the_first_commit_nothing_is_committed(worker: Worker) -> None:
    worker.prepare()
    (worker.tree / "first.txt").write_text("1\n")
    assert worker.listed("last-commit") == worker.listed("committed") == []
    assert worker.listed("uncommitted") == [("first.txt", "added")]


def test_a_coordinator_has_no_files_of_its_own(worker: Worker) -> None:
    story = worker.prepare().story
    path = f"/api/runs/{story.run_id}"
    assert story.client.get(f"{path}/files", headers=story.api.settled()).json() == []
    assert story.client.get(f"{path}/files/README").status_code == 404
    assert story.client.get(f"{path}/workspace").json()["error"] == "worktree_not_ready"
    assert story.client.get(f"{path}/assembly/workspace").json() == []
    assert story.client.get(f"{path}/assembly/content/README").status_code == 404


@pytest.mark.parametrize("query", ["filter=most", "filter=", "filter=all&filter=all", "filter=%FF"])
def test_a_filter_that_there_is_not_is_400(worker: Worker, query: str) -> None:
    worker.get(f"files?{query}", 400)


def test_a_file_is_shown_with_its_difference_and_its_content(worker: Worker) -> None:
    worker.prepare()
    (worker.tree / "README").write_text("changed\n")
    shown = worker.get("files/README")
    assert (shown["path"], shown["status"], shown["content"], shown["is_binary"]) == (
        "README", "modified", "changed\n", False
    )  # fmt: skip
    assert "-shop\n+changed\n" in shown["diff"]
    (worker.tree / "README").unlink()
    assert (worker.get("files/README")["status"], worker.get("files/README")["content"]) == ("deleted", None)
    assert worker.get("files/absent", 404)["error"] == "file_not_found"


def test_a_binary_file_has_no_content_and_a_huge_one_its_beginning(worker: Worker) -> None:
    worker.prepare()
    (worker.tree / "binary").write_bytes(b"\0\1\2")
    (worker.tree / "huge").write_text("0123456789abcde\n" * (6 * 65536))
    assert (worker.get("files/binary")["content"], worker.get("files/binary")["is_binary"]) == (None, True)
    huge = worker.get("files/huge")
    assert huge["content"].endswith("... the file was cut at 1048576 bytes\n")
    assert len(huge["content"]) < 1048576 + 100
    assert len(huge["diff"]) < 1048576 + 100


def test_a_name_that_is_no_utf_8_is_listed_and_found_as_it_is_listed(worker: Worker) -> None:
    worker.prepare()
    with open(os.fsencode(worker.tree) + b"/na\xffme", "w", encoding="utf-8") as file:
        file.write("odd\n")
    assert worker.listed("all") == [("na\\xffme", "added")]
    assert worker.get("files/na%5Cxffme")["content"] == "odd\n"
    assert "na\\xffme" in [entry["path"] for entry in worker.get("workspace")]
    worker.get("files/na%FFme", 404)


def test_no_link_leads_out_of_the_worktree(worker: Worker, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret.txt").write_text(OUTSIDE)
    worker.prepare()
    (worker.tree / "link").symlink_to(tmp_path / "outside" / "secret.txt")
    (worker.tree / "folder").symlink_to(tmp_path / "outside")
    (worker.tree / "up").symlink_to("..")
    shown = worker.get("files/link")
    assert shown["content"] == str(tmp_path / "outside" / "secret.txt")
    for path in ("folder/secret.txt", "up/outside/secret.txt"):
        worker.get(f"files/{path}", 404)
    everything = str([worker.get("workspace"), worker.get("files"), shown, worker.get("files/folder")])
    assert OUTSIDE not in everything
    assert "secret.txt" not in [entry["path"] for entry in worker.get("workspace")]


@pytest.mark.parametrize("below", ["files", "assembly/content"])
@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("..%2f..%2fsecret", 400),
        ("%2e%2e/secret", 400),
        ("a/%2e%2e%2fREADME", 400),
        ("%2fetc%2fpasswd", 404),
        (".git/config", 400),
        ("README%00", 400),
        ("%ff", 404),
        ("README/x", 404),
        ("x" * 5000, 400),
    ],
)
def test_no_path_leads_out_of_the_worktree(story: Any, tmp_path: Path, below: str, path: str, expected: int) -> None:
    worker = Worker(story, tmp_path).prepare()
    owner = worker.id if below == "files" else story.run_id
    response = story.client.get(f"/api/runs/{owner}/{below}/{path}", headers=story.api.settled())
    assert (response.status_code, response.headers["content-type"]) == (expected, "application/problem+json")


def test_the_assembled_tree_is_listed_and_its_files_are_sent_as_they_are(api: Any, story: Any) -> None:
    story.link_out = True
    story.to_gate()
    path = f"/api/runs/{story.run_id}/assembly"
    tree = story.client.get(f"{path}/workspace", headers=api.settled()).json()
    assert [(e["path"], e["is_folder"], e["status"]) for e in tree] == [
        ("README", False, "modified"),
        ("link", False, "added"),
        ("new folder", True, None),
        ("new folder/ä file.txt", False, "added"),
    ]
    content = story.client.get(f"{path}/content/new folder/ä file.txt")
    assert (content.content, content.headers["content-type"]) == (b"made\n", "application/octet-stream")
    assert content.headers["x-content-type-options"] == "nosniff"
    assert story.client.get(f"{path}/content/link").content == b"/etc/passwd"
    assert story.client.get(f"{path}/content/new folder").status_code == 404
    assert story.client.get(f"/api/runs/{story.child(1)}/assembly/workspace").json()["error"] == "use_coordinator"


def test_the_files_of_a_repository_that_is_gone_are_409(worker: Worker) -> None:
    worker.prepare()
    repository: Path = worker.story.repository
    repository.rename(repository.with_name("elsewhere"))
    for path in ("workspace", "files", "files/README"):
        assert worker.get(path, 409)["error"] == "workspace_unavailable"


def test_the_history_of_a_run_is_everything_on_its_feed_once_it_has_ended(api: Any, story: Any) -> None:
    made = story.to_gate()
    path = f"/api/runs/{story.run_id}"
    refused = story.client.get(f"{path}/history", headers=api.settled())
    assert (refused.status_code, refused.json()["error"]) == (404, "history_not_found")
    story.client.post(f"{path}/assembly/review", json={"approved": True}).raise_for_status()
    story.merge(made)
    history = story.client.get(f"{path}/history", headers=api.settled()).json()
    assert history == story.client.get(f"{path}/events?limit=1000").json()
    assert [event["sequence"] for event in history] == list(range(1, len(history) + 1))
    child = story.client.get(f"/api/runs/{story.child(1)}/history").json()
    assert {"agent.message.delta", "run.completed"} <= {event["type"] for event in child}


@pytest.mark.parametrize(
    "path", ["workspace", "files", "files/README", "assembly/workspace", "assembly/content/README", "history"]
)
def test_files_of_unknown_runs_are_404_of_malformed_ids_400_and_of_strangers_hidden_or_403(
    api: Any, story: Any, path: str
) -> None:
    story.start()
    stranger = api.client("mallory")
    assert stranger.get(f"/api/runs/{UNKNOWN}/{path}").json()["error"] == "run_not_found"
    assert stranger.get(f"/api/runs/nonsense/{path}").json()["error"] == "invalid_run_id"
    hidden = path.startswith("assembly")
    assert stranger.get(f"/api/runs/{story.run_id}/{path}").status_code == (404 if hidden else 403)
    assert api.anonymous().get(f"/api/runs/{story.run_id}/{path}").status_code == 401
