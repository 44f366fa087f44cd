"""Whatever is wrong with a repository, every route that looks at one says what it is and what to do, and none fails."""

import errno
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from steersman.application.ports.git import GitConflict, RepositoryUnusable
from steersman.http.request.given import Services

from .conftest import git, served

DIRECT = {"goal": "Sell more", "start_mode": "direct", "plan": {"subtasks": [{"title": "Build"}]}}
GARBAGE = b"\0\xffnot what it was\n"


def move_away(repository: Path) -> None:
    repository.rename(repository.with_name("elsewhere"))


def replace_git(repository: Path) -> None:
    shutil.rmtree(repository / ".git")
    (repository / ".git").write_bytes(GARBAGE)


def spoil_head(repository: Path) -> None:
    (repository / ".git" / "HEAD").write_bytes(GARBAGE)


def spoil_branch(repository: Path) -> None:
    (repository / ".git" / "refs" / "heads" / "main").write_bytes(GARBAGE)


def spoil_packed_refs(repository: Path) -> None:
    git(repository, "pack-refs", "--all")
    (repository / ".git" / "packed-refs").write_bytes(GARBAGE)


def spoil_index(repository: Path) -> None:
    (repository / ".git" / "index").write_bytes(GARBAGE)


def spoil_config(repository: Path) -> None:
    (repository / ".git" / "config").write_bytes(b"[core\n" + GARBAGE)


def replace_objects(repository: Path) -> None:
    shutil.rmtree(repository / ".git" / "objects")
    (repository / ".git" / "objects").write_bytes(GARBAGE)


def each_object(repository: Path, change: Callable[[Path], object]) -> None:
    for name in git(repository, "rev-list", "--objects", "--no-object-names", "--all").splitlines():
        path = repository / ".git" / "objects" / name[:2] / name[2:]
        path.chmod(0o600)
        change(path)


def delete_objects(repository: Path) -> None:
    each_object(repository, Path.unlink)


def delete_trees(repository: Path) -> None:
    for commit in ("main", "made"):
        name = git(repository, "rev-parse", f"{commit}^{{tree}}")
        (repository / ".git" / "objects" / name[:2] / name[2:]).unlink()


def spoil_objects(repository: Path) -> None:
    each_object(repository, lambda path: path.write_bytes(GARBAGE))


def cut_objects_short(repository: Path) -> None:
    each_object(repository, lambda path: path.write_bytes(path.read_bytes()[:9]))


def forbid_settings(repository: Path) -> None:
    (repository / ".steersman").mkdir(exist_ok=True)
    for name in ("settings.json", "settings.toml", "settings"):
        (repository / ".steersman" / name).mkdir()


WAYS = (
    move_away,
    replace_git,
    spoil_head,
    spoil_branch,
    spoil_packed_refs,
    spoil_index,
    spoil_config,
    replace_objects,
    delete_objects,
    delete_trees,
    spoil_objects,
    cut_objects_short,
    forbid_settings,
)
ERRORS = (
    OSError(errno.ENOSPC, "No space left on device", "/secret/place"),
    PermissionError(errno.EACCES, "Permission denied", "/secret/place"),
    OSError(errno.EROFS, "Read-only file system", "/secret/place"),
    OSError(errno.EIO, "Input/output error", "/secret/place"),
    RepositoryUnusable("object_missing", "an object that is needed is missing"),
    GitConflict("it has moved"),
    RecursionError("maximum recursion depth exceeded"),
    MemoryError(),
    KeyError(b"x"),
    AttributeError("nobody foresaw this"),
)


def calls(story: Any, url: str = "") -> Iterator[tuple[str, Callable[[], httpx.Response]]]:
    """Give every request that looks at a repository, what it is called, and how it is sent."""
    run, child, project = story.run_id, story.child(1), story.project_id
    api = f"{url}/api"
    for path in (
        f"runs/{run}",
        f"runs/{child}",
        f"runs/{run}/assembly/files",
        f"runs/{run}/assembly/files/README",
        f"runs/{run}/assembly/workspace",
        f"runs/{run}/assembly/content/README",
        f"runs/{run}/explain",
        f"runs/{child}/workspace",
        *(f"runs/{child}/files?filter={which}" for which in ("all", "committed", "uncommitted", "last-commit")),
        f"runs/{child}/files/README",
        f"projects/{project}",
        f"projects/{project}/workspace/refs",
        f"projects/{project}/workspace",
        f"projects/{project}/workspace/files/README",
        f"projects/{project}/diagnostics",
        f"sandbox-policy?repository_path={story.repository}",
    ):
        yield f"GET {path}", lambda path=path: story.client.get(f"{api}/{path}")
    policy = {
        "repository_path": str(story.repository),
        "shell_enabled": True,
        "allowed_repository_roots": [],
        "destructive_command_patterns": [],
        "require_approval_for_all_shell": False,
        "redact_pii": False,
        "max_output_bytes": 65_536,
    }
    yield "PUT sandbox-policy", lambda: story.client.put(f"{api}/sandbox-policy", json=policy)
    body = {"name": "Again", "origin": "blank", "working_directory": str(story.repository)}
    for path, sent in (
        ("projects", body),
        (f"projects/{project}/orchestrations", DIRECT),
        (f"runs/{run}/steer", {"kind": "redirect", "instruction": "Go left."}),
        (f"runs/{run}/steer", {"kind": "amend", "instruction": "Go left."}),
        (f"runs/{run}/request-changes", {"feedback": "Better."}),
        (f"runs/{run}/assembly/review", {"approved": False, "request_changes": True, "feedback": "Better."}),
        (f"runs/{run}/commit", {}),
        (f"runs/{run}/review", {"approved": True}),
        (f"runs/{run}/assembly/review", {"approved": True}),
    ):
        yield f"POST {path}", lambda path=path, sent=sent: story.client.post(f"{api}/{path}", json=sent)


def assert_told(what: str, response: httpx.Response) -> None:
    """Fail if the answer is neither one nor a problem that names itself."""
    where = f"{what}: {response.status_code} {response.text[:300]}"
    assert response.status_code < 500 or response.status_code == 503, where
    if response.status_code >= 400:
        problem = response.json()
        assert problem["error"] not in ("", "internal_error"), where
        assert len(problem["message"]) > 20, where
        if problem["error"] == "workspace_unavailable":
            assert problem["reason"], where
            assert problem["waits_for"] in ("operator", "release"), where
            assert "/secret/place" not in response.text, where


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_a_broken_repository_is_told_by_every_route_that_looks_at_it(
    way: Callable[[Path], None], story: Any, repository: Path
) -> None:
    story.to_gate()
    story.api.settled()
    way(repository)
    for what, send in calls(story):
        assert_told(what, send())


def test_a_repository_that_was_moved_back_is_worked_with_again(story: Any, repository: Path) -> None:
    story.to_gate()
    move_away(repository)
    problem = story.client.get(f"/api/runs/{story.run_id}/assembly/files", headers=story.api.settled()).json()
    assert (problem["error"], problem["reason"], problem["waits_for"]) == (
        "workspace_unavailable",
        "workspace_missing",
        "operator",
    )
    assert "Move it back" in problem["message"]
    repository.with_name("elsewhere").rename(repository)
    story.client.get(f"/api/runs/{story.run_id}/assembly/files").raise_for_status()


class Failing:
    """Repositories of which every look fails."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def __getattr__(self, name: str) -> Any:
        def fail(*_: Any, **__: Any) -> Any:
            raise self._error

        return fail


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: f"{type(error).__name__}-{getattr(error, 'errno', None)}")
def test_what_the_system_or_nobody_foresaw_says_is_told_by_its_kind(
    error: Exception, services: Services, story: Any
) -> None:
    story.to_gate()
    story.api.settled()
    with served(replace(services, repositories=Failing(error))) as url:
        told = [(what, send()) for what, send in calls(story, url)]
    for what, response in told:
        assert_told(what, response)
    codes = {r.json().get("reason") for _, r in told if r.status_code == 409 and "reason" in r.json()}
    assert len(codes) == 1
