"""What the port `Repositories` promises the use cases, asked of the adapter as they ask: one story, every step twice."""

import os
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import pytest

from steersman.adapters.git.repositories import GitRepositories, GitSettings
from steersman.adapters.processes.bubblewrap import find_box
from steersman.application.ports.git import Contribution, GitConflict, Repositories, RepositoryUnusable
from steersman.domain.git import Commit

AT = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)
T = TypeVar("T")
CONFLICTS = "refs/steersman/conflicts"


def git(root: Path, *args: str) -> str:
    """Run the real git, which must succeed."""
    return subprocess.run(["git", *args], cwd=root, capture_output=True, check=True, text=True).stdout.strip()


@pytest.fixture(autouse=True)
def _hermetic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("GIT_", "XDG_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    for role in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{role}_NAME", "A User")
        monkeypatch.setenv(f"GIT_{role}_EMAIL", "user@example.org")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A user's repository with one commit on main."""
    path = tmp_path / "project"
    path.mkdir()
    git(path, "init", "-q", "-b", "main", "--template=")
    (path / "shared.txt").write_text("".join(f"{n}\n" for n in range(9)))
    git(path, "add", "-A")
    git(path, "commit", "-q", "-m", "Began")
    return path


@pytest.fixture(params=["none", "bubblewrap"])
def repositories(tmp_path: Path, request: pytest.FixtureRequest) -> Repositories:
    """The adapter under the contract, in a box and without."""
    return GitRepositories(tmp_path / "scratch", find_box(request.param))


def twice(call: Callable[[], T]) -> T:
    """Make a call as after a lost answer: the second one must say the same."""
    answer = call()
    assert call() == answer
    return answer


def test_a_run_from_its_base_to_the_merge_every_step_taken_twice(
    repositories: Repositories, repository: Path, tmp_path: Path
) -> None:
    base = twice(lambda: repositories.inspect(repository)).tip
    assert twice(lambda: repositories.tip(repository, "main")) == base
    contributions: list[Contribution] = []
    for number, line in ((1, 0), (2, 8), (3, 0)):
        tree, branch = tmp_path / "places" / f"run{number}", f"steersman/run{number}"
        twice(lambda: repositories.make_workplace(repository, tree, base.commit))  # noqa: B023
        assert twice(lambda: repositories.look_at(repository, tree)) == "whole"  # noqa: B023
        lines = (tree / "shared.txt").read_text().splitlines()
        lines[line] = f"by child {number}"
        (tree / "shared.txt").write_text("\n".join(lines) + "\n")
        made = twice(lambda: repositories.commit_workplace(repository, tree, base.commit, AT, "Work"))  # noqa: B023
        twice(lambda: repositories.point_branch(repository, branch, None, made.commit))  # noqa: B023
        contributions.append(Contribution(subtask_id=number, branch=branch, commit=made.commit))

    assembled = twice(lambda: repositories.integrate(repository, "run", base.commit, contributions, AT, "Assemble"))
    assert [(conflict.branch, conflict.paths) for conflict in assembled.conflicts] == [
        ("steersman/run3", ("shared.txt",))
    ]
    assert git(repository, "for-each-ref", "--format=%(refname)", CONFLICTS) == assembled.conflicts[0].ref
    repositories.remove_conflicts(repository, "another")
    assert git(repository, "rev-parse", "--verify", assembled.conflicts[0].ref)
    twice(lambda: repositories.remove_conflicts(repository, "run"))
    assert git(repository, "for-each-ref", CONFLICTS) == ""
    twice(lambda: repositories.point_branch(repository, "steersman/integration/run", None, assembled.commit))
    [changed] = twice(lambda: repositories.changed_files(repository, base.commit, assembled.commit))
    assert (changed.path, changed.status) == ("shared.txt", "modified")
    view = twice(lambda: repositories.file(repository, base.commit, assembled.commit, "shared.txt"))
    assert view is not None
    assert view.diff == repositories.diff(repository, base.commit, assembled.commit, 1_000_000)

    approved = repositories.tip(repository, "steersman/integration/run")
    assert (approved.commit, approved.tree) == (assembled.commit, assembled.tree)
    assert repositories.obstacle(repository, "main") is None
    prepared = twice(lambda: repositories.prepare_merge(repository, "run", "main", approved, AT, "Merge"))
    assert prepared.old == base.commit
    assert prepared.commit
    new = prepared.commit
    assert twice(lambda: repositories.merge(repository, "main", base.commit, new)).state == "merged"
    assert git(repository, "status", "--porcelain") == ""
    assert (repository / "shared.txt").read_text().splitlines()[0] == "by child 3"

    for number in (1, 2, 3):
        place, branch = tmp_path / f"places/run{number}", f"steersman/run{number}"
        twice(lambda: repositories.remove_workplace(repository, place, branch))  # noqa: B023
    twice(lambda: repositories.remove_workplace(repository, tmp_path / "places/none", "steersman/integration/run"))
    assert git(repository, "branch", "--format=%(refname:short)") == "main"
    repositories.remove_merged(repository, "another")
    assert git(repository, "for-each-ref", "refs/steersman/merged")
    twice(lambda: repositories.remove_merged(repository, "run"))
    assert git(repository, "for-each-ref", "refs/steersman") == ""
    assert git(repository, "worktree", "list", "--porcelain").count("worktree ") == 1
    git(repository, "fsck", "--strict")
    assert not list(repository.rglob("*.lock"))


def test_one_adapter_serves_many_threads(repositories: Repositories, repository: Path, tmp_path: Path) -> None:
    base = repositories.inspect(repository).tip.commit

    def work(number: int) -> str:
        tree = tmp_path / f"t{number}"
        repositories.make_workplace(repository, tree, base)
        (tree / f"{number}").write_text("x\n")
        return repositories.commit_workplace(repository, tree, base, AT, "Work").commit

    with ThreadPoolExecutor(8) as threads:
        made = list(threads.map(work, range(16)))

    contributions = [Contribution(subtask_id=n, branch=f"steersman/t{n}", commit=c) for n, c in enumerate(made)]
    assembled = repositories.integrate(repository, "run", base, contributions, AT, "Assemble")
    assert len(repositories.changed_files(repository, base, assembled.commit)) == 16
    assert assembled.conflicts == ()


def code_of(repositories: Repositories, path: Path) -> str:
    with pytest.raises(RepositoryUnusable) as refused:
        repositories.inspect(path)
    return refused.value.code


def test_a_directory_that_cannot_serve_says_why(repositories: Repositories, repository: Path, tmp_path: Path) -> None:
    assert code_of(repositories, tmp_path / "nowhere") == "workspace_missing"
    (tmp_path / "file").touch()
    assert code_of(repositories, tmp_path / "file") == "workspace_missing"
    (tmp_path / "plain").mkdir()
    assert code_of(repositories, tmp_path / "plain") == "not_a_repository"
    for number, gitfile in enumerate(["gitdir: /nowhere/x\n", "no git file\n", ""]):
        (tmp_path / f"broken{number}").mkdir()
        (tmp_path / f"broken{number}/.git").write_text(gitfile)
        assert code_of(repositories, tmp_path / f"broken{number}") == "not_a_repository"
    (repository / "inside").mkdir()
    assert code_of(repositories, repository / "inside") == "not_a_repository"
    git(tmp_path, "clone", "-q", "--bare", str(repository), "bare")
    assert code_of(repositories, tmp_path / "bare") == "bare_repository"
    git(tmp_path, "init", "-q", "empty")
    assert code_of(repositories, tmp_path / "empty") == "no_commit"
    git(repository, "checkout", "-q", "--orphan", "new")
    assert code_of(repositories, repository) == "unborn_branch"
    git(repository, "checkout", "-q", "--detach", "main")
    assert code_of(repositories, repository) == "detached_head"
    git(tmp_path, "init", "-q", "--object-format=sha256", "other")
    assert code_of(repositories, tmp_path / "other") == "unsupported_repository"
    git(repository, "config", "core.repositoryformatversion", "1")
    git(repository, "config", "extensions.partialClone", "origin")
    assert code_of(repositories, repository) == "partial_clone"


def test_a_link_to_a_repository_is_resolved(repositories: Repositories, repository: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(repository)
    state = repositories.inspect(tmp_path / "link")
    assert (state.path, state.branch, state.tip.commit) == (repository, "main", git(repository, "rev-parse", "main"))
    assert state.tip.tree == git(repository, "rev-parse", "main^{tree}")


def test_a_branch_that_is_not_there_has_no_tip(repositories: Repositories, repository: Path, tmp_path: Path) -> None:
    with pytest.raises(RepositoryUnusable) as refused:
        repositories.tip(repository, "gone")
    assert refused.value.code == "no_commit"
    with pytest.raises(RepositoryUnusable) as refused:
        repositories.tip(tmp_path / "nowhere", "main")
    assert refused.value.code == "workspace_missing"


def test_hooks_and_garbage_collection_do_not_run(repositories: Repositories, repository: Path, tmp_path: Path) -> None:
    hooks = repository / ".git/hooks"
    hooks.mkdir()
    for name in ("pre-commit", "post-commit", "commit-msg", "post-checkout", "reference-transaction", "post-merge"):
        (hooks / name).write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
        (hooks / name).chmod(0o755)
    git(repository, "config", "gc.auto", "1")
    base = repositories.inspect(repository).tip.commit
    repositories.make_workplace(repository, tmp_path / "w", base)
    (tmp_path / "w/new").write_text("x\n")
    made = repositories.commit_workplace(repository, tmp_path / "w", base, AT, "Work")
    repositories.merge(repository, "main", base, made.commit)
    assert not (tmp_path / "ran").exists()
    assert not list((repository / ".git/objects/pack").glob("*.pack"))


def test_a_conflict_moves_nothing(repositories: Repositories, repository: Path) -> None:
    base = repositories.inspect(repository).tip.commit
    with pytest.raises(GitConflict):
        repositories.point_branch(repository, "main", "0" * 39 + "1", base[::-1])
    assert git(repository, "rev-parse", "main") == base


def test_what_was_approved_is_sealed_in_a_commit_of_the_same_tree_that_no_branch_moves_for(
    repositories: Repositories, repository: Path, tmp_path: Path
) -> None:
    base, place = repositories.inspect(repository).tip, tmp_path / "places" / "run"
    repositories.make_workplace(repository, place, base.commit)
    (place / "new.txt").write_text("new\n")
    approved = repositories.commit_workplace(repository, place, base.commit, AT, "Work")
    sealed = twice(lambda: repositories.seal(repository, "run", base.commit, approved, AT, "Merge\n\nApproved-by: al"))
    assert git(repository, "rev-parse", f"{sealed}^{{tree}}") == approved.tree
    assert git(repository, "rev-parse", f"{sealed}^@").split() == [base.commit, approved.commit]
    assert git(repository, "log", "-1", "--format=%(trailers:key=Approved-by,valueonly)", sealed).strip() == "al"
    assert repositories.tip(repository, "main") == base
    assert git(repository, "for-each-ref", "--format=%(objectname)", "refs/steersman/merged/run") == sealed
    twice(lambda: repositories.point_branch(repository, "feature/new", None, sealed))
    with pytest.raises(GitConflict):
        repositories.point_branch(repository, "feature/new", None, base.commit)
    repositories.remove_merged(repository, "run")
    assert git(repository, "rev-parse", "feature/new") == sealed


def test_every_commit_has_the_author_that_the_installation_names(repository: Path, tmp_path: Path) -> None:
    settings = GitSettings(author=b"Ada L. <ada@example.org>")
    named = GitRepositories(tmp_path / "scratch", settings=settings)
    base, made = named.inspect(repository).tip, list[Contribution]()
    for number in (1, 2):
        place = tmp_path / "places" / f"run{number}"
        named.make_workplace(repository, place, base.commit)
        (place / f"{number}.txt").write_text("new\n")
        commit = named.commit_workplace(repository, place, base.commit, AT, "Work")
        made.append(Contribution(subtask_id=number, branch=f"steersman/run{number}", commit=commit.commit))
    assembled = named.integrate(repository, "run", base.commit, made, AT, "Assemble")
    whole = Commit(commit=assembled.commit, tree=assembled.tree)
    sealed = named.seal(repository, "run", base.commit, whole, AT, "Merge")
    for commit in (made[0].commit, assembled.commit, sealed):
        assert git(repository, "log", "-1", "--format=%an <%ae>|%cn <%ce>", commit) == (
            "Ada L. <ada@example.org>|Ada L. <ada@example.org>"
        )
