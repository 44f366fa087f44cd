"""Submodules stay what they are in a commit, and repositories that an agent made below become files."""

import os

import pytest

from steersman.adapters.git.repositories import GitRepositories, GitSettings
from steersman.adapters.git.staging import CommitLimits
from steersman.application.ports.git import CommitFailed

from .conftest import AT, Scratch
from .test_git_commits import as_git_would, commit


def test_a_submodule_stays_at_its_commit(scratch: Scratch) -> None:
    library = scratch.home / "library"
    scratch.git("clone", "-q", str(scratch.path), str(library))
    scratch.git("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(library), "lib")
    scratch.commit({})
    path = scratch.workplace()
    assert (path / "lib").is_dir()
    scratch.git("clone", "-q", str(library), "lib", cwd=path)
    scratch.commit({"x": "x\n"}, path / "lib")
    scratch.write({"README": "two\n"}, path)

    made = commit(scratch, path)

    assert scratch.git("diff", "--name-only", "main", made.commit) == "README\n"
    assert scratch.rev(f"{made.commit}:lib") == scratch.rev("main:lib")
    assert scratch.is_sound()


def test_a_submodule_that_the_agent_adds_is_one(scratch: Scratch) -> None:
    library = scratch.home / "library"
    scratch.git("clone", "-q", str(scratch.path), str(library))
    path = scratch.workplace()
    scratch.git("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(library), "lib", cwd=path)
    wanted = as_git_would(scratch, path)

    made = commit(scratch, path)

    assert made.tree == wanted
    assert scratch.git("ls-tree", made.commit, "lib").split()[:2] == ["160000", "commit"]


def test_a_submodule_that_was_recorded_and_not_registered_stays_at_its_commit(scratch: Scratch) -> None:
    scratch.git("update-index", "--add", "--cacheinfo", f"160000,{'c' * 40},lib")
    scratch.git("commit", "-q", "-m", "x")
    path = scratch.workplace()
    scratch.git("clone", "-q", str(scratch.path), "lib", cwd=path)
    scratch.write({"README": "two\n"}, path)

    made = commit(scratch, path)

    assert scratch.git("diff", "--name-only", "main", made.commit) == "README\n"
    assert scratch.rev(f"{made.commit}:lib") == "c" * 40


def test_the_files_of_a_submodule_that_is_only_taken_out_of_the_index_are_none_of_the_commit(scratch: Scratch) -> None:
    scratch.git("update-index", "--add", "--cacheinfo", f"160000,{'c' * 40},lib")
    scratch.git("commit", "-q", "-m", "x")
    path = scratch.workplace()
    scratch.git("clone", "-q", str(scratch.path), "lib", cwd=path)
    scratch.write({"README": "two\n", "lib/large": "x" * 5_000}, path)
    scratch.git("rm", "-q", "--cached", "lib", cwd=path)
    git = GitRepositories(scratch.home / "scratch", settings=GitSettings(limits=CommitLimits(file_bytes=1_000)))

    made = git.commit_workplace(scratch.path, path, scratch.rev("main"), AT, "x")

    assert scratch.git("diff", "--name-only", "main", made.commit) == "README\n"


@pytest.mark.parametrize("by_agent", ["nothing", "staged", "committed"])
@pytest.mark.parametrize("kind", ["repository", "worktree", "bare"])
def test_the_files_of_a_repository_that_the_agent_made_are_committed(
    scratch: Scratch, kind: str, by_agent: str
) -> None:
    path = scratch.workplace()
    app = path / "apps/web"
    match kind:
        case "repository":
            scratch.write({"new/work": "work\n"}, app)
            scratch.git("init", "-q", cwd=app)
            scratch.commit({".gitignore": "*.log\n"}, app)
        case "worktree":
            scratch.git("worktree", "add", "-q", "-b", "agents", str(app), cwd=path)
            scratch.commit({"new/work": "work\n", ".gitignore": "*.log\n"}, app)
        case _:
            scratch.git("init", "-q", "--bare", str(app))
            scratch.write({"new/work": "work\n"}, app)
    scratch.write({"later": "not even there\n", "debug.log": "ignored\n"}, app)
    if by_agent != "nothing":
        scratch.git("add", "-A", cwd=path)
    if by_agent == "committed":
        scratch.git("commit", "-q", "-m", "x", cwd=path)
    shown = {changed.path for changed in scratch.repositories.changed_files(scratch.path, scratch.rev("main"), path)}

    made = [commit(scratch, path) for _ in range(2)]

    assert made[0] == made[1]
    listed = set(scratch.git("ls-tree", "-r", "--name-only", made[0].commit).split())
    assert {"apps/web/new/work", "apps/web/later"} <= listed
    assert not any("/.git/" in name or name.endswith("/.git") for name in listed)
    assert kind == "bare" or "apps/web/debug.log" not in listed
    assert shown == listed - set(scratch.git("ls-tree", "-r", "--name-only", "main").split())
    assert scratch.repositories.fingerprint(scratch.path, path).tree_hash == made[0].tree
    scratch.write({"later": "a later turn\n"}, app)
    again = commit(scratch, path, made[0].commit)
    assert scratch.git("diff", "--name-only", made[0].commit, again.commit) == "apps/web/later\n"
    assert scratch.is_sound()


@pytest.mark.parametrize("content", ["[submodule", "\0\xff"])
def test_a_list_of_submodules_that_cannot_be_understood_registers_none(scratch: Scratch, content: str) -> None:
    path = scratch.workplace()
    scratch.git("init", "-q", "apps", cwd=path)
    scratch.commit({"work": "work\n"}, path / "apps")
    scratch.git("add", "apps", cwd=path)
    scratch.write({".gitmodules": content}, path)

    made = commit(scratch, path)

    assert scratch.git("show", f"{made.commit}:apps/work") == "work\n"


@pytest.mark.parametrize("name", ["HEAD", "config"])
def test_a_pipe_in_a_repository_below_is_named_or_waited_for_by_nobody(scratch: Scratch, name: str) -> None:
    scratch.repositories = GitRepositories(scratch.home / "impatient", settings=GitSettings(box_seconds=60.0))
    path = scratch.workplace()
    scratch.git("init", "-q", "inner", cwd=path)
    scratch.commit({"x": "x\n"}, path / "inner")
    (path / "inner/.git" / name).unlink()
    os.mkfifo(path / "inner/.git" / name)
    if name == "config":
        assert scratch.git("ls-tree", "-r", "--name-only", commit(scratch, path).commit, "inner") == "inner/x\n"
        return

    with pytest.raises(CommitFailed, match=r"'inner/\.git/HEAD' is a pipe"):
        commit(scratch, path)


def test_what_is_written_in_a_submodule_that_was_never_fetched_is_named_and_not_lost(scratch: Scratch) -> None:
    scratch.git("update-index", "--add", "--cacheinfo", f"160000,{'c' * 40},lib")
    scratch.git("commit", "-q", "-m", "x")
    path = scratch.workplace()
    scratch.write({"lib/x": "x\n", "README": "two\n"}, path)

    with pytest.raises(CommitFailed, match="lib/x"):
        commit(scratch, path)

    (path / "lib/x").unlink()
    made = commit(scratch, path)
    assert scratch.git("diff", "--name-only", "main", made.commit) == "README\n"
    assert scratch.rev(f"{made.commit}:lib") == "c" * 40
